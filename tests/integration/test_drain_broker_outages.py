"""The drain while its broker cuts it off, refuses it or ends its consumers: it comes back and doubles nothing."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import sqlalchemy as sa

from broker_topology.deploy import deploy
from consumers.database import open_database, require_schema
from sandbox.processes import Process, eventually, free_port
from sandbox.proxy import Proxy
from sandbox.servers import PrivateRabbitMQ
from tests.conftest import VirtualHost, new_vhost
from tests.integration.drain_processes import (
    StartDrain,
    body_count,
    letters,
    readiness,
    row_count,
    stop_when_empty,
)
from tests.integration.mailroom import DEAD_LETTER_QUEUE, TOPOLOGY, publish, raw_properties

pytestmark = [pytest.mark.broker, pytest.mark.xdist_group("own-broker-of-drain")]


@pytest.fixture(scope="module")
def broker(servers_folder: Path) -> Iterator[PrivateRabbitMQ]:
    """A broker that only these tests upset. It takes consumers for dead that hold a letter for 3 s."""
    server = PrivateRabbitMQ(servers_folder / uuid.uuid4().hex[:8], extra_config="consumer_timeout = 3000")
    yield server
    server.stop()


@pytest.fixture
def office(broker: PrivateRabbitMQ) -> Iterator[VirtualHost]:
    """A deployed virtual host on that broker."""
    vhost = new_vhost(broker)
    deploy(TOPOLOGY, vhost.url, management_url=vhost.management_url)
    yield vhost
    vhost.api("DELETE", "/vhosts/{vhost}")


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[sa.Engine]:
    """An empty SQLite database: the outage is the broker's."""
    engine = open_database(f"sqlite:///{tmp_path}/letters.db")
    require_schema(engine, auto_upgrade=True)
    yield engine
    engine.dispose()


class OneDrain:
    """A drain process with its health."""

    def __init__(self, start_drain: StartDrain, url: str, engine: sa.Engine) -> None:
        self._port, self._engine = free_port(), engine
        self.process: Process = start_drain(url, str(engine.url), HEALTH_PORT=str(self._port))

    def until_ready(self) -> None:
        """Wait until it says that it stores."""
        eventually(lambda: readiness(self._port)["ok"])

    def until_unready(self, words: str) -> None:
        """Wait until it says that it does not, and why."""
        eventually(lambda: words in "".join(readiness(self._port)["reasons"]))

    def stores(self, vhost: VirtualHost, total: int) -> None:
        """Everything becomes one row, and nothing is left in the queue when it ends."""
        eventually(lambda: row_count(self._engine) >= total)
        stop_when_empty(self.process, url=vhost.url)
        assert row_count(self._engine) == total


def test_a_consumer_that_the_broker_ends_is_started_again(
    office: VirtualHost, engine: sa.Engine, start_drain: StartDrain
) -> None:
    """The broker closes the channel, or cancels, for letters that a locked database held up; each is one row (D1)."""
    drain = OneDrain(start_drain, office.url, engine)
    drain.until_ready()
    with engine.connect().execution_options(writes=True) as blocker, blocker.begin():
        publish(office.url, letters(100))
        eventually(lambda: "channel.closed" in drain.process.output())
    drain.until_ready()
    drain.stores(office, 100)


def test_a_queue_that_is_deleted_and_made_again_is_drained_again(
    office: VirtualHost, engine: sa.Engine, start_drain: StartDrain
) -> None:
    """While the queue is missing its name is the reason for being unready (D1)."""
    drain = OneDrain(start_drain, office.url, engine)
    publish(office.url, letters(10))
    eventually(lambda: row_count(engine) == 10)
    office.api("DELETE", f"/queues/{{vhost}}/{DEAD_LETTER_QUEUE}").raise_for_status()
    drain.until_unready(f"queue {DEAD_LETTER_QUEUE}")
    deploy(TOPOLOGY, office.url, management_url=office.management_url)
    publish(office.url, letters(10))
    drain.until_ready()
    drain.stores(office, 20)


