"""How replays end: outcome notes from Redis into the letters that they settle."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any

import redis
import sqlalchemy as sa
import structlog
from redis.backoff import NoBackoff
from redis.retry import Retry

from broker_topology.errors import ConfigurationError, MalformedNoteError
from broker_topology.notes import OUTCOME_LIST_KEY, OutcomeNote, outcome_note_key
from consumers.database import transaction
from consumers.replay_endings import settle_succeeded

log = structlog.get_logger()

BATCH = 500
TIMEOUT_SECONDS = 1.0


class Outcomes:
    """Reads what workers say of replayed messages that succeeded. Several readers may run side by side."""

    def __init__(self, url: str | None, engine: sa.Engine, *, clock: Callable[[], datetime]) -> None:
        self._engine, self._clock = engine, clock
        self._client: redis.Redis | None = None
        if url:
            try:
                self._client = redis.Redis.from_url(
                    url.split(",")[0],
                    socket_timeout=TIMEOUT_SECONDS,
                    socket_connect_timeout=TIMEOUT_SECONDS,
                    retry=Retry(NoBackoff(), 0),
                    decode_responses=True,
                )
            except ValueError as error:
                raise ConfigurationError("REDIS_URL is not a Redis address") from error

    @property
    def followed(self) -> bool:
        """Whether outcomes can be known at all."""
        return self._client is not None

    def collect(self) -> int:
        """Settle the letters whose replay succeeded; returns how many. Redis away means none for now.

        An entry leaves the list after the commit: a crash in between settles a settled letter once more.
        Raises DatabaseUnavailableError.
        """
        if self._client is None:
            return 0
        settled = 0
        try:
            while keys := self._entries():
                notes = self._notes(keys)
                with transaction(self._engine) as connection:
                    settled += settle_succeeded(connection, notes, now=self._clock())
                with self._client.pipeline(transaction=False) as pipeline:
                    for key in keys:
                        pipeline.lrem(OUTCOME_LIST_KEY, 1, key)
                    pipeline.execute()
        except (redis.RedisError, OSError) as error:
            log.warning("redis.away", problem=type(error).__name__)
        if settled:
            log.info("replays.succeeded", letters=settled)
        return settled

    def close(self) -> None:
        """Give the connection back."""
        if self._client is not None:
            self._client.close()

    def _entries(self) -> list[str]:
        assert self._client is not None  # noqa: S101, asked by collect alone
        entries: Any = self._client.lrange(OUTCOME_LIST_KEY, 0, BATCH - 1)
        return list(dict.fromkeys(entries))

    def _notes(self, keys: list[str]) -> dict[str, OutcomeNote]:
        assert self._client is not None  # noqa: S101, asked by collect alone
        values: Any = self._client.mget([outcome_note_key(key) for key in keys])
        notes = {}
        for key, value in zip(keys, values, strict=True):
            if value is None:
                continue
            try:
                notes[key] = OutcomeNote.from_json(value)
            except MalformedNoteError as error:
                log.warning("outcome_note.malformed", problem=str(error))
        return notes
