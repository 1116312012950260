"""What became of earlier attempts, as a message carries it from one attempt to the next (pure).

The header's value is a JSON text: AMQP tables have no stable form across clients. It stays small, because the
headers of a message have to fit into one frame of the broker, and a retry must not fail for its history.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from broker_topology.notes import cut
from tasks.failure_text import storable

MAX_ATTEMPTS = 20
"""How many attempts are kept: the newest."""

MAX_HISTORY_BYTES = 20_000
"""Leaves room for Celery's own headers in 32 kB."""

MAX_TEXT_LENGTH = 500
MAX_NAME_LENGTH = 150


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptRecord:
    """One attempt that failed."""

    failed_at: datetime
    """Aware UTC."""
    runtime_seconds: float
    hostname: str
    """Node name of the worker."""
    error_type: str
    """With its module, such as ``builtins.ValueError``."""
    error_text: str


def append_attempt(history: object, record: AttemptRecord) -> str:
    """The header's value after one more attempt; a malformed ``history`` counts as none."""
    entries = [*read_attempts(history), record][-MAX_ATTEMPTS:]
    length = MAX_TEXT_LENGTH
    while True:
        text = json.dumps([_entry(entry, length) for entry in entries], separators=(",", ":"))
        if len(text) <= MAX_HISTORY_BYTES:
            return text
        length //= 2


def read_attempts(history: object) -> list[AttemptRecord]:
    """The attempts in a header's value, oldest first; what is malformed is left out."""
    if not isinstance(history, str | bytes) or len(history) > 10 * MAX_HISTORY_BYTES:
        return []
    try:
        entries = json.loads(history)
    except (ValueError, RecursionError):
        return []
    found = (_record(entry) for entry in entries) if isinstance(entries, list) else ()
    return [record for record in found if record is not None]


def _entry(record: AttemptRecord, length: int) -> dict[str, Any]:
    seconds = record.runtime_seconds
    return {
        "failed_at": record.failed_at.astimezone(UTC).isoformat(timespec="milliseconds"),
        "runtime_seconds": round(seconds, 3) if math.isfinite(seconds) else 0.0,
        "hostname": _cut(record.hostname, min(length, MAX_NAME_LENGTH)),
        "error_type": _cut(record.error_type, min(length, MAX_NAME_LENGTH)),
        "error_text": _cut(record.error_text, length),
    }


def _cut(text: str, length: int) -> str:
    return storable(cut(text, length)) if length > 10 else ""


def _record(entry: object) -> AttemptRecord | None:
    if not isinstance(entry, Mapping):
        return None
    try:
        return AttemptRecord(
            failed_at=datetime.fromisoformat(entry["failed_at"]).astimezone(UTC),
            runtime_seconds=float(entry["runtime_seconds"]),
            hostname=str(entry["hostname"]),
            error_type=str(entry["error_type"]),
            error_text=str(entry["error_text"]),
        )
    except (KeyError, ValueError, TypeError, OverflowError):
        return None
