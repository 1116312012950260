"""The topology as kombu entities, and how they are declared over AMQP."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import amqp.exceptions
import kombu
from kombu.transport.native_delayed_delivery import (
    CELERY_DELAYED_DELIVERY_EXCHANGE,
    MAX_NUMBER_OF_BITS_TO_USE,
    bind_queue_to_native_delayed_delivery_exchange,
    declare_native_delayed_delivery_exchanges_and_queues,
    level_name,
)

from broker_topology.address import BrokerAddress
from broker_topology.connection import connected, reply
from broker_topology.errors import TopologyError
from broker_topology.topology import Arguments, Binding, Exchange, Queue, Topology

DELAYED_DELIVERY = "delayed delivery"
"""What reports call Celery's 28 delay queues, their exchanges and the bindings of the work queues."""


def kombu_queues(topology: Topology, *, no_declare: bool = False) -> tuple[kombu.Queue, ...]:
    """The work queues as Celery's ``task_queues`` needs them.

    ``no_declare`` makes a worker take them as they are, so that its user needs no right to configure them.

    Raises TopologyError for a work queue that no exchange leads to: Celery could only publish to it through
    the default exchange, where delayed retries and the alternate exchange do not work.
    """
    return tuple(_kombu_queue(topology, queue, no_declare) for queue in topology.work_queues)


def _kombu_queue(topology: Topology, queue: Queue, no_declare: bool) -> kombu.Queue:
    binding = _publishing_binding(topology, queue)
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
    if name.startswith("amq."):
        return Exchange(name=name, type=name.removeprefix("amq."))
    return topology.exchange(name)


