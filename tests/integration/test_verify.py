"""Verify proves a good broker, and names the fault of each sabotaged one."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pika
import pytest
from click.testing import CliRunner, Result

from broker_topology.__main__ import main
from broker_topology.address import BrokerAddress
from broker_topology.management import ManagementApi
from broker_topology.topology import read_topology
from broker_topology.verdict import Verdict
from broker_topology.verify import verify
from sandbox.processes import eventually
from tests.conftest import DEFINITIONS, VirtualHost

Sabotage = Callable[[VirtualHost], object]


def verdict(vhost: VirtualHost, *, arrival_seconds: float = 15.0, policy_seconds: float = 20.0) -> Verdict:
    address = BrokerAddress.parse(vhost.url)
    with ManagementApi(vhost.management_url, address) as management:
        return verify(
            read_topology(DEFINITIONS),
            address,
            management,
            arrival_seconds=arrival_seconds,
            policy_seconds=policy_seconds,
        )


def faults(vhost: VirtualHost, *, policy_seconds: float = 0) -> list[str]:
    """What is found without waiting long; a policy that is not shown yet may then be one of the faults."""
    found = verdict(vhost, arrival_seconds=4.0, policy_seconds=policy_seconds)
    return [f"{check.object}: {check.fault}" for check in found.faults]


def run(vhost: VirtualHost, *arguments: str) -> Result:
    return CliRunner().invoke(
        main, ["verify", str(DEFINITIONS), "--url", vhost.url, "--management-url", vhost.management_url, *arguments]
    )


def objects(vhost: VirtualHost) -> dict[str, list[str]]:
    """Every queue, exchange and policy by name."""
    return {
        kind: sorted(entry["name"] for entry in vhost.api("GET", f"/{kind}/{{vhost}}").json())
        for kind in ("queues", "exchanges", "policies")
    }


def test_a_good_broker_is_proven_and_left_as_it_was(deployed: VirtualHost) -> None:
    """Every road is proven, and neither probes nor their queues, exchanges or policies remain (D2, D3)."""
    before = objects(deployed)
    result = run(deployed)
    assert result.exit_code == 0, result.output
    for line in [
        "queues payments, notifications, crm: what is rejected arrives in dead-letters",
        "queues payments, notifications, crm: what is expired arrives in dead-letters",
        "queues payments, notifications, crm: what is returned too often arrives in dead-letters",
        "queue dead-letters: keeps a message through 25 returns",
        "exchange work: what is unroutable arrives in unroutable",
        "exchange celery_delayed_delivery: what is unroutable arrives in unroutable",
        "queues payments, notifications, crm: dead letters are kept until their queue has confirmed them",
    ]:
        assert f"proven  {line}\n" in result.output
    assert result.output.endswith("every road is proven\n")
    assert objects(deployed) == before
    connection = pika.BlockingConnection(pika.URLParameters(deployed.url))
    for queue in read_topology(DEFINITIONS).queues:
        assert connection.channel().queue_declare(queue.name, passive=True).method.message_count == 0
    connection.close()


def test_workers_drains_and_dead_letters_see_nothing_of_it(deployed: VirtualHost) -> None:
    """Consumers on every queue get no probe, and dead letters that wait are still there, once each (D2)."""
    connection = pika.BlockingConnection(pika.URLParameters(deployed.url))
    channel = connection.channel()
    channel.confirm_delivery()
    letters = [f"letter {number}".encode() for number in range(300)]
    for body in letters:
        channel.basic_publish("dead-letters", "", body)
    seen: list[bytes] = []
    for queue in ("payments", "notifications", "crm", "unroutable"):
        channel.basic_consume(queue, lambda _c, _m, _p, body: seen.append(body), auto_ack=True)
    proven = verdict(deployed)
    connection.process_data_events(0.5)
    assert proven.faults == ()
    assert seen == []
    waiting = connection.channel()

    def take_all() -> bool:
        method, _, body = waiting.basic_get("dead-letters", auto_ack=True)
        if method is not None:
            seen.append(body)
        return len(seen) == len(letters)

    eventually(take_all, every=0.001)
    assert sorted(seen) == sorted(letters)
    connection.close()


def delete(path: str) -> Sabotage:
    return lambda vhost: vhost.api("DELETE", path).raise_for_status()


def put(path: str, body: dict[str, Any]) -> Sabotage:
    return lambda vhost: vhost.api("PUT", path, body).raise_for_status()


def policy(kind: str, pattern: str, apply_to: str = "queues", **definition: Any) -> Sabotage:
    settings = {key.replace("_", "-"): value for key, value in definition.items()}
    body = {"pattern": pattern, "definition": settings, "apply-to": apply_to, "priority": 99}
    return put(f"/{kind}/{{vhost}}/sabotage", body)


def remade_queue(name: str, **changes: Any) -> Sabotage:
    """Delete a queue and declare it with other arguments, bound as before."""

    def sabotage(vhost: VirtualHost) -> None:
        bindings = vhost.api("GET", f"/queues/{{vhost}}/{name}/bindings").json()
        queue = read_topology(DEFINITIONS).queue(name)
        assert queue is not None
        arguments = dict(queue.arguments)
        for key, value in changes.items():
            arguments.pop(f"x-{key.replace('_', '-')}", None)
            if value is not None:
                arguments[f"x-{key.replace('_', '-')}"] = value
        delete(f"/queues/{{vhost}}/{name}")(vhost)
        put(f"/queues/{{vhost}}/{name}", {"durable": True, "arguments": arguments})(vhost)
        for binding in bindings:
            if binding["source"]:
                path = f"/bindings/{{vhost}}/e/{binding['source']}/q/{name}"
                vhost.api("POST", path, {"routing_key": binding["routing_key"]}).raise_for_status()

    return sabotage


def remade_work_exchange(vhost: VirtualHost) -> None:
    delete("/exchanges/{vhost}/work")(vhost)
    put("/exchanges/{vhost}/work", {"type": "topic", "durable": True})(vhost)
    for queue in ("payments", "notifications", "crm"):
        for key in (queue, f"#.{queue}"):
            vhost.api("POST", f"/bindings/{{vhost}}/e/work/q/{queue}", {"routing_key": key}).raise_for_status()


def diverted_dead_letters(vhost: VirtualHost) -> None:
    delete("/bindings/{vhost}/e/dead-letters/q/dead-letters/~")(vhost)
    vhost.api("POST", "/bindings/{vhost}/e/dead-letters/q/crm", {"routing_key": ""}).raise_for_status()


INEFFECTIVE = (
    "queue payments: asks for at-least-once dead-lettering and does not get it: the overflow that takes effect is "
    "drop-head, not reject-publish; the broker falls back to at-most-once without a word [at-least-once-ineffective]"
)
AT_MOST_ONCE = (
    "queues payments, notifications, crm: a dead letter that could not be handed on is gone: "
    "at-most-once is in effect"
)
EXPIRING = (
    "operator policy sabotage: drops messages after 86400000 ms on queue dead-letters [operator-policy-weakens]"
)
# On 4.3 a message brings its count of returns along, so it survives fewer.
LOSES = "queue dead-letters: loses a message after "

SABOTAGES: dict[str, tuple[Sabotage, list[str]]] = {
    "dead-letter exchange deleted": (
        delete("/exchanges/{vhost}/dead-letters"),
        [
            "exchange dead-letters: is missing on the broker",
            "queue payments: its dead-letter exchange 'dead-letters' is not declared [dlx-undeclared]",
            "queues payments, notifications, crm: what is rejected arrives nowhere, not in dead-letters",
        ],
    ),
    "dead-letter binding removed": (
        delete("/bindings/{vhost}/e/dead-letters/q/dead-letters/~"),
        [
            "binding dead-letters -> dead-letters: is missing on the broker",
            "queues payments, notifications, crm: what is rejected arrives in unroutable, not in dead-letters",
        ],
    ),
    "dead-letter queue deleted": (
        delete("/queues/{vhost}/dead-letters"),
        [
            "queue dead-letters: is missing on the broker",
            "queues payments, notifications, crm: what is expired arrives in unroutable, not in dead-letters",
        ],
    ),
    "dead letters diverted into a work queue": (
        diverted_dead_letters,
        ["queues payments, notifications, crm: what is rejected arrives nowhere, not in dead-letters"],
    ),
    "work binding removed": (
        delete("/bindings/{vhost}/e/work/q/payments/payments"),
        ["binding work -> payments (payments): is missing on the broker"],
    ),
    "alternate exchange deleted": (
        delete("/exchanges/{vhost}/unroutable"),
        [
            "exchange unroutable: is missing on the broker",
            "exchange work: what is unroutable is handed back: no alternate exchange applies",
        ],
    ),
    "unroutable queue deleted": (
        delete("/queues/{vhost}/unroutable"),
        ["queue unroutable: is missing on the broker"],
    ),
    "work exchange without its alternate": (
        remade_work_exchange,
        [
            "exchange work: alternate-exchange is not set on the broker and 'unroutable' in the file",
            "exchange work: what is unroutable is handed back: no alternate exchange applies",
        ],
    ),
    "policy shadowed": (
        policy("policies", "^payments$", max_length=5),
        [
            "policy work-limits: on queue payments, policy 'sabotage' (priority 99) takes effect instead",
            "queue payments: the broker applies sabotage, not work-limits",
        ],
    ),
    "policy deleted": (
        delete("/policies/{vhost}/work-limits"),
        ["policy work-limits: is missing on the broker"],
    ),
    "overflow by policy": (
        policy("policies", "^(payments|notifications|crm)$", overflow="drop-head", max_length=1000),
        [
            INEFFECTIVE,
            AT_MOST_ONCE,
        ],
    ),
    "limit of the dead-letter queue lowered": (
        policy("policies", "^dead-letters$", delivery_limit=3),
        [LOSES],
    ),
    "operator policy on the dead-letter queue": (
        policy("operator-policies", "^dead-letters$", delivery_limit=3, message_ttl=86_400_000),
        [
            EXPIRING,
            LOSES,
        ],
    ),
    "work queue remade without a dead-letter exchange": (
        remade_queue("payments", dead_letter_exchange=None, dead_letter_strategy=None),
        [
            "queue payments: x-dead-letter-exchange is not set on the broker and 'dead-letters' in the file",
            "queue payments: what is rejected arrives nowhere, not in dead-letters",
        ],
    ),
    "work queue remade as classic": (
        remade_queue("payments", queue_type="classic", dead_letter_strategy=None, delivery_limit=None),
        ["queue payments: x-queue-type is 'classic' on the broker and 'quorum' in the file"],
    ),
    "dead-letter queue remade without a limit": (
        remade_queue("dead-letters", delivery_limit=None),
        ["queue dead-letters: x-delivery-limit is not set on the broker and 1000000 in the file"],
    ),
    "alternate of the delayed delivery removed": (
        delete("/policies/{vhost}/delayed-delivery-unroutable"),
        ["exchange celery_delayed_delivery: what is unroutable is handed back: no alternate exchange applies"],
    ),
    "a delay queue deleted": (
        delete("/queues/{vhost}/celery_delayed_5"),
        ["delayed delivery: is missing on the broker: queue celery_delayed_5"],
    ),
}


@pytest.mark.parametrize("name", SABOTAGES)
def test_each_sabotage_is_named(deployed: VirtualHost, name: str) -> None:
    """A sabotaged broker is not proven, and the fault is told (D2, D3)."""
    sabotage, expected = SABOTAGES[name]
    sabotage(deployed)
    found = faults(deployed, policy_seconds=20 if name == "policy shadowed" else 0)
    for line in expected:
        assert any(fault.startswith(line) for fault in found), found


def test_a_fault_exits_1_and_is_in_the_json(deployed: VirtualHost) -> None:
    """Scripts learn from the exit code and from JSON which claims failed (D3)."""
    deployed.api("DELETE", "/bindings/{vhost}/e/work/q/crm/crm").raise_for_status()
    result = run(deployed, "--json")
    assert result.exit_code == 1
    answer = json.loads(result.stdout)
    assert answer["proven"] is False
    assert {
        "object": "binding work -> crm (crm)",
        "claim": "is as the file says",
        "fault": "is missing on the broker",
    } in answer["checks"]


def test_a_backlog_that_probes_would_wait_behind_is_a_fault(
    deployed: VirtualHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where dead letters pile up undrained, verify says so instead of holding them all (D2)."""
    monkeypatch.setattr("broker_topology.proofs.MAX_HELD", 3)
    connection = pika.BlockingConnection(pika.URLParameters(deployed.url))
    for _ in range(5):
        connection.channel().basic_publish("dead-letters", "", b"x")
    connection.close()
    channel = pika.BlockingConnection(pika.URLParameters(deployed.url)).channel()
    eventually(lambda: channel.queue_declare("dead-letters", passive=True).method.message_count == 5)
    channel.connection.close()
    assert "queue dead-letters: holds 5 messages, and a probe would wait behind them: drain it first" in faults(
        deployed
    )
