"""What the tables of versions.py say, asked of the broker that the tests run on."""

from __future__ import annotations

from typing import Any

import pytest

from broker_topology.versions import APPLY_TO, POLICY_KEYS, QUEUE_ARGUMENTS, QUEUE_TYPES, Feature, Version
from tests.conftest import VirtualHost

SPECIAL = {
    "ha-mode": "all",
    "ha-params": None,
    "ha-sync-mode": "automatic",
    "ha-promote-on-failure": "always",
    "ha-promote-on-shutdown": "always",
    "max-age": "7D",
    "queue-leader-locator": "balanced",
    "queue-master-locator": "min-masters",
    "queue-version": 2,
    "stream-filter-size-bytes": 32,
    "initial-cluster-size": 1,
    "target-group-size": 1,
    "quorum-initial-group-size": 1,
    "quorum-target-group-size": 1,
}
COMPANIONS: dict[str, dict[str, object]] = {
    "delayed-retry-type": {"delayed-retry-min": 1000},
    "ha-params": {"ha-mode": "exactly", "ha-params": 1},
    "ha-sync-mode": {"ha-mode": "all"},
    "ha-promote-on-failure": {"ha-mode": "all"},
    "ha-promote-on-shutdown": {"ha-mode": "all"},
    "ha-sync-batch-size": {"ha-mode": "all", "ha-sync-batch-size": 5},
    "dead-letter-routing-key": {"dead-letter-exchange": "x"},
}


@pytest.fixture
def version(vhost: VirtualHost) -> Version:
    return Version.parse(vhost.api("GET", "/overview").json()["rabbitmq_version"])


def example(key: str, feature: Feature) -> object:
    if key in SPECIAL:
        return SPECIAL[key]
    if feature.values:
        return feature.values[-1]
    return {int: 1000, bool: True}.get(feature.kind, "text")


@pytest.mark.parametrize("key", sorted(POLICY_KEYS))
def test_the_broker_knows_the_policy_keys_of_its_version(vhost: VirtualHost, version: Version, key: str) -> None:
    """A policy key is taken by exactly the versions that the table names (D3)."""
    feature = POLICY_KEYS[key]
    definition = {key: example(key, feature), **COMPANIONS.get(key, {})}
    policy = {"pattern": "^x$", "definition": definition, "apply-to": "all", "priority": 1}
    answer = vhost.api("PUT", "/policies/{vhost}/probe", policy)
    assert answer.is_success == feature.known_to(version), answer.text


@pytest.mark.parametrize("apply_to", sorted(APPLY_TO))
def test_the_broker_knows_what_its_policies_apply_to(vhost: VirtualHost, version: Version, apply_to: str) -> None:
    """Policies apply to single queue types since the version that the table names (D3)."""
    policy = {"pattern": "^x$", "definition": {"max-length": 1}, "apply-to": apply_to, "priority": 1}
    if apply_to == "exchanges":
        policy["definition"] = {"alternate-exchange": "x"}
    answer = vhost.api("PUT", "/policies/{vhost}/probe", policy)
    assert answer.is_success == (APPLY_TO[apply_to] <= version), answer.text


@pytest.mark.parametrize("queue_type", sorted(QUEUE_TYPES))
def test_the_broker_refuses_arguments_of_other_queue_types(
    vhost: VirtualHost, version: Version, queue_type: str
) -> None:
    """A queue argument is refused by exactly the queue types that the table leaves out (D3)."""
    wrong: list[str] = []
    for argument, feature in QUEUE_ARGUMENTS.items():
        if argument == "x-queue-type" or not feature.known_to(version):
            continue
        arguments: dict[str, Any] = {
            "x-queue-type": queue_type,
            argument: example(argument.removeprefix("x-"), feature),
        }
        if argument == "x-dead-letter-routing-key":
            arguments["x-dead-letter-exchange"] = "x"
        if argument == "x-max-priority":
            arguments[argument] = 5
        answer = vhost.api("PUT", f"/queues/{{vhost}}/{argument}", {"durable": True, "arguments": arguments})
        if answer.is_success != (queue_type in feature.types_on(version)):
            wrong.append(f"{argument}: {answer.status_code} {answer.text}")
    assert wrong == []
