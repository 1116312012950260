"""Exports that a broker makes itself: nothing in them makes a command fail, or drop a key."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pika
import pytest
from click.testing import CliRunner, Result

from broker_topology.__main__ import main
from broker_topology.lint import PARAMETER
from broker_topology.permissions import password_hash
from sandbox import servers
from tests.conftest import new_vhost

VHOSTS = ("shop", "with/slash", "per%cent", "ä b")
EVERYTHING = {"configure": ".*", "write": ".*", "read": ".*"}


class Broker:
    """A broker with a bit of everything that a definitions file can hold."""

    def __init__(self, server: servers.PrivateRabbitMQ) -> None:
        self.server = server
        self.shop = new_vhost(server)

    def api(self, method: str, path: str, body: object = None) -> Any:
        """Call the management API."""
        answer = self.shop.api(method, path, body)
        answer.raise_for_status()
        return answer.json() if answer.content else None

    def fill(self) -> None:
        """Make it so."""
        from urllib.parse import quote  # noqa: PLC0415

        for name in VHOSTS:
            self.api("PUT", f"/vhosts/{quote(name, safe='')}", {"description": "a test", "tags": "a,b"})
            self.api("PUT", f"/permissions/{quote(name, safe='')}/guest", EVERYTHING)
        self.api("PUT", "/users/somebody", {"password": "x", "tags": "monitoring"})
        self.api("PUT", "/topic-permissions/shop/guest", {"exchange": "amq.topic", "write": "^a", "read": ".*"})
        self.api("PUT", f"/global-parameters/{PARAMETER}", {"value": {"ignore": []}})
        self.api("PUT", "/vhost-limits/shop/max-queues", {"value": 500})
        upstream = {"value": {"uri": "amqp://elsewhere", "expires": 3600000}}
        self.api("PUT", "/parameters/federation-upstream/shop/up", upstream)
        shovel = {
            "src-protocol": "amqp091",
            "src-uri": "amqp://",
            "src-queue": "a",
            "dest-protocol": "amqp091",
            "dest-uri": "amqp://",
            "dest-queue": "b",
        }
        self.api("PUT", "/parameters/shovel/shop/mover", {"value": shovel})
        federate = {"pattern": "^fed", "definition": {"federation-upstream-set": "all"}, "apply-to": "exchanges"}
        self.api("PUT", "/policies/shop/federate", federate)
        short = {"pattern": ".*", "definition": {"max-length": 5000}, "apply-to": "queues", "priority": -1}
        self.api("PUT", "/policies/shop/short", short)
        self.api("PUT", "/operator-policies/shop/op", {**short, "definition": {"expires": 3_600_000}})

    def celery(self) -> pika.BlockingConnection:
        """The queues of a classic Celery deployment, and a stream, in the virtual host ``shop``."""
        url = servers.vhost_url(self.server, "shop")
        connection = pika.BlockingConnection(pika.URLParameters(url))
        channel = connection.channel()
        channel.exchange_declare("celery", "direct", durable=True)
        channel.queue_declare("celery", durable=True)
        channel.queue_bind("celery", "celery", "celery")
        channel.exchange_declare("celeryev", "topic", durable=True)
        channel.exchange_declare("celery.pidbox", "fanout", durable=False)
        channel.exchange_declare("internal", "headers", durable=True, internal=True)
        channel.exchange_bind("internal", "celeryev", "task.#")
        channel.queue_declare("celeryev.1", exclusive=True, arguments={"x-expires": 60_000})
        channel.queue_bind("celeryev.1", "celeryev", "worker.#")
        channel.queue_declare("celery@h.celery.pidbox", auto_delete=True, arguments={"x-message-ttl": 300_000})
        channel.queue_bind("celery@h.celery.pidbox", "celery.pidbox", "")
        channel.queue_declare("log", durable=True, arguments={"x-queue-type": "stream", "x-max-age": "7D"})
        channel.queue_declare("prio", durable=True, arguments={"x-max-priority": 5})
        return connection


@pytest.fixture(scope="module")
def export(servers_folder: Path) -> Iterator[tuple[Path, Broker]]:
    """The file that a broker of this version exports, and that broker."""
    server = servers.PrivateRabbitMQ(servers_folder / "exporter")
    server.kill()
    (server.folder / "enabled_plugins").write_text(
        "[rabbitmq_management,rabbitmq_federation,rabbitmq_federation_management,"
        "rabbitmq_shovel,rabbitmq_shovel_management].\n"
    )
    server.start()
    broker = Broker(server)
    broker.fill()
    connection = broker.celery()
    file = servers_folder / "export.json"
    file.write_text(json.dumps(broker.api("GET", "/definitions"), indent=1))
    yield file, broker
    connection.close()
    server.stop()


def run(*arguments: str) -> Result:
    result = CliRunner().invoke(main, arguments)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def test_an_export_can_be_linted(export: tuple[Path, Broker]) -> None:
    """Lint holds an export against the version that made it, and finds Celery's own queue unsafe (D3)."""
    file, broker = export
    result = run("lint", str(file), "--json")
    assert result.exit_code == 1
    report = json.loads(result.stdout)
    version = broker.api("GET", "/overview")["rabbitmq_version"]
    assert report["versions"] == [".".join(version.split(".")[:2])]
    found = {(finding["rule"], finding["vhost"], finding["object"]) for finding in report["findings"]}
    assert ("work-queue-without-dlx", "shop", "queue celery") in found
    blamed = {label for rule, _, label in found if rule != "export-leaves-out"}
    assert not any("pidbox" in label or "celeryev" in label for label in blamed)
    assert not {"malformed-entry", "binding-undeclared", "field-missing"} & {rule for rule, _, _ in found}
    assert all(finding["line"] for finding in report["findings"])


