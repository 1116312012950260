"""What one attempt leaves behind for whoever looks at it later: its history, a failure note, an outcome note."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from celery.app.task import Context
from celery.exceptions import Reject, SoftTimeLimitExceeded

from broker_topology.message import ATTEMPT_HISTORY_HEADER, REPLAY_ID_HEADER
from broker_topology.notes import FailureNote, OutcomeNote
from tasks.attempt_history import AttemptRecord, append_attempt
from tasks.errors import InDoubtError, PayloadMismatchError
from tasks.failure_text import describe_error, short_traceback
from tasks.reliability import Reliability

REASONS_OF_ERRORS: tuple[tuple[type[BaseException], str], ...] = (
    (InDoubtError, "in_doubt"),
    (PayloadMismatchError, "payload_mismatch"),
    (SoftTimeLimitExceeded, "soft_time_limit"),
    (MemoryError, "out_of_memory"),
    (Reject, "rejected"),
)
"""What a failure note calls these; any other is called by the policy's reason."""


def history_with(request: Context, error: BaseException | None) -> str:
    """The header with the attempts so far and this one, which failed with ``error``."""
    error_type, text = describe_error(error) if error is not None else ("", "")
    record = AttemptRecord(
        failed_at=datetime.now(UTC),
        runtime_seconds=time.monotonic() - request.began_at,
        hostname=request.hostname,
        error_type=error_type,
        error_text=text,
    )
    return append_attempt(request.get(ATTEMPT_HISTORY_HEADER), record)


def note_failure(reliability: Reliability, request: Context, error: BaseException, reason: str) -> None:
    """Say why before the message is rejected: a bare reject carries no word of the error. The first word stands."""
    if request.get("failure_is_noted"):
        return
    request.failure_is_noted = True
    error_type, text = describe_error(error)
    note = FailureNote(
        reason=next((word for kind, word in REASONS_OF_ERRORS if isinstance(error, kind)), str(reason)),
        error_type=error_type,
        error_message=text,
        traceback=short_traceback(error),
        failed_at=datetime.now(UTC),
        retries=request.retries,
        hostname=request.hostname,
        pid=os.getpid(),
        runtime_seconds=time.monotonic() - request.began_at,
        release=reliability.release,
        fingerprint=getattr(error, "fingerprint", None),
    )
    reliability.notes.failure({**(request.headers or {}), "id": request.id}, note)


def workers_note(
    headers: Mapping[str, Any],
    reason: str,
    error: BaseException,
    hostname: str,
    *,
    release: str | None = None,
) -> FailureNote:
    """What the worker's main process says of a message that no run of its own speaks for."""
    error_type, text = describe_error(error)
    retries = headers.get("retries")
    return FailureNote(
        reason=reason,
        error_type=error_type,
        error_message=text,
        failed_at=datetime.now(UTC),
        retries=retries if isinstance(retries, int) else 0,
        hostname=hostname,
        pid=os.getpid(),
        release=release,
    )


def note_outcome(reliability: Reliability, request: Context) -> None:
    """Say that a replayed message has succeeded."""
    replay_id = request.get(REPLAY_ID_HEADER)
    if isinstance(replay_id, str):
        note = OutcomeNote(
            replay_id=replay_id, task_id=request.id, succeeded_at=datetime.now(UTC), hostname=request.hostname
        )
        reliability.notes.outcome(note)
