"""The history of attempts that a message carries."""

from __future__ import annotations

import json
import math
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from tasks.attempt_history import AttemptRecord, append_attempt, read_attempts

NOW = datetime(2026, 5, 4, 3, 2, 1, 500_000, tzinfo=UTC)


def _record(text: str = "away", **fields: Any) -> AttemptRecord:
    values: dict[str, Any] = {
        "failed_at": NOW,
        "runtime_seconds": 0.25,
        "hostname": "worker@here",
        "error_type": "builtins.OSError",
        "error_text": text,
    }
    return AttemptRecord(**(values | fields))


def test_attempts_are_told_oldest_first() -> None:
    """When, how long, where, type and text of each attempt come back as they were (D1)."""
    history: object = None
    records = [_record(str(number), failed_at=NOW + timedelta(minutes=number)) for number in range(3)]
    for record in records:
        history = append_attempt(history, record)
    assert read_attempts(history) == records


def test_the_newest_twenty_are_kept() -> None:
    """The 21st attempt pushes the first one out (D1)."""
    history: object = None
    for number in range(25):
        history = append_attempt(history, _record(str(number)))
    assert [record.error_text for record in read_attempts(history)] == [str(number) for number in range(5, 25)]


@settings(deadline=None)  # the machine may be busy
@given(
    some.lists(
        some.builds(
            _record,
            some.text() | some.integers(0, 300_000).map(lambda size: "\U0001f600" * size),
            hostname=some.text(),
            error_type=some.text(),
            runtime_seconds=some.floats(),
            failed_at=some.datetimes(timezones=some.just(UTC)),
        ),
        max_size=25,
    )
)
def test_the_header_stays_small_whatever_the_exceptions_say(records: list[AttemptRecord]) -> None:
    """It is JSON of ASCII, far below 32 kB, and the next attempt can read it (D1)."""
    history: object = None
    for record in records:
        history = append_attempt(history, record)
        assert isinstance(history, str)
        assert len(history.encode("ascii")) <= 20_000
        json.loads(history, parse_constant=pytest.fail)
    assert len(read_attempts(history)) == min(len(records), 20)


@pytest.mark.parametrize(
    "history",
    [
        None,
        "",
        "no json",
        "[" * 100_000,
        "{}",
        "[1, {}, null]",
        7,
        [],
        "9" * 5_000_000,
        b"\xff",
        '[{"failed_at": 1}]',
    ],
)
def test_a_malformed_history_counts_as_none(history: object) -> None:
    """A foreign header costs its history and nothing else (D1)."""
    assert read_attempts(append_attempt(history, _record())) == [_record()]


def test_an_endless_runtime_is_told_as_nothing() -> None:
    """JSON has no infinity (D1)."""
    assert read_attempts(append_attempt(None, _record(runtime_seconds=math.inf)))[0].runtime_seconds == 0
