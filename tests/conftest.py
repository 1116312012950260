"""Real servers for every test. Each test owns its virtual host, its Redis and its database.

A server that is missing skips a test on a laptop and fails it where ``CI`` is set.
"""

from __future__ import annotations

import os
import tempfile
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest
import redis
import sqlalchemy

from broker_topology.deploy import deploy
from broker_topology.topology import read_topology
from sandbox import servers

DEFINITIONS = Path(__file__).parent.parent / "definitions.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class VirtualHost:
    """An empty virtual host of the shared broker."""

    name: str
    url: str
    """AMQP address, with user, password and virtual host."""
    management_url: str
    """HTTP address of the broker's management API, with user and password."""

    def api(self, method: str, path: str, json: object = None) -> httpx.Response:
        """Call the management API: ``api("GET", "/queues/{vhost}/payments")``."""
        url = f"{self.management_url}/api{path.replace('{vhost}', self.name)}"
        return httpx.request(method, url, json=json, timeout=20)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what touches a broker, so that it can be run again on each version of it: ``-m broker``."""
    for item in items:
        if {"rabbitmq_server", "own_rabbitmq"} & set(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.broker)


@pytest.fixture(scope="session")
def servers_folder() -> Iterator[Path]:
    """Where private servers keep their data: in /tmp, which a broker in a Debian tree of its own shares."""
    with tempfile.TemporaryDirectory(prefix="office-", ignore_cleanup_errors=True) as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


def _served(start: Callable[[Path], servers.Server], folder: Path) -> Iterator[servers.Server]:
    try:
        server = start(folder)
    except servers.ServerMissingError as error:
        if os.environ.get("CI"):
            pytest.fail(str(error))
        pytest.skip(str(error))
    yield server
    server.stop()


@pytest.fixture(scope="session")
def rabbitmq_server(servers_folder: Path) -> Iterator[servers.Server]:
    """The broker that all tests share; none may stop it."""
    yield from _served(servers.rabbitmq, servers_folder)


@pytest.fixture(scope="session")
def redis_server(servers_folder: Path) -> Iterator[servers.Server]:
    """The Redis that all tests share; none may stop it."""
    for server in _served(servers.redis, servers_folder):
        if isinstance(server, servers.ExistingServer):
            # Tests run side by side and empty their Redis: each process of pytest takes a database of its own.
            number = os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")
            server.url = urlsplit(server.url)._replace(path=f"/{number}").geturl()
        yield server


@pytest.fixture(scope="session")
def postgresql_server(servers_folder: Path) -> Iterator[servers.Server]:
    """The PostgreSQL that all tests share; none may stop it."""
    yield from _served(servers.postgresql, servers_folder)


@pytest.fixture
def own_rabbitmq(servers_folder: Path) -> Iterator[servers.PrivateRabbitMQ]:
    """A broker of the test's own, to stop and to kill."""
    for server in _served(lambda folder: servers.PrivateRabbitMQ(folder / uuid.uuid4().hex[:8]), servers_folder):
        assert isinstance(server, servers.PrivateRabbitMQ)
        yield server


@pytest.fixture
def own_redis(servers_folder: Path) -> Iterator[servers.PrivateRedis]:
    """A Redis of the test's own, to stop and to kill."""
    for server in _served(lambda folder: servers.PrivateRedis(folder / uuid.uuid4().hex[:8]), servers_folder):
        assert isinstance(server, servers.PrivateRedis)
        yield server


@pytest.fixture
def own_postgresql(servers_folder: Path) -> Iterator[servers.PrivatePostgreSQL]:
    """A PostgreSQL of the test's own, to stop and to kill."""
    for server in _served(lambda folder: servers.PrivatePostgreSQL(folder / uuid.uuid4().hex[:8]), servers_folder):
        assert isinstance(server, servers.PrivatePostgreSQL)
        yield server


def new_vhost(server: servers.Server) -> VirtualHost:
    """Make an empty virtual host on a broker."""
    name = f"test-{uuid.uuid4().hex[:12]}"
    vhost = VirtualHost(name=name, url=servers.vhost_url(server, name), management_url=servers.management_url(server))
    vhost.api("PUT", "/vhosts/{vhost}").raise_for_status()
    vhost.api(
        "PUT", "/permissions/{vhost}/guest", {"configure": ".*", "write": ".*", "read": ".*"}
    ).raise_for_status()
    return vhost


@pytest.fixture
def vhost(rabbitmq_server: servers.Server) -> Iterator[VirtualHost]:
    """An empty virtual host of the test's own."""
    vhost = new_vhost(rabbitmq_server)
    yield vhost
    vhost.api("DELETE", "/vhosts/{vhost}")


@pytest.fixture
def deployed(vhost: VirtualHost) -> VirtualHost:
    """A virtual host of the test's own with everything that definitions.json says, policies included."""
    report = deploy(read_topology(DEFINITIONS), vhost.url, management_url=vhost.management_url)
    assert not report.failed
    return vhost


@pytest.fixture
def redis_url(redis_server: servers.Server) -> Iterator[str]:
    """An empty Redis: tests run one after the other, so the shared server is emptied around each."""
    client = redis.Redis.from_url(redis_server.url)
    client.flushdb()
    yield redis_server.url
    client.flushdb()
    client.close()


@pytest.fixture(params=["sqlite", "postgresql"])
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """An empty database of the test's own, once on SQLite and once on PostgreSQL."""
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path}/test.db"
        return
    yield from _new_database(request.getfixturevalue("postgresql_server"))


@pytest.fixture
def postgresql_url(postgresql_server: servers.Server) -> Iterator[str]:
    """An empty PostgreSQL database of the test's own."""
    yield from _new_database(postgresql_server)


def _new_database(server: servers.Server) -> Iterator[str]:
    name = f"test_{uuid.uuid4().hex[:12]}"
    admin = sqlalchemy.create_engine(server.url, isolation_level="AUTOCOMMIT")
    with admin.connect() as connection:
        connection.execute(sqlalchemy.text(f"CREATE DATABASE {name}"))
    yield sqlalchemy.make_url(server.url).set(database=name).render_as_string(hide_password=False)
    with admin.connect() as connection:
        connection.execute(sqlalchemy.text(f"DROP DATABASE {name} WITH (FORCE)"))
    admin.dispose()
