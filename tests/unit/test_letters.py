"""What one delivery says, above all its identity."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pika
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from consumers.letters import Delivery, Letter, read_letter

NOW = datetime(2026, 5, 4, 12, 30, tzinfo=UTC)
AN_HOUR_BEFORE = NOW - timedelta(hours=1)


def letter(*, died_at: datetime | None = NOW, now: datetime = NOW, **headers: Any) -> Letter:
    if died_at is not None:
        death = {"queue": "payments", "reason": "rejected", "exchange": "work", "count": 1, "routing-keys": ["p"]}
        headers["x-death"] = [death | {"time": died_at}]
    properties = b"".join(pika.BasicProperties(content_type="application/json", headers=headers).encode())
    delivery = Delivery(
        drained_queue="payments.dead",
        exchange="dead-letters",
        routing_key="payments",
        redelivered=False,
        properties=properties,
        body=b"[[], {}, {}]",
    )
    return read_letter(delivery, now=now, unroutable=False)


@pytest.mark.parametrize(
    ("begins", "read"),
    [
        (NOW, letter(id="t-1")),
        (AN_HOUR_BEFORE, letter(id="t-1", published_at=AN_HOUR_BEFORE.isoformat())),
        (AN_HOUR_BEFORE, letter(id="t-1", died_at=None, published_at=AN_HOUR_BEFORE.isoformat())),
        (datetime.fromtimestamp(0, UTC), letter(id="t-1", died_at=None)),
        (NOW, letter()),
    ],
    ids=["death", "copies", "no death", "no time", "no id"],
)
def test_identities_of_one_time_lie_side_by_side(begins: datetime, read: Letter) -> None:
    """They begin with the second, so that an index of millions is written at its end alone (D1)."""
    assert int(read.identity[:8], 16) == begins.timestamp()
    assert len(read.identity) == 40


def test_an_identity_is_that_of_the_death() -> None:
    """Read again later it is the same; another id or another second of death makes another (D1)."""
    assert letter(id="t-1").identity == letter(id="t-1", now=NOW + timedelta(hours=1)).identity
    others = [letter(id="t-2"), letter(id="t-1", died_at=NOW + timedelta(seconds=1)), letter(id="t-1", retries=1)]
    assert len({other.identity for other in [*others, letter(id="t-1")]}) == 4


def test_an_id_that_is_used_again_is_another_letter_where_no_queue_wanted_it() -> None:
    """There is no death to tell them apart: the time of publishing does, and a redelivery has the same (D1)."""
    november, again, december = (
        letter(id="charge-1", died_at=None, published_at=f"2026-{month}-01T12:00:00+00:00") for month in (11, 11, 12)
    )
    assert november.identity == again.identity != december.identity


@given(published_at=st.text(max_size=40) | st.datetimes().map(str) | st.integers() | st.binary(max_size=20))
@example(published_at="0001-01-01")
@example(published_at="0001-01-01T00:00:00+14:00")
@example(published_at="9999-12-31T23:59:59-14:00")
def test_whatever_a_sender_calls_the_time_of_publishing_is_read(published_at: Any) -> None:
    """Hostile headers become rows (D1)."""
    if isinstance(published_at, int):
        published_at %= 2**31
    first, again = (letter(id="t-1", published_at=published_at) for _ in range(2))
    assert first.identity == again.identity
