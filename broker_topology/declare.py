"""The topology as kombu entities, and how they are declared over AMQP."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import amqp.exceptions
import kombu
from kombu.transport.native_delayed_delivery import (
    bind_queue_to_native_delayed_delivery_exchange,
    declare_native_delayed_delivery_exchanges_and_queues,
)

from broker_topology.address import BrokerAddress
from broker_topology.connection import connected, reply
from broker_topology.declarations import declarations
from broker_topology.delays import DELAYED_DELIVERY, delayed_queues
from broker_topology.errors import BrokerUnavailableError, TopologyError
from broker_topology.look import plan_over_amqp
from broker_topology.plan import Action, Plan, binding_label
from broker_topology.routing import exchange_type, publishing_binding
from broker_topology.topology import Binding, Exchange, Queue, Topology


def kombu_queues(topology: Topology, *, no_declare: bool = False) -> tuple[kombu.Queue, ...]:
    """The work queues as Celery's ``task_queues`` needs them.

    ``no_declare`` makes a worker take them as they are, so that its user needs no right to configure them.

    Raises TopologyError for a work queue that no exchange leads to: Celery could only publish to it through
    the default exchange, where delayed retries and the alternate exchange do not work.
    """
    return tuple(_kombu_queue(topology, queue, no_declare) for queue in topology.work_queues)


@dataclass(frozen=True, slots=True, kw_only=True)
class Declared:
    """What became of every object of a topology: names such as ``queue payments``."""

    created: tuple[str, ...] = ()
    unchanged: tuple[str, ...] = ()
    ensured: tuple[str, ...] = ()
    """Bindings of objects that existed: in place now, but AMQP does not tell whether they were before."""
    conflicts: tuple[str, ...] = ()
    """One line for each differing argument. Where there is one, nothing was created."""


def declare_topology(topology: Topology, amqp_url: str, *, delayed_delivery: bool = True) -> Declared:
    """Declare exchanges, queues and bindings in the virtual host of the URL, and Celery's delayed delivery.

    Everything is looked at before anything is created, so a conflict leaves the broker as it was. With
    ``delayed_delivery``, retries wait in the broker even before the first worker has started.

    Raises BrokerUnavailableError and AddressError.
    """
    address = BrokerAddress.parse(amqp_url)
    with connected(address) as connection:
        plan = plan_over_amqp(topology, address.vhost, connection, delayed_delivery=delayed_delivery)
        if plan.blocked:
            return Declared(unchanged=plan.unchanged, conflicts=tuple(str(change) for change in plan.blocked))
        created = create(topology, plan, connection)
    return Declared(created=created, unchanged=plan.unchanged, ensured=plan.ensured)


def create(topology: Topology, plan: Plan, connection: Any) -> tuple[str, ...]:
    """Declare what a plan says is missing, and make sure of the bindings that it could not see.

    Returns the labels of what was created. Raises TopologyError for what the broker refuses, with what had
    been created by then.
    """
    missing = {change.object for change in plan.of(Action.CREATE)}
    done: list[str] = []
    channel = connection.channel()
    for declaration in declarations(topology):
        if declaration.label in missing:
            with _told(declaration.label, done):
                declaration.declare(channel)
    for binding in topology.bindings:
        label = binding_label(binding)
        if label in missing or label in plan.ensured:
            with _told(label, done if label in missing else []):
                _bind(channel, binding)
    channel.close()
    if DELAYED_DELIVERY in missing:
        with _told(DELAYED_DELIVERY, done):
            _declare_delays(topology, connection)
    return tuple(done)


@contextmanager
def _told(label: str, done: list[str]) -> Iterator[None]:
    """One step of a deploy: noted when it is done; where it fails, the error says how far things had come."""
    try:
        yield
    except amqp.exceptions.ChannelError as error:
        so_far = f"; created before that: {', '.join(done)}" if done else "; nothing was created"
        kind = BrokerUnavailableError if isinstance(error, amqp.exceptions.AccessRefused) else TopologyError
        raise kind(f"the broker refuses {label}: {reply(error)}{so_far}") from error
    done.append(label)


def _bind(channel: Any, binding: Binding) -> None:
    bind = channel.queue_bind if binding.destination_type == "queue" else channel.exchange_bind
    bind(binding.destination, binding.source, binding.routing_key, arguments=dict(binding.arguments))


def _declare_delays(topology: Topology, connection: Any) -> None:
    try:
        declare_native_delayed_delivery_exchanges_and_queues(connection, "quorum")
    except amqp.exceptions.PreconditionFailed:
        # Workers that are set to classic delay queues were here first; the first queue already tells.
        declare_native_delayed_delivery_exchanges_and_queues(connection, "classic")
    for queue, _ in delayed_queues(topology):
        bind_queue_to_native_delayed_delivery_exchange(connection, _kombu_queue(topology, queue, False))


def _kombu_queue(topology: Topology, queue: Queue, no_declare: bool) -> kombu.Queue:
    binding = publishing_binding(topology, queue)
    exchange = _exchange(topology, binding.source) if binding else None
    if binding is None or exchange is None:
        raise TopologyError(f"work queue {queue.name!r} is bound to no declared exchange")
    return kombu.Queue(
        queue.name,
        kombu.Exchange(
            exchange.name,
            type=exchange.type,
            durable=exchange.durable,
            auto_delete=exchange.auto_delete,
            arguments=dict(exchange.arguments),
            no_declare=no_declare,
        ),
        routing_key=binding.routing_key,
        binding_arguments=dict(binding.arguments) or None,
        durable=queue.durable,
        auto_delete=queue.auto_delete,
        queue_arguments=dict(queue.arguments),
        no_declare=no_declare,
    )


def _exchange(topology: Topology, name: str) -> Exchange | None:
    """An exchange of the file, or one of those that every broker has."""
    kind = exchange_type(topology, name)
    return topology.exchange(name) or (Exchange(name=name, type=kind) if name and kind else None)
