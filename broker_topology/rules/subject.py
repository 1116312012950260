"""What rules look at: one virtual host or one file, with everything computed that rules ask for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from broker_topology.effective import Effective, effective_alternate, effective_queue, type_of
from broker_topology.routing import bindings_from, destinations, exchange_type
from broker_topology.topology import Queue, Topology, is_delay_queue
from broker_topology.versions import SUPPORTED, Version


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveFacts:
    """What only a running broker knows of its queues."""

    nodes: int = 1
    """Nodes of the cluster."""
    messages: Mapping[str, int] = field(default_factory=dict)
    """Depth of each queue."""
    bytes: Mapping[str, int] = field(default_factory=dict)
    """Bytes of message bodies in each queue."""
    retained: Mapping[str, int] = field(default_factory=dict)
    """Dead letters that each source queue could not hand on yet."""
    members: Mapping[str, int] = field(default_factory=dict)
    """Copies of each quorum queue."""


class Role(StrEnum):
    """What a queue is for, read off how it is connected."""

    WORK = "work"
    DEAD_LETTER = "dead-letter"
    """Dead letters end here: some queue's DLX leads to it, and it has none itself."""
    UNROUTABLE = "unroutable"
    """What no binding wanted ends here."""
    DELAY = "delay"
    """One of Celery's delay queues."""
    OTHER = "other"
    """A stream, or a queue that goes away with its client."""


class Subject:
    """One virtual host, as the file says it or as the broker has it."""

    def __init__(
        self,
        topology: Topology,
        definitions: Mapping[str, Any],
        *,
        versions: tuple[Version, ...] = SUPPORTED,
        live: LiveFacts | None = None,
    ) -> None:
        self.topology, self.definitions, self.versions, self.live = topology, definitions, versions, live
        self._effective: dict[tuple[str, Version], Effective] = {}
        self._roles: dict[str, Role] | None = None

    @property
    def newest(self) -> Version:
        """The newest version that the subject must hold on."""
        return max(self.versions)

    @property
    def oldest(self) -> Version:
        """The oldest version that the subject must hold on."""
        return min(self.versions)

    def effective(self, queue: Queue, version: Version | None = None) -> Effective:
        """The settings that hold for a queue; by default on the newest version."""
        key = (queue.name, version or self.newest)
        if key not in self._effective:
            self._effective[key] = effective_queue(self.topology, queue, key[1])
        return self._effective[key]

    def type_of(self, queue: Queue) -> str:
        """A queue's type."""
        return type_of(self.topology, queue)

    def queues(self, *roles: Role) -> Iterator[Queue]:
        """The queues in these roles."""
        for queue in self.topology.queues:
            if self.role(queue) in roles:
                yield queue

    def role(self, queue: Queue) -> Role:
        """What a queue is for."""
        if self._roles is None:
            self._roles = self._find_roles()
        return self._roles[queue.name]

    def exchange_exists(self, name: str) -> bool:
        """Whether an exchange is declared here or built in."""
        return exchange_type(self.topology, name) is not None

    def dead_letters_go_to(self, queue: Queue) -> frozenset[str] | None:
        """Queues that dead letters of a queue arrive in; None where it has no dead-letter exchange."""
        effective = self.effective(queue)
        if effective.dead_letter_exchange is None:
            return None
        found: set[str] = set()
        for key in self.dead_letter_keys(queue):
            found |= self.dead_letters_with_key(effective.dead_letter_exchange, key)
        return frozenset(found)

    def dead_letters_with_key(self, exchange: str, key: str | None) -> frozenset[str]:
        """Queues that a dead letter with this key arrives in."""
        return destinations(self.topology, exchange, key)

    def dead_letter_keys(self, queue: Queue) -> tuple[str | None, ...]:
        """Routing keys that dead letters of a queue carry; None stands for keys that are not known."""
        own = self.effective(queue).dead_letter_routing_key
        if own is not None:
            return (own,)
        # The message's own key counts: what the queue is bound by, or its name through the default exchange.
        keys = {
            None if self._is_pattern(binding.source, binding.routing_key) else binding.routing_key
            for binding in self.topology.bindings_of(queue.name)
        }
        return tuple(sorted(keys - {None}, key=str)) + ((None,) if None in keys else ()) or (queue.name,)

    def alternate(self, exchange: str) -> str | None:
        """Where an exchange hands what none of its bindings wants."""
        return effective_alternate(self.topology, exchange)

    def leads_anywhere(self, exchange: str) -> bool:
        """Whether an exchange has a binding."""
        return bool(bindings_from(self.topology, exchange))

    def _is_pattern(self, exchange: str, key: str) -> bool:
        kind = exchange_type(self.topology, exchange)
        return kind != "direct" and (kind != "topic" or bool({"*", "#"} & set(key.split("."))))

    def _find_roles(self) -> dict[str, Role]:
        dead_letter = set().union(*(self.dead_letters_go_to(queue) or () for queue in self.topology.queues))
        alternates = (self.alternate(exchange.name) for exchange in self.topology.exchanges)
        unroutable = set().union(*(destinations(self.topology, name, None) for name in alternates if name))
        return {queue.name: self._role(queue, dead_letter, unroutable) for queue in self.topology.queues}

    def _role(self, queue: Queue, dead_letter: set[str], unroutable: set[str]) -> Role:
        if is_delay_queue(queue.name):
            return Role.DELAY
        if not queue.lasts or self.type_of(queue) == "stream" or is_control_queue(queue.name):
            return Role.OTHER
        if self.effective(queue).dead_letter_exchange is not None:
            return Role.WORK
        if queue.name in dead_letter - unroutable:
            return Role.DEAD_LETTER
        return Role.UNROUTABLE if queue.name in unroutable else Role.WORK


@dataclass(frozen=True, slots=True, kw_only=True)
class FileSubject:
    """A whole definitions file."""

    definitions: Mapping[str, Any]
    versions: tuple[Version, ...] = SUPPORTED


def is_control_queue(name: str) -> bool:
    """Whether a queue is one of those through which Celery's workers and tools talk to each other."""
    return name.startswith(("celeryev.", "amq.")) or name.endswith(".pidbox")


def on_versions(versions: list[Version]) -> str:
    """How messages name the versions on which something holds."""
    return "on RabbitMQ " + " and ".join(str(version) for version in versions)