def test_a_running_broker_can_be_linted(export: tuple[Path, Broker]) -> None:
    """``lint --live`` finds on the broker what lint finds in its export (D3)."""
    file, broker = export
    url = servers.vhost_url(broker.server, "shop")
    live = json.loads(
        run("lint", "--live", "--url", url, "--management-url", broker.server.management_url, "--json").stdout
    )
    exported = json.loads(run("lint", str(file), "--json").stdout)
    of_file = {"single-copy-quorum", "transient-queue", "export-leaves-out"}
    found = {(f["rule"], f["object"]) for f in live["findings"] if f["rule"] not in of_file}
    expected = {(f["rule"], f["object"]) for f in exported["findings"] if f["vhost"] == "shop"}
    assert found == {pair for pair in expected if pair[0] not in of_file}


@pytest.mark.parametrize("vhost", VHOSTS)
def test_the_broker_is_as_its_own_export_says(export: tuple[Path, Broker], vhost: str) -> None:
    """A plan of an export against the broker that made it is empty, whatever its virtual host is called (D3)."""
    file, broker = export
    url = servers.vhost_url(broker.server, vhost)
    arguments = ["plan", str(file), "--url", url, "--management-url", broker.server.management_url, "--vhost", vhost]
    if vhost != "shop":
        # The export has objects in one virtual host alone, so it counts as the topology of any.
        arguments = ["lint", "--live", "--url", url, "--management-url", broker.server.management_url]
        assert run(*arguments).exit_code == 0
        return
    result = run(*arguments, "--no-delayed-delivery")
    assert result.exit_code == 0, result.output
    assert "nothing to change" in result.output


