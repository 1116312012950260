"""The failure notes that workers leave in Redis, read for a whole batch in one round trip."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import redis
import structlog
from redis.backoff import NoBackoff
from redis.retry import Retry

from broker_topology.errors import ConfigurationError, MalformedNoteError
from broker_topology.notes import FailureNote, failure_note_key
from consumers.inserting import Arrival
from consumers.letters import Letter

log = structlog.get_logger()

TIMEOUT_SECONDS = 1.0
"""A note is worth less than a letter: Redis may not hold up the drain."""
PAUSE_SECONDS = 5.0
"""After a failure Redis is not asked for that long."""


class FailureNotes:
    """Reads notes while Redis answers, and says where they would be while it does not."""

    def __init__(self, url: str | None, *, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._ask_again_at = 0.0
        self._client: redis.Redis | None = None
        if url:
            try:
                self._client = redis.Redis.from_url(
                    url.split(",")[0],
                    socket_timeout=TIMEOUT_SECONDS,
                    socket_connect_timeout=TIMEOUT_SECONDS,
                    retry=Retry(NoBackoff(), 0),
                )
            except ValueError as error:
                raise ConfigurationError("REDIS_URL is not a Redis address such as redis://host:6379/0") from error

    @property
    def configured(self) -> bool:
        """Whether there is a Redis to ask at all."""
        return self._client is not None

    @property
    def answers(self) -> bool:
        """Whether Redis answered when it was last asked."""
        return self._ask_again_at == 0.0

    def beside(self, letters: Sequence[Letter]) -> list[Arrival]:
        """Each letter and its note, or where the note would be."""
        keys = [self._key(letter) for letter in letters]
        notes = self.read([key for key in keys if key is not None])
        arrivals = []
        for letter, key in zip(letters, keys, strict=True):
            if key is None:
                arrivals.append(Arrival(letter=letter))
            elif notes is None:
                arrivals.append(Arrival(letter=letter, note_key=key))
            else:
                arrivals.append(Arrival(letter=letter, note=notes.get(key)))
        return arrivals

    def read(self, keys: Sequence[str]) -> dict[str, FailureNote] | None:
        """The notes that exist under these keys; None while Redis does not answer."""
        if self._client is None or not keys:
            return {}
        if self._monotonic() < self._ask_again_at:
            return None
        try:
            values = self._client.mget(keys)
        except (redis.RedisError, OSError) as error:
            if self.answers:
                log.warning("redis.away", problem=type(error).__name__)
            self._ask_again_at = self._monotonic() + PAUSE_SECONDS
            return None
        self._ask_again_at = 0.0
        return {key: note for key, value in zip(keys, values, strict=True) if (note := _note(value))}

    def _key(self, letter: Letter) -> str | None:
        if self._client is None or not letter.note_task_id:
            return None
        key = failure_note_key(letter.note_task_id, letter.retries, letter.replay_key)
        return key.encode("utf-8", "backslashreplace").decode()

    def close(self) -> None:
        """Give the connection back."""
        if self._client is not None:
            self._client.close()


def _note(value: bytes | str | None) -> FailureNote | None:
    if value is None:
        return None
    try:
        return FailureNote.from_json(value)
    except MalformedNoteError as error:
        log.warning("failure_note.malformed", problem=str(error))
        return None
