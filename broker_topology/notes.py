"""What a worker leaves beside a message: failure notes and outcome notes.

A rejected message carries no word of what went wrong, so the worker writes a note into Redis before it
rejects, and the drain reads it. Notes are JSON objects with a version, so that a drain can read what an
older or newer worker wrote: unknown fields are ignored.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, fields
from datetime import UTC, datetime
from typing import TypeVar

from broker_topology.errors import MalformedNoteError

N = TypeVar("N", "FailureNote", "OutcomeNote")

NOTE_VERSION = 1

NOTE_TTL_SECONDS = 7 * 24 * 3600
"""How long a note waits for a drain that is down."""

MAX_MESSAGE_LENGTH = 8_000
MAX_TRACEBACK_LENGTH = 32_000


def failure_note_key(task_id: str, retries: int, replay_id: str | None = None) -> str:
    """The Redis key of the note on one attempt of one task."""
    key = f"dead-letter-office:failure:{task_id}:{retries}:{replay_id or ''}"
    # An id may be any text, lone surrogates included, which Redis does not take.
    return key.encode("utf-8", "backslashreplace").decode()


def outcome_note_key(replay_id: str) -> str:
    """The Redis key of the note on how one replayed message ended."""
    return f"dead-letter-office:outcome:{replay_id}"


OUTCOME_LIST_KEY = "dead-letter-office:outcomes"
"""A Redis list of the replay ids whose outcome note was written, oldest first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureNote:
    """Why one attempt of a task ended in the dead-letter queue."""

    reason: str
    """A word for the road: ``failed``, ``retries_exhausted``, ``time_limit``, ``worker_lost``, ``in_doubt``,
    ``payload_mismatch``, ``invalid_message``, ``unknown_task``, ``undecodable``, ``expired``, ``revoked``,
    ``rejected`` ..."""
    error_type: str
    """Exception type with its module, such as ``builtins.ValueError``."""
    error_message: str
    failed_at: datetime
    """Aware UTC."""
    traceback: str = ""
    retries: int = 0
    hostname: str = ""
    pid: int = 0
    runtime_seconds: float | None = None
    release: str | None = None
    claim_state: str | None = None
    fingerprint: str | None = None
    """The task's own name for this kind of failure, where it has one."""

    def to_json(self) -> str:
        """The note as stored, long texts cut."""
        values = asdict(self) | {
            "version": NOTE_VERSION,
            "failed_at": self.failed_at.isoformat(),
            "error_message": cut(self.error_message, MAX_MESSAGE_LENGTH),
            "traceback": cut(self.traceback, MAX_TRACEBACK_LENGTH),
        }
        return json.dumps(values)

    @classmethod
    def from_json(cls, text: str | bytes) -> FailureNote:
        """Read a stored note. Raises MalformedNoteError."""
        return _read_note(cls, text, "failed_at")


@dataclass(frozen=True, slots=True, kw_only=True)
class OutcomeNote:
    """How a replayed message ended in a worker, where it succeeded."""

    replay_id: str
    task_id: str
    succeeded_at: datetime
    """Aware UTC."""
    hostname: str = ""
    result_bytes: int | None = None
    """Size of the result as JSON."""

    def to_json(self) -> str:
        """The note as stored."""
        return json.dumps(asdict(self) | {"version": NOTE_VERSION, "succeeded_at": self.succeeded_at.isoformat()})

    @classmethod
    def from_json(cls, text: str | bytes) -> OutcomeNote:
        """Read a stored note. Raises MalformedNoteError."""
        return _read_note(cls, text, "succeeded_at")


def cut(text: str, length: int) -> str:
    """Shorten a text from its middle: both where it began and how it ended stay readable."""
    if len(text) <= length:
        return text
    half = (length - 5) // 2
    return f"{text[:half]} ... {text[-half:]}"


def _read_note(kind: type[N], text: str | bytes, time_field: str) -> N:
    try:
        values = json.loads(text)
        values[time_field] = datetime.fromisoformat(values[time_field]).astimezone(UTC)
        known = {slot.name: values[slot.name] for slot in fields(kind) if slot.name in values}
        for slot in fields(kind):
            if slot.type == "str" and not isinstance(known.get(slot.name, ""), str):
                raise MalformedNoteError(f"a note is malformed: {slot.name} is not a text")
        return kind(**known)
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError) as error:
        raise MalformedNoteError(f"a note is malformed: {error}") from error
