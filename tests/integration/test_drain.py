"""The drain on a real broker and a real database."""

from __future__ import annotations

import json
import struct
import time
from datetime import UTC, datetime, timedelta

import pytest
import redis
import sqlalchemy as sa

from broker_topology.notes import FailureNote, failure_note_key
from broker_topology.raw_headers import RawHeader
from consumers.audit import Act
from consumers.replay import discard
from sandbox.processes import eventually
from tests.conftest import VirtualHost
from tests.integration.mailroom import (
    DEAD_LETTER_QUEUE,
    UNROUTABLE_QUEUE,
    WORK_QUEUE,
    array,
    depth,
    draining,
    let_die,
    long,
    publish,
    raw_properties,
    stored_rows,
    take,
    task_headers,
    x_death,
)

BODY = json.dumps([[17, 100], {"currency": "EUR"}, {"chain": None}]).encode()


def test_a_rejected_task_becomes_a_row_with_its_failure(
    deployed: VirtualHost, redis_url: str, engine: sa.Engine
) -> None:
    """Name, arguments, retries, error, queue and time of death stand in the row (D1, D3)."""
    note = FailureNote(
        reason="failed",
        error_type="builtins.ValueError",
        error_message="no such customer\0 \ud800",
        traceback="Traceback ...",
        failed_at=datetime.now(UTC),
        retries=2,
        hostname="w1",
        pid=7,
    )
    with redis.Redis.from_url(redis_url) as client:
        client.set(failure_note_key("t-1", 2), note.to_json())
    publish(
        deployed.url,
        [(raw_properties(task_headers(task_id="t-1", retries=2)), BODY)],
        exchange="work",
        routing_key=WORK_QUEUE,
    )
    let_die(deployed.url, 1)
    with draining(deployed.url, engine, redis_url=redis_url):
        (row,) = stored_rows(engine, 1)
        eventually(lambda: depth(deployed.url, DEAD_LETTER_QUEUE) == 0)
    assert {key: row[key] for key in ("task_name", "task_id", "retries", "queue", "reason", "state")} == {
        "task_name": "payments.charge_customer",
        "task_id": "t-1",
        "retries": 2,
        "queue": WORK_QUEUE,
        "reason": "rejected",
        "state": "open",
    }
    assert (row["args"], row["kwargs"]) == ("[17, 100]", '{"currency": "EUR"}')
    assert (row["error_type"], row["error_message"]) == ("builtins.ValueError", "no such customer\\x00 \\ud800")
    assert (row["hostname"], row["pid"], row["traceback"]) == ("w1", 7, "Traceback ...")
    assert (row["exchange"], row["routing_key"]) == ("work", WORK_QUEUE)
    assert bytes(row["body"]) == BODY
    assert abs(row["died_at"] - datetime.now(UTC)) < timedelta(seconds=60)
    assert take(deployed.url, DEAD_LETTER_QUEUE) == []


def test_an_unroutable_message_is_stored_as_such(deployed: VirtualHost, engine: sa.Engine) -> None:
    """What no binding wanted keeps its exchange and routing key (D2)."""
    publish(deployed.url, [(raw_properties(task_headers()), BODY)], exchange="work", routing_key="nowhere")
    with draining(deployed.url, engine):
        (row,) = stored_rows(engine, 1)
    assert (row["reason"], row["exchange"], row["routing_key"]) == ("unroutable", "work", "nowhere")
    assert depth(deployed.url, UNROUTABLE_QUEUE) == 0


@pytest.mark.soak  # a figure: it needs a quiet machine
def test_a_letter_on_a_quiet_queue_is_stored_at_once(deployed: VirtualHost, engine: sa.Engine) -> None:
    """From the confirm to the row it takes less than 200 ms, the median of five (D1)."""
    took = []
    with draining(deployed.url, engine):
        publish(deployed.url, [(raw_properties(task_headers()), BODY)])
        stored_rows(engine, 1)
        for number in range(2, 7):
            publish(deployed.url, [(raw_properties(task_headers()), BODY)])
            published = time.monotonic()
            eventually(lambda count=number: len(stored_rows(engine, count)) == count, every=0.01)  # type: ignore[misc]
            took.append(time.monotonic() - published)
    assert sorted(took)[2] < 0.2


def test_copies_of_one_message_are_one_row_until_somebody_deals_with_it(
    deployed: VirtualHost, engine: sa.Engine
) -> None:
    """A copy that a lost ack left behind adds nothing to an open row, and is seen after that was settled (D1)."""
    entries = [*task_headers(task_id="t-1"), (b"published_at", long(b"2026-05-04T12:30:00.000001+00:00"))]
    again = [*task_headers(task_id="t-1"), (b"published_at", long(b"2026-05-04T12:30:00.000002+00:00"))]

    def die(entries: list[tuple[bytes, bytes]], *seconds: int) -> None:
        messages = []
        for second in seconds:
            died_at = b"T" + struct.pack(">Q", 1_800_000_000 + second)
            # The delay queue that a retry comes by makes a part of its routing key.
            death = x_death(time=died_at, routing_keys=array(long(f"{second}.payments".encode())))
            messages.append((raw_properties([*entries, (b"x-death", death)]), BODY))
        publish(deployed.url, messages)
        eventually(lambda: depth(deployed.url, DEAD_LETTER_QUEUE) == 0)

    with draining(deployed.url, engine):
        die(entries, 0)
        die(entries, 1)
        die(again, 2)
        first, _ = stored_rows(engine, 2)
        discard(engine, Act(actor="ada", reason="no"), [first["id"]], now=datetime.now(UTC))
        die(entries, 0)  # a redelivery of what was dealt with
        die(entries, 3, 4, 0)
        die(task_headers(task_id="last"), 5)
        rows = stored_rows(engine, 5)
    assert sorted((row["died_at"].second, row["task_id"], row["state"]) for row in rows) == [
        (0, "t-1", "discarded"),
        (2, "t-1", "open"),
        (3, "t-1", "open"),
        (4, "t-1", "open"),
        (5, "last", "open"),
    ]


def test_a_redelivered_letter_is_stored_once(deployed: VirtualHost, engine: sa.Engine) -> None:
    """The same death delivered again after a kill is recognised, with an id and without (D1)."""
    entries = task_headers(task_id="t-1")
    messages = [(raw_properties(entries), BODY), (raw_properties(None), b"no id"), (raw_properties(None), b"no id")]
    publish(deployed.url, messages, exchange="work", routing_key=WORK_QUEUE)
    let_die(deployed.url, 3)
    eventually(lambda: depth(deployed.url, DEAD_LETTER_QUEUE) == 3)
    keys = [(RawHeader.parse(raw).headers or ())[0] for raw, _, _ in take(deployed.url, DEAD_LETTER_QUEUE, ack=False)]
    assert len(keys) == 3
    with draining(deployed.url, engine):
        first = stored_rows(engine, 3)
    # The drain acknowledged; a broker that lost the acks would deliver the very same bytes again.
    again = [(bytes(row["properties"]), bytes(row["body"])) for row in first if row["task_id"]]
    publish(deployed.url, again, exchange="dead-letters", routing_key=WORK_QUEUE)
    with draining(deployed.url, engine):
        eventually(lambda: depth(deployed.url, DEAD_LETTER_QUEUE) == 0)
    assert len(stored_rows(engine, 3)) == 3
