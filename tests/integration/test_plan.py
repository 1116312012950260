"""Plans against a real broker: empty after a deploy, and each kind of difference told."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pika
import pytest
from click.testing import CliRunner, Result

from broker_topology.__main__ import main
from broker_topology.deploy import deploy, plan
from broker_topology.plan import Action
from broker_topology.topology import Binding, Exchange, Policy, Queue, Topology, read_topology
from sandbox.processes import eventually
from tests.conftest import DEFINITIONS, VirtualHost

QUORUM = {"x-queue-type": "quorum"}


def changes(topology: Topology, vhost: VirtualHost) -> list[tuple[str, str]]:
    found = plan(topology, vhost.url, management_url=vhost.management_url).plan
    return [(str(change.action), str(change)) for change in found.changes]


def run(vhost: VirtualHost, command: str, *arguments: str, file: Path = DEFINITIONS) -> Result:
    return CliRunner().invoke(
        main, [command, str(file), "--url", vhost.url, "--management-url", vhost.management_url, *arguments]
    )


@pytest.fixture
def topology() -> Topology:
    return read_topology(DEFINITIONS)


def test_a_plan_after_a_deploy_is_empty(deployed: VirtualHost, topology: Topology) -> None:
    """Two deploys, then a plan: no difference, on every version, although 4.x adds arguments of its own (D3)."""
    deploy(topology, deployed.url, management_url=deployed.management_url)
    assert changes(topology, deployed) == []
    result = run(deployed, "plan")
    assert result.exit_code == 0
    assert result.output == "nothing to change\n"
    assert run(deployed, "deploy", "--check").exit_code == 0


def test_a_plan_stays_empty_while_workers_run(deployed: VirtualHost, topology: Topology) -> None:
    """What Celery declares by itself is no difference (D3)."""
    connection = pika.BlockingConnection(pika.URLParameters(deployed.url))
    channel = connection.channel()
    channel.exchange_declare("celeryev", "topic", durable=True)
    channel.exchange_declare("celery.pidbox", "fanout", durable=False)
    channel.queue_declare("celeryev.1", exclusive=True)
    channel.queue_bind("celeryev.1", "celeryev", "worker.#")
    channel.queue_declare("celery@h.celery.pidbox", auto_delete=True, exclusive=True)
    channel.queue_bind("celery@h.celery.pidbox", "celery.pidbox", "")
    assert changes(topology, deployed) == []
    connection.close()


def test_classic_queues_without_a_type_are_no_difference(vhost: VirtualHost) -> None:
    """A queue that the file gives no type is the broker's default, before and after 4.0 (D3)."""
    queues = (Queue(name="old"), Queue(name="typed", arguments={"x-queue-type": "classic"}))
    bare = Topology(vhost="/", queues=queues)
    deploy(bare, vhost.url, management_url=vhost.management_url)
    assert changes(bare, vhost) == []
    swapped = Topology(
        vhost="/", queues=(Queue(name="typed"), Queue(name="old", arguments={"x-queue-type": "classic"}))
    )
    assert changes(swapped, vhost) == []


def test_policies_change_live_and_arguments_do_not(deployed: VirtualHost, topology: Topology) -> None:
    """A policy is a change, an argument a migration, an exchange's type a conflict (D3)."""
    work, *others = topology.exchanges
    payments, *queues = topology.queues
    limits, *policies = topology.policies
    edited = replace(
        topology,
        exchanges=(replace(work, type="direct"), *others),
        queues=(replace(payments, arguments={**payments.arguments, "x-delivery-limit": 9}), *queues),
        policies=(replace(limits, definition={"delivery-limit": 7}, priority=11), *policies),
    )
    assert sorted(changes(edited, deployed)) == [
        ("change", "policy work-limits: delivery-limit is 5 on the broker and 7 in the file"),
        ("change", "policy work-limits: max-length-bytes is 1073741824 on the broker and not set in the file"),
        ("change", "policy work-limits: priority is 10 on the broker and 11 in the file"),
        ("conflict", "exchange work: type is 'topic' on the broker and 'direct' in the file"),
        ("migrate", "queue payments: x-delivery-limit is 20 on the broker and 9 in the file"),
    ]
    report = deploy(edited, deployed.url, management_url=deployed.management_url)
    assert report.failed
    assert not report.changed
    only_policy = replace(topology, policies=edited.policies)
    report = deploy(only_policy, deployed.url, management_url=deployed.management_url)
    assert report.policies_set == ("work-limits",)
    assert changes(only_policy, deployed) == []


