"""How a snapshot of a broker is taken through the management API."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from broker_topology.management import ManagementApi, ManagementUnavailableError
from broker_topology.rules.subject import LiveFacts
from broker_topology.snapshot import Snapshot
from broker_topology.topology import topology_of
from broker_topology.versions import Version


def take_snapshot(management: ManagementApi, vhost: str) -> Snapshot:
    """Read the state of one virtual host. Raises ManagementUnavailableError."""
    overview = management.overview()
    queues = management.queues(vhost)
    definitions: dict[str, Any] = {
        "rabbitmq_version": str(overview["rabbitmq_version"]),
        "vhosts": [_vhost(management, vhost)],
        "queues": [_queue(queue) for queue in queues],
        "exchanges": [_exchange(exchange) for exchange in management.exchanges(vhost) if _is_own(exchange)],
        "bindings": [_binding(binding) for binding in management.bindings(vhost) if binding.get("source")],
        "policies": management.policies(vhost),
        "parameters": [_operator_policy(policy) for policy in _if_permitted(management, "operator-policies", vhost)],
        "global_parameters": _if_permitted(management, "global-parameters"),
    }
    topology, _ = topology_of(definitions, vhost)
    return Snapshot(
        vhost=vhost,
        version=Version.parse(definitions["rabbitmq_version"]),
        definitions=definitions,
        topology=topology,
        live=_live(overview, queues, management),
        queues={str(queue["name"]): queue for queue in queues},
    )


def _vhost(management: ManagementApi, vhost: str) -> dict[str, Any]:
    # One virtual host by name is for administrators; the list is for everybody, and has those one may see.
    found: Mapping[str, Any] = next(
        (entry for entry in _if_permitted(management, "vhosts") if entry.get("name") == vhost), {}
    )
    return {key: found[key] for key in ("metadata", "default_queue_type") if key in found} | {"name": vhost}


def _queue(queue: Mapping[str, Any]) -> dict[str, Any]:
    keys = ("name", "vhost", "durable", "auto_delete", "exclusive", "arguments")
    return {key: queue[key] for key in keys if key in queue}


def _exchange(exchange: Mapping[str, Any]) -> dict[str, Any]:
    keys = ("name", "vhost", "type", "durable", "auto_delete", "internal", "arguments")
    return {key: exchange[key] for key in keys if key in exchange}


def _binding(binding: Mapping[str, Any]) -> dict[str, Any]:
    keys = ("source", "vhost", "destination", "destination_type", "routing_key", "arguments")
    return {key: binding[key] for key in keys if key in binding}


def _operator_policy(policy: Mapping[str, Any]) -> dict[str, Any]:
    value = {key: policy[key] for key in ("pattern", "definition", "priority", "apply-to") if key in policy}
    return {"component": "operator_policy", "vhost": policy["vhost"], "name": policy["name"], "value": value}


def _is_own(exchange: Mapping[str, Any]) -> bool:
    name = str(exchange.get("name", ""))
    return bool(name) and not name.startswith("amq.")


def _if_permitted(management: ManagementApi, *path: str) -> list[dict[str, Any]]:
    """What only some users may read, and what a snapshot can do without."""
    try:
        found = management.get(*path)
    except ManagementUnavailableError:
        return []
    return found if isinstance(found, list) else []


def _live(overview: Mapping[str, Any], queues: list[dict[str, Any]], management: ManagementApi) -> LiveFacts:
    return LiveFacts(
        nodes=_nodes(overview, queues, management),
        messages=_numbers(queues, "messages"),
        bytes=_numbers(queues, "message_bytes"),
        retained=_numbers(queues, "messages_dlx"),
        members={str(queue["name"]): len(queue["members"]) for queue in queues if queue.get("members")},
    )


def _nodes(overview: Mapping[str, Any], queues: list[dict[str, Any]], management: ManagementApi) -> int:
    """Nodes need the monitoring tag; without it, those that queues mention are counted."""
    try:
        found = management.get("nodes")
    except ManagementUnavailableError:
        found = {node for queue in queues for node in queue.get("members", [])} | {overview.get("node")}
    return max(len(found), 1)


def _numbers(queues: list[dict[str, Any]], key: str) -> dict[str, int]:
    return {str(queue["name"]): queue[key] for queue in queues if isinstance(queue.get(key), int)}
