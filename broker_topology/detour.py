"""The detour around a queue while it is replaced, so that its publishers notice nothing.

Messages go from each source exchange over a switch exchange of ours to the queue. While the queue is bound
to the switch, the switch leads there; once it is unbound, the switch finds no destination and hands what
comes to its alternate exchange, behind which the holding queue waits. Turning the switch is one change of one
binding, so each message goes one way or the other, never both and never neither. A message that reaches a
queue by two ways is put there once, so bindings can be laid over the switch, and back, one after the other.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Self

from broker_topology.journal import Journal
from broker_topology.letter import Letter
from broker_topology.message import BROKER_HISTORY_HEADERS, BROKER_HISTORY_PREFIXES
from broker_topology.raw_headers import MalformedHeaderError, RawHeader
from broker_topology.topology import Binding

PREFIX = "broker-topology.migrate."
SWITCH = f"{PREFIX}switch."
EXCHANGE_HEADER = "x-broker-topology-exchange"
KEY_HEADER = "x-broker-topology-routing-key"
EXPIRATION_HEADER = "x-broker-topology-expiration"
OUR_HEADERS = frozenset({EXCHANGE_HEADER, KEY_HEADER, EXPIRATION_HEADER})
FULL_ENOUGH = 1_000_000
"""A delivery limit that is no limit, on every version."""


@dataclass(frozen=True, slots=True)
class Detour:
    """The names of everything that a detour around one queue is made of."""

    queue: str

    @classmethod
    def around(cls, exchange: str) -> Self | None:
        """The detour that an exchange of that name belongs to; None for any other exchange."""
        return cls(exchange.removeprefix(SWITCH)) if exchange.startswith(SWITCH) else None

    @property
    def switch(self) -> str:
        """The exchange through which publishers reach the queue, or the holding queue."""
        return f"{SWITCH}{self.queue}"

    @property
    def aside(self) -> str:
        """The alternate exchange of the switch."""
        return f"{PREFIX}aside.{self.queue}"

    @property
    def hold(self) -> str:
        """The queue for what is published meanwhile."""
        return f"{PREFIX}hold.{self.queue}"

    @property
    def stash(self) -> str:
        """The queue for what was in the queue."""
        return f"{PREFIX}stash.{self.queue}"

    def lay(self, channel: Any, journal: Journal, *, turned_to_queue: bool) -> None:
        """Declare the detour."""
        safe = {"x-queue-type": "quorum", "x-overflow": "reject-publish", "x-delivery-limit": FULL_ENOUGH}
        dead_letters = {
            name: journal.wanted.arguments[name]
            for name in ("x-dead-letter-exchange", "x-dead-letter-routing-key")
            if name in journal.wanted.arguments
        }
        channel.queue_declare(self.stash, durable=True, arguments=safe)
        # What expires while it is held is dead-lettered as it would be from the queue.
        channel.queue_declare(self.hold, durable=True, arguments={**safe, **dead_letters})
        channel.exchange_declare(self.aside, "fanout", durable=True)
        channel.queue_bind(self.hold, self.aside, "")
        channel.exchange_declare(self.switch, "fanout", durable=True, arguments={"alternate-exchange": self.aside})
        if turned_to_queue:
            channel.queue_bind(self.queue, self.switch, "")

    def divert(self, channel: Any, bindings: tuple[Binding, ...]) -> None:
        """Lead the bindings over the switch."""
        for binding in bindings:
            channel.exchange_bind(self.switch, binding.source, binding.routing_key, dict(binding.arguments))
        for binding in bindings:
            channel.queue_unbind(self.queue, binding.source, binding.routing_key, dict(binding.arguments))

    def undivert(self, channel: Any, bindings: tuple[Binding, ...]) -> None:
        """Give the queue its bindings back."""
        for binding in bindings:
            channel.queue_bind(self.queue, binding.source, binding.routing_key, dict(binding.arguments))
        for binding in bindings:
            channel.exchange_unbind(self.switch, binding.source, binding.routing_key, dict(binding.arguments))

    def hold_back(self, channel: Any) -> None:
        """Turn the switch to the holding queue."""
        channel.queue_unbind(self.queue, self.switch, "")

    def let_through(self, channel: Any) -> None:
        """Turn the switch to the queue."""
        channel.queue_bind(self.queue, self.switch, "")

    def close(self, channel: Any) -> None:
        """Remove the exchanges of the detour; nothing can come into its queues any more."""
        channel.exchange_delete(self.switch)
        channel.exchange_delete(self.aside)

    def remove(self, channel: Any) -> None:
        """Remove the queues of the detour, which must be empty."""
        channel.queue_delete(self.hold)
        channel.queue_delete(self.stash)

    def into_stash(self, letter: Letter) -> Letter:
        """Address a message of the queue to the stash, with what it takes to bring it back."""
        try:
            header = RawHeader.parse(letter.properties)
        except MalformedHeaderError:
            return Letter(exchange="", routing_key=self.stash, properties=letter.properties)
        header = _without_history(header)
        header = header.with_header(EXCHANGE_HEADER, letter.exchange).with_header(KEY_HEADER, letter.routing_key)
        expiration = header.property("expiration")
        if expiration is not None:
            # The stash must not let it expire: there is nowhere to go from there.
            header = header.with_property("expiration", None)
            header = header.with_header(EXPIRATION_HEADER, expiration.decode("latin-1"))
        return Letter(exchange="", routing_key=self.stash, properties=header.encode())

    def home(self, letter: Letter, leads_home: Callable[[str, str], bool]) -> Letter:
        """Address a held or stashed message to the queue, the way it came where that leads to it alone.

        Celery retries a task through the exchange and key that its message came by, so they are worth keeping.
        """
        try:
            header = _without_history(RawHeader.parse(letter.properties))
        except MalformedHeaderError:
            return Letter(exchange="", routing_key=self.queue, properties=letter.properties)
        exchange = header.text(EXCHANGE_HEADER)
        key = header.text(KEY_HEADER)
        exchange = letter.exchange if exchange is None else exchange
        key = letter.routing_key if key is None else key
        expiration = header.text(EXPIRATION_HEADER)
        header = header.without_headers(OUR_HEADERS)
        if expiration is not None:
            header = header.with_property("expiration", expiration.encode("latin-1"))
        if not leads_home(exchange, key):
            exchange, key = "", self.queue
        return Letter(exchange=exchange, routing_key=key, properties=header.encode())


def _without_history(header: RawHeader) -> RawHeader:
    """Take away what must not be published a second time.

    Death records are read as history before 4.0; CC would route the message elsewhere again; a broker refuses
    the user id of somebody else.
    """
    header = header.without_headers(BROKER_HISTORY_HEADERS | {"CC", "BCC"}, BROKER_HISTORY_PREFIXES)
    return header.with_property("user_id", None)
