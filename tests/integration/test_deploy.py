"""Deploying definitions.json on a real broker."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import kombu
import pytest
from click.testing import CliRunner, Result

from broker_topology.__main__ import main
from broker_topology.address import BrokerAddress
from broker_topology.connection import connected
from broker_topology.declare import declare_topology, kombu_queues
from broker_topology.delays import DELAYED_DELIVERY
from broker_topology.deploy import deploy
from broker_topology.plan import Action
from broker_topology.topology import Topology, read_topology
from sandbox.processes import eventually, free_port
from tests.conftest import DEFINITIONS, VirtualHost


def run(vhost: VirtualHost, *arguments: str, file: Path = DEFINITIONS, management: bool = True) -> Result:
    extra = ["--management-url", vhost.management_url] if management else []
    return CliRunner().invoke(main, ["deploy", str(file), "--url", vhost.url, *extra, *arguments])


def topology() -> Topology:
    return read_topology(DEFINITIONS)


def changed_file(tmp_path: Path, **arguments: Any) -> Path:
    """definitions.json with other arguments on the queue ``payments``; None takes one away."""
    definitions = json.loads(DEFINITIONS.read_text())
    queue = definitions["queues"][0]
    for name, value in arguments.items():
        queue["arguments"].pop(name, None)
        if value is not None:
            queue["arguments"][name] = value
    path = tmp_path / "changed.json"
    path.write_text(json.dumps(definitions))
    return path


def test_everything_in_the_file_is_on_the_broker(vhost: VirtualHost) -> None:
    """A first deploy creates queues with their arguments, policies, and Celery's delay queues (D3)."""
    result = run(vhost)
    assert result.exit_code == 0, result.output
    queues = {queue["name"]: queue for queue in vhost.api("GET", "/queues/{vhost}").json()}
    for queue in topology().queues:
        assert queue.arguments.items() <= queues[queue.name]["arguments"].items()
    assert "celery_delayed_27" in queues
    assert {policy["name"] for policy in vhost.api("GET", "/policies/{vhost}").json()} == {
        "work-limits",
        "delayed-delivery-unroutable",
    }
    eventually(
        lambda: vhost.api("GET", "/queues/{vhost}/payments").json().get("policy") == "work-limits",
        what="the policy to take hold",
    )


def test_a_second_deploy_changes_nothing_and_says_so(deployed: VirtualHost) -> None:
    """Deploying twice is deploying once (D3)."""
    before = deployed.api("GET", "/bindings/{vhost}").json()
    result = run(deployed)
    assert result.exit_code == 0
    assert result.output.startswith("nothing to change: all ")
    assert deployed.api("GET", "/bindings/{vhost}").json() == before


def test_what_is_missing_is_put_back(deployed: VirtualHost) -> None:
    """A deploy after a queue was deleted creates that queue and its bindings, and nothing else (D3)."""
    deployed.api("DELETE", "/queues/{vhost}/crm").raise_for_status()
    report = deploy(topology(), deployed.url, management_url=deployed.management_url)
    assert report.created == ("queue crm", "binding work -> crm (crm)", DELAYED_DELIVERY)
    assert str(report.plan.of(Action.CREATE)[-1]) == "delayed delivery: binding work -> crm (#.crm)"
    assert not report.policies_set


def test_every_differing_argument_has_its_line(deployed: VirtualHost, tmp_path: Path) -> None:
    """A conflict lists each argument with both values, exits 1, and leaves the broker as it was (D3)."""
    file = changed_file(
        tmp_path,
        **{
            "x-delivery-limit": 7,
            "x-dead-letter-exchange": "elsewhere",
            "x-overflow": None,
            "x-max-length": 10,
        },
    )
    deployed.api("DELETE", "/queues/{vhost}/crm").raise_for_status()
    result = run(deployed, file=file)
    assert result.exit_code == 1
    assert sorted(result.output.splitlines()[:-2]) == [
        "queue payments: x-dead-letter-exchange is 'dead-letters' on the broker and 'elsewhere' in the file",
        "queue payments: x-delivery-limit is 20 on the broker and 7 in the file",
        "queue payments: x-max-length is not set on the broker and 10 in the file",
        "queue payments: x-overflow is 'reject-publish' on the broker and not set in the file",
    ]
    assert result.output.splitlines()[-2].startswith("nothing was changed: 4 arguments differ")
    assert deployed.api("GET", "/queues/{vhost}/crm").status_code == 404


@pytest.mark.parametrize("queue_type", ["classic", "stream"])
def test_a_queue_of_another_type_is_a_conflict(vhost: VirtualHost, queue_type: str) -> None:
    """An existing classic queue or stream is named as a conflict of types, once (D3)."""
    vhost.api(
        "PUT", "/queues/{vhost}/payments", {"durable": True, "arguments": {"x-queue-type": queue_type}}
    ).raise_for_status()
    result = run(vhost)
    assert result.exit_code == 1
    assert (
        f"queue payments: x-queue-type is '{queue_type}' on the broker and 'quorum' in the file"
        in result.output.splitlines()
    )


