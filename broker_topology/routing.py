"""Where a message goes: the broker's routing, computed from a topology without sending anything."""

from __future__ import annotations

from broker_topology.effective import effective_alternate
from broker_topology.topology import Binding, Queue, Topology

DEFAULT_EXCHANGE = ""


def destinations(topology: Topology, exchange: str, routing_key: str | None) -> frozenset[str]:
    """Names of the queues that a message with this key reaches, alternate exchanges included.

    A ``routing_key`` of None stands for any key: every binding counts as matching. Headers exchanges and
    types of plugins decide by what is not known here, so their bindings count as matching too.
    """
    if exchange == DEFAULT_EXCHANGE:
        names = {queue.name for queue in topology.queues}
        return frozenset(names if routing_key is None else names & {routing_key})
    found: set[str] = set()
    seen: set[str] = set()
    waiting = [exchange]
    while waiting:
        current = waiting.pop()
        if current in seen:
            continue
        seen.add(current)
        matching = [binding for binding in bindings_from(topology, current) if takes(topology, binding, routing_key)]
        found |= {binding.destination for binding in matching if binding.destination_type == "queue"}
        waiting += [binding.destination for binding in matching if binding.destination_type == "exchange"]
        alternate = effective_alternate(topology, current)
        # The alternate exchange is asked where this exchange found nothing, whatever other exchanges find.
        if alternate is not None and (not matching or routing_key is None):
            waiting.append(alternate)
    return frozenset(found & {queue.name for queue in topology.queues})


def bindings_from(topology: Topology, exchange: str) -> tuple[Binding, ...]:
    """The bindings that start at an exchange."""
    return tuple(binding for binding in topology.bindings if binding.source == exchange)


def publishing_binding(topology: Topology, queue: Queue) -> Binding | None:
    """The binding whose key tasks are published with: the first without a wildcard, else the first."""
    bindings = topology.bindings_of(queue.name)
    plain = [binding for binding in bindings if not {"*", "#"} & set(binding.routing_key.split("."))]
    return next(iter(plain or bindings), None)


def exchange_type(topology: Topology, name: str) -> str | None:
    """An exchange's type, those that every broker has included; None for one that does not exist."""
    if name in _BUILT_IN:
        return _BUILT_IN[name]
    declared = topology.exchange(name)
    return declared.type if declared else None


def takes(topology: Topology, binding: Binding, routing_key: str | None) -> bool:
    """Whether a binding takes a message with this key; None stands for any key."""
    if routing_key is None:
        return True
    match exchange_type(topology, binding.source):
        case "direct":
            return binding.routing_key == routing_key
        case "topic":
            return topic_matches(binding.routing_key, routing_key)
        case _:
            return True


def topic_matches(pattern: str, routing_key: str) -> bool:
    """Whether a topic binding's pattern (``*`` one word, ``#`` any number of words) matches a key."""
    words = routing_key.split(".") if routing_key else []
    # reachable[i]: the pattern so far can have taken the first i words.
    reachable = [True] + [False] * len(words)
    for part in pattern.split(".") if pattern else []:
        if part == "#":
            first = reachable.index(True) if True in reachable else len(reachable)
            reachable = [index >= first for index in range(len(reachable))]
        else:
            reachable = [False] + [
                before and part in {"*", word} for before, word in zip(reachable, words, strict=False)
            ]
    return reachable[-1]


_BUILT_IN = {
    DEFAULT_EXCHANGE: "direct",
    "amq.direct": "direct",
    "amq.fanout": "fanout",
    "amq.headers": "headers",
    "amq.match": "headers",
    "amq.topic": "topic",
    "amq.rabbitmq.trace": "topic",
    "amq.rabbitmq.log": "topic",
    "amq.rabbitmq.event": "topic",
}
