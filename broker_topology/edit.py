"""Makes definitions files, and edits them in place: what an edit does not concern stays byte for byte."""

from __future__ import annotations

import json
import re
from collections import Counter
from dataclasses import dataclass
from typing import Any

from broker_topology.definitions import parse_definitions
from broker_topology.delays import shared_keys
from broker_topology.errors import TopologyError
from broker_topology.locate import Section, sections, value_span
from broker_topology.routing import publishing_binding
from broker_topology.topology import Topology, parse_topology

WORK, DEAD_LETTERS, UNROUTABLE = "work", "dead-letters", "unroutable"
DEFAULT_MAX_LENGTH_BYTES = 2**30
DEFAULT_DELIVERY_LIMIT = 5
KEEP_FOR_EVER = 1_000_000
"""A delivery limit that no crash-looping drain reaches, on any version."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What a policy may tune while messages flow; None leaves it as it is for the other queues."""

    delivery_limit: int | None = None
    max_length_bytes: int | None = None
    max_length: int | None = None
    consumer_timeout_ms: int | None = None

    def definition(self) -> dict[str, Any]:
        """The definition of a policy of its own; empty where nothing is asked for."""
        asked = {
            "delivery-limit": self.delivery_limit,
            "max-length-bytes": self.max_length_bytes,
            "max-length": self.max_length,
            "consumer-timeout": self.consumer_timeout_ms,
        }
        chosen = {key: value for key, value in asked.items() if value is not None}
        defaults = {"delivery-limit": DEFAULT_DELIVERY_LIMIT, "max-length-bytes": DEFAULT_MAX_LENGTH_BYTES}
        return defaults | chosen if chosen else {}


def new_definitions(names: tuple[str, ...], *, vhost: str = "/") -> str:
    """The text of a hardened file for these work queues. Raises TopologyError for a name that cannot be."""
    reserved = {DEAD_LETTERS, UNROUTABLE} & set(names)
    if reserved:
        raise TopologyError(f"the queue {reserved.pop()!r} comes by itself: name work queues only")
    if len(set(names)) < len(names):
        raise TopologyError("a queue is named twice")
    definitions = {
        "vhosts": [{"name": vhost}],
        "exchanges": [
            _exchange(vhost, WORK, "topic", {"alternate-exchange": UNROUTABLE}),
            _exchange(vhost, DEAD_LETTERS, "fanout", {"alternate-exchange": UNROUTABLE}),
            _exchange(vhost, UNROUTABLE, "fanout", {}),
        ],
        "queues": [
            *(_queue(vhost, name, _work_arguments(DEAD_LETTERS)) for name in names),
            *(_queue(vhost, name, _last_arguments()) for name in (DEAD_LETTERS, UNROUTABLE)),
        ],
        "bindings": [
            *(_binding(vhost, WORK, name, name) for name in names),
            *(_binding(vhost, name, name, "") for name in (DEAD_LETTERS, UNROUTABLE)),
        ],
        "policies": [
            _policy(vhost, "work-limits", names, Limits(delivery_limit=DEFAULT_DELIVERY_LIMIT).definition()),
            {
                "name": "delayed-delivery-unroutable",
                "vhost": vhost,
                "pattern": "^celery_delayed_delivery$",
                "apply-to": "exchanges",
                "priority": 10,
                "definition": {"alternate-exchange": UNROUTABLE},
            },
        ],
    }
    text = json.dumps(definitions, indent=2, ensure_ascii=False) + "\n"
    _refuse_shared_keys(parse_topology(text))
    return text


def add_queue(
    text: str,
    queue: str,
    limits: Limits,
    *,
    exchange: str | None = None,
    vhost: str | None = None,
    name: str = "file",
) -> str:
    """The text with one more work queue, hardened, bound and limited like those that are there.

    Raises TopologyError where the queue exists, or nothing tells which exchanges to use.
    """
    topology = parse_topology(text, vhost=vhost, name=name)
    if topology.queue(queue) is not None:
        raise TopologyError(f"{name} has a queue {queue!r} already")
    source = exchange or _usual_source(topology, name)
    if topology.exchange(source) is None:
        raise TopologyError(f"{name} declares no exchange {source!r}")
    dead_letters = _usual([work.dead_letter_exchange for work in topology.work_queues])
    if dead_letters is None:
        raise TopologyError(
            f"{name} has no work queue whose dead-letter exchange could be used: see broker-topology new"
        )
    place = _place(text, topology)
    edited = _append(
        text, "queues", _queue(place, queue, _work_arguments(dead_letters)), after=_last_work(text, topology)
    )
    edited = _append(edited, "bindings", _binding(place, source, queue, queue))
    edited = _limit(edited, topology, place, queue, limits)
    _refuse_shared_keys(parse_topology(edited, vhost=vhost, name=name), queue)
    return edited