def test_an_exchange_of_another_type_is_a_conflict(vhost: VirtualHost) -> None:
    """Type and arguments of an exchange are compared like those of a queue (D3)."""
    vhost.api("PUT", "/exchanges/{vhost}/work", {"type": "direct", "durable": True}).raise_for_status()
    result = run(vhost)
    assert result.exit_code == 1
    assert result.output.splitlines()[:2] == [
        "exchange work: type is 'direct' on the broker and 'topic' in the file",
        "exchange work: alternate-exchange is not set on the broker and 'unroutable' in the file",
    ]


def test_without_a_management_api_the_policies_are_said_to_be_missing(vhost: VirtualHost) -> None:
    """Where no management API is found, deploy succeeds and says which policies are not set (D3)."""
    address = BrokerAddress.parse(vhost.url)
    assert address.port != 15672
    result = run(vhost, management=False)
    assert result.exit_code == 0
    assert "policies not set (work-limits, delayed-delivery-unroutable): the management API at" in result.stderr
    assert "http://127.0.0.1:15672" in result.stderr


def test_a_management_api_that_was_named_must_answer(vhost: VirtualHost) -> None:
    """A management URL that does not answer is exit code 2, before anything is created (D3)."""
    result = CliRunner().invoke(
        main,
        [
            "deploy",
            str(DEFINITIONS),
            "--url",
            vhost.url,
            "--management-url",
            f"http://127.0.0.1:{free_port()}",
        ],
    )
    assert result.exit_code == 2
    assert "cannot be reached" in result.stderr
    assert vhost.api("GET", "/queues/{vhost}").json() == []


def test_json_is_one_object(vhost: VirtualHost) -> None:
    """Scripts read what was created and whether anything changed (D3)."""
    first = json.loads(run(vhost, "--json").stdout)
    second = json.loads(run(vhost, "--json").stdout)
    assert first["changed"] is True
    assert "queue payments" in first["created"]
    assert second["changed"] is False
    assert DELAYED_DELIVERY in second["unchanged"]


def broken_urls(vhost: VirtualHost) -> dict[str, tuple[str, str]]:
    good = BrokerAddress.parse(vhost.url)
    return {
        "broker down": (f"amqp://guest:secret-word@127.0.0.1:{free_port()}/", "cannot be reached"),
        "wrong password": (f"amqp://guest:secret-word@{good.netloc}/", "refuses the login of user 'guest'"),
        "missing vhost": (f"amqp://guest:guest@{good.netloc}/secret-word", "does not exist there"),
        "unknown host": ("amqp://guest:secret-word@no-such-host.invalid/", "there is no host"),
        "odd password": ("amqp://guest:secret-word/%@127.0.0.1/", "percent-encode"),
        "other scheme": ("redis://:secret-word@127.0.0.1/", "must start with amqp://"),
        "not TLS": (f"amqps://guest:secret-word@{good.netloc}/", "no TLS connection"),
    }


@pytest.mark.parametrize(
    "fault",
    [
        "broker down",
        "wrong password",
        "missing vhost",
        "unknown host",
        "odd password",
        "other scheme",
        "not TLS",
    ],
)
def test_a_broker_that_cannot_be_used_is_one_sentence(vhost: VirtualHost, fault: str) -> None:
    """Every way in which a broker fails us is one sentence, exit code 2, and no password (D3)."""
    url, sentence = broken_urls(vhost)[fault]
    result = CliRunner().invoke(main, ["deploy", str(DEFINITIONS), "--url", url])
    assert result.exit_code == 2, result.output
    assert result.stderr.startswith("Error: ")
    assert sentence in result.stderr
    assert len(result.stderr.splitlines()) == 1
    if fault != "missing vhost":
        assert "secret-word" not in result.output


def test_celery_accepts_the_queues_as_they_are(deployed: VirtualHost) -> None:
    """Declaring kombu_queues on a deployed virtual host meets no conflict and creates nothing (D3)."""
    before = deployed.api("GET", "/bindings/{vhost}").json()
    with connected(BrokerAddress.parse(deployed.url)) as connection:
        for queue in kombu_queues(topology()):
            queue(connection.default_channel).declare()
    assert deployed.api("GET", "/bindings/{vhost}").json() == before


def test_a_delayed_message_arrives_before_any_worker_has_started(deployed: VirtualHost) -> None:
    """A message for the delay queues comes to its work queue through the broker alone (R3)."""
    from kombu.transport.native_delayed_delivery import calculate_routing_key  # noqa: PLC0415

    with connected(BrokerAddress.parse(deployed.url)) as connection:
        connection.Producer().publish(
            {},
            exchange=kombu.Exchange("celery_delayed_27", type="topic", no_declare=True),
            routing_key=calculate_routing_key(1, "payments"),
            serializer="json",
        )
        payments = kombu.Queue("payments", no_declare=True)(connection.default_channel)
        message = eventually(payments.get, seconds=20, what="the delayed message")
        message.ack()


def test_declaring_alone_needs_no_management(vhost: VirtualHost) -> None:
    """declare_topology works over AMQP alone, and a second call creates nothing (D3)."""
    first = declare_topology(topology(), vhost.url)
    second = declare_topology(topology(), vhost.url)
    assert "queue dead-letters" in first.created
    assert second.created == ()
    assert second.conflicts == ()