def test_what_is_only_on_the_broker_is_told_and_kept(deployed: VirtualHost, topology: Topology) -> None:
    """Extra queues, exchanges, bindings and policies are reported, and no deploy deletes them (D3)."""
    deployed.api("PUT", "/queues/{vhost}/old", {"durable": True}).raise_for_status()
    deployed.api("PUT", "/exchanges/{vhost}/older", {"type": "fanout", "durable": True}).raise_for_status()
    deployed.api("POST", "/bindings/{vhost}/e/work/q/crm", {"routing_key": "spare"}).raise_for_status()
    body = {"pattern": "^old$", "definition": {"max-length": 5}, "priority": 1, "apply-to": "queues"}
    deployed.api("PUT", "/policies/{vhost}/old", body).raise_for_status()
    extras = [
        ("extra", "exchange older: only on the broker"),
        ("extra", "queue old: only on the broker"),
        ("extra", "binding work -> crm (spare): only on the broker"),
        ("extra", "policy old: only on the broker"),
    ]
    assert changes(topology, deployed) == extras
    deploy(topology, deployed.url, management_url=deployed.management_url)
    assert changes(topology, deployed) == extras
    assert run(deployed, "deploy", "--check").exit_code == 0


@pytest.mark.parametrize(
    ("priority", "how"),
    [(20, "takes effect instead"), (10, "has the same priority, so either may take effect")],
)
def test_a_policy_that_overrules_the_files_is_a_conflict(
    deployed: VirtualHost, topology: Topology, priority: int, how: str
) -> None:
    """Somebody's policy of the same or a higher priority is named, and deploy exits 1 (D3)."""
    body = {"pattern": "^pay", "definition": {"max-length": 5}, "priority": priority, "apply-to": "queues"}
    deployed.api("PUT", "/policies/{vhost}/theirs", body).raise_for_status()
    line = f"policy work-limits: on queue payments, policy 'theirs' (priority {priority}) {how}"
    assert ("conflict", line) in changes(topology, deployed)
    result = run(deployed, "deploy")
    assert result.exit_code == 1
    assert line in result.output


def test_operator_policies_and_depths_are_noted(deployed: VirtualHost, topology: Topology) -> None:
    """A plan says which operator policy applies too, and which new limit is below the depth (D3)."""
    body = {"pattern": "^crm$", "definition": {"max-length": 1000}, "apply-to": "queues"}
    deployed.api("PUT", "/operator-policies/{vhost}/theirs", body).raise_for_status()
    connection = pika.BlockingConnection(pika.URLParameters(deployed.url))
    channel = connection.channel()
    for _ in range(9):
        channel.basic_publish("work", "payments", b"x")
    connection.close()
    limits, *policies = topology.policies
    shorter = replace(topology, policies=(replace(limits, definition={"max-length": 3}), *policies))

    def notes() -> tuple[str, ...]:
        return plan(shorter, deployed.url, management_url=deployed.management_url).plan.notes

    expected = (
        "operator policy theirs applies to queue crm too: max-length 1000",
        "queue payments holds 9 messages, and the length of 3 refuses publishers",
    )
    # Where messages still arrive, the broker tells a depth on the way.
    eventually(lambda: notes() == expected, seconds=20)


def test_a_policy_is_fitted_to_the_version(vhost: VirtualHost, topology: Topology) -> None:
    """Keys that this broker does not know are left out and said, and the plan is empty afterwards (D3)."""
    policy = Policy(
        name="timeouts",
        pattern="^payments$",
        apply_to="quorum_queues",
        priority=20,
        definition={
            "consumer-timeout": 3_600_000,
            "delivery-limit": 5,
            "delayed-retry-type": "all",
            "delayed-retry-min": 5,
        },
    )
    modern = replace(topology, policies=(policy,))
    report = deploy(modern, vhost.url, management_url=vhost.management_url)
    assert report.policies_set == ("timeouts",)
    version = vhost.api("GET", "/overview").json()["rabbitmq_version"]
    left_out = {
        "3.10": "consumer-timeout, delayed-retry-min, delayed-retry-type",
        "4.0": "delayed-retry-min, delayed-retry-type",
    }
    short = ".".join(version.split(".")[:2])
    notes = " ".join(report.plan.notes)
    if short in left_out:
        assert f"policy timeouts: {left_out[short]} left out, RabbitMQ {short} does not know it" in notes
    assert ("applied to queues" in notes) == (short == "3.10")
    assert changes(modern, vhost) == []


def test_what_a_broker_would_refuse_is_refused_before_anything_is_created(vhost: VirtualHost, tmp_path: Path) -> None:
    """An argument that brokers refuse ends a deploy before its first change, exit code 2 (D3)."""
    definitions = json.loads(DEFINITIONS.read_text())
    definitions["queues"][2]["arguments"]["x-max-priority"] = 5
    file = tmp_path / "refused.json"
    file.write_text(json.dumps(definitions))
    result = run(vhost, "deploy", file=file)
    assert result.exit_code == 2
    assert "queue crm: x-max-priority is refused on a quorum queue" in result.stderr
    assert vhost.api("GET", "/queues/{vhost}").json() == []


