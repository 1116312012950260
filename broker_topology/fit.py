"""Policies as a broker of a certain version takes them: what it does not know is left out, and said."""

from __future__ import annotations

from dataclasses import dataclass, replace

from broker_topology.effective import matches, type_of
from broker_topology.topology import Policy, Topology
from broker_topology.versions import APPLY_TO, APPLY_TO_TYPES, POLICY_KEYS, Version


@dataclass(frozen=True, slots=True, kw_only=True)
class Fitted:
    """What is left of a file's policies on one version."""

    policies: tuple[Policy, ...]
    notes: tuple[str, ...] = ()
    """One sentence on each thing that was left out or said otherwise."""


def fit_policies(topology: Topology, version: Version) -> Fitted:
    """Make the policies of a topology fit a broker of that version."""
    policies: list[Policy] = []
    notes: list[str] = []
    for policy in topology.policies:
        fitted = _fit(topology, policy, version, notes)
        if fitted is not None:
            policies.append(fitted)
    return Fitted(policies=tuple(policies), notes=tuple(notes))


def _fit(topology: Topology, policy: Policy, version: Version, notes: list[str]) -> Policy | None:
    unknown = sorted(
        key for key in policy.definition if key in POLICY_KEYS and not POLICY_KEYS[key].known_to(version)
    )
    definition = {key: value for key, value in policy.definition.items() if key not in unknown}
    if unknown:
        notes.append(f"policy {policy.name}: {', '.join(unknown)} left out, RabbitMQ {version} does not know it")
    if not definition:
        notes.append(f"policy {policy.name}: left out, nothing of it is left")
        return None
    fitted = replace(policy, definition=definition)
    if APPLY_TO.get(policy.apply_to, version) <= version:
        return fitted
    return _widen(topology, fitted, version, notes)


def _widen(topology: Topology, policy: Policy, version: Version, notes: list[str]) -> Policy | None:
    """Apply a policy for one queue type to all queues, where its pattern matches that type alone."""
    types = APPLY_TO_TYPES[policy.apply_to]
    others = [
        queue.name
        for queue in topology.queues
        if matches(policy, queue.name) and type_of(topology, queue) not in types
    ]
    if others:
        notes.append(
            f"policy {policy.name}: left out, RabbitMQ {version} cannot apply it to {policy.apply_to} alone "
            f"and its pattern matches {', '.join(others[:3])} too"
        )
        return None
    notes.append(
        f"policy {policy.name}: applied to queues, RabbitMQ {version} cannot apply it to {policy.apply_to} alone"
    )
    return replace(policy, apply_to="queues")
