"""Dead letters made for tests: raw messages published as bytes, a drain in a thread, rows read back."""

from __future__ import annotations

import contextlib
import struct
import threading
import uuid
from collections.abc import Iterator
from typing import Any

import pika
import sqlalchemy as sa

from broker_topology.address import BrokerAddress
from broker_topology.topology import read_topology
from broker_topology.wire import RawProperties, wired
from consumers.database import reading
from consumers.dead_letters import dead_letters
from consumers.drain import Drain, DrainOptions
from consumers.failure_notes import FailureNotes
from consumers.storing import Stored
from sandbox.processes import PATIENCE, eventually
from tests.conftest import DEFINITIONS

TOPOLOGY = read_topology(DEFINITIONS)
DEAD_LETTER_QUEUE = TOPOLOGY.dead_letter_queues[0]
UNROUTABLE_QUEUE = TOPOLOGY.unroutable_queues[0]
WORK_QUEUE = TOPOLOGY.work_queues[0].name


def short(text: bytes) -> bytes:
    """A short string as AMQP writes it."""
    return bytes([len(text)]) + text


def long(text: bytes) -> bytes:
    """A header value of type long string."""
    return b"S" + struct.pack(">I", len(text)) + text


def table(entries: list[tuple[bytes, bytes]]) -> bytes:
    """A field table from keys and raw values, duplicates and all."""
    data = b"".join(short(key) + value for key, value in entries)
    return struct.pack(">I", len(data)) + data


def raw_properties(
    entries: list[tuple[bytes, bytes]] | None = None,
    *,
    content_type: bytes | None = b"application/json",
    content_encoding: bytes | None = b"utf-8",
    delivery_mode: int | None = 2,
    tail: bytes = b"",
    tail_flags: int = 0,
) -> bytes:
    """A content header; ``tail`` holds the properties behind the delivery mode, in their order."""
    flags, data = tail_flags, b""
    if content_type is not None:
        flags, data = flags | 1 << 15, data + short(content_type)
    if content_encoding is not None:
        flags, data = flags | 1 << 14, data + short(content_encoding)
    if entries is not None:
        flags, data = flags | 1 << 13, data + table(entries)
    if delivery_mode is not None:
        flags, data = flags | 1 << 12, data + bytes([delivery_mode])
    return struct.pack(">H", flags) + data + tail


def array(*values: bytes) -> bytes:
    """A header value of type array."""
    data = b"".join(values)
    return b"A" + struct.pack(">I", len(data)) + data


def x_death(**changes: bytes) -> bytes:
    """The value of ``x-death`` for one death, as the broker writes it."""
    entries = {
        b"count": b"l" + bytes(7) + b"\x01",
        b"reason": long(b"rejected"),
        b"queue": long(b"payments"),
        b"time": b"T" + struct.pack(">Q", 1_700_000_000),
        b"exchange": long(b"work"),
        b"routing-keys": array(long(b"payments")),
    } | {name.replace("_", "-").encode(): value for name, value in changes.items()}
    return array(b"F" + table(list(entries.items())))


def task_headers(
    *, task: str = "payments.charge_customer", task_id: str | None = None, retries: int = 0
) -> list[tuple[bytes, bytes]]:
    """Headers of a task message of protocol 2, as far as they matter here."""
    return [
        (b"lang", long(b"py")),
        (b"task", long(task.encode())),
        (b"id", long((task_id or str(uuid.uuid4())).encode())),
        (b"retries", b"I" + struct.pack(">i", retries)),
    ]


def publish(
    url: str, messages: list[tuple[bytes, bytes]], *, exchange: str = "", routing_key: str = DEAD_LETTER_QUEUE
) -> None:
    """Publish (raw properties, body) pairs, confirmed."""
    with wired(BrokerAddress.parse(url)) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        for properties, body in messages:
            channel.basic_publish(exchange, routing_key, body, RawProperties(properties), mandatory=True)


def take(url: str, queue: str, *, ack: bool = True) -> list[tuple[bytes, bytes, Any]]:
    """Everything that is in a queue now, as (raw properties, body, method)."""
    taken: list[tuple[bytes, bytes, Any]] = []
    with wired(BrokerAddress.parse(url)) as connection:
        channel = connection.channel()
        while True:
            method, properties, body = channel.basic_get(queue)
            if method is None:
                return taken
            taken.append((properties.raw, body, method))
            if ack:
                channel.basic_ack(method.delivery_tag)


def let_die(url: str, count: int, *, queue: str = WORK_QUEUE) -> None:
    """Reject that many messages of a work queue, as a worker does with what failed."""
    with wired(BrokerAddress.parse(url)) as connection:
        channel = connection.channel()
        for _ in range(count):
            method, _properties, _body = eventually(lambda: _got(channel, queue), what="a message to reject")
            channel.basic_reject(method.delivery_tag, requeue=False)


def _got(channel: Any, queue: str) -> Any:
    got = channel.basic_get(queue)
    return got if got[0] is not None else None


def depth(url: str, queue: str) -> int:
    """Messages that are ready in a queue."""
    with contextlib.closing(pika.BlockingConnection(pika.URLParameters(url))) as connection:
        count: int = connection.channel().queue_declare(queue, passive=True).method.message_count
        return count


@contextlib.contextmanager
def draining(
    url: str,
    engine: sa.Engine,
    *,
    redis_url: str | None = None,
    options: DrainOptions | None = None,
    stored: list[Stored] | None = None,
) -> Iterator[Drain]:
    """A drain that runs in a thread and is stopped in the end."""
    drain = Drain(
        amqp_url=url,
        topology=TOPOLOGY,
        engine=engine,
        notes=FailureNotes(redis_url),
        options=options,
        announce=stored.append if stored is not None else lambda _: None,
    )
    thread = threading.Thread(target=drain.run)
    thread.start()
    try:
        yield drain
    finally:
        drain.stop()
        thread.join(30 * PATIENCE)
        assert not thread.is_alive()


def rows(engine: sa.Engine) -> list[dict[str, Any]]:
    """Every stored letter, oldest first."""
    with reading(engine) as connection:
        found = connection.execute(sa.select(dead_letters).order_by(dead_letters.c.id))
        return [dict(row._mapping) for row in found]


def stored_rows(engine: sa.Engine, count: int, *, seconds: float = 30) -> list[dict[str, Any]]:
    """Every stored letter, once there are that many. More than that is an error too."""

    def enough() -> list[dict[str, Any]]:
        found = rows(engine)
        assert len(found) >= count, f"{len(found)} of {count} letters are stored"
        return found

    found = eventually(enough, seconds=seconds) if count else rows(engine)
    assert len(found) == count
    return found
