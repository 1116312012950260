"""What a deploy would do: the differences between a file and a broker, each with what can be done about it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from broker_topology.delays import DELAYED_DELIVERY, delayed_queues, missing_delays
from broker_topology.detour import PREFIX, Detour
from broker_topology.effective import matching, type_of
from broker_topology.fit import fit_policies
from broker_topology.rules import limits
from broker_topology.rules.subject import Subject, is_control_queue
from broker_topology.snapshot import Snapshot
from broker_topology.topology import Binding, Exchange, Policy, Queue, Topology, is_delay_queue


class Action(StrEnum):
    """What can be done about a difference."""

    CREATE = "create"
    CHANGE = "change"
    """Live: policies can be changed while messages flow."""
    MIGRATE = "migrate"
    """Immutable: the queue has to be replaced, which ``broker-topology migrate`` does without losing a message."""
    CONFLICT = "conflict"
    """Neither; somebody has to decide."""
    EXTRA = "extra"
    """Only on the broker; reported, never deleted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One difference."""

    action: Action
    object: str
    """Such as ``queue payments``."""
    detail: str = ""
    blocking: bool = False
    """Whether a deploy must not start while it is there."""

    def __str__(self) -> str:
        return f"{self.object}: {self.detail}" if self.detail else self.object


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Every difference between a file and one virtual host of a broker."""

    vhost: str
    changes: tuple[Change, ...] = ()
    unchanged: tuple[str, ...] = ()
    ensured: tuple[str, ...] = ()
    """Bindings that AMQP alone cannot see: a deploy makes sure of them."""
    notes: tuple[str, ...] = ()
    policies: tuple[Policy, ...] = ()
    """The file's policies as this broker takes them; empty where the management API was not there."""

    def of(self, *actions: Action) -> tuple[Change, ...]:
        """The changes with one of these actions."""
        return tuple(change for change in self.changes if change.action in actions)

    @property
    def drift(self) -> tuple[Change, ...]:
        """Everything in which the broker is not as the file says; what is only on the broker is not."""
        return tuple(change for change in self.changes if change.action is not Action.EXTRA)

    @property
    def blocked(self) -> tuple[Change, ...]:
        """What keeps a deploy from starting."""
        return tuple(change for change in self.changes if change.blocking)


def make_plan(topology: Topology, snapshot: Snapshot, *, delayed_delivery: bool = True) -> Plan:
    """Compare a file's topology with a broker's state."""
    fitted = fit_policies(topology, snapshot.version)
    wanted = replace(topology, vhost=snapshot.vhost, policies=fitted.policies)
    unchanged: list[str] = []
    changes = [
        *_entities(wanted, snapshot.topology, unchanged),
        *_bindings(wanted, snapshot.topology, unchanged),
        *_policies(wanted, snapshot.topology, unchanged),
        *_overruled(wanted, snapshot.topology),
        *under_way(exchange.name for exchange in snapshot.topology.exchanges),
        *(_delays(wanted, snapshot.topology, unchanged) if delayed_delivery else ()),
        *_extras(wanted, snapshot.topology),
    ]
    return Plan(
        vhost=snapshot.vhost,
        changes=tuple(changes),
        unchanged=tuple(unchanged),
        notes=(*fitted.notes, *_notes(wanted, snapshot)),
        policies=fitted.policies,
    )


def difference(argument: str, wanted: object, found: object) -> str:
    """How reports say that an argument differs."""
    return f"{argument} is {shown(found)} on the broker and {shown(wanted)} in the file"


def shown(value: object) -> str:
    """A value as reports write it."""
    match value:
        case None:
            return "not set"
        case bool():
            return str(value).lower()
        case _:
            return repr(value)


def binding_label(binding: Binding) -> str:
    """How reports name a binding."""
    key = f" ({binding.routing_key})" if binding.routing_key else ""
    return f"binding {binding.source} -> {binding.destination}{key}"


