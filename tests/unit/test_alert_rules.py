"""When a group of failures speaks."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from consumers.alert_rules import SEVERITIES, AlertRules, Counted, Kind, Standing, count_in
from consumers.group_state import GroupState

NOW = datetime(2026, 5, 4, 3, 2, 1, tzinfo=UTC)
RULES = AlertRules()
OPEN = Standing(state=GroupState.OPEN, state_at=NOW - timedelta(days=9), letters=5)


def _count(before: Standing, letters: int = 1, *, now: datetime = NOW, died_at: datetime | None = None) -> Counted:
    return count_in(before, letters, newest_died_at=died_at or now, now=now, rules=RULES)


def test_a_new_group_speaks_and_is_followed_up() -> None:
    """The first occurrence goes out at once; how much came, some minutes later (D4)."""
    counted = _count(replace(OPEN, letters=0), 3)
    assert counted.speaks is Kind.FIRST_OCCURRENCE
    assert counted.standing.letters == 3
    assert counted.standing.follow_up_at == NOW + RULES.follow_up_after


def test_a_known_group_is_silent() -> None:
    """One letter more is no news (D4)."""
    assert _count(OPEN).speaks is None


def test_a_settled_group_without_letters_is_opened_too() -> None:
    """Its letters turned out to be something else; the next one has to be seen (D4, D6)."""
    settled = replace(OPEN, state=GroupState.SETTLED, letters=0)
    for before in (settled, replace(settled, by_itself=True)):
        counted = count_in(before, 1, newest_died_at=NOW, now=NOW, rules=AlertRules())
        assert counted.standing.state is GroupState.OPEN


def test_a_letter_of_a_settled_group_is_a_regression() -> None:
    """It opens the group again, and says so (D4)."""
    counted = _count(replace(OPEN, state=GroupState.SETTLED))
    assert counted.speaks is Kind.REGRESSION
    assert counted.standing.state is GroupState.OPEN
    assert counted.standing.state_at == NOW


def test_a_letter_that_died_before_the_settling_contradicts_nothing() -> None:
    """A backlog that is drained late is counted in silence (D4)."""
    settled = replace(OPEN, state=GroupState.SETTLED, state_at=NOW - timedelta(hours=1))
    counted = _count(settled, died_at=NOW - timedelta(hours=2))
    assert counted.speaks is None
    assert counted.standing.state is GroupState.SETTLED
    assert counted.standing.letters == 6


@pytest.mark.parametrize(
    ("ignored", "letters", "speaks"),
    [
        ({}, 1_000, None),
        ({"ignored_until": NOW + timedelta(hours=1)}, 1_000, None),
        ({"ignored_until": NOW}, 1, Kind.IGNORED_NO_LONGER),
        ({"ignored_until_count": 7}, 2, None),
        ({"ignored_until_count": 7}, 3, Kind.IGNORED_NO_LONGER),
    ],
)
def test_an_ignored_group_is_silent_until_its_end(
    ignored: dict[str, object], letters: int, speaks: Kind | None
) -> None:
    """Until a time, until n more, or for ever (D4)."""
    before = replace(OPEN, state=GroupState.IGNORED, **ignored)  # type: ignore[arg-type]
    counted = _count(before, letters)
    assert counted.speaks is speaks
    assert counted.standing.state is (GroupState.OPEN if speaks else GroupState.IGNORED)
    assert (counted.standing.ignored_until_count, counted.standing.ignored_until) == (
        (None, None) if speaks else (before.ignored_until_count, before.ignored_until)
    )


def test_a_muted_group_changes_in_silence() -> None:
    """Muting stops the words, not the counting, nor the regression (D4)."""
    muted = replace(OPEN, state=GroupState.SETTLED, muted_until=NOW + timedelta(hours=1))
    counted = _count(muted)
    assert counted.speaks is None
    assert counted.standing.state is GroupState.OPEN
    assert counted.standing.follow_up_at is None
    assert _count(replace(muted, muted_until=NOW)).speaks is Kind.REGRESSION


def test_many_letters_within_one_window_are_growth_once() -> None:
    """n within m minutes speaks once per window (D4)."""
    first = _count(OPEN, 60)
    second = _count(first.standing, 60, now=NOW + timedelta(minutes=5))
    third = _count(second.standing, 600, now=NOW + timedelta(minutes=6))
    assert [first.speaks, second.speaks, third.speaks] == [None, Kind.GROWTH, None]


def test_a_storm_is_one_alert_and_its_follow_up() -> None:
    """A new group is not said to grow as well: not in its first window, and not while the storm is usual (D4)."""
    standing = replace(OPEN, letters=0)
    spoken = []
    for minute in range(120):
        counted = _count(standing, 1_000, now=NOW + timedelta(minutes=minute))
        standing = counted.standing
        if standing.follow_up_at and standing.follow_up_at <= NOW + timedelta(minutes=minute):
            standing = replace(standing, follow_up_at=None)
        spoken.append(counted.speaks)
    assert [kind for kind in spoken if kind] == [Kind.FIRST_OCCURRENCE]


def test_growth_is_measured_against_what_is_usual() -> None:
    """k times the usual number is growth even where n is never reached (D4)."""
    standing = OPEN
    for window in range(8):
        counted = _count(standing, 4, now=NOW + window * RULES.growth_window)
        assert counted.speaks is None
        standing = counted.standing
    assert 3 <= standing.usual_letters <= 4
    jump = NOW + 8 * RULES.growth_window
    assert _count(standing, 19, now=jump).speaks is None
    assert _count(standing, 21, now=jump).speaks is Kind.GROWTH


def test_what_was_usual_is_forgotten_in_quiet_windows() -> None:
    """After a quiet day a hundred letters are growth again (D4)."""
    busy = replace(OPEN, window_at=NOW, window_letters=5_000, usual_letters=5_000.0)
    assert _count(busy, 200, now=NOW + RULES.growth_window).speaks is None
    assert _count(busy, 200, now=NOW + timedelta(days=1)).speaks is Kind.GROWTH


def test_every_kind_has_a_severity() -> None:
    """No kind of alert is without one (D4)."""
    assert set(SEVERITIES) == set(Kind)