def test_refused_credentials_are_tried_until_they_are_right_again(
    broker: PrivateRabbitMQ, office: VirtualHost, engine: sa.Engine, start_drain: StartDrain
) -> None:
    """A password that was changed is told without showing it, and its return is enough (D1)."""
    user = f"drain-{uuid.uuid4().hex[:8]}"
    has_password(office, user, "right-password")
    office.api("PUT", f"/permissions/{{vhost}}/{user}", {"configure": "", "write": "", "read": ".*"})
    parts = urlsplit(office.url)
    url = parts._replace(netloc=f"{user}:right-password@{parts.hostname}:{parts.port}").geturl()
    drain = OneDrain(start_drain, url, engine)
    drain.until_ready()
    has_password(office, user, "another-password")
    broker.rabbitmqctl("close_all_user_connections", user, "test")
    drain.until_unready("it refuses user or password")
    publish(office.url, letters(10))
    has_password(office, user, "right-password")
    drain.until_ready()
    drain.stores(office, 10)
    assert "right-password" not in drain.process.output()


def has_password(office: VirtualHost, user: str, password: str) -> None:
    """Make a user of the broker, or change its password."""
    office.api("PUT", f"/users/{user}", {"password": password, "tags": ""}).raise_for_status()


def test_a_memory_alarm_holds_nothing_up(
    broker: PrivateRabbitMQ, office: VirtualHost, engine: sa.Engine, start_drain: StartDrain
) -> None:
    """An alarm blocks who publishes: the drain goes on, and also connects anew under it (D1)."""
    publish(office.url, letters(100))
    usual = broker.rabbitmqctl("eval", "vm_memory_monitor:get_vm_memory_high_watermark().").strip()
    broker.rabbitmqctl("set_vm_memory_high_watermark", "0.0001")
    try:
        eventually(lambda: "memory" in broker.rabbitmqctl("eval", "rabbit_alarm:get_alarms()."))
        drain = OneDrain(start_drain, office.url, engine)
        eventually(lambda: row_count(engine) == 100)
        broker.rabbitmqctl("close_all_connections", "--vhost", office.name, "test")
        eventually(lambda: drain.process.output().count("broker.connected") == 2)
        drain.until_ready()
    finally:
        broker.rabbitmqctl("set_vm_memory_high_watermark", usual)
    publish(office.url, letters(10))
    drain.stores(office, 110)


@pytest.mark.parametrize("cuts", [3, pytest.param(20, marks=pytest.mark.soak)])
def test_a_connection_cut_mid_batch_loses_and_doubles_nothing(
    office: VirtualHost, engine: sa.Engine, start_drain: StartDrain, cuts: int
) -> None:
    """Cuts among letters, some of them without an id: each is one row, and no stale tag is acked (D1)."""
    nameless = [(raw_properties([]), f"[[{number}], {{}}, {{}}]".encode()) for number in range(100 * cuts)]
    parts = urlsplit(office.url)
    with Proxy(parts.port or 0) as proxy:
        url = parts._replace(netloc=parts.netloc.replace(str(parts.port), str(proxy.port))).geturl()
        drain = OneDrain(start_drain, url, engine)
        drain.until_ready()
        for number in range(cuts):
            publish(office.url, [*letters(400), *nameless[number * 100 : (number + 1) * 100]])
            eventually(lambda goal=number * 500 + 50: row_count(engine) > goal, every=0.001)  # type: ignore[misc]
            proxy.cut()
            eventually(lambda away=number: drain.process.output().count('"broker.away"') > away)  # type: ignore[misc]
        drain.stores(office, 500 * cuts)
    assert body_count(engine) == 400 * cuts
    assert "channel.closed" not in drain.process.output()


@pytest.mark.soak  # heartbeats are missed only after a minute and more
def test_a_network_that_falls_silent_is_noticed(
    office: VirtualHost, engine: sa.Engine, start_drain: StartDrain
) -> None:
    """Without a word from the broker for two heartbeats the drain is unready, and connects anew later (D1)."""
    parts = urlsplit(office.url)
    with Proxy(parts.port or 0) as proxy, contextlib.ExitStack() as later:
        url = parts._replace(netloc=parts.netloc.replace(str(parts.port), str(proxy.port))).geturl()
        drain = OneDrain(start_drain, url, engine)
        drain.until_ready()
        proxy.partition()
        later.callback(proxy.heal)
        publish(office.url, letters(100))
        eventually(lambda: "broker.away" in drain.process.output(), seconds=200)
        drain.until_unready("broker")
        proxy.heal()
        drain.until_ready()
        drain.stores(office, 100)