def _refuse_shared_keys(topology: Topology, new: str | None = None) -> None:
    """Queues are bound by their names, which a delay must be able to tell apart."""
    for shared in shared_keys(topology):
        if new is None or new in (shared.queue, shared.other):
            raise TopologyError(str(shared))


def remove_queue(text: str, queue: str, *, vhost: str | None = None, name: str = "file") -> str:
    """The text without a queue, its bindings, and its part in policies.

    Raises TopologyError where there is no such queue, or where dead letters end in it.
    """
    topology = parse_topology(text, vhost=vhost, name=name)
    if topology.queue(queue) is None:
        raise TopologyError(f"{name} has no queue {queue!r}")
    if queue in topology.drained_queues:
        raise TopologyError(f"queue {queue!r} is where dead letters or unroutable messages end: it cannot go alone")
    definitions = parse_definitions(text, name=name)
    for section in ("queues", "bindings", "policies"):
        doomed = [
            index
            for index, entry in enumerate(definitions.get(section, []))
            if entry.get("vhost", topology.vhost) == topology.vhost and _is_of(queue, section, entry)
        ]
        for index in reversed(doomed):
            text = _cut(text, section, index)
    for policy in topology.policies:
        names = _alternatives(policy.pattern)
        if names is not None and queue in names and len(names) > 1:
            text = _set_pattern(text, topology.vhost, policy.name, [other for other in names if other != queue])
    parse_topology(text, vhost=vhost, name=name)
    return text


def _is_of(queue: str, section: str, entry: dict[str, Any]) -> bool:
    match section:
        case "queues":
            return entry.get("name") == queue
        case "bindings":
            return entry.get("destination") == queue and entry.get("destination_type") == "queue"
        case _:
            return _alternatives(str(entry.get("pattern"))) == [queue]


def _limit(text: str, topology: Topology, vhost: str | None, queue: str, limits: Limits) -> str:
    """Put the queue into the policy of the others, or give it one of its own."""
    shared = [policy for policy in topology.policies if "delivery-limit" in policy.definition]
    names = _alternatives(shared[0].pattern) if shared else None
    definition = limits.definition()
    if not definition and names is not None:
        return _set_pattern(text, topology.vhost, shared[0].name, [*names, queue])
    definition = definition or Limits(delivery_limit=DEFAULT_DELIVERY_LIMIT).definition()
    policy = _policy(vhost, f"{queue}-limits", (queue,), definition)
    policy["priority"] = max((other.priority for other in topology.policies), default=0) + 10
    return _append(text, "policies", policy)


def _set_pattern(text: str, vhost: str, policy: str, names: list[str]) -> str:
    entries = parse_definitions(text)["policies"]
    [index] = [
        index for index, entry in enumerate(entries) if entry["name"] == policy and entry.get("vhost", vhost) == vhost
    ]
    start, end = value_span(text, sections(text)["policies"].entries[index][0], "pattern")
    return text[:start] + json.dumps(_pattern(names), ensure_ascii=False) + text[end:]


_NAMES = re.compile(r"\^(\()?((?:[^()\[\]*+?{}^$\\]|\\[^a-zA-Z0-9])+)(?(1)\))\$")


def _alternatives(pattern: str) -> list[str] | None:
    """The names in a pattern such as ``^(a|b)$``; None where it is of another form."""
    match = _NAMES.fullmatch(pattern)
    if match is None:
        return None
    names = [re.sub(r"\\(.)", r"\1", name) for name in re.findall(r"(?:[^|\\]|\\.)+", match[2])]
    return names if match[1] or len(names) == 1 else None


def _pattern(names: list[str] | tuple[str, ...]) -> str:
    escaped = [re.sub(r"([.\\+*?\[\]^$(){}|])", r"\\\1", name) for name in names]
    return f"^({'|'.join(escaped)})$" if len(escaped) != 1 else f"^{escaped[0]}$"


