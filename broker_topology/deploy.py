"""Bring a virtual host to what the file says: policies first, then what is missing; nothing is deleted."""

from __future__ import annotations

from dataclasses import dataclass

from broker_topology.address import BrokerAddress
from broker_topology.connection import connected
from broker_topology.declare import Declared, create, inspect
from broker_topology.management import ManagementApi, ManagementUnavailableError, default_management_url
from broker_topology.topology import Policy, Topology


@dataclass(frozen=True, slots=True, kw_only=True)
class Deployed:
    """What a deploy did, object by object."""

    vhost: str
    declared: Declared
    policies_set: tuple[str, ...] = ()
    policies_unchanged: tuple[str, ...] = ()
    policies_left_out: tuple[str, ...] = ()
    left_out_because: str | None = None
    """Why policies could not be set, as a sentence."""

    @property
    def changed(self) -> bool:
        """Whether anything on the broker is different now."""
        return bool(self.policies_set) or bool(self.declared.created and not self.declared.conflicts)


def deploy(
    topology: Topology,
    amqp_url: str,
    *,
    management_url: str | None = None,
    ca_file: str | None = None,
    delayed_delivery: bool = True,
) -> Deployed:
    """Deploy a topology into the virtual host of the AMQP URL.

    A conflict is found before anything is changed, and then nothing is. Policies come before queues, so that
    they hold when the first message arrives. Without ``management_url`` the API is looked for beside the
    broker, and its absence is reported in ``left_out_because``; one that is named must answer.

    Raises BrokerUnavailableError, TopologyError and AddressError.
    """
    address = BrokerAddress.parse(amqp_url, ca_file=ca_file)
    with connected(address) as connection:
        found = inspect(topology, connection, delayed_delivery=delayed_delivery)
        if found.conflicts:
            return Deployed(vhost=address.vhost, declared=found)
        policies = _set_policies(topology, address, management_url)
        declared = create(topology, connection, found)
    return Deployed(
        vhost=address.vhost,
        declared=declared,
        policies_set=policies.set,
        policies_unchanged=policies.unchanged,
        policies_left_out=policies.left_out,
        left_out_because=policies.because,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Policies:
    set: tuple[str, ...] = ()
    unchanged: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()
    because: str | None = None


def _set_policies(topology: Topology, address: BrokerAddress, management_url: str | None) -> _Policies:
    if not topology.policies:
        return _Policies()
    try:
        with ManagementApi(management_url or default_management_url(address), address) as management:
            current = {policy["name"]: policy for policy in management.policies(address.vhost)}
            stale = [policy for policy in topology.policies if not _same(policy, current.get(policy.name))]
            for policy in stale:
                management.put_policy(address.vhost, policy)
    except ManagementUnavailableError as error:
        if management_url is not None:
            raise
        return _Policies(left_out=tuple(policy.name for policy in topology.policies), because=str(error))
    return _Policies(
        set=tuple(policy.name for policy in stale),
        unchanged=tuple(policy.name for policy in topology.policies if policy not in stale),
    )


def _same(policy: Policy, current: dict[str, object] | None) -> bool:
    return current is not None and (
        policy.pattern,
        dict(policy.definition),
        policy.apply_to,
        policy.priority,
    ) == (current.get("pattern"), current.get("definition"), current.get("apply-to"), current.get("priority"))
