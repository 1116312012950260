"""Rules on policies and operator policies."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

from broker_topology.effective import Effective, matches, matching
from broker_topology.rules.rule import Hit, Rule, Severity
from broker_topology.rules.subject import Role, Subject, on_versions
from broker_topology.topology import Policy, is_delay_queue
from broker_topology.versions import APPLY_TO, APPLY_TO_TYPES, PLUGIN_POLICY_KEYS, POLICY_KEYS, QUORUM, Feature

CELERY_EXCHANGE = "celery_delayed_delivery"
"""Declared by Celery, so a policy on it need match nothing in the file."""


def _equal_priorities(subject: Subject) -> Iterator[Hit]:
    tied: dict[tuple[str, str], list[str]] = {}
    for kind, name, policies in _matched(subject):
        for first, second in pairwise(policies):
            if first.priority == second.priority == policies[0].priority:
                tied.setdefault((first.name, second.name), []).append(f"{kind} {name}")
    for (first_name, second_name), objects in tied.items():
        yield Hit(
            object=f"policy {second_name}",
            message=f"has the priority of policy {first_name!r} and matches the same {_some(objects)}: which of the "
            "two takes effect is arbitrary",
        )


def _shadowed(subject: Subject) -> Iterator[Hit]:
    lost: dict[tuple[str, str, tuple[str, ...]], list[str]] = {}
    for kind, name, policies in _matched(subject):
        for lower in policies[1:]:
            keys = sorted(lower.definition.keys() - policies[0].definition.keys())
            if keys and lower.priority < policies[0].priority:
                lost.setdefault((policies[0].name, lower.name, tuple(keys)), []).append(f"{kind} {name}")
    for (winner, loser, lost_keys), objects in lost.items():
        yield Hit(
            object=f"policy {loser}",
            message=f"sets {', '.join(lost_keys)} in vain on {_some(objects)}: policy {winner!r} has a higher "
            "priority, and only one policy applies",
        )


def _operator_policy_weakens(subject: Subject) -> Iterator[Hit]:
    for queue in subject.queues(Role.WORK, Role.DEAD_LETTER, Role.UNROUTABLE):
        effective = subject.effective(queue)
        if effective.operator_policy is None:
            continue
        for problem in _weakening(effective, subject.role(queue)):
            yield Hit(
                object=f"operator policy {effective.operator_policy.name}", message=f"{problem} on queue {queue.name}"
            )


def _weakening(effective: Effective, role: Role) -> Iterator[str]:
    definition = effective.operator_policy.definition if effective.operator_policy else {}
    work = role is Role.WORK
    if "expires" in definition:
        yield f"deletes it after {definition['expires']} ms without use"
    if "message-ttl" in definition and not (work and effective.dead_letter_exchange):
        yield f"drops messages after {definition['message-ttl']} ms"
    if definition.get("overflow", "reject-publish") != "reject-publish":
        yield f"sets overflow {definition['overflow']}, which ends at-least-once dead-lettering"
    bounds = definition.keys() & {"max-length", "max-length-bytes"}
    if bounds and effective.overflow != "reject-publish":
        yield f"sets {' and '.join(sorted(bounds))}, and a full queue drops its oldest messages"
    limit = definition.get("delivery-limit")
    if not work and effective.type == QUORUM and isinstance(limit, int) and 0 <= limit < 100_000:
        yield f"drops messages after {limit} returns"


def _key_unknown(subject: Subject) -> Iterator[Hit]:
    for policy in subject.topology.policies:
        for key in policy.definition:
            feature = POLICY_KEYS.get(key)
            if feature is None and key not in PLUGIN_POLICY_KEYS:
                yield Hit(object=f"policy {policy.name}", message=f"no broker knows the key {key!r}")
            if feature is not None:
                bad = [version for version in subject.versions if not feature.known_to(version)]
                if bad:
                    yield Hit(
                        object=f"policy {policy.name}",
                        message=f"the key {key!r} is refused {on_versions(bad)}; deploy leaves it out there",
                    )


def _value_refused(subject: Subject) -> Iterator[Hit]:
    for policy in subject.topology.policies:
        for key, value in policy.definition.items():
            feature = POLICY_KEYS.get(key)
            if feature is not None and (problem := value_problem(feature, value)):
                yield Hit(object=f"policy {policy.name}", message=f"{key} is {value!r}; it must be {problem}")
        if not policy.definition:
            yield Hit(object=f"policy {policy.name}", message="defines nothing, which brokers refuse")


def value_problem(feature: Feature, value: Any) -> str | None:
    """What the value of a policy key or queue argument must be, where it is not."""
    if feature.values and value not in feature.values:
        return "one of " + ", ".join(feature.values)
    if feature.kind is int and (not isinstance(value, int) or isinstance(value, bool)):
        return "a whole number"
    if feature.kind is int and isinstance(value, int) and (value >= 2**63 or value < min(feature.minimum, -1)):
        return "a number that fits into 64 bits"
    if feature.kind is bool and not isinstance(value, bool):
        return "true or false"
    if feature.kind is str and not isinstance(value, str):
        return "a string"
    return None


def _apply_to_unknown(subject: Subject) -> Iterator[Hit]:
    for policy in subject.topology.policies:
        since = APPLY_TO.get(policy.apply_to)
        if since is None:
            yield Hit(
                object=f"policy {policy.name}",
                message=f"apply-to {policy.apply_to!r} is none of {', '.join(APPLY_TO)}",
            )
        elif bad := [version for version in subject.versions if version < since]:
            yield Hit(
                object=f"policy {policy.name}", message=f"apply-to {policy.apply_to} is refused {on_versions(bad)}"
            )


def _pattern_invalid(subject: Subject) -> Iterator[Hit]:
    for policy in (*subject.topology.policies, *subject.topology.operator_policies):
        try:
            re.compile(policy.pattern)
        except re.error as error:
            yield Hit(object=f"policy {policy.name}", message=f"the pattern is no regular expression: {error}")


def _matches_nothing(subject: Subject) -> Iterator[Hit]:
    queues, exchanges = subject.topology.queues, subject.topology.exchanges
    known = {CELERY_EXCHANGE, "celery_delayed_0"}
    known |= {queue.name for queue in queues} | {exchange.name for exchange in exchanges}
    for policy in subject.topology.policies:
        if policy.definition and not any(matches(policy, name) for name in known):
            yield Hit(object=f"policy {policy.name}", message=f"the pattern {policy.pattern!r} matches nothing here")


def _key_without_effect(subject: Subject) -> Iterator[Hit]:
    for policy in subject.topology.policies:
        if policy.apply_to == "all":
            continue
        types = {
            subject.type_of(queue)
            for queue in subject.topology.queues
            if matches(policy, queue.name) and not is_delay_queue(queue.name)
        } & APPLY_TO_TYPES.get(policy.apply_to, frozenset())
        for key in policy.definition:
            feature = POLICY_KEYS.get(key)
            if feature is None or policy.apply_to not in APPLY_TO:
                continue
            missed = types - feature.types
            if policy.apply_to == "exchanges" and feature.types:
                yield Hit(object=f"policy {policy.name}", message=f"{key} has no effect on exchanges")
            elif policy.apply_to != "exchanges" and not feature.types:
                yield Hit(object=f"policy {policy.name}", message=f"{key} has no effect on queues")
            elif missed:
                yield Hit(
                    object=f"policy {policy.name}",
                    message=f"{key} has no effect on {' and '.join(sorted(missed))} queues",
                )


def _matched(subject: Subject) -> Iterator[tuple[str, str, tuple[Policy, ...]]]:
    """Every queue and exchange that more than one policy matches, with those policies."""
    policies = subject.topology.policies
    for queue in subject.topology.queues:
        found = matching(policies, "queue", queue.name, subject.type_of(queue))
        if len(found) > 1:
            yield "queue", queue.name, found
    for name in dict.fromkeys([*(exchange.name for exchange in subject.topology.exchanges), CELERY_EXCHANGE]):
        found = matching(policies, "exchange", name)
        if len(found) > 1:
            yield "exchange", name, found


def _some(objects: list[str]) -> str:
    shown = ", ".join(objects[:3])
    return shown if len(objects) <= 3 else f"{shown} and {len(objects) - 3} more"


_POLICIES = "https://www.rabbitmq.com/docs/policies"

RULES = (
    Rule(
        id="policies-of-equal-priority",
        severity=Severity.ERROR,
        title="Two policies of equal priority match the same object",
        why="One policy applies at a time, and among equal priorities the choice is arbitrary and can change.",
        reference=f"{_POLICIES}#priorities",
        check=_equal_priorities,
    ),
    Rule(
        id="policy-shadowed",
        severity=Severity.WARNING,
        title="A policy is shadowed by one of higher priority",
        why="Policies do not add up: the keys that only the lower one sets have no effect.",
        reference=f"{_POLICIES}#priorities",
        check=_shadowed,
    ),
    Rule(
        id="operator-policy-weakens",
        severity=Severity.ERROR,
        title="An operator policy makes a queue lose messages",
        why="Operator policies override arguments and policies without being seen in a definitions file's queues.",
        reference=f"{_POLICIES}#operator-policies",
        check=_operator_policy_weakens,
    ),
    Rule(
        id="policy-key-unknown",
        severity=Severity.ERROR,
        title="A policy key that a target version does not know",
        why="A broker refuses the whole policy, and an import of the whole file, for one unknown key.",
        reference=_POLICIES,
        check=_key_unknown,
    ),
    Rule(
        id="policy-value-refused",
        severity=Severity.ERROR,
        title="A policy value of the wrong kind",
        why="A broker refuses a policy with a value that it cannot use, such as a number in quotes.",
        reference=_POLICIES,
        check=_value_refused,
        refused=True,
    ),
    Rule(
        id="policy-apply-to-unknown",
        severity=Severity.ERROR,
        title="A policy applies to something that a target version does not know",
        why="Policies can name single queue types since 3.12; older brokers refuse them.",
        reference=f"{_POLICIES}#what-is-it",
        check=_apply_to_unknown,
    ),
    Rule(
        id="policy-pattern-invalid",
        severity=Severity.ERROR,
        title="The pattern of a policy is no regular expression",
        why="Brokers refuse it.",
        reference=_POLICIES,
        check=_pattern_invalid,
        refused=True,
    ),
    Rule(
        id="policy-matches-nothing",
        severity=Severity.NOTE,
        title="The pattern of a policy matches nothing",
        why="A pattern that was meant for a queue and misses it by a letter protects nothing.",
        reference=_POLICIES,
        check=_matches_nothing,
    ),
    Rule(
        id="policy-key-without-effect",
        severity=Severity.WARNING,
        title="A policy key has no effect on what the policy matches",
        why="Brokers take a policy whose keys its queue types do not know, and ignore those keys.",
        reference=_POLICIES,
        check=_key_without_effect,
    ),
)