def _append(text: str, section: str, entry: dict[str, Any], *, after: int | None = None) -> str:
    """Insert an entry at the end of a section, or after another one, written as its neighbours are."""
    found = sections(text).get(section)
    if found is None:
        end = text.rindex("}")
        head = text[:end].rstrip()
        comma = "" if head.endswith("{") else ","
        return f'{head}{comma}\n  "{section}": [\n    {_written(entry, "    ")}\n  ]\n{text[end:]}'
    if not found.entries:
        indent = _indent(text, found.key_start)
        body = f"\n{indent}  {_written(entry, indent + '  ')}\n{indent}"
        return text[: found.start + 1] + body + text[found.end - 1 :]
    neighbour = found.entries[-1 if after is None else after]
    indent = _indent(text, neighbour[0])
    written = _written(entry, indent, one_line="\n" not in text[slice(*neighbour)])
    return f"{text[: neighbour[1]]},\n{indent}{written}{text[neighbour[1] :]}"


def _cut(text: str, section: str, index: int) -> str:
    """Take an entry out of a section, with its comma and its line."""
    found: Section = sections(text)[section]
    start, end = found.entries[index]
    if index + 1 < len(found.entries):
        return text[:start] + text[found.entries[index + 1][0] :]
    if index > 0:
        return text[: found.entries[index - 1][1]] + text[end:]
    return text[: found.start + 1] + text[found.end - 1 :]


def _written(entry: dict[str, Any], indent: str, *, one_line: bool = False) -> str:
    if one_line:
        return json.dumps(entry, ensure_ascii=False)
    return json.dumps(entry, indent=2, ensure_ascii=False).replace("\n", f"\n{indent}")


def _indent(text: str, at: int) -> str:
    line = text[text.rfind("\n", 0, at) + 1 : at]
    return line[: len(line) - len(line.lstrip())]


def _usual_source(topology: Topology, name: str) -> str:
    bindings = [publishing_binding(topology, queue) for queue in topology.work_queues]
    source = _usual([binding.source for binding in bindings if binding is not None])
    if source is None:
        raise TopologyError(f"{name} has no work queue whose exchange could be used: name one with --exchange")
    return source


def _usual(values: list[str | None] | list[str]) -> str | None:
    counts = Counter(value for value in values if value is not None)
    return counts.most_common(1)[0][0] if counts else None


def _last_work(text: str, topology: Topology) -> int | None:
    """Where the last work queue stands among the file's queues."""
    if not topology.work_queues:
        return None
    last = topology.work_queues[-1].name
    entries = parse_definitions(text)["queues"]
    own = [
        index
        for index, entry in enumerate(entries)
        if entry["name"] == last and entry.get("vhost", topology.vhost) == topology.vhost
    ]
    return own[0]


def _place(text: str, topology: Topology) -> str | None:
    """The virtual host that entries of this file carry; None where they carry none."""
    entries = parse_definitions(text).get("queues", [])
    return topology.vhost if all("vhost" in entry for entry in entries) else None


def _work_arguments(dead_letter_exchange: str) -> dict[str, Any]:
    return {
        "x-queue-type": "quorum",
        "x-dead-letter-exchange": dead_letter_exchange,
        "x-dead-letter-strategy": "at-least-once",
        "x-overflow": "reject-publish",
        "x-delivery-limit": 20,
    }


def _last_arguments() -> dict[str, Any]:
    return {"x-queue-type": "quorum", "x-overflow": "reject-publish", "x-delivery-limit": KEEP_FOR_EVER}


def _named(name: str, vhost: str | None) -> dict[str, Any]:
    return {"name": name} if vhost is None else {"name": name, "vhost": vhost}


def _exchange(vhost: str | None, name: str, kind: str, arguments: dict[str, Any]) -> dict[str, Any]:
    own = {"type": kind, "durable": True, "auto_delete": False, "internal": False, "arguments": arguments}
    return _named(name, vhost) | own


def _queue(vhost: str | None, name: str, arguments: dict[str, Any]) -> dict[str, Any]:
    return _named(name, vhost) | {"durable": True, "auto_delete": False, "arguments": arguments}


def _binding(vhost: str | None, source: str, queue: str, key: str) -> dict[str, Any]:
    place = {} if vhost is None else {"vhost": vhost}
    end = {"destination": queue, "destination_type": "queue", "routing_key": key, "arguments": {}}
    return {"source": source} | place | end


def _policy(vhost: str | None, name: str, queues: tuple[str, ...], definition: dict[str, Any]) -> dict[str, Any]:
    own = {"pattern": _pattern(queues), "apply-to": "queues", "priority": 10, "definition": definition}
    return _named(name, vhost) | own
