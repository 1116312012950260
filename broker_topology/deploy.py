"""Bring a virtual host to what the file says: policies first, then what is missing; nothing is deleted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from broker_topology.address import BrokerAddress
from broker_topology.connection import connected
from broker_topology.declare import create
from broker_topology.errors import TopologyError
from broker_topology.lint import refused
from broker_topology.look import plan_over_amqp
from broker_topology.management import ManagementApi, ManagementUnavailableError, default_management_url
from broker_topology.observation import take_snapshot
from broker_topology.plan import Action, Plan, make_plan
from broker_topology.rules.subject import Subject
from broker_topology.topology import Topology
from broker_topology.versions import Version


@dataclass(frozen=True, slots=True, kw_only=True)
class Deployed:
    """What a deploy found and did."""

    plan: Plan
    """The differences before it."""
    policies_set: tuple[str, ...] = ()
    created: tuple[str, ...] = ()
    policies_left_out: tuple[str, ...] = ()
    left_out_because: str | None = None
    """Why policies could not be set, as a sentence."""

    @property
    def changed(self) -> bool:
        """Whether anything on the broker is different now."""
        return bool(self.policies_set or self.created)

    @property
    def failed(self) -> bool:
        """Whether the broker is still not as the file says."""
        return bool(self.plan.of(Action.MIGRATE, Action.CONFLICT))


def plan(
    topology: Topology,
    amqp_url: str,
    *,
    management_url: str | None = None,
    ca_file: str | None = None,
    delayed_delivery: bool = True,
) -> Deployed:
    """What a deploy would do, done nothing of. Raises what deploy raises."""
    target = _Target(topology, amqp_url, management_url, ca_file)
    with connected(target.address) as connection:
        found, because = target.plan(connection, delayed_delivery)
    return Deployed(plan=found, policies_left_out=target.left_out(because), left_out_because=because)


def deploy(
    topology: Topology,
    amqp_url: str,
    *,
    management_url: str | None = None,
    ca_file: str | None = None,
    delayed_delivery: bool = True,
    before_migration: bool = False,
) -> Deployed:
    """Deploy a topology into the virtual host of the AMQP URL.

    What blocks is found before anything is changed, and then nothing is. Policies come before queues, so that
    they hold when the first message arrives. Without ``management_url`` the API is looked for beside the
    broker, and its absence is reported in ``left_out_because``; one that is named must answer.
    ``before_migration`` adds what is missing although queues are still to be replaced.

    Raises BrokerUnavailableError, TopologyError and AddressError.
    """
    target = _Target(topology, amqp_url, management_url, ca_file)
    with connected(target.address) as connection:
        found, because = target.plan(connection, delayed_delivery)
        blocked = [change for change in found.blocked if change.action is Action.CONFLICT or not before_migration]
        if blocked:
            return Deployed(plan=found)
        policies_set = target.set_policies(found)
        created = create(topology, found, connection)
    return Deployed(
        plan=found,
        policies_set=policies_set,
        created=created,
        policies_left_out=target.left_out(because),
        left_out_because=because,
    )


class _Target:
    """The virtual host that is deployed to, by both of its doors."""

    def __init__(self, topology: Topology, amqp_url: str, management_url: str | None, ca_file: str | None) -> None:
        self._topology = topology
        self.address = BrokerAddress.parse(amqp_url, ca_file=ca_file)
        self._named = management_url is not None
        self._management_url = management_url or default_management_url(self.address)

    def plan(self, connection: Any, delayed_delivery: bool) -> tuple[Plan, str | None]:
        """The plan, and why it had to be made over AMQP alone."""
        try:
            with self._management() as management:
                _check_same_broker(management, connection)
                snapshot = take_snapshot(management, self.address.vhost)
        except ManagementUnavailableError as error:
            if self._named:
                raise
            self._check(Version.parse(str(_properties(connection).get("version"))))
            found = plan_over_amqp(self._topology, self.address.vhost, connection, delayed_delivery=delayed_delivery)
            return found, str(error)
        self._check(snapshot.version)
        return make_plan(self._topology, snapshot, delayed_delivery=delayed_delivery), None

    def set_policies(self, found: Plan) -> tuple[str, ...]:
        """Set the policies that the plan says differ."""
        labels = {change.object for change in found.of(Action.CREATE, Action.CHANGE)}
        stale = [policy for policy in found.policies if f"policy {policy.name}" in labels]
        if stale:
            with self._management() as management:
                for policy in stale:
                    management.put_policy(self.address.vhost, policy)
        return tuple(policy.name for policy in stale)

    def left_out(self, because: str | None) -> tuple[str, ...]:
        """The policies that could not be set, where there was a reason not to."""
        return tuple(policy.name for policy in self._topology.policies) if because else ()

    def _management(self) -> ManagementApi:
        return ManagementApi(self._management_url, self.address)

    def _check(self, version: Version) -> None:
        """Refuse what the broker would refuse, before it does so half-way."""
        subject = Subject(self._topology, {}, versions=(version,))
        problems = refused(subject)
        if problems:
            more = f" (and {len(problems) - 1} more: broker-topology lint)" if len(problems) > 1 else ""
            raise TopologyError(f"{problems[0].object}: {problems[0].message}{more}")


def _check_same_broker(management: ManagementApi, connection: Any) -> None:
    """Several brokers can share a host, and the usual port of the API then belongs to one of them."""
    theirs, ours = management.overview().get("cluster_name"), _properties(connection).get("cluster_name")
    if theirs != ours and theirs and ours:
        raise ManagementUnavailableError(
            f"the management API at {management.url} is that of another broker: cluster {theirs!r}, not {ours!r}"
        )


def _properties(connection: Any) -> Mapping[str, Any]:
    properties = connection.connection.server_properties
    return properties if isinstance(properties, dict) else {}
