"""The topology: frozen values read from ``definitions.json``, RabbitMQ's own definitions format.

Nothing else in the project names a queue. Which queue plays which role is read off the file:

- a **work queue** has a dead-letter exchange (argument ``x-dead-letter-exchange``);
- a **dead-letter queue** is bound to such an exchange;
- an **unroutable queue** is bound to an alternate exchange.

Source of the format: https://www.rabbitmq.com/docs/definitions
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar, cast

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

    @property
    def dead_letter_exchange(self) -> str | None:
        """The exchange that the broker hands rejected, expired and undeliverable messages to."""
        return cast("str | None", self.arguments.get("x-dead-letter-exchange"))


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

    @property
    def work_queues(self) -> tuple[Queue, ...]:
        """Queues that tasks wait in, in the order of the file."""
        return tuple(queue for queue in self.queues if queue.dead_letter_exchange is not None)

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
        return self._queues_bound_to(name for name in alternates if name)

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


def read_topology(path: str | Path, *, vhost: str | None = None) -> Topology:
    """Read the topology of one virtual host from a definitions file.

    ``vhost`` chooses among several virtual hosts; a file that speaks of one only is that one's topology,
    whatever it is called, so that the same file can be deployed to any virtual host.

    Raises TopologyError, in one sentence, for a file that is missing, unreadable or malformed.
    """
    try:
        text = Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise TopologyError(f"cannot read {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise TopologyError(f"{path} is not UTF-8 text (byte {error.start})") from error
    return parse_topology(text, vhost=vhost, name=str(path))


def parse_topology(text: str, *, vhost: str | None = None, name: str = "definitions") -> Topology:
    """Parse the text of a definitions file. ``name`` is what errors call it. Raises TopologyError."""
    definitions = parse_definitions(text, name=name)
    chosen = _choose_vhost(definitions, vhost, name)

    def section(key: str, read: type[T]) -> tuple[T, ...]:
        return tuple(
            _read_entry(read, entry, f"{name}: {key}[{index}]")
            for index, entry in enumerate(definitions.get(key, []))
            if entry.get("vhost", chosen) == chosen
        )

    topology = Topology(
        vhost=chosen,
        exchanges=section("exchanges", Exchange),
        queues=section("queues", Queue),
        bindings=section("bindings", Binding),
        policies=section("policies", Policy),
    )
    _check_bindings(topology, name)
    return topology


SECTIONS = ("vhosts", "exchanges", "queues", "bindings", "policies")


def parse_definitions(text: str, *, name: str = "definitions") -> dict[str, Any]:
    """Parse the text of a definitions file as it is, every key kept. Raises TopologyError."""
    if not text.strip():
        raise TopologyError(f"{name} is empty")
    if text.lstrip().startswith("<"):
        raise TopologyError(f"{name} is a web page, not a definitions file")
    try:
        definitions = json.loads(text)
    except json.JSONDecodeError as error:
        raise TopologyError(
            f"{name} is not JSON: {error.msg} at line {error.lineno}, column {error.colno}"
        ) from error
    except RecursionError as error:
        raise TopologyError(f"{name} is nested too deeply to be a definitions file") from error
    if not isinstance(definitions, dict):
        raise TopologyError(
            f"{name} holds a {type(definitions).__name__}; a definitions file is a JSON object"
        )
    for key in SECTIONS:
        section = definitions.get(key, [])
        if not isinstance(section, list) or not all(isinstance(entry, dict) for entry in section):
            raise TopologyError(f"{name}: {key} must be a list of objects")
    return definitions


def _choose_vhost(definitions: dict[str, Any], wanted: str | None, name: str) -> str:
    declared: set[str] = {
        entry["vhost"]
        for key in SECTIONS[1:]
        for entry in definitions.get(key, [])
        if isinstance(entry.get("vhost"), str)
    }
    match sorted(declared):
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


def _read_entry(kind: type[T], entry: dict[str, Any], where: str) -> T:
    """Build one frozen value; unknown keys are RabbitMQ's business and are left alone."""
    values = {key.replace("-", "_"): value for key, value in entry.items()}
    slots: dict[str, str] = {slot.name: str(slot.type) for slot in kind.__dataclass_fields__.values()}  # type: ignore[attr-defined]
    known = {key: value for key, value in values.items() if key in slots}
    for key, value in known.items():
        if not isinstance(value, _EXPECTED[slots[key]]) or (slots[key] == "int" and isinstance(value, bool)):
            raise TopologyError(f"{where}: {key} is {value!r}; it must be {_NAMES[slots[key]]}")
    try:
        return kind(**known)
    except TypeError as error:
        missing = str(error).partition("argument")[2].lstrip("s").strip(": ")
        raise TopologyError(f"{where} lacks {missing}") from error


_EXPECTED: dict[str, type] = {"str": str, "bool": bool, "int": int, "Arguments": dict}
_NAMES = {"str": "a string", "bool": "true or false", "int": "a whole number", "Arguments": "an object"}


def _check_bindings(topology: Topology, name: str) -> None:
    """Refuse a binding between objects that the file does not declare: 3.10 would ignore it silently."""
    exchanges = {exchange.name for exchange in topology.exchanges}
    queues = {queue.name for queue in topology.queues}
    for binding in topology.bindings:
        destinations = queues if binding.destination_type == "queue" else exchanges
        if binding.destination not in destinations:
            raise TopologyError(
                f"{name}: a binding leads to {binding.destination_type} "
                f"{binding.destination!r}, which is not declared"
            )
        if binding.source not in exchanges and not binding.source.startswith("amq."):
            raise TopologyError(
                f"{name}: a binding starts at exchange {binding.source!r}, which is not declared"
            )
