"""Three nodes on one machine: what is deployed survives the loss of the leader's node, and is proven to."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from broker_topology.__main__ import main
from sandbox import servers
from sandbox.processes import eventually
from tests.conftest import DEFINITIONS, VirtualHost, new_vhost


@pytest.fixture
def cluster(servers_folder: Path) -> Iterator[list[servers.PrivateRabbitMQ]]:
    """Three nodes that have joined each other."""
    nodes: list[servers.PrivateRabbitMQ] = []
    try:
        for number in range(3):
            folder = servers_folder / f"node{number}"
            folder.mkdir()
            cookie = folder / ".erlang.cookie"
            cookie.write_text("DEADLETTEROFFICE")
            cookie.chmod(0o400)
            nodes.append(servers.PrivateRabbitMQ(folder))
            if number:
                first, joining = nodes[0], nodes[-1]
                joining.rabbitmqctl("stop_app")
                joining.rabbitmqctl("join_cluster", f"office{first.port}@localhost")
                joining.rabbitmqctl("start_app")
        yield nodes
    finally:
        for node in nodes:
            node.stop()


def run(command: str, vhost: VirtualHost, *arguments: str) -> Result:
    address = ["--url", vhost.url, "--management-url", vhost.management_url]
    return CliRunner().invoke(main, [command, str(DEFINITIONS), *address, *arguments])


@pytest.mark.timeout(900)
def test_the_road_is_still_proven_after_the_loss_of_the_leaders_node(
    cluster: list[servers.PrivateRabbitMQ],
) -> None:
    """Deployed on three nodes, verified, the node of the dead-letter queue's leader killed, verified again (D3)."""
    vhost = new_vhost(cluster[0])
    assert run("deploy", vhost).exit_code == 0
    proven = run("verify", vhost)
    assert proven.exit_code == 0, proven.output
    linted = json.loads(
        CliRunner()
        .invoke(main, ["lint", "--live", "--json", "--url", vhost.url, "--management-url", vhost.management_url])
        .stdout
    )
    assert "single-copy-quorum" not in {finding["rule"] for finding in linted["findings"]}

    def leader() -> str:
        shown = vhost.api("GET", "/queues/{vhost}/dead-letters").json()
        assert len(shown["members"]) == 3
        return str(shown["leader"])

    lost = eventually(leader, seconds=20)
    [victim] = [node for node in cluster if lost == f"office{node.port}@localhost"]
    survivor = next(node for node in cluster if node is not victim)
    victim.kill()
    there = VirtualHost(
        name=vhost.name, url=servers.vhost_url(survivor, vhost.name), management_url=survivor.management_url
    )
    still = run("verify", there)
    assert still.exit_code == 0, still.output
    assert still.output.endswith("every road is proven\n")
    assert run("deploy", there, "--check").exit_code == 0
