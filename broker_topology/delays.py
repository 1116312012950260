"""Celery's native delayed delivery: 28 queues in which retries wait, declared before the first worker starts.

Source: kombu.transport.native_delayed_delivery, whose names a test compares with these.
"""

from __future__ import annotations

from dataclasses import dataclass

from broker_topology.routing import exchange_type, publishing_binding, topic_matches
from broker_topology.topology import Binding, Exchange, Queue, Topology

DELAYED_DELIVERY = "delayed delivery"
"""What reports call the delay queues, their exchanges and the bindings of the work queues."""

LEVELS = tuple(f"celery_delayed_{level}" for level in range(28))
EXCHANGE = "celery_delayed_delivery"


def delayed_queues(topology: Topology) -> tuple[tuple[Queue, Binding], ...]:
    """The work queues that delayed messages can reach, with the binding that they take: a topic exchange's."""
    bound = ((queue, publishing_binding(topology, queue)) for queue in topology.work_queues)
    return tuple(
        (queue, binding) for queue, binding in bound if binding and exchange_type(topology, binding.source) == "topic"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedKey:
    """Two work queues that would both get what was delayed for the first."""

    queue: str
    key: str
    other: str
    other_key: str

    def __str__(self) -> str:
        return (
            f"routing key {self.key!r} of queue {self.queue} ends with {self.other_key!r} of queue {self.other}: "
            "a delayed message would be delivered to both"
        )


def shared_keys(topology: Topology) -> tuple[SharedKey, ...]:
    """Work queues whose routing keys cannot be told apart behind a delay.

    A delayed message carries its key behind 28 digits, and work queues are bound by ``#.key``: what was delayed for
    ``high.email`` reaches ``email`` as well.
    """
    delayed = delayed_queues(topology)
    return tuple(
        SharedKey(queue=queue.name, key=binding.routing_key, other=other.name, other_key=pattern.routing_key)
        for queue, binding in delayed
        for other, pattern in delayed
        if other.name != queue.name and topic_matches(delayed_key(pattern.routing_key), binding.routing_key)
    )


def delay_objects() -> Topology:
    """The delay exchanges and queues by name and type, to look for them."""
    exchanges = tuple(Exchange(name=name, type="topic") for name in (*LEVELS, EXCHANGE))
    return Topology(vhost="", exchanges=exchanges, queues=tuple(Queue(name=name) for name in LEVELS))


def missing_delays(topology: Topology, found: Topology) -> tuple[str, ...]:
    """What of delayed delivery a broker lacks for a file's work queues."""
    exchanges = {exchange.name for exchange in found.exchanges}
    queues = {queue.name for queue in found.queues}
    bindings = {(binding.source, binding.destination, binding.routing_key) for binding in found.bindings}
    missing = [f"exchange {name}" for name in (*LEVELS, EXCHANGE) if name not in exchanges]
    missing += [f"queue {name}" for name in LEVELS if name not in queues]
    for queue, binding in delayed_queues(topology):
        key = delayed_key(binding.routing_key)
        needed = ((EXCHANGE, binding.source, key), (binding.source, queue.name, key))
        missing += [
            f"binding {one} -> {other} ({key})" for one, other, _ in needed if (one, other, key) not in bindings
        ]
    return tuple(missing)


def delayed_key(routing_key: str) -> str:
    """The pattern by which a delayed message with its prefix of 28 digits still reaches its queue."""
    return routing_key if routing_key.startswith("#") else f"#.{routing_key}"
