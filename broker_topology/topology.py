"""The topology: frozen values read from ``definitions.json``, RabbitMQ's own definitions format.

Nothing else in the project names a queue. Which queue plays which role is read off the file:

- a **work queue** has a dead-letter exchange (argument ``x-dead-letter-exchange``);
- a **dead-letter queue** is bound to such an exchange;
- an **unroutable queue** is bound to an alternate exchange.

Source of the format: https://www.rabbitmq.com/docs/definitions
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

from broker_topology.definitions import parse_definitions, read_definitions_text
from broker_topology.entries import Problem, as_object, read_entries
from broker_topology.errors import TopologyError

Arguments = Mapping[str, Any]
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchange:
    """One exchange as declared in the file."""

    name: str
    type: str
    durable: bool = True
    auto_delete: bool = False
    internal: bool = False
    arguments: Arguments = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Queue:
    """One queue as declared in the file."""

    name: str
    durable: bool = True
    auto_delete: bool = False
    arguments: Arguments = field(default_factory=dict)

    exclusive: bool = False

    @property
    def dead_letter_exchange(self) -> str | None:
        """The exchange that the broker hands rejected, expired and undeliverable messages to."""
        name = self.arguments.get("x-dead-letter-exchange")
        return name if isinstance(name, str) else None

    @property
    def type(self) -> str | None:
        """``quorum``, ``classic`` or ``stream`` where the arguments say so; else the virtual host decides."""
        name = self.arguments.get("x-queue-type")
        return name if isinstance(name, str) else None

    @property
    def lasts(self) -> bool:
        """Whether it outlives its clients and the broker, so that a file can own it."""
        return self.durable and not self.auto_delete and not self.exclusive


@dataclass(frozen=True, slots=True, kw_only=True)
class Binding:
    """One binding from an exchange to a queue or to another exchange."""

    source: str
    destination: str
    destination_type: str
    routing_key: str = ""
    arguments: Arguments = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """One policy. ``apply_to`` is ``queues``, ``exchanges``, ``all``, or a queue type from 4.0 on."""

    name: str
    pattern: str
    definition: Arguments
    apply_to: str = "all"
    priority: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Topology:
    """Everything that one virtual host of a definitions file declares."""

    vhost: str
    exchanges: tuple[Exchange, ...] = ()
    queues: tuple[Queue, ...] = ()
    bindings: tuple[Binding, ...] = ()
    policies: tuple[Policy, ...] = ()
    operator_policies: tuple[Policy, ...] = ()
    default_queue_type: str = "classic"
    """What a queue without ``x-queue-type`` becomes here."""

    @property
    def work_queues(self) -> tuple[Queue, ...]:
        """Queues that tasks wait in, in the order of the file."""
        return tuple(
            queue
            for queue in self.queues
            if queue.dead_letter_exchange is not None and not is_delay_queue(queue.name)
        )

    @property
    def dead_letter_queues(self) -> tuple[str, ...]:
        """Names of the queues that dead letters arrive in."""
        exchanges = {queue.dead_letter_exchange for queue in self.work_queues}
        return self._queues_bound_to(exchange for exchange in exchanges if exchange is not None)

    @property
    def unroutable_queues(self) -> tuple[str, ...]:
        """Names of the queues that keep what no binding wanted."""
        alternates = [exchange.arguments.get("alternate-exchange") for exchange in self.exchanges]
        alternates += [policy.definition.get("alternate-exchange") for policy in self.policies]
        return self._queues_bound_to(name for name in alternates if isinstance(name, str))

    @property
    def drained_queues(self) -> tuple[str, ...]:
        """What the drain consumes: dead-letter queues, then unroutable queues, each once."""
        return tuple(dict.fromkeys(self.dead_letter_queues + self.unroutable_queues))

    def queue(self, name: str) -> Queue | None:
        """The queue of that name, or None."""
        return next((queue for queue in self.queues if queue.name == name), None)

    def exchange(self, name: str) -> Exchange | None:
        """The exchange of that name, or None."""
        return next((exchange for exchange in self.exchanges if exchange.name == name), None)

    def bindings_of(self, queue: str) -> tuple[Binding, ...]:
        """The bindings that lead into a queue."""
        return tuple(
            binding
            for binding in self.bindings
            if binding.destination == queue and binding.destination_type == "queue"
        )

    def _queues_bound_to(self, exchanges: Iterable[str]) -> tuple[str, ...]:
        sources = set(exchanges)
        bound = {
            binding.destination
            for binding in self.bindings
            if binding.source in sources and binding.destination_type == "queue"
        }
        return tuple(queue.name for queue in self.queues if queue.name in bound)


_DELAY_QUEUE = re.compile(r"(.+_)?celery_delayed_\d+")


def is_delay_queue(name: str) -> bool:
    """Whether a queue is one of those in which Celery's delayed messages wait."""
    return _DELAY_QUEUE.fullmatch(name) is not None