def _entities(wanted: Topology, found: Topology, unchanged: list[str]) -> Iterator[Change]:
    for exchange in wanted.exchanges:
        existing = found.exchange(exchange.name)
        differences = _exchange_differences(exchange, existing) if existing else []
        yield from _one(f"exchange {exchange.name}", existing, differences, Action.CONFLICT, unchanged)
    for queue in wanted.queues:
        current = found.queue(queue.name)
        differences = _queue_differences(wanted, found, queue, current) if current else []
        action = Action.CONFLICT if current and current.exclusive else Action.MIGRATE
        yield from _one(f"queue {queue.name}", current, differences, action, unchanged)


def _one(
    label: str, existing: object, differences: list[str], action: Action, unchanged: list[str]
) -> Iterator[Change]:
    if existing is None:
        yield Change(action=Action.CREATE, object=label)
    elif differences:
        for detail in differences:
            yield Change(action=action, object=label, detail=detail, blocking=True)
    else:
        unchanged.append(label)


def _exchange_differences(wanted: Exchange, found: Exchange) -> list[str]:
    return _differences(_properties(wanted, "type", "internal"), _properties(found, "type", "internal"))


def _queue_differences(wanted_in: Topology, found_in: Topology, wanted: Queue, found: Queue) -> list[str]:
    one, other = _properties(wanted, "exclusive"), _properties(found, "exclusive")
    # 4.x writes the type that a queue got without asking into its arguments; 3.10 leaves them as they came.
    one["x-queue-type"] = wanted.type or (type_of(found_in, wanted) if found.type is None else found.type)
    other["x-queue-type"] = type_of(found_in, found)
    if wanted.type is None and found.type not in {None, found_in.default_queue_type, "classic"}:
        one["x-queue-type"] = wanted_in.default_queue_type
    return _differences(one, other)


def _properties(entity: Exchange | Queue, *more: str) -> dict[str, Any]:
    names = ("durable", "auto_delete", *more)
    return {name: getattr(entity, name) for name in names} | dict(entity.arguments)


def _differences(wanted: dict[str, Any], found: dict[str, Any]) -> list[str]:
    return [
        difference(name, wanted.get(name), found.get(name))
        for name in dict.fromkeys([*wanted, *found])
        if wanted.get(name) != found.get(name)
    ]


def _bindings(wanted: Topology, found: Topology, unchanged: list[str]) -> Iterator[Change]:
    existing = {_binding_key(binding) for binding in found.bindings}
    for binding in wanted.bindings:
        if _binding_key(binding) in existing:
            unchanged.append(binding_label(binding))
        else:
            yield Change(action=Action.CREATE, object=binding_label(binding))


def _binding_key(binding: Binding) -> tuple[str, str, str, str, str]:
    arguments = repr(sorted(binding.arguments.items()))
    return (binding.source, binding.destination, binding.destination_type, binding.routing_key, arguments)


def _policies(wanted: Topology, found: Topology, unchanged: list[str]) -> Iterator[Change]:
    existing = {policy.name: policy for policy in found.policies}
    for policy in wanted.policies:
        label, current = f"policy {policy.name}", existing.get(policy.name)
        if current is None:
            yield Change(action=Action.CREATE, object=label)
        elif details := _policy_differences(policy, current):
            for detail in details:
                yield Change(action=Action.CHANGE, object=label, detail=detail)
        else:
            unchanged.append(label)


def _policy_differences(wanted: Policy, found: Policy) -> list[str]:
    names = ("pattern", "apply_to", "priority")
    one = {name.replace("_", "-"): getattr(wanted, name) for name in names} | dict(wanted.definition)
    other = {name.replace("_", "-"): getattr(found, name) for name in names} | dict(found.definition)
    return _differences(one, other)


def _overruled(wanted: Topology, found: Topology) -> Iterator[Change]:
    """Policies of the file that another policy of the broker keeps from taking effect."""
    own = {policy.name for policy in wanted.policies}
    together = [*wanted.policies, *(policy for policy in found.policies if policy.name not in own)]
    objects = [("queue", queue.name, type_of(found, queue)) for queue in wanted.queues]
    objects += [("exchange", exchange.name, "") for exchange in wanted.exchanges]
    for kind, name, queue_type in objects:
        ours = matching(wanted.policies, kind, name, queue_type)
        all_of_them = matching(together, kind, name, queue_type)
        if not ours:
            continue
        rivals = [policy for policy in all_of_them if policy.name not in own and policy.priority >= ours[0].priority]
        if rivals:
            tie = rivals[0].priority == ours[0].priority
            how = "has the same priority, so either may take effect" if tie else "takes effect instead"
            yield Change(
                action=Action.CONFLICT,
                object=f"policy {ours[0].name}",
                detail=f"on {kind} {name}, policy {rivals[0].name!r} (priority {rivals[0].priority}) {how}",
            )


