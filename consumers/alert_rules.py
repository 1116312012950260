"""When a group of failures speaks (pure).

A group speaks when it is new, when it comes back after it was settled, and when it grows. After it has spoken
it is silent for a while and then says once how much came since: a storm is one alert and one follow-up.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

from consumers.group_state import GroupState


class Kind(StrEnum):
    """What an alert is about."""

    FIRST_OCCURRENCE = "first_occurrence"
    REGRESSION = "regression"
    """A letter contradicts that its group is settled."""
    IGNORED_NO_LONGER = "ignored_no_longer"
    GROWTH = "growth"
    FOLLOW_UP = "follow_up"
    """How much came since the group spoke."""
    STORM = "storm"
    """More groups had something to say than are let through."""
    DIGEST = "digest"
    QUEUE_DEPTH = "queue_depth"
    QUEUE_AGE = "queue_age"
    CANNOT_STORE = "cannot_store"
    STORES_AGAIN = "stores_again"
    TEST = "test"


class Severity(StrEnum):
    """How much an alert matters."""

    INFO = "info"
    WARNING = "warning"
    CRITICAL = "critical"


SEVERITIES = {
    Kind.FIRST_OCCURRENCE: Severity.WARNING,
    Kind.REGRESSION: Severity.CRITICAL,
    Kind.IGNORED_NO_LONGER: Severity.WARNING,
    Kind.GROWTH: Severity.CRITICAL,
    Kind.FOLLOW_UP: Severity.INFO,
    Kind.STORM: Severity.CRITICAL,
    Kind.DIGEST: Severity.INFO,
    Kind.QUEUE_DEPTH: Severity.CRITICAL,
    Kind.QUEUE_AGE: Severity.CRITICAL,
    Kind.CANNOT_STORE: Severity.CRITICAL,
    Kind.STORES_AGAIN: Severity.INFO,
    Kind.TEST: Severity.INFO,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class AlertRules:
    """The numbers behind the rules."""

    storm_window: timedelta = timedelta(minutes=5)
    storm_cap: int = 10
    """Groups that may speak within one window; the rest is summarised when it ends."""
    follow_up_after: timedelta = timedelta(minutes=5)
    follow_up_at_least: int = 10
    """Fewer letters than that since the group spoke are left to the digest."""
    growth_window: timedelta = timedelta(minutes=15)
    growth_letters: int = 100
    """So many letters within one window are growth, unless they are usual."""
    growth_factor: float = 5.0
    """So many times the usual number is growth ..."""
    growth_at_least: int = 20
    """... from this number on."""
    depth_over: int | None = 10_000
    """Messages in a dead-letter queue."""
    age_over: timedelta | None = timedelta(minutes=15)
    """Age of the oldest letter that waits to be stored."""
    bound_window: timedelta = timedelta(hours=1)
    """A bound that stays exceeded is said again after that long."""
    cannot_store_after: timedelta = timedelta(minutes=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """What a group remembers between batches."""

    state: GroupState
    state_at: datetime
    letters: int
    by_itself: bool = False
    """Settled because nobody waited for any of its letters, not by a person's word."""
    ignored_until: datetime | None = None
    ignored_until_count: int | None = None
    muted_until: datetime | None = None
    window_at: datetime | None = None
    window_letters: int = 0
    usual_letters: float = 0.0
    grown_at: datetime | None = None
    """The window in which the group spoke: it does not grow as well in that one."""
    follow_up_at: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Counted:
    """What a batch did to a group."""

    standing: Standing
    speaks: Kind | None


def count_in(
    before: Standing, letters: int, *, newest_died_at: datetime, now: datetime, rules: AlertRules
) -> Counted:
    """Count letters of one group in, and decide whether it speaks.

    A letter that died before its group was settled was only late, and contradicts nothing.
    """
    total = before.letters + letters
    window_at, window_letters, usual = _window(before, letters, now, rules)
    speaks: Kind | None = None
    state = before.state
    if state is GroupState.SETTLED and newest_died_at > before.state_at:
        state, speaks = GroupState.OPEN, Kind.REGRESSION
    elif state is GroupState.SETTLED and before.by_itself:
        # It died before the others were dealt with and came after: somebody has to see it, and it is no regression.
        state = GroupState.OPEN
    elif before.letters == 0:
        speaks = Kind.FIRST_OCCURRENCE
    elif state is GroupState.IGNORED and _ignored_long_enough(before, total, now):
        state, speaks = GroupState.OPEN, Kind.IGNORED_NO_LONGER
    elif before.follow_up_at is None and before.grown_at != window_at and _grows(window_letters, usual, rules):
        speaks = Kind.GROWTH
    if state is GroupState.IGNORED or state is GroupState.SETTLED or _muted(before, now):
        speaks = None
    return Counted(
        speaks=speaks,
        standing=Standing(
            state=state,
            state_at=before.state_at if state is before.state else now,
            letters=total,
            ignored_until=before.ignored_until if state is before.state else None,
            ignored_until_count=before.ignored_until_count if state is before.state else None,
            muted_until=before.muted_until,
            window_at=window_at,
            window_letters=window_letters,
            usual_letters=usual,
            grown_at=window_at if speaks else before.grown_at,
            follow_up_at=now + rules.follow_up_after if speaks else before.follow_up_at,
        ),
    )


def _window(before: Standing, letters: int, now: datetime, rules: AlertRules) -> tuple[datetime, int, float]:
    """Begin of the window, letters in it, and what was usual in those before it."""
    if before.window_at is None:
        return now, letters, 0.0
    passed = int((now - before.window_at) / rules.growth_window)
    if passed < 1:
        return before.window_at, before.window_letters + letters, before.usual_letters
    # Each window weighs half of the one after it; windows without letters count as well.
    usual = (before.usual_letters + before.window_letters) / 2 * 0.5 ** min(passed - 1, 60)
    return before.window_at + passed * rules.growth_window, letters, usual


def _grows(letters: int, usual: float, rules: AlertRules) -> bool:
    if letters >= rules.growth_letters > usual:
        return True
    return usual >= 1 and letters >= max(rules.growth_at_least, rules.growth_factor * usual)


def _ignored_long_enough(before: Standing, total: int, now: datetime) -> bool:
    if before.ignored_until is not None and now >= before.ignored_until:
        return True
    return before.ignored_until_count is not None and total > before.ignored_until_count


def _muted(before: Standing, now: datetime) -> bool:
    return before.muted_until is not None and now < before.muted_until
