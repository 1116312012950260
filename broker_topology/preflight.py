"""Whether a queue can be replaced without risk, asked before anything is changed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pika.exceptions

from broker_topology.address import BrokerAddress
from broker_topology.detour import PREFIX, Detour
from broker_topology.effective import effective_queue, matching
from broker_topology.errors import DeadLetterOfficeError
from broker_topology.journal import Journal
from broker_topology.management import ManagementApi
from broker_topology.observation import take_snapshot
from broker_topology.snapshot import Snapshot
from broker_topology.topology import Binding, Queue
from broker_topology.versions import CLASSIC, QUORUM, STREAM
from broker_topology.wire import said, wired


class MigrationRefusedError(DeadLetterOfficeError):
    """The queue cannot be replaced without risk; it is as it was."""


def begin(queue: Queue, address: BrokerAddress, management: ManagementApi, *, publishers_stopped: bool) -> Journal:
    """Look whether a queue can be replaced, and note what it is. Raises MigrationRefusedError."""
    snapshot = take_snapshot(management, address.vhost)
    current = snapshot.topology.queue(queue.name)
    if current is None:
        raise MigrationRefusedError(f"queue {queue.name} is not on the broker: broker-topology deploy creates it")
    bindings = snapshot.topology.bindings_of(queue.name)
    with wired(address, name="broker-topology migrate") as connection:
        for problem in _problems(queue, current, bindings, snapshot, connection, publishers_stopped):
            raise MigrationRefusedError(f"queue {queue.name} is left as it is: {problem}")
    return Journal(broker=str(address), wanted=queue, current=current, bindings=bindings)


def _problems(
    queue: Queue,
    current: Queue,
    bindings: tuple[Binding, ...],
    snapshot: Snapshot,
    connection: Any,
    publishers_stopped: bool,
) -> Iterator[str]:
    detour = Detour(queue.name)
    if STREAM in {queue_type(queue), queue_type(current)}:
        yield "a stream keeps what was consumed, and cannot be moved like a queue"
    if current.exclusive:
        yield "it is exclusive to one connection"
    if len(detour.switch.encode()) > 255:
        yield "its name is too long for the names of the detour"
    if any(exchange.name == detour.switch for exchange in snapshot.topology.exchanges):
        yield "a migration of it was begun elsewhere: run this where its journal is"
    consumers = connection.channel().queue_declare(queue.name, passive=True).method.consumer_count
    if consumers:
        yield f"{consumers} consumers are attached: stop the workers that consume it"
    if not bindings and not publishers_stopped:
        yield (
            "no exchange leads to it, so its publishers use the default exchange, where nothing can be held back: "
            "bind it to an exchange and publish there, or stop its publishers and say --publishers-stopped"
        )
    for other in snapshot.topology.queues:
        effective = effective_queue(snapshot.topology, other, snapshot.version)
        if effective.dead_letter_exchange == "" and effective.dead_letter_routing_key == queue.name:
            yield f"queue {other.name} dead-letters into it through the default exchange: give it one of its own"
    for name in (detour.stash, detour.hold):
        for policy in matching(snapshot.topology.operator_policies, "queue", name, QUORUM)[:1]:
            yield f"operator policy {policy.name} would apply to the queues of the detour: narrow its pattern"
    yield from _refused(queue, connection)


def _refused(queue: Queue, connection: Any) -> Iterator[str]:
    """Whether the broker takes the new arguments; to find out after the old queue is deleted would be too late."""
    trial = f"{PREFIX}trial.{queue.name}"
    channel = connection.channel()
    try:
        channel.queue_declare(
            trial, durable=queue.durable, auto_delete=queue.auto_delete, arguments=dict(queue.arguments)
        )
        channel.queue_delete(trial)
    except pika.exceptions.ChannelClosedByBroker as error:
        yield f"the broker refuses its new arguments ({said(error)})"


def queue_type(queue: Queue) -> str:
    """The type of a queue as a broker shows or takes it."""
    return queue.type or CLASSIC
