"""Proof that the road works on a live broker: every kind of death arrives where the file says, and stays there."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace

from broker_topology.address import BrokerAddress
from broker_topology.effective import matching, type_of
from broker_topology.lint import lint
from broker_topology.management import ManagementApi
from broker_topology.observation import take_snapshot
from broker_topology.plan import Action, make_plan
from broker_topology.probes import PREFIX
from broker_topology.proofs import ARRIVAL_SECONDS, Proofs
from broker_topology.rules import Severity
from broker_topology.rules.subject import Subject
from broker_topology.snapshot import Snapshot
from broker_topology.topology import Topology
from broker_topology.verdict import AS_IN_FILE, Check, Verdict
from broker_topology.wire import wired

POLICY_SECONDS = 20.0
"""How long a policy may take until the management API shows it as effective; 4 to 10 s are usual."""


def verify(
    topology: Topology,
    address: BrokerAddress,
    management: ManagementApi,
    *,
    arrival_seconds: float = ARRIVAL_SECONDS,
    policy_seconds: float = POLICY_SECONDS,
) -> Verdict:
    """Prove a topology on the broker. Raises BrokerUnavailableError."""
    snapshot = take_snapshot(management, address.vhost)
    wanted = replace(topology, vhost=address.vhost)
    checks = [*_read_checks(wanted, snapshot), *_policy_checks(wanted, snapshot, management, policy_seconds)]
    with wired(address, name="broker-topology verify") as connection:
        _sweep(management, address.vhost)
        try:
            subject = Subject(wanted, {}, versions=(snapshot.version,))
            proofs = Proofs(subject, snapshot, management, connection, arrival_seconds=arrival_seconds)
            checks += proofs.checks()
        finally:
            _sweep(management, address.vhost)
    return Verdict(vhost=address.vhost, checks=tuple(checks))


def _read_checks(wanted: Topology, snapshot: Snapshot) -> Iterator[Check]:
    """What the broker has, held against the file and against the rules."""
    plan = make_plan(wanted, snapshot)
    for change in plan.drift:
        fault = change.detail
        if change.action is Action.CREATE:
            fault = f"is missing on the broker{f': {change.detail}' if change.detail else ''}"
        yield Check(object=change.object, claim=AS_IN_FILE, fault=fault)
    for label in plan.unchanged:
        yield Check(object=label, claim=AS_IN_FILE)
    own = {f"queue {queue.name}" for queue in wanted.queues}
    own |= {f"exchange {exchange.name}" for exchange in wanted.exchanges}
    live = {snapshot.vhost: snapshot.live}
    for finding in lint(snapshot.definitions, name="broker", target=snapshot.version, live=live).active:
        concerns_us = finding.object in own or any(finding.message.endswith(f"on {label}") for label in own)
        if finding.severity is Severity.ERROR and concerns_us:
            yield Check(object=finding.object, claim="is safe", fault=f"{finding.message} [{finding.rule.id}]")


def _policy_checks(
    wanted: Topology, snapshot: Snapshot, management: ManagementApi, policy_seconds: float
) -> Iterator[Check]:
    """The policy that the broker says it applies to each queue, not the one that it should apply."""
    for queue in wanted.queues:
        ours = matching(wanted.policies, "queue", queue.name, type_of(snapshot.topology, queue))
        present = {policy.name for policy in snapshot.topology.policies}
        if not ours or ours[0].name not in present or queue.name not in snapshot.queues:
            continue
        rivals = matching(snapshot.topology.policies, "queue", queue.name, type_of(snapshot.topology, queue))
        deadline = time.monotonic() + policy_seconds
        applied = snapshot.queues[queue.name].get("policy")
        while applied != rivals[0].name and time.monotonic() < deadline:
            time.sleep(0.5)
            applied = (management.queue(snapshot.vhost, queue.name) or {}).get("policy")
        fault = (
            None if applied == ours[0].name else f"the broker applies {applied or 'no policy'}, not {ours[0].name}"
        )
        yield Check(object=f"queue {queue.name}", claim="the policy that applies is the file's", fault=fault)


def _sweep(management: ManagementApi, vhost: str) -> None:
    """Remove the policies of probes, those that an earlier run left behind too."""
    for policy in management.policies(vhost):
        if str(policy["name"]).startswith(PREFIX):
            management.delete_policy(vhost, str(policy["name"]))