def test_an_export_of_one_virtual_host_can_be_deployed_to_another(
    export: tuple[Path, Broker], tmp_path: Path
) -> None:
    """What a broker exports for one virtual host is deployed to an empty one, and the plan is empty then (D3)."""
    _, broker = export
    exported = broker.api("GET", "/definitions/shop")
    kept = [queue for queue in exported["queues"] if queue["durable"]]
    names = {queue["name"] for queue in kept}
    bindings = [b for b in exported["bindings"] if b["destination_type"] == "exchange" or b["destination"] in names]
    file = tmp_path / "shop.json"
    file.write_text(json.dumps(exported | {"queues": kept, "bindings": bindings}))
    target = new_vhost(broker.server)
    address = ["--url", target.url, "--management-url", target.management_url]
    deployed = run("deploy", str(file), *address)
    assert deployed.exit_code == 0, deployed.output
    assert "created queue celery" in deployed.output
    assert run("plan", str(file), *address).output.endswith("nothing to change\n")
    if "internal" in {exchange["name"] for exchange in exported["exchanges"]}:  # not from 4.3 on
        shown = target.api("GET", "/exchanges/{vhost}/internal").json()
        assert (shown["internal"], shown["type"]) == (True, "headers")


def test_an_edit_keeps_every_key(export: tuple[Path, Broker], tmp_path: Path) -> None:
    """Users, parameters, unknown keys: everything but the new queue is as it was, in its order (D3)."""
    file, _ = export
    copy = tmp_path / "copy.json"
    copy.write_text(file.read_text())
    definitions = json.loads(file.read_text())
    exchange = {
        "name": "dlx",
        "vhost": "shop",
        "type": "fanout",
        "durable": True,
        "auto_delete": False,
        "arguments": {},
    }
    definitions["exchanges"].append(exchange)
    arguments = {"x-queue-type": "quorum", "x-dead-letter-exchange": "dlx"}
    safe = {"name": "safe", "vhost": "shop", "durable": True, "auto_delete": False, "arguments": arguments}
    definitions["queues"].append(safe)
    copy.write_text(json.dumps(definitions, indent=3))
    assert run("add-queue", str(copy), "added", "--vhost", "shop", "--exchange", "celeryev").exit_code == 0
    edited = json.loads(copy.read_text())
    assert list(edited) == list(definitions)
    for section, value in definitions.items():
        if section not in {"queues", "bindings", "policies"}:
            assert edited[section] == value
    assert [queue for queue in edited["queues"] if queue["name"] != "added"] == definitions["queues"]
    assert run("remove-queue", str(copy), "added", "--vhost", "shop").exit_code == 0
    assert json.loads(copy.read_text()) == definitions


@pytest.mark.parametrize("command", ["graph", "permissions"])
def test_pictures_and_permissions_of_an_export(
    export: tuple[Path, Broker], command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An export can be drawn, and users made for it (D3)."""
    file, _ = export
    for role in ("DEPLOYER", "PUBLISHER", "WORKER", "DRAIN"):
        monkeypatch.setenv(f"{role}_PASSWORD", "x")
    assert run(command, str(file), "--vhost", "shop").exit_code == 0


def test_a_broker_boots_from_our_file(servers_folder: Path) -> None:
    """definitions.json is loaded at boot by every version, and is then what deploy wants (D3)."""
    definitions = Path(__file__).parent.parent.parent / "definitions.json"
    # A broker that loads definitions makes no default user, so the test adds its own.
    guest = {"name": "guest", "password_hash": password_hash("guest"), "tags": ["administrator"]}
    guest["hashing_algorithm"] = "rabbit_password_hashing_sha256"
    access = {"user": "guest", "vhost": "/", **EVERYTHING}
    copy = servers_folder / "boot.json"
    copy.write_text(json.dumps({**json.loads(definitions.read_text()), "users": [guest], "permissions": [access]}))
    copy.chmod(0o644)
    server = servers.PrivateRabbitMQ(servers_folder / "boot", extra_config=f"load_definitions = {copy}")
    try:
        address = ["--url", servers.vhost_url(server, "/"), "--management-url", server.management_url]
        result = run("plan", str(definitions), *address, "--no-delayed-delivery")
        assert result.output == "nothing to change\n"
    finally:
        server.stop()
