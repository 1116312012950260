"""Messages are moved, or stay where they are."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel

from broker_topology.address import BrokerAddress
from broker_topology.errors import BrokerUnavailableError
from broker_topology.letter import Letter
from broker_topology.mover import MoveRefusedError, move
from sandbox.processes import eventually, free_port
from tests.conftest import VirtualHost
from tests.integration.live_publisher import take_all

QUORUM = {"x-queue-type": "quorum", "x-overflow": "reject-publish"}


@pytest.fixture
def channel(vhost: VirtualHost) -> Iterator[BlockingChannel]:
    """Two queues, ``source`` with a hundred messages, and a channel that confirms."""
    connection = pika.BlockingConnection(pika.URLParameters(vhost.url))
    channel = connection.channel()
    channel.confirm_delivery()
    channel.queue_declare("source", durable=True, arguments=QUORUM)
    channel.queue_declare("target", durable=True, arguments=QUORUM)
    for number in range(100):
        channel.basic_publish("", "source", str(number).encode())
    yield channel
    connection.close()


def to(exchange: str, key: str) -> Callable[[Letter], Letter]:
    return lambda letter: replace(letter, exchange=exchange, routing_key=key)


def bodies(vhost: VirtualHost, queue: str) -> list[int]:
    return [int(body) for _, _, body in take_all(vhost.url, queue)]


@pytest.mark.usefixtures("channel")
def test_everything_is_moved_in_order(vhost: VirtualHost) -> None:
    """A move without a kill moves each message once, in its order (D3)."""
    moved = move(BrokerAddress.parse(vhost.url), "source", to("", "target"), quiet_seconds=0.3)
    assert (moved.count, moved.late, moved.by_default_exchange) == (100, 0, 100)
    assert bodies(vhost, "target") == list(range(100))
    assert bodies(vhost, "source") == []


@pytest.mark.usefixtures("channel")
def test_what_is_unroutable_stays(vhost: VirtualHost) -> None:
    """A message that no queue takes is refused, and every message is still there (D3)."""
    with pytest.raises(
        MoveRefusedError, match=r"is unroutable: exchange 'amq[.]direct' with key 'nobody' leads nowhere"
    ):
        move(BrokerAddress.parse(vhost.url), "source", to("amq.direct", "nobody"))
    assert sorted(bodies(vhost, "source")) == list(range(100))


def test_what_the_target_does_not_take_stays(vhost: VirtualHost, channel: BlockingChannel) -> None:
    """A full target refuses; nothing is lost between the two queues (D3)."""
    channel.queue_delete("target")
    channel.queue_declare("target", durable=True, arguments={**QUORUM, "x-max-length": 5})
    # A quorum queue refuses once its publisher has learned that it is full, some hundred messages later.
    for number in range(100, 2_000):
        channel.basic_publish("", "source", str(number).encode())
    with pytest.raises(MoveRefusedError, match="refuses messages from source: it is full"):
        move(BrokerAddress.parse(vhost.url), "source", to("", "target"))
    there, here = bodies(vhost, "target"), bodies(vhost, "source")
    assert set(there) | set(here) == set(range(2_000))


def test_a_queue_that_is_deleted_meanwhile_ends_the_move(vhost: VirtualHost, channel: BlockingChannel) -> None:
    """A source that goes away is told, not waited for (D3)."""

    def delete(count: int) -> None:
        if count == 100:
            channel.queue_delete("source")

    with pytest.raises(MoveRefusedError, match="was deleted meanwhile"):
        move(BrokerAddress.parse(vhost.url), "source", to("", "target"), quiet_seconds=5, progress=delete)


@pytest.mark.usefixtures("channel")
def test_a_missing_queue_and_a_missing_broker_are_told(vhost: VirtualHost) -> None:
    """No source: refused; no broker: unavailable (D3)."""
    address = BrokerAddress.parse(vhost.url)
    with pytest.raises(MoveRefusedError, match="no queue 'nowhere'"):
        move(address, "nowhere", to("", "target"))
    with pytest.raises(BrokerUnavailableError):
        move(replace(address, port=free_port()), "source", to("", "target"))


def test_a_connection_that_is_cut_loses_nothing(vhost: VirtualHost, channel: BlockingChannel) -> None:
    """The broker closes the connection in the midst of a move: told, and every message is somewhere (D3)."""
    assert channel.is_open

    def cut(count: int) -> None:
        if count:
            for connection in vhost.api("GET", "/vhosts/{vhost}/connections").json():
                if "migrate" in connection.get("client_properties", {}).get("connection_name", ""):
                    vhost.api("DELETE", f"/connections/{connection['name']}")

    eventually(lambda: vhost.api("GET", "/vhosts/{vhost}/connections").json(), seconds=20)
    with pytest.raises(BrokerUnavailableError):
        move(BrokerAddress.parse(vhost.url), "source", to("", "target"), quiet_seconds=20, progress=cut)
    assert set(bodies(vhost, "target")) | set(bodies(vhost, "source")) == set(range(100))


@pytest.mark.soak  # a figure: it needs a quiet machine
def test_messages_are_moved_fast(vhost: VirtualHost, channel: BlockingChannel) -> None:
    """Confirms are not waited for one by one: 3,000 messages between quorum queues in seconds (D3)."""
    for number in range(100, 3_000):
        channel.basic_publish("", "source", str(number).encode())
    started = time.perf_counter()
    move(BrokerAddress.parse(vhost.url), "source", to("", "target"), quiet_seconds=0.2)
    seconds = time.perf_counter() - started
    print(f"{3_000 / seconds:.0f} messages/s")
    assert seconds < 15
