"""What holds for a queue in the end: its arguments, the policy and the operator policy that apply, merged.

The rules are the broker's own and differ from setting to setting; a test compares each with real brokers.
Source: https://www.rabbitmq.com/docs/policies
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, TypeGuard

from broker_topology.topology import Policy, Queue, Topology
from broker_topology.versions import APPLY_TO_TYPES, QUORUM, Version, default_delivery_limit


@dataclass(frozen=True, slots=True, kw_only=True)
class Effective:
    """The settings of one queue that decide what becomes of its messages."""

    queue: Queue
    type: str
    policy: Policy | None = None
    operator_policy: Policy | None = None
    dead_letter_exchange: str | None = None
    dead_letter_routing_key: str | None = None
    dead_letter_strategy: str = "at-most-once"
    overflow: str = "drop-head"
    delivery_limit: int | None = None
    """Returns that a message survives; None is unlimited, and a negative number what 3.x makes of one."""
    max_length: int | None = None
    max_length_bytes: int | None = None
    message_ttl: int | None = None
    """Milliseconds."""
    expires: int | None = None
    """Milliseconds without use until the queue is deleted."""
    consumer_timeout: int | None = None
    """Milliseconds."""

    @property
    def at_least_once(self) -> bool:
        """Whether dead letters are kept until their queue has confirmed them, rather than sent and forgotten."""
        return (
            self.type == QUORUM
            and self.dead_letter_exchange is not None
            and self.dead_letter_strategy == "at-least-once"
            and self.overflow == "reject-publish"
        )

    @property
    def bounded(self) -> bool:
        """Whether the queue has a length limit of either kind."""
        return self.max_length is not None or self.max_length_bytes is not None


def effective_queue(topology: Topology, queue: Queue, version: Version) -> Effective:
    """The settings that a broker of that version arrives at for one queue of a virtual host."""
    queue_type = type_of(topology, queue)
    policy = winner(matching(topology.policies, "queue", queue.name, queue_type))
    operator_policy = winner(matching(topology.operator_policies, "queue", queue.name, queue_type))
    look = _Lookup(queue, _merged(policy, operator_policy))
    quorum = queue_type == QUORUM
    return Effective(
        queue=queue,
        type=queue_type,
        policy=policy,
        operator_policy=operator_policy,
        dead_letter_exchange=look.text("dead-letter-exchange"),
        dead_letter_routing_key=look.text("dead-letter-routing-key"),
        dead_letter_strategy=(look.text("dead-letter-strategy") or "at-most-once") if quorum else "at-most-once",
        overflow=look.text("overflow", policy_wins=quorum) or "drop-head",
        delivery_limit=_delivery_limit(look, version) if quorum else None,
        max_length=look.smaller("max-length"),
        max_length_bytes=look.smaller("max-length-bytes"),
        message_ttl=look.smaller("message-ttl"),
        expires=look.smaller("expires"),
        consumer_timeout=look.smaller("consumer-timeout"),
    )


def effective_alternate(topology: Topology, exchange: str) -> str | None:
    """Where an exchange hands what none of its bindings wants; its argument wins over a policy."""
    declared = topology.exchange(exchange)
    own = declared.arguments.get("alternate-exchange") if declared else None
    if isinstance(own, str):
        return own
    policy = winner(matching(topology.policies, "exchange", exchange))
    by_policy = policy.definition.get("alternate-exchange") if policy else None
    return by_policy if isinstance(by_policy, str) else None


def type_of(topology: Topology, queue: Queue) -> str:
    """A queue's type, from its arguments or from what the virtual host makes of a queue without one."""
    return queue.type or (topology.default_queue_type if queue.lasts else "classic")


def matching(policies: Iterable[Policy], kind: str, name: str, queue_type: str | None = None) -> tuple[Policy, ...]:
    """The policies that match a queue or exchange, the highest priority first."""
    found = [policy for policy in policies if _applies(policy, kind, queue_type) and matches(policy, name)]
    return tuple(sorted(found, key=lambda policy: -policy.priority))


def matches(policy: Policy, name: str) -> bool:
    """Whether a policy's pattern matches a name; a pattern that is no regular expression matches nothing."""
    try:
        return re.search(policy.pattern, name) is not None
    except re.error:
        return False


def winner(policies: tuple[Policy, ...]) -> Policy | None:
    """The one policy that takes effect; among equal priorities the broker's choice is arbitrary."""
    return policies[0] if policies else None


def _applies(policy: Policy, kind: str, queue_type: str | None) -> bool:
    if kind == "exchange":
        return policy.apply_to in {"all", "exchanges"}
    return queue_type in APPLY_TO_TYPES.get(policy.apply_to, frozenset())


def _merged(policy: Policy | None, operator_policy: Policy | None) -> dict[str, Any]:
    """An operator policy only ever narrows: the smaller number counts, and its word on overflow."""
    merged = dict(policy.definition) if policy else {}
    for key, value in (operator_policy.definition if operator_policy else {}).items():
        own = merged.get(key)
        if key == "delivery-limit" and _is_number(own) and _is_number(value):
            merged[key] = _narrower_limit(own, value)
        else:
            merged[key] = min(own, value) if _is_number(own) and _is_number(value) else value
    return merged


class _Lookup:
    def __init__(self, queue: Queue, policy: dict[str, Any]) -> None:
        self._arguments, self._policy = queue.arguments, policy

    def text(self, key: str, *, policy_wins: bool = False) -> str | None:
        argument, policy = self._arguments.get(f"x-{key}"), self._policy.get(key)
        first, second = (policy, argument) if policy_wins else (argument, policy)
        chosen = first if isinstance(first, str) else second
        return chosen if isinstance(chosen, str) else None

    def smaller(self, key: str) -> int | None:
        return min(self.numbers(key), default=None)

    def numbers(self, key: str) -> list[int]:
        values = (self._arguments.get(f"x-{key}"), self._policy.get(key))
        return [value for value in values if _is_number(value)]


def _delivery_limit(look: _Lookup, version: Version) -> int | None:
    match look.numbers("delivery-limit"):
        case []:
            return default_delivery_limit(version)
        case [argument, policy]:
            limit = _narrower_limit(argument, policy) if version.major >= 4 else min(argument, policy)
        case [limit, *_]:
            pass
    return None if limit < 0 and version.major >= 4 else limit


def _narrower_limit(one: int, other: int) -> int:
    """A negative delivery limit is no limit from 4.0 on, so the other one is the narrower."""
    return max(one, other) if one < 0 or other < 0 else min(one, other)


def _is_number(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool)
