"""A model of one claim: the same decisions as the Lua scripts, in Python, with guards that can be removed.

``test_claim_model.py`` searches it exhaustively; ``test_claim_machine.py`` holds real Redis against it. Times
are reduced to what decides: whether the lease has lapsed. Named tuples, because a search hashes them by the
million.
"""

from __future__ import annotations

from typing import Any, NamedTuple


class Record(NamedTuple):
    """What Redis keeps of one key."""

    state: str
    token: Any
    payload: str
    fence: int
    attempt: int
    lapsed: bool = False
    result: Any = None
    steps: tuple[tuple[str, Any], ...] = ()


Answer = tuple[Any, ...]
ALL_GUARDS: frozenset[str] = frozenset()


def begin(  # noqa: PLR0911, one return an answer
    record: Record | None,
    *,
    token: Any,
    payload: str,
    clock: int,
    park: bool = False,
    may_be_forgotten: bool = False,
    permitted_attempt: int | None = None,
    without: frozenset[str] = ALL_GUARDS,
) -> tuple[Answer, Record | None]:
    """What begin.lua answers and leaves behind. ``clock`` grows; a fence is never below it."""
    attempt = record.attempt if record else 0
    permitted = permitted_attempt == attempt or (permitted_attempt is not None and "leave_once" in without)
    if record is None:
        if may_be_forgotten and not permitted and "retention" not in without:
            return ("in_doubt", 0, ()), None
    else:
        if record.payload != payload and "payload" not in without:
            return ("mismatch", record.payload), record
        if record.state == "done":
            return ("done", record.result), record
        if record.token == token:
            if record.state == "running" and "same_token" not in without:
                return ("acquired", record.fence, attempt, record.steps), record._replace(lapsed=False)
            if record.state != "running" and "ended_token" not in without:
                return ("busy",), record
        if record.state == "running" and not record.lapsed and "busy" not in without:
            return ("busy",), record
        doubtful = record.state == "in_doubt" or (record.state == "running" and park)
        if doubtful and not permitted and "park" not in without:
            return ("in_doubt", attempt, record.steps), record._replace(state="in_doubt")
    stored_fence = record.fence if record else 0
    fence = stored_fence + 1 if "fence_clock" in without else max(stored_fence + 1, clock)
    taken = Record(
        state="running",
        token=token,
        payload=payload,
        fence=fence,
        attempt=attempt + 1,
        steps=record.steps if record else (),
    )
    return ("acquired", taken.fence, taken.attempt, taken.steps), taken


def renew(
    record: Record | None,
    *,
    token: Any,
    payload: str,
    fence: int,
    attempt: int,
    may_restore: bool = False,
    step: tuple[str, Any] | None = None,
) -> tuple[Answer, Record | None]:
    """What renew.lua answers and leaves behind."""
    if record is None:
        if not may_restore:
            return ("lost",), None
        record = Record(state="running", token=token, payload=payload, fence=fence, attempt=attempt)
    if step and record.state != "done" and step[0] not in dict(record.steps):
        record = record._replace(steps=tuple(sorted((*record.steps, step))))
    if record.state not in ("running", "in_doubt") or record.token != token:
        return ("lost",), record
    renewed = record._replace(state="running", lapsed=False, payload=payload, attempt=attempt)
    return ("held",), renewed._replace(fence=max(record.fence, fence))


def complete(
    record: Record | None,
    *,
    token: Any,
    payload: str,
    result: Any,
    fence: int = 0,
    attempt: int = 0,
    without: frozenset[str] = ALL_GUARDS,
) -> tuple[Answer, Record | None]:
    """What complete.lua answers and leaves behind."""
    if record and record.state == "done" and "first_stands" not in without:
        return (("completed",) if record.token == token else ("conflict", record.result)), record
    owned = record is not None and record.state == "running" and record.token == token
    if not owned and "late_counts" in without:
        return ("late",), record
    done = Record(
        state="done",
        token=token,
        payload=payload,
        fence=max(fence, record.fence if record else 0),
        attempt=max(attempt, record.attempt if record else 0),
        result=result,
    )
    in_time = record is not None and owned and not record.lapsed
    return (("completed",) if in_time else ("late",)), done


def abandon(
    record: Record | None, *, token: Any, ending: str, without: frozenset[str] = ALL_GUARDS
) -> tuple[bool, Record | None]:
    """What abandon.lua answers and leaves behind. ``ending``: failed, interrupted or withdrawn."""
    if record is None or record.state != "running":
        return False, record
    if record.token != token and "abandon_owner" not in without:
        return False, record
    if ending == "interrupted":
        return True, record._replace(lapsed=True)
    if ending == "withdrawn":
        if record.attempt == 1:
            return True, None
        return True, record._replace(state="free", lapsed=True, attempt=record.attempt - 1)
    return True, record._replace(state="free", lapsed=True)
