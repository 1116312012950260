"""The whole road under the least-privilege users that ``permissions`` makes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pika
import pika.exceptions
import pytest
from click.testing import CliRunner, Result
from pika.adapters.blocking_connection import BlockingChannel

from broker_topology.__main__ import main
from broker_topology.permissions import Role, user_definitions
from broker_topology.topology import read_topology
from sandbox.processes import eventually
from sandbox.road import Road
from sandbox.services import OutsideServices
from tests.conftest import DEFINITIONS, VirtualHost

PASSWORD = "p@ss/w:rd%1"
ENCODED = "p%40ss%2Fw%3Ard%251"


class Users:
    """The four users in a virtual host, and their addresses."""

    def __init__(self, vhost: VirtualHost) -> None:
        self._vhost, self._prefix = vhost, f"{vhost.name}-"
        passwords = dict.fromkeys(Role, PASSWORD)
        definitions = user_definitions(read_topology(DEFINITIONS), passwords, vhost=vhost.name, prefix=self._prefix)
        vhost.api("POST", "/definitions", definitions).raise_for_status()

    def url(self, role: Role) -> str:
        """The AMQP address of a role."""
        return self._vhost.url.replace("guest:guest@", f"{self._prefix}{role}:{ENCODED}@")

    def remove(self) -> None:
        """Forget them."""
        for role in Role:
            self._vhost.api("DELETE", f"/users/{self._prefix}{role}")


@pytest.fixture
def users(vhost: VirtualHost) -> Iterator[Users]:
    users = Users(vhost)
    yield users
    users.remove()


def run(users: Users, vhost: VirtualHost, command: str) -> Result:
    management = vhost.management_url.replace("guest:guest@", "")
    arguments = [command, str(DEFINITIONS), "--url", users.url(Role.DEPLOYER), "--management-url", management]
    return CliRunner().invoke(main, arguments)


@pytest.mark.timeout(900)
def test_the_road_works_under_four_users_with_their_rights_alone(
    vhost: VirtualHost, users: Users, redis_url: str, services: OutsideServices, tmp_path: Path
) -> None:
    """Deploy, verify, publish, retry, dead-letter, drain and replay, each by its own user. (D2, D3, D5, R3)"""
    for command in ("deploy", "plan", "verify"):
        result = run(users, vhost, command)
        assert result.exit_code == 0, result.output
        assert PASSWORD not in result.output
        assert ENCODED not in result.output
    road = Road(
        folder=tmp_path,
        amqp_url=users.url(Role.PUBLISHER),
        management_url=vhost.management_url,
        redis_url=redis_url,
        database_url=f"sqlite:///{tmp_path}/dead-letters.db",
        services=services,
    )
    try:
        publisher = road.publisher
        publisher.send_task("payments.charge_customer", args=("order-1", 100), idempotency_key="key-1")
        publisher.send_task("payments.charge_customer", args=("order-2", 100), idempotency_key="key-2", countdown=1)
        publisher.send_task("crm.sync_customer_record", args=("unknown-7", {}))
        road.amqp_url = users.url(Role.WORKER)
        worker = road.worker()
        road.amqp_url = users.url(Role.DRAIN)
        road.drain()
        eventually(lambda: services.charges("key-1") == [1])
        eventually(lambda: services.charges("key-2") == [1], seconds=20)
        [letter] = eventually(road.letters, what="the dead letter")
        services.answer("crm", status=503)
        replayed = road.command("dead-letters", "replay", str(letter["id"]), "--reason", "customer added")
        assert replayed.returncode == 0, replayed.stderr
        eventually(lambda: len(services.calls("crm", accepted=False)) >= 3, seconds=40, what="a delayed retry")
        services.answer("crm", status=200)
        eventually(lambda: len(services.calls("crm")) == 1, seconds=40)
        assert "ACCESS_REFUSED" not in worker.output()
        assert "Failed to setup delayed delivery" not in worker.output()
    finally:
        road.stop()


def refused(url: str, act: Callable[[BlockingChannel], object]) -> bool:
    """Whether the broker refuses an act with 403."""
    connection = pika.BlockingConnection(pika.URLParameters(url))
    channel = connection.channel()
    channel.confirm_delivery()
    try:
        act(channel)
    except pika.exceptions.ChannelClosedByBroker as error:
        return bool(error.reply_code == 403)
    finally:
        connection.close()
    return False


def test_what_is_not_its_work_is_refused_to_each_user(deployed: VirtualHost, users: Users) -> None:
    """Nobody but the drain reads dead letters, and nobody but the deployer makes or deletes queues. (D3)"""
    for role in (Role.PUBLISHER, Role.WORKER):
        assert refused(users.url(role), lambda channel: channel.basic_get("dead-letters"))
        assert refused(users.url(role), lambda channel: channel.basic_publish("", "payments", b""))
    for role in (Role.PUBLISHER, Role.WORKER, Role.DRAIN):
        assert refused(users.url(role), lambda channel: channel.queue_delete("payments"))
        assert refused(users.url(role), lambda channel: channel.queue_declare("mine"))
    for role in (Role.PUBLISHER, Role.DRAIN):
        assert refused(users.url(role), lambda channel: channel.basic_get("payments"))
    assert refused(users.url(Role.DRAIN), lambda channel: channel.basic_publish("dead-letters", "", b""))
    assert refused(users.url(Role.DEPLOYER), lambda channel: channel.queue_declare("somebody-elses"))
    assert deployed.api("GET", "/queues/{vhost}/payments").status_code == 200