def test_a_broker_that_refuses_half_way_is_quoted_with_what_was_done(vhost: VirtualHost) -> None:
    """Where the broker's limits stop a deploy, policies came first, and what was created is listed (D3)."""
    vhost.api("PUT", "/vhost-limits/{vhost}/max-queues", {"value": 2}).raise_for_status()
    result = run(vhost, "deploy")
    assert result.exit_code == 2
    assert "queue limit" in result.stderr
    assert (
        "created before that: exchange work, exchange dead-letters, exchange unroutable, queue payments"
        in result.stderr
    )
    assert len(vhost.api("GET", "/policies/{vhost}").json()) == 2


@pytest.mark.parametrize("name", ["with/slash", "per%cent", "ä ö+&?#", "/"])
def test_virtual_hosts_may_be_called_anything(vhost: VirtualHost, topology: Topology, name: str) -> None:
    """Slashes, percent signs and spaces in a virtual host's name reach both doors of the broker (D3)."""
    from urllib.parse import quote  # noqa: PLC0415

    odd = replace_name(vhost, f"{vhost.name}{name}" if name != "/" else f"{vhost.name}//", quote)
    try:
        report = deploy(topology, odd.url, management_url=odd.management_url)
        assert not report.failed
        assert changes(topology, odd) == []
    finally:
        odd.api("DELETE", "/vhosts/{vhost}")


def replace_name(vhost: VirtualHost, name: str, quote: Any) -> VirtualHost:
    """Another virtual host of the same broker."""
    encoded = quote(name, safe="")
    odd = VirtualHost(name=encoded, url=vhost.url.replace(vhost.name, encoded), management_url=vhost.management_url)
    odd.api("PUT", "/vhosts/{vhost}").raise_for_status()
    everything = {"configure": ".*", "write": ".*", "read": ".*"}
    odd.api("PUT", "/permissions/{vhost}/guest", everything).raise_for_status()
    return odd


def test_internal_and_headers_exchanges_are_deployed(vhost: VirtualHost) -> None:
    """What kombu cannot declare, an internal exchange, is deployed, and the plan is empty then (D3)."""
    inner = Exchange(name="inner", type="headers", internal=True)
    match = {"x-match": "any", "kind": "a", "size": 3}
    topology = Topology(
        vhost="/",
        exchanges=(Exchange(name="outer", type="topic"), inner),
        queues=(Queue(name="q", arguments=QUORUM),),
        bindings=(
            Binding(source="outer", destination="inner", destination_type="exchange", routing_key="#"),
            Binding(source="inner", destination="q", destination_type="queue", arguments=match),
            Binding(source="amq.topic", destination="q", destination_type="queue", routing_key="a"),
        ),
    )
    deploy(topology, vhost.url, management_url=vhost.management_url)
    assert vhost.api("GET", "/exchanges/{vhost}/inner").json()["internal"] is True
    assert changes(topology, vhost) == []


def many(count: int) -> Topology:
    """A topology of the project's kind with that many work queues."""
    base = read_topology(DEFINITIONS)
    work = tuple(replace(base.queues[0], name=f"work-{number}") for number in range(count))
    bindings = tuple(
        Binding(source="work", destination=queue.name, destination_type="queue", routing_key=queue.name)
        for queue in work
    )
    return replace(base, queues=(*work, *base.queues[3:]), bindings=(*bindings, *base.bindings[3:]))


@pytest.mark.soak  # a figure: it needs a quiet machine
def test_a_hundred_work_queues_are_deployed_within_five_seconds(vhost: VirtualHost) -> None:
    """100 quorum queues, their bindings and delayed delivery take less than 5 s, and then nothing (D3)."""
    topology = many(100)
    started = time.perf_counter()
    report = deploy(topology, vhost.url, management_url=vhost.management_url)
    seconds = time.perf_counter() - started
    assert len(report.created) > 200
    print(f"100 work queues in {seconds:.2f} s")
    started = time.perf_counter()
    assert not deploy(topology, vhost.url, management_url=vhost.management_url).changed
    assert time.perf_counter() - started < 5
    assert seconds < 5


def test_actions_are_told_apart(vhost: VirtualHost, topology: Topology) -> None:
    """On an empty virtual host everything is to be created, and nothing else (D3)."""
    found = plan(topology, vhost.url, management_url=vhost.management_url).plan
    assert {change.action for change in found.changes} == {Action.CREATE}
    assert not found.blocked
