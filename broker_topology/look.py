"""What a broker has, asked over AMQP alone: nothing is changed, and a refusal tells what differs."""

from __future__ import annotations

import re
from typing import Any

import amqp.exceptions

from broker_topology.connection import reply
from broker_topology.declarations import Declaration, declarations
from broker_topology.delays import DELAYED_DELIVERY, delay_objects, delayed_queues
from broker_topology.detour import Detour
from broker_topology.plan import Action, Change, Plan, binding_label, difference, under_way
from broker_topology.topology import Arguments, Exchange, Topology


def plan_over_amqp(topology: Topology, vhost: str, connection: Any, *, delayed_delivery: bool = True) -> Plan:
    """What a deploy would do, as far as AMQP tells.

    Policies and what is only on the broker cannot be seen. A binding counts as missing where one of its ends
    is; others are in ``ensured``, since AMQP does not tell whether a binding exists.
    """
    look = _Look(connection)
    changes: list[Change] = []
    unchanged: list[str] = []
    for declaration in declarations(topology):
        if not look.exists(declaration):
            changes.append(Change(action=Action.CREATE, object=declaration.label))
        elif differing := look.differences(declaration):
            changes += differing
        else:
            unchanged.append(declaration.label)
    switches = (Detour(queue.name).switch for queue in topology.queues)
    changes += under_way(name for name in switches if look.exists(_exchange(name)))
    ensured: list[str] = []
    missing = {change.object for change in changes if change.action is Action.CREATE}
    for binding in topology.bindings:
        ends = {f"exchange {binding.source}", f"{binding.destination_type} {binding.destination}"}
        if ends & missing:
            changes.append(Change(action=Action.CREATE, object=binding_label(binding)))
        else:
            ensured.append(binding_label(binding))
    if delayed_delivery and delayed_queues(topology):
        if all(look.exists(declaration) for declaration in declarations(delay_objects())):
            unchanged.append(DELAYED_DELIVERY)
        else:
            changes.append(Change(action=Action.CREATE, object=DELAYED_DELIVERY))
    look.close()
    return Plan(vhost=vhost, changes=tuple(changes), unchanged=tuple(unchanged), ensured=tuple(ensured))


_INEQUIVALENT = re.compile(
    r"inequivalent arg '(?P<argument>[^']+)' for .*?: received (?P<wanted>.+?) but current is (?P<found>.+)$",
    re.DOTALL,
)
_INVALID = re.compile(r"invalid arg '(?P<argument>[^']+)' for ")
_VALUE = re.compile(r"(?:the value )?'(?P<value>.*?)'(?: of type '(?P<type>\w+)')?$", re.DOTALL)


def _exchange(name: str) -> Declaration:
    [declaration] = declarations(Topology(vhost="", exchanges=(Exchange(name=name, type="fanout"),)))
    return declaration


class _Look:
    """Asks a broker about objects without changing them. A refusal closes a channel, so it opens anew."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self._channel = connection.channel()

    def exists(self, declaration: Declaration) -> bool:
        try:
            declaration.declare(self._channel, passive=True)
        except amqp.exceptions.NotFound:
            self._channel = self._connection.channel()
            return False
        except amqp.exceptions.ResourceLocked:
            self._channel = self._connection.channel()
        return True

    def differences(self, declaration: Declaration) -> list[Change]:
        """Every differing argument of an object that exists.

        A refusal names one difference at a time, so its value is taken over and the question asked again.
        """
        wanted = dict(declaration.arguments)
        found: dict[str, Change] = {}
        while True:
            try:
                declaration.declare(self._channel, arguments=wanted)
            except (amqp.exceptions.PreconditionFailed, amqp.exceptions.ResourceLocked) as error:
                self._channel = self._connection.channel()
                argument, detail = _read_refusal(declaration.arguments, reply(error))
                known = argument in found
                action = Action.MIGRATE if declaration.kind == "queue" and argument else Action.CONFLICT
                found.setdefault(
                    argument, Change(action=action, object=declaration.label, detail=detail, blocking=True)
                )
                if known or not _adopt(wanted, argument, reply(error)):
                    return list(found.values())
            else:
                return list(found.values())

    def close(self) -> None:
        self._channel.close()


def _read_refusal(arguments: Arguments, text: str) -> tuple[str, str]:
    """The argument that differs and a line on it; an empty name where the refusal is of another kind."""
    if match := _INEQUIVALENT.search(text):
        argument = match["argument"]
        return argument, difference(argument, arguments.get(argument), _read_value(match["found"].strip()))
    if match := _INVALID.search(text):
        argument = match["argument"]
        return argument, difference(argument, arguments.get(argument), None)
    return "", f"refused by the broker ({text})"


def _read_value(described: str) -> object:
    """A value as the broker describes it."""
    match = _VALUE.match(described)
    if match is None:
        return None if described == "none" else described
    return _value(match["value"], match["type"])


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
