"""The main path: success, dead letter, replay, and each message counted."""

from __future__ import annotations

import threading
from typing import Any

import pika
import sqlalchemy

from sandbox.processes import eventually
from sandbox.road import Road


def test_success_leaves_nothing_behind(road: Road) -> None:
    """A task that succeeds is done once and leaves neither message nor dead letter. (I1, I4)"""
    road.worker()
    road.publisher.send_task("payments.charge_customer", args=("order-1", 100), idempotency_key="order-charge-1")

    eventually(lambda: road.services.charges("order-charge-1") == [1])
    eventually(lambda: road.depth("payments", "dead-letters") == 0)


def test_permanent_failure_becomes_a_letter_that_replays_to_success(road: Road) -> None:
    """A permanent failure is one row with its error; replayed with a reason it succeeds. (R1, R2, D1, D3, D5)"""
    road.worker()
    road.drain()
    road.publisher.send_task("crm.sync_customer_record", args=("unknown-7", {"orders": 1}), task_id="sync-7")

    [letter] = eventually(road.letters, what="the dead letter")
    letter = road.letter(letter["id"])
    assert letter["task_name"] == "crm.sync_customer_record"
    assert letter["task_id"] == "sync-7"
    assert letter["args"] == ["unknown-7", {"orders": 1}]
    assert letter["error_type"] == "httpx.HTTPStatusError"
    assert "404" in letter["error_message"]
    assert "sync_customer_record" in letter["traceback"]
    assert (letter["queue"], letter["reason"], letter["retries"]) == ("crm", "rejected", 0)
    assert len(road.services.calls("crm", accepted=False)) == 1, "a permanent failure is not retried"

    road.services.answer("crm", status=200)
    replayed = road.command("dead-letters", "replay", str(letter["id"]), "--reason", "customer added")
    assert replayed.returncode == 0, replayed.stderr
    eventually(lambda: len(road.services.calls("crm")) == 1)
    assert road.letter(letter["id"])["state"] != "open"
    assert len(road.letters()) == 1


def test_transient_failure_waits_in_the_broker_and_succeeds(road: Road) -> None:
    """A 503 is retried with backoff, from the queue that the message came from, and succeeds later. (R1, R2, R3)"""
    worker = road.worker()
    road.services.answer("crm", status=503)
    road.publisher.send_task("crm.sync_customer_record", args=("customer-1", {}))
    eventually(lambda: len(road.services.calls("crm", accepted=False)) >= 2)

    worker.kill()  # the retry waits in the broker, not in this worker's memory
    road.services.answer("crm", status=None)
    road.worker()
    eventually(lambda: len(road.services.calls("crm")) == 1)
    assert road.letters() == []


def test_task_that_kills_its_worker_ends_in_the_dead_letter_queue(road: Road) -> None:
    """A task that takes its process along is stopped by the delivery limit. (D3)"""
    road.worker()
    road.drain()
    road.publisher.send_task("notifications.kill_own_worker", task_id="killer")

    [letter] = eventually(road.letters, seconds=60, what="the dead letter")
    letter = road.letter(letter["id"])
    assert letter["reason"] == "delivery_limit"
    assert letter["note_reason"] == "worker_lost"


def test_same_charge_published_twice_at_once_is_charged_once(road: Road) -> None:
    """Two messages with one key, at once: one call, no dead letter. (I5, I8)"""
    road.worker("--concurrency=4")
    send = road.publisher.send_task
    twice = [
        threading.Thread(
            target=send,
            args=("payments.charge_customer",),
            kwargs={"args": ("order-1", 100), "idempotency_key": "order-charge-1"},
        )
        for _ in range(4)
    ]
    for thread in twice:
        thread.start()
    for thread in twice:
        thread.join()

    eventually(lambda: road.services.charges("order-charge-1") == [1])
    eventually(lambda: road.depth("payments") == 0)
    road.publisher.send_task("crm.sync_customer_record", args=("customer-last", {}))
    eventually(lambda: len(road.services.calls("crm")) == 1)
    assert road.services.charges("order-charge-1") == [1]
    assert road.depth("dead-letters") == 0


def test_message_that_is_no_task_becomes_a_row(road: Road) -> None:
    """Bytes that no worker can read are kept as a row, and the worker goes on. (D2)"""
    road.worker()
    road.drain()
    with pika.BlockingConnection(pika.URLParameters(road.amqp_url)) as connection:
        connection.channel().basic_publish("work", "crm", b"\x00 no task at all", pika.BasicProperties())

    [letter] = eventually(road.letters, what="the dead letter")
    assert (letter["queue"], letter["task_name"]) == ("crm", None)
    road.publisher.send_task("crm.sync_customer_record", args=("customer-1", {}))
    eventually(lambda: len(road.services.calls("crm")) == 1)


def test_message_without_a_route_becomes_a_row(road: Road) -> None:
    """A routing key that no queue is bound with ends in the unroutable queue, and is drained. (D2)"""
    road.drain()
    with pika.BlockingConnection(pika.URLParameters(road.amqp_url)) as connection:
        connection.channel().basic_publish("work", "paymnets", b"[[], {}, {}]", pika.BasicProperties())

    [letter] = eventually(road.letters, what="the dead letter")
    assert (letter["reason"], letter["exchange"], letter["routing_key"]) == ("unroutable", "work", "paymnets")


def test_interrupted_charge_is_asked_for_and_booked(road: Road) -> None:
    """Killed between the provider's charge and our marker: asked by its key, charged and booked once. (I2, I8)"""
    road.services.answer("payments", delay_seconds=2)
    worker = road.worker()
    road.publisher.send_task("payments.charge_customer", args=("order-1", 100), idempotency_key="k-1")
    eventually(lambda: road.services.in_progress("payments") == 1)
    worker.kill()
    eventually(lambda: road.services.charges("k-1") == [1])
    road.services.answer("payments")
    road.worker()
    rows = eventually(lambda: charges(road), seconds=100, every=1, what="the charge to be booked")
    assert rows == [("k-1", "order-1", 100)]
    assert road.services.charges("k-1") == [1]


def charges(road: Road) -> list[tuple[Any, ...]]:
    """The rows that the example task has booked."""
    engine = sqlalchemy.create_engine(road.database_url)
    with engine.connect() as connection:
        found = connection.execute(sqlalchemy.text("SELECT idempotency_key, order_id, amount_cents FROM charges"))
        rows = [tuple(row) for row in found]
    engine.dispose()
    return rows