def read_topology(path: str | Path, *, vhost: str | None = None) -> Topology:
    """Read the topology of one virtual host from a definitions file.

    ``vhost`` chooses among several virtual hosts; a file that speaks of one only is that one's topology,
    whatever it is called, so that the same file can be deployed to any virtual host.

    Raises TopologyError, in one sentence, for a file that is missing, unreadable or malformed.
    """
    return parse_topology(read_definitions_text(path), vhost=vhost, name=str(path))


def parse_topology(text: str, *, vhost: str | None = None, name: str = "definitions") -> Topology:
    """Parse the text of a definitions file. ``name`` is what errors call it. Raises TopologyError."""
    definitions = parse_definitions(text, name=name)
    chosen = _choose_vhost(definitions, vhost, name)
    topology, problems = topology_of(definitions, chosen)
    loose = undeclared_ends(topology)
    if is_export(definitions):
        doomed = {problem.index for problem in loose}
        kept = (binding for index, binding in enumerate(topology.bindings) if index not in doomed)
        topology = replace(topology, bindings=tuple(kept))
    else:
        problems += loose
    if problems:
        raise TopologyError(f"{name}: {problems[0]}")
    return topology


def topology_of(definitions: Mapping[str, Any], vhost: str) -> tuple[Topology, list[Problem]]:
    """What parsed definitions say of one virtual host, and which of their entries are malformed."""
    problems: list[Problem] = []

    def section(key: str, read: type[T]) -> tuple[T, ...]:
        return tuple(read_entries(read, definitions.get(key, []), key, vhost, problems))

    operator_policies = [
        {**as_object(entry.get("value")), "name": entry.get("name"), "vhost": entry.get("vhost", vhost)}
        for entry in definitions.get("parameters", [])
        if entry.get("component") == "operator_policy"
    ]
    topology = Topology(
        vhost=vhost,
        exchanges=section("exchanges", Exchange),
        queues=section("queues", Queue),
        bindings=section("bindings", Binding),
        policies=section("policies", Policy),
        operator_policies=tuple(read_entries(Policy, operator_policies, "operator policies", vhost, problems)),
        default_queue_type=_default_queue_type(definitions, vhost),
    )
    return topology, problems


def vhosts_of(definitions: Mapping[str, Any]) -> tuple[str, ...]:
    """Every virtual host that definitions name, in alphabetical order; ``/`` where they name none."""
    names = [entry.get("name") for entry in definitions.get("vhosts", [])]
    named = {name for name in names if isinstance(name, str)}
    return tuple(sorted(named | _mentioned(definitions))) or ("/",)


def is_export(definitions: Mapping[str, Any]) -> bool:
    """Whether a broker wrote these definitions.

    It leaves out exclusive queues and, from 4.3 on, internal exchanges, but not their bindings.
    """
    return isinstance(definitions.get("rabbitmq_version", definitions.get("rabbit_version")), str)


def undeclared_ends(topology: Topology) -> list[Problem]:
    """Bindings between objects that are not declared: 3.10 would ignore them silently."""
    exchanges = {exchange.name for exchange in topology.exchanges}
    queues = {queue.name for queue in topology.queues}
    problems = []
    for index, binding in enumerate(topology.bindings):
        known = binding.destination in (queues if binding.destination_type == "queue" else exchanges)
        if not known and not binding.destination.startswith("amq."):
            text = f"leads to {binding.destination_type} {binding.destination!r}, which is not declared"
            problems.append(Problem(section="bindings", index=index, text=text))
        elif binding.source not in exchanges and not binding.source.startswith("amq."):
            text = f"starts at exchange {binding.source!r}, which is not declared"
            problems.append(Problem(section="bindings", index=index, text=text))
    return problems


def _mentioned(definitions: Mapping[str, Any]) -> set[str]:
    return {
        entry["vhost"]
        for key in ("exchanges", "queues", "bindings", "policies")
        for entry in definitions.get(key, [])
        if isinstance(entry.get("vhost"), str)
    }


def _choose_vhost(definitions: Mapping[str, Any], wanted: str | None, name: str) -> str:
    match sorted(_mentioned(definitions)):
        case []:
            return wanted or "/"
        case [only]:
            return only
        case several if wanted is not None and wanted in several:
            return wanted
        case several:
            raise TopologyError(
                f"{name} has several virtual hosts ({', '.join(several)}) and none of them is {wanted or '/'}"
            )


def _default_queue_type(definitions: Mapping[str, Any], vhost: str) -> str:
    for entry in definitions.get("vhosts", []):
        if entry.get("name") == vhost:
            metadata = as_object(entry.get("metadata"))
            chosen = entry.get("default_queue_type") or metadata.get("default_queue_type")
            return chosen if isinstance(chosen, str) and chosen != "undefined" else "classic"
    return "classic"