def _publishing_binding(topology: Topology, queue: Queue) -> Binding | None:
    """The binding whose key Celery publishes with: the first without a wildcard, else the first."""
    bindings = topology.bindings_of(queue.name)
    plain = [binding for binding in bindings if not {"*", "#"} & set(binding.routing_key.split("."))]
    return next(iter(plain or bindings), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Conflict:
    """One argument in which an object on the broker differs from the file, and that cannot be changed."""

    name: str
    """Such as ``queue payments``."""
    argument: str
    wanted: str
    found: str

    def __str__(self) -> str:
        return f"{self.name}: {self.argument} is {self.found} on the broker and {self.wanted} in the file"


@dataclass(frozen=True, slots=True, kw_only=True)
class Declared:
    """What became of every object of the file: names such as ``queue payments``."""

    created: tuple[str, ...] = ()
    unchanged: tuple[str, ...] = ()
    ensured: tuple[str, ...] = ()
    """Bindings of objects that existed: in place now, but AMQP does not tell whether they were before."""
    conflicts: tuple[Conflict, ...] = ()
    """Where there is one, nothing was created."""


def declare_topology(topology: Topology, amqp_url: str, *, delayed_delivery: bool = True) -> Declared:
    """Declare exchanges, queues and bindings in the virtual host of the URL, and Celery's delayed delivery.

    Everything is looked at before anything is created, so a conflict leaves the broker as it was. With
    ``delayed_delivery``, retries wait in the broker even before the first worker has started.

    Raises BrokerUnavailableError and AddressError.
    """
    with connected(BrokerAddress.parse(amqp_url)) as connection:
        found = inspect(topology, connection, delayed_delivery=delayed_delivery)
        return found if found.conflicts else create(topology, connection, found)


def inspect(topology: Topology, connection: Any, *, delayed_delivery: bool = True) -> Declared:
    """What exists and what conflicts; ``created`` holds what is missing. Changes nothing."""
    look = _Look(connection)
    missing: list[str] = []
    unchanged: list[str] = []
    conflicts: list[Conflict] = []
    for label, arguments, declare in _declarations(topology):
        if not look.exists(arguments, declare):
            missing.append(label)
        elif differing := look.differences(label, arguments, declare):
            conflicts += differing
        else:
            unchanged.append(label)
    if delayed_delivery and delayed_queues(topology):
        (unchanged if look.has_delayed_delivery() else missing).append(DELAYED_DELIVERY)
    look.close()
    return Declared(created=tuple(missing), unchanged=tuple(unchanged), conflicts=tuple(conflicts))


def create(topology: Topology, connection: Any, found: Declared) -> Declared:
    """Declare what ``found`` says is missing, and every binding."""
    channel = connection.channel()
    missing = set(found.created)
    for label, arguments, declare in _declarations(topology):
        if label in missing:
            declare(channel, arguments, False)
    created = list(found.created)
    ensured: list[str] = []
    for binding in topology.bindings:
        _bind(channel, binding)
        ends = {f"exchange {binding.source}", f"{binding.destination_type} {binding.destination}"}
        (created if ends & missing else ensured).append(binding_label(binding))
    if DELAYED_DELIVERY in {*found.created, *found.unchanged}:
        declare_native_delayed_delivery_exchanges_and_queues(connection, "quorum")
        for queue in delayed_queues(topology):
            bind_queue_to_native_delayed_delivery_exchange(connection, queue)
    channel.close()
    return Declared(created=tuple(created), unchanged=found.unchanged, ensured=tuple(ensured))


def binding_label(binding: Binding) -> str:
    """How reports name a binding."""
    key = f" ({binding.routing_key})" if binding.routing_key else ""
    return f"binding {binding.source} -> {binding.destination}{key}"


def delayed_queues(topology: Topology) -> tuple[kombu.Queue, ...]:
    """The work queues that Celery's delayed delivery can reach: it needs a topic exchange."""
    bound = tuple(queue for queue in topology.work_queues if _publishing_binding(topology, queue))
    queues = (_kombu_queue(topology, queue, False) for queue in bound)
    return tuple(queue for queue in queues if queue.exchange.type == "topic")


Declare = Callable[[Any, dict[str, Any], bool], None]
"""Declare one object on a channel with these arguments, or only look whether it exists (passive)."""


def _declarations(topology: Topology) -> list[tuple[str, dict[str, Any], Declare]]:
    """Every exchange and queue as label, all that the broker compares, and the call that declares it."""
    exchanges = [
        (f"exchange {exchange.name}", _exchange_arguments(exchange), _exchange_call(exchange.name))
        for exchange in topology.exchanges
    ]
    queues = [(f"queue {queue.name}", _queue_arguments(queue), _queue_call(queue.name)) for queue in topology.queues]
    return exchanges + queues


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


_EXCHANGE_DECLARE = (40, 10)
_EXCHANGE_DECLARE_OK = (40, 11)


def _exchange_call(name: str) -> Declare:
    def declare(channel: Any, arguments: dict[str, Any], passive: bool) -> None:
        own, rest = _split(arguments, "type", "durable", "auto_delete", "internal")
        # py-amqp's exchange_declare has no way to say "internal", so the method is sent as it is.
        channel.send_method(
            _EXCHANGE_DECLARE,
            "BssbbbbbF",
            (
                0,
                name,
                own["type"],
                passive,
                own["durable"],
                own["auto_delete"],
                own["internal"],
                False,
                rest,
            ),
            wait=_EXCHANGE_DECLARE_OK,
        )

    return declare


def _queue_call(name: str) -> Declare:
    def declare(channel: Any, arguments: dict[str, Any], passive: bool) -> None:
        own, rest = _split(arguments, "durable", "auto_delete")
        channel.queue_declare(queue=name, passive=passive, exclusive=False, arguments=rest, **own)

    return declare


def _split(arguments: Arguments, *own: str) -> tuple[dict[str, Any], dict[str, Any]]:
    rest = {key: value for key, value in arguments.items() if key not in own}
    return {key: arguments[key] for key in own}, rest


def _bind(channel: Any, binding: Binding) -> None:
    bind = channel.queue_bind if binding.destination_type == "queue" else channel.exchange_bind
    bind(binding.destination, binding.source, binding.routing_key, arguments=dict(binding.arguments))


_INEQUIVALENT = re.compile(
    r"inequivalent arg '(?P<argument>[^']+)' for .*?: received (?P<wanted>.+?) but current is (?P<found>.+)$",
    re.DOTALL,
)
_INVALID = re.compile(r"invalid arg '(?P<argument>[^']+)' for ")
_VALUE = re.compile(r"(?:the value )?'(?P<value>.*?)'(?: of type '(?P<type>\w+)')?$", re.DOTALL)


class _Look:
    """Asks a broker about objects without changing them. A refusal closes a channel, so it opens anew."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self._channel = connection.channel()

    def exists(self, arguments: dict[str, Any], declare: Declare) -> bool:
        try:
            declare(self._channel, arguments, True)
        except amqp.exceptions.NotFound:
            self._channel = self._connection.channel()
            return False
        except amqp.exceptions.ResourceLocked:
            self._channel = self._connection.channel()
        return True

    def differences(self, label: str, arguments: dict[str, Any], declare: Declare) -> list[Conflict]:
        """Every differing argument of an object that exists.

        A refusal names one difference at a time, so its value is taken over and the question asked again.
        """
        wanted = dict(arguments)
        found: list[Conflict] = []
        while True:
            try:
                declare(self._channel, wanted, False)
            except (amqp.exceptions.PreconditionFailed, amqp.exceptions.ResourceLocked) as error:
                self._channel = self._connection.channel()
                conflict = _read_conflict(label, arguments, reply(error))
                seen = conflict.argument in {earlier.argument for earlier in found}
                if not seen:
                    found.append(conflict)
                if seen or not _adopt(wanted, conflict.argument, reply(error)):
                    return found
            else:
                return found

    def has_delayed_delivery(self) -> bool:
        levels = [level_name(level) for level in range(MAX_NUMBER_OF_BITS_TO_USE)]
        exchanges = (Exchange(name=name, type="topic") for name in (*levels, CELERY_DELAYED_DELIVERY_EXCHANGE))
        delays = Topology(vhost="", exchanges=tuple(exchanges), queues=tuple(Queue(name=name) for name in levels))
        return all(self.exists(arguments, declare) for _, arguments, declare in _declarations(delays))

    def close(self) -> None:
        self._channel.close()


def _read_conflict(label: str, arguments: Arguments, text: str) -> Conflict:
    if match := _INEQUIVALENT.search(text):
        argument = match["argument"]
        wanted, found = _literal(arguments.get(argument)), _shown(match["found"].strip())
        return Conflict(name=label, argument=argument, wanted=wanted, found=found)
    if match := _INVALID.search(text):
        argument = match["argument"]
        wanted = _literal(arguments.get(argument))
        return Conflict(name=label, argument=argument, wanted=wanted, found="not set")
    return Conflict(name=label, argument="declaration", wanted="accepted", found=f"refused ({text})")


def _literal(value: object) -> str:
    match value:
        case None:
            return "not set"
        case bool():
            return str(value).lower()
        case _:
            return repr(value)


def _shown(described: str) -> str:
    """A value as the broker describes it, written as ours are."""
    match = _VALUE.match(described)
    if match is None:
        return "not set" if described == "none" else described
    return _literal(_value(match["value"], match["type"]))


def _adopt(arguments: dict[str, Any], argument: str, text: str) -> bool:
    """Take the broker's value of an argument over; False where its value cannot be written down here."""
    if _INVALID.search(text):
        return arguments.pop(argument, None) is not None
    match = _INEQUIVALENT.search(text)
    if match is None:
        return False
    if match["found"].strip() == "none":
        return arguments.pop(argument, None) is not None
    value = _VALUE.match(match["found"].strip())
    if value is None:
        return False
    arguments[argument] = _value(value["value"], value["type"])
    return True


def _value(text: str, type_name: str | None) -> str | int | bool:
    """The broker names no type for what it compares itself, such as durable or x-delivery-limit."""
    if type_name != "longstr" and text in {"true", "false"}:
        return text == "true"
    if type_name != "longstr" and re.fullmatch(r"-?\d+", text):
        return int(text)
    return text
