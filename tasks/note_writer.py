"""The edge that writes notes into Redis. A note that cannot be written never changes what becomes of a message."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import redis
import structlog

from broker_topology.message import REPLAY_ID_HEADER
from broker_topology.notes import (
    NOTE_TTL_SECONDS,
    OUTCOME_LIST_KEY,
    FailureNote,
    OutcomeNote,
    failure_note_key,
    outcome_note_key,
)

log = structlog.get_logger(__name__)


class NoteWriter:
    """Writes failure notes and outcome notes through one Redis client."""

    def __init__(self, client: redis.Redis) -> None:
        self._client = client

    def failure(self, headers: Mapping[str, Any], note: FailureNote, *, only_if_missing: bool = False) -> None:
        """Leave word of why the message with these headers is about to be rejected."""
        task_id = headers.get("id")
        if not isinstance(task_id, str):
            return
        replay_id = headers.get(REPLAY_ID_HEADER)
        key = failure_note_key(task_id, note.retries, replay_id if isinstance(replay_id, str) else None)
        try:
            self._client.set(key, note.to_json(), ex=NOTE_TTL_SECONDS, nx=only_if_missing)
        except (redis.RedisError, ValueError) as error:
            log.warning("failure_note.lost", task_id=task_id, reason=note.reason, error=type(error).__name__)

    def outcome(self, note: OutcomeNote) -> None:
        """Leave word that a replayed message succeeded."""
        try:
            pipeline = self._client.pipeline()
            pipeline.set(outcome_note_key(note.replay_id), note.to_json(), ex=NOTE_TTL_SECONDS)
            pipeline.rpush(OUTCOME_LIST_KEY, note.replay_id)
            pipeline.execute()
        except redis.RedisError as error:
            log.warning("outcome_note.lost", replay_id=note.replay_id, error=type(error).__name__)
