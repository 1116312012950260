"""How fast the drain is: against a bare pika consumer that only acks, and against one that commits row by row.

Both sides of each figure read the same messages from the same queue in the same run, in turn; a figure is
the median of several rounds. Broker, database and both sides share the machine.
"""

from __future__ import annotations

import json
import struct
import threading
import time
import uuid
from datetime import UTC, datetime

import pika
import sqlalchemy as sa

from benchmarks.stage import TOPOLOGY, medians, stage, tell
from broker_topology.address import BrokerAddress
from broker_topology.wire import RawProperties, wired
from consumers.database import open_database, require_schema
from consumers.dead_letters import dead_letters
from consumers.drain import Drain, DrainOptions
from consumers.failure_notes import FailureNotes
from consumers.filing import Filing
from consumers.startup import fit_process
from consumers.storing import Stored

QUEUE = TOPOLOGY.dead_letter_queues[0]


def main() -> None:
    """Print one JSON object per figure."""
    fit_process()
    with stage(__doc__, letters=20_000) as on:
        median = medians(
            {
                "bare": lambda: bare_rate(on.url, on.letters),
                "postgresql": lambda: drain_rate(on.url, on.postgresql, on.letters),
                "sqlite": lambda: drain_rate(on.url, on.sqlite, on.letters),
                "row by row": lambda: row_by_row_rate(on.url, on.postgresql, max(500, on.letters // 20)),
            },
            on.rounds,
        )
    for figure, value, rival in (
        ("drain into PostgreSQL against bare pika", "postgresql", "bare"),
        ("drain into PostgreSQL against row by row", "postgresql", "row by row"),
        ("drain into SQLite against into PostgreSQL", "sqlite", "postgresql"),
    ):
        tell("drain", figure, median[value], "letters/s", rival, median[rival])


def fill(url: str, letters: int) -> None:
    """Put dead letters into the queue as the broker would have."""
    with wired(BrokerAddress.parse(url)) as connection:
        channel = connection.channel()
        channel.queue_purge(QUEUE)
        for number in range(letters):
            properties, body = dead_letter(number)
            channel.basic_publish("", QUEUE, body, RawProperties(properties))
        while channel.queue_declare(QUEUE, passive=True).method.message_count < letters:
            time.sleep(0.05)


def dead_letter(number: int) -> tuple[bytes, bytes]:
    """Content header and body of a Celery task that was rejected, as large as such messages are."""
    task_id = str(uuid.uuid4())
    death = {
        "count": 1,
        "reason": "rejected",
        "queue": "payments",
        "exchange": "work",
        "routing-keys": ["payments"],
    }
    headers: dict[str, object] = {
        "argsrepr": f"({number}, 4999)",
        "eta": None,
        "expires": None,
        "group": None,
        "group_index": None,
        "id": task_id,
        "idempotency_key": f"order-charge-{number}",
        "ignore_result": False,
        "kwargsrepr": "{'currency': 'EUR'}",
        "lang": "py",
        "origin": "gen4711@web-1",
        "parent_id": None,
        "replaced_task_nesting": 0,
        "retries": 3,
        "root_id": task_id,
        "shadow": None,
        "stamped_headers": None,
        "stamps": {},
        "task": "payments.charge_customer",
        "timelimit": [None, None],
        "x-death": [death],
        "x-first-death-exchange": "work",
        "x-first-death-queue": "payments",
        "x-first-death-reason": "rejected",
    }
    properties = pika.BasicProperties(
        content_type="application/json",
        content_encoding="utf-8",
        headers=headers,
        delivery_mode=2,
        priority=0,
        correlation_id=task_id,
        reply_to=str(uuid.uuid4()),
    )
    raw = b"".join(properties.encode())
    # The time of death, which pika would write alike, once more as the broker does.
    time_of_death = b"\x04timeT" + struct.pack(">Q", int(time.time()))
    at = raw.index(b"\x05countI")
    raw = raw[:at] + time_of_death + raw[at:]
    for start in (raw.index(b"\x07x-deathA") + 9, raw.index(b"\x07x-deathA") + 14, raw.index(b"utf-8") + 5):
        (size,) = struct.unpack_from(">I", raw, start)
        raw = raw[:start] + struct.pack(">I", size + len(time_of_death)) + raw[start + 4 :]
    body = json.dumps(
        [[number, 4999], {"currency": "EUR"}, {"callbacks": None, "errbacks": None, "chain": None, "chord": None}]
    )
    return raw, body.encode()


def bare_rate(url: str, letters: int) -> float:
    """A pika consumer that reads every letter and only acks, many at once."""
    fill(url, letters)
    connection = pika.BlockingConnection(pika.URLParameters(url))
    channel = connection.channel()
    channel.basic_qos(prefetch_count=2000)
    seen = 0

    def on_message(channel: pika.channel.Channel, method: pika.spec.Basic.Deliver, _: object, __: bytes) -> None:
        nonlocal seen
        seen += 1
        if seen % 500 == 0 or seen == letters:
            channel.basic_ack(method.delivery_tag, multiple=True)
        if seen == letters:
            channel.stop_consuming()

    channel.basic_consume(QUEUE, on_message)
    started = time.perf_counter()
    channel.start_consuming()
    took = time.perf_counter() - started
    connection.close()
    return letters / took


def drain_rate(url: str, database_url: str, letters: int) -> float:
    """Our drain, from its start until the last letter is committed."""
    engine = fresh_database(database_url)
    fill(url, letters)
    rate = timed_drain(url, engine, letters, notes=FailureNotes(None))
    engine.dispose()
    return rate


def timed_drain(
    url: str, engine: sa.Engine, letters: int, *, notes: FailureNotes, filing: Filing | None = None
) -> float:
    """Letters a second of one drain, from its start until that many are committed."""
    count = 0
    done = threading.Event()

    def announce(stored: Stored) -> None:
        nonlocal count
        count += len(stored.new)
        if count >= letters:
            done.set()

    drain = Drain(
        amqp_url=url,
        topology=TOPOLOGY,
        engine=engine,
        notes=notes,
        options=DrainOptions(),
        announce=announce,
        filing=filing,
    )
    thread = threading.Thread(target=drain.run)
    started = time.perf_counter()
    thread.start()
    done.wait(300)
    took = time.perf_counter() - started
    drain.stop()
    thread.join()
    return letters / took


def row_by_row_rate(url: str, database_url: str, letters: int) -> float:
    """A pika consumer that commits and acks each letter by itself."""
    engine = fresh_database(database_url)
    fill(url, letters)
    connection = pika.BlockingConnection(pika.URLParameters(url))
    channel = connection.channel()
    channel.basic_qos(prefetch_count=2000)
    now = datetime.now(UTC)
    started = time.perf_counter()
    with engine.connect() as database:
        for method, properties, body in channel.consume(QUEUE):
            values = {
                "identity": properties.headers["id"],
                "state_at": now,
                "stored_at": now,
                "died_at": now,
                "task_name": properties.headers["task"],
                "task_id": properties.headers["id"],
                "args": json.dumps(json.loads(body)[0]),
                "drained_queue": QUEUE,
                "queue": "payments",
                "exchange": "work",
                "routing_key": "payments",
                "reason": "rejected",
                "body_bytes": len(body),
                "body": body,
                "properties": b"",
            }
            database.execute(dead_letters.insert(), values)
            database.commit()
            channel.basic_ack(method.delivery_tag)
            if method.delivery_tag == letters:
                break
    took = time.perf_counter() - started
    connection.close()
    engine.dispose()
    return letters / took


def fresh_database(url: str) -> sa.Engine:
    """A database whose table of dead letters is empty."""
    engine = open_database(url)
    require_schema(engine, auto_upgrade=True)
    with engine.begin() as connection:
        if engine.dialect.name == "postgresql":
            connection.execute(sa.text("TRUNCATE dead_letters CASCADE"))
        else:
            connection.execute(dead_letters.delete())
    return engine


if __name__ == "__main__":
    main()