def under_way(exchanges: Iterable[str]) -> Iterator[Change]:
    """Migrations that were begun: to lay the bindings of such a queue would put every message into it twice."""
    for name in exchanges:
        detour = Detour.around(name)
        if detour is not None:
            detail = "a migration of it was begun: finish it where its journal is, or take it back with --abort"
            yield Change(action=Action.CONFLICT, object=f"queue {detour.queue}", detail=detail, blocking=True)


def _delays(wanted: Topology, found: Topology, unchanged: list[str]) -> Iterator[Change]:
    if not delayed_queues(wanted):
        return
    missing = missing_delays(wanted, found)
    if missing:
        more = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
        yield Change(action=Action.CREATE, object=DELAYED_DELIVERY, detail=f"{', '.join(missing[:3])}{more}")
    else:
        unchanged.append(DELAYED_DELIVERY)


def _extras(wanted: Topology, found: Topology) -> Iterator[Change]:
    labels = [
        *(
            f"exchange {exchange.name}"
            for exchange in found.exchanges
            if _owned(exchange) and not _has(wanted, exchange)
        ),
        *(
            f"queue {queue.name}"
            for queue in found.queues
            if queue.lasts and not _runtime(queue.name) and wanted.queue(queue.name) is None
        ),
        *(binding_label(binding) for binding in _extra_bindings(wanted, found)),
        *_names("policy", wanted.policies, found.policies),
    ]
    for label in labels:
        yield Change(action=Action.EXTRA, object=label, detail="only on the broker")


def _extra_bindings(wanted: Topology, found: Topology) -> Iterator[Binding]:
    own = {_binding_key(binding) for binding in wanted.bindings}
    for binding in found.bindings:
        to_queue = binding.destination_type == "queue"
        known = wanted.queue(binding.destination) if to_queue else wanted.exchange(binding.destination)
        delayed = binding.routing_key.startswith("#") and binding.routing_key[2:] in {
            other.routing_key for other in wanted.bindings if other.source == binding.source
        }
        if known and _binding_key(binding) not in own and not delayed and not _runtime(binding.source):
            yield binding


def _names(kind: str, wanted: Iterable[Policy], found: Iterable[Policy]) -> list[str]:
    own = {policy.name for policy in wanted}
    return [
        f"{kind} {policy.name}" for policy in found if policy.name not in own and not policy.name.startswith(PREFIX)
    ]


def _has(topology: Topology, exchange: Exchange) -> bool:
    return topology.exchange(exchange.name) is not None


def _owned(exchange: Exchange) -> bool:
    return exchange.durable and not exchange.auto_delete and not _runtime(exchange.name)


def _runtime(name: str) -> bool:
    """Whether Celery, the broker or a migration of ours makes an object of that name by itself."""
    own = is_delay_queue(name) or is_control_queue(name)
    return own or name in {"celeryev", "celery_delayed_delivery"} or name.startswith((PREFIX, "amq."))


def _notes(wanted: Topology, snapshot: Snapshot) -> Iterator[str]:
    for queue in wanted.queues:
        found = matching(snapshot.topology.operator_policies, "queue", queue.name, type_of(snapshot.topology, queue))
        if found:
            settings = ", ".join(f"{key} {value}" for key, value in found[0].definition.items())
            yield f"operator policy {found[0].name} applies to queue {queue.name} too: {settings}"
    after = replace(wanted, operator_policies=snapshot.topology.operator_policies)
    subject = Subject(after, snapshot.definitions, versions=(snapshot.version,), live=snapshot.live)
    for hit in limits.length_below_depth(subject):
        yield f"{hit.object} {hit.message}"
