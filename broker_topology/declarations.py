"""Exchanges and queues as what AMQP declares and compares: names, arguments, and the call itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from broker_topology.topology import Exchange, Queue, Topology


@dataclass(frozen=True, slots=True, kw_only=True)
class Declaration:
    """One exchange or queue, ready to be declared."""

    kind: str
    """``exchange`` or ``queue``."""
    name: str
    arguments: Mapping[str, Any]
    """All that the broker compares: durable, auto_delete, an exchange's type and internal, and the arguments."""

    @property
    def label(self) -> str:
        """How reports name it."""
        return f"{self.kind} {self.name}"

    def declare(self, channel: Any, *, arguments: Mapping[str, Any] | None = None, passive: bool = False) -> None:
        """Declare it, or only ask whether it exists (passive). Raises what py-amqp raises."""
        values = dict(self.arguments if arguments is None else arguments)
        if self.kind == "queue":
            own = {key: values.pop(key) for key in ("durable", "auto_delete")}
            channel.queue_declare(queue=self.name, passive=passive, exclusive=False, arguments=values, **own)
            return
        kind, durable, auto_delete, internal = (
            values.pop(key) for key in ("type", "durable", "auto_delete", "internal")
        )
        # py-amqp's exchange_declare has no way to say "internal", so the method is sent as it is.
        channel.send_method(
            _EXCHANGE_DECLARE,
            "BssbbbbbF",
            (0, self.name, kind, passive, durable, auto_delete, internal, False, values),
            wait=_EXCHANGE_DECLARE_OK,
        )


_EXCHANGE_DECLARE = (40, 10)
_EXCHANGE_DECLARE_OK = (40, 11)


def declarations(topology: Topology) -> list[Declaration]:
    """Every exchange and queue of a topology, exchanges first; those that every broker has are left out."""
    exchanges = [
        Declaration(kind="exchange", name=exchange.name, arguments=_exchange_arguments(exchange))
        for exchange in topology.exchanges
        if not exchange.name.startswith("amq.")
    ]
    return exchanges + [
        Declaration(kind="queue", name=queue.name, arguments=_queue_arguments(queue)) for queue in topology.queues
    ]


def _exchange_arguments(exchange: Exchange) -> dict[str, Any]:
    own = {
        "type": exchange.type,
        "durable": exchange.durable,
        "auto_delete": exchange.auto_delete,
        "internal": exchange.internal,
    }
    return own | dict(exchange.arguments)


def _queue_arguments(queue: Queue) -> dict[str, Any]:
    return {"durable": queue.durable, "auto_delete": queue.auto_delete} | dict(queue.arguments)
