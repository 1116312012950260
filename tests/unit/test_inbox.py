"""What waits to be stored, as the writer and the metrics see it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from consumers.inserting import Arrival
from consumers.letters import Delivery, read_letter
from consumers.metrics import MAX_SERIES, DrainMetrics
from consumers.storing import Stored, StoredLetter
from consumers.writer import Inbox, Incoming

NOW = datetime(2026, 5, 4, tzinfo=UTC)


def incoming(tag: int, died_at: datetime = NOW) -> Incoming:
    delivery = Delivery("dead-letters", "", "dead-letters", redelivered=False, properties=b"", body=b"")
    return Incoming(None, tag, read_letter(delivery, now=died_at, unroutable=False))


def test_what_the_writer_has_in_hand_still_waits() -> None:
    """A database that is away for hours makes the oldest letter hours old, though it left the inbox (D1)."""
    inbox = Inbox(max_batch_rows=1, max_batch_bytes=1000)
    for number in range(2):
        inbox.put(incoming(number, NOW + timedelta(seconds=number)))
    assert [len(inbox.take(idle_seconds=0) or []), len(inbox), inbox.oldest_died_at()] == [1, 2, NOW]
    inbox.take(idle_seconds=0)
    assert [len(inbox), inbox.oldest_died_at()] == [1, NOW + timedelta(seconds=1)]
    inbox.take(idle_seconds=0)
    assert [len(inbox), inbox.oldest_died_at()] == [0, None]


def test_forged_reasons_make_no_series_without_end() -> None:
    """Whoever publishes straight into the dead-letter queue can name any reason (D1)."""
    metrics = DrainMetrics()
    letter = incoming(1).letter
    forged = [letter._replace(reason=f"reason {n}") for n in range(2 * MAX_SERIES)]
    metrics.stored(Stored(new=[StoredLetter(n, Arrival(letter)) for n, letter in enumerate(forged)]), 0.1)
    (stored,) = [m for m in metrics.registry.collect() if m.name == "dead_letters_stored"]
    assert len({s.labels["reason"] for s in stored.samples}) == MAX_SERIES + 1
