"""RabbitMQ, Redis and PostgreSQL for tests, demo and benchmarks.

In order: servers named by ``AMQP_URL``, ``REDIS_URL`` and ``DATABASE_URL`` are used as they are; where a
Docker engine answers, containers are started; else private nodes from the machine's own packages run on
free ports in a temporary folder.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import quote, urlsplit

import httpx

from sandbox.processes import NotReadyError, Process, free_port, listens

RABBITMQ_IMAGE = "rabbitmq:4.1.4-management-alpine"
REDIS_IMAGE = "redis:8.2.1-alpine"
POSTGRES_IMAGE = "postgres:17.6-alpine"


class ServerMissingError(Exception):
    """A server can neither be found nor started here."""


class Server(Protocol):
    """Something with an address that can be stopped."""

    url: str

    def stop(self) -> None:
        """End the server and forget its data."""


class ExistingServer:
    """A server that somebody else runs."""

    def __init__(self, url: str) -> None:
        self.url = url

    def stop(self) -> None:
        """Leave it alone."""


class PrivateRabbitMQ:
    """A RabbitMQ node of our own, which can be killed and started again with its data.

    ``url`` has no virtual host: ``vhost_url()`` makes one.
    """

    def __init__(self, folder: Path, *, extra_config: str = "") -> None:
        self.folder = folder
        self.port, self.management_port, self._dist_port = free_port(), free_port(), free_port()
        self.url = f"amqp://guest:guest@127.0.0.1:{self.port}"
        self.management_url = f"http://guest:guest@127.0.0.1:{self.management_port}"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "rabbitmq.conf").write_text(
            f"listeners.tcp.1 = 127.0.0.1:{self.port}\n"
            f"management.tcp.ip = 127.0.0.1\nmanagement.tcp.port = {self.management_port}\n"
            "log.console = true\nlog.console.level = warning\nlog.file = false\n"
            "collect_statistics_interval = 1000\n"
            f"{extra_config}\n"
        )
        # Settings without a name in rabbitmq.conf: look for consumer timeouts, and tell queue totals, each second.
        ticks = "[{rabbit, [{channel_tick_interval, 1000}, {quorum_tick_interval, 1000}]}]."
        (folder / "advanced.config").write_text(f"{ticks}\n")
        (folder / "enabled_plugins").write_text("[rabbitmq_management].\n")
        self.process = self.start()

    def start(self) -> Process:
        """Start the node and wait until it serves."""
        self.process = Process(
            [_executable("rabbitmq-server")], log=self.folder / "rabbitmq.log", env=self._environment()
        )
        self.process.until_ready(self._serves, seconds=90)
        return self.process

    def kill(self) -> None:
        """Crash the node; ``start()`` brings it back with its data."""
        self.process.kill()

    def restart(self) -> None:
        """Crash the node and bring it back."""
        self.kill()
        self.start()

    def stop(self) -> None:
        """End the node and remove its data."""
        self.process.kill()
        shutil.rmtree(self.folder, ignore_errors=True)

    def rabbitmqctl(self, *arguments: str) -> str:
        """Run rabbitmqctl against this node and return what it prints."""
        return subprocess.run(
            [_executable("rabbitmqctl"), "--quiet", *arguments],
            env={**os.environ, **self._environment()},
            check=True,
            capture_output=True,
            text=True,
        ).stdout

    def _environment(self) -> dict[str, str]:
        home = str(self.folder)
        return {
            "HOME": home,
            "RABBITMQ_HOME": home,
            "RABBITMQ_NODENAME": f"office{self.port}@localhost",
            "RABBITMQ_DIST_PORT": str(self._dist_port),
            "RABBITMQ_MNESIA_BASE": f"{home}/data",
            "RABBITMQ_LOG_BASE": f"{home}/log",
            "RABBITMQ_CONFIG_FILE": f"{home}/rabbitmq.conf",
            "RABBITMQ_ADVANCED_CONFIG_FILE": f"{home}/advanced.config",
            "RABBITMQ_ENABLED_PLUGINS_FILE": f"{home}/enabled_plugins",
            "RABBITMQ_PID_FILE": f"{home}/pid",
            # A small node: two schedulers that do not spin leave the processors to the tests.
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "+S 2:2 +sbwt none +sbwtdcpu none +sbwtdio none",
        }

    def _serves(self) -> bool:
        if not listens(self.port):
            return False
        try:
            return httpx.get(f"{self.management_url}/api/overview", timeout=5).status_code == 200
        except httpx.HTTPError:
            return False


class PrivateRedis:
    """A Redis server of our own, without persistence, which can be killed and started again (empty)."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        self.folder, self._arguments = folder, arguments
        self.port = free_port()
        self.url = f"redis://127.0.0.1:{self.port}/0"
        folder.mkdir(parents=True, exist_ok=True)
        self.process = self.start()

    def start(self) -> Process:
        """Start the server and wait until it serves."""
        command: list[str | Path] = [
            _executable("redis-server"),
            "--port",
            str(self.port),
            "--bind",
            "127.0.0.1",
        ]
        command += ["--save", "", "--appendonly", "no", "--dir", self.folder, *self._arguments]
        self.process = Process(command, log=self.folder / "redis.log")
        self.process.until_ready(lambda: listens(self.port), seconds=20)
        return self.process

    def kill(self) -> None:
        """Crash the server: everything in it is gone."""
        self.process.kill()

    def restart(self) -> None:
        """Crash the server and bring it back, empty."""
        self.kill()
        self.start()

    def stop(self) -> None:
        """End the server."""
        self.process.kill()
        shutil.rmtree(self.folder, ignore_errors=True)


class PrivatePostgreSQL:
    """A PostgreSQL cluster of our own with user and database ``postgres``."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = free_port()
        self.url = f"postgresql+psycopg://postgres@127.0.0.1:{self.port}/postgres"
        folder.mkdir(parents=True, exist_ok=True)
        # PostgreSQL refuses to run as root.
        self._user = "postgres" if os.getuid() == 0 else None
        if self._user:
            shutil.chown(folder, self._user)
            for parent in folder.parents:
                if parent == Path(tempfile.gettempdir()):
                    break
                parent.chmod(parent.stat().st_mode | 0o011)
        subprocess.run(
            [_postgres("initdb"), "-D", folder / "data", "-U", "postgres", "-A", "trust", "-E", "UTF8", "-N"],
            check=True,
            capture_output=True,
            user=self._user,
            cwd="/tmp",
        )
        self.process = self.start()

    def start(self) -> Process:
        """Start the server and wait until it serves."""
        data = self.folder / "data"
        options = [
            f"port={self.port}",
            "listen_addresses=127.0.0.1",
            f"unix_socket_directories={self.folder}",
        ]
        command: list[str | Path] = [_postgres("postgres"), "-D", data]
        for option in [*options, "max_connections=100"]:
            command += ["-c", option]
        self.process = Process(command, log=self.folder.with_suffix(".log"), user=self._user, cwd=Path("/tmp"))
        self.process.until_ready(self._serves)
        return self.process

    def kill(self) -> None:
        """Crash the server; ``start()`` recovers it."""
        self.process.kill()
        (self.folder / "data" / "postmaster.pid").unlink(missing_ok=True)

    def stop(self) -> None:
        """End the server and remove its data."""
        self.process.kill()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _serves(self) -> bool:
        command: list[str | Path] = [_postgres("pg_isready"), "-h", "127.0.0.1", "-p", str(self.port), "-q"]
        return subprocess.run(command, check=False).returncode == 0


class Container:
    """A server in a container, by testcontainers."""

    def __init__(self, container: Any, url: str, management_url: str = "") -> None:
        self._container, self.url, self.management_url = container, url, management_url

    def stop(self) -> None:
        """End the container."""
        self._container.stop()


def rabbitmq(folder: Path) -> Server:
    """A broker. Its url may lack a virtual host. Raises ServerMissingError."""
    if url := os.environ.get("AMQP_URL"):
        return ExistingServer(url)
    if docker_answers():
        from testcontainers.rabbitmq import RabbitMqContainer  # noqa: PLC0415, only where Docker answers

        container = RabbitMqContainer(RABBITMQ_IMAGE)
        container.with_exposed_ports(5672, 15672).start()
        host = container.get_container_host_ip()
        return Container(
            container,
            f"amqp://guest:guest@{host}:{container.get_exposed_port(5672)}",
            f"http://guest:guest@{host}:{container.get_exposed_port(15672)}",
        )
    return PrivateRabbitMQ(folder / "rabbitmq")


def redis(folder: Path) -> Server:
    """A Redis server. Raises ServerMissingError."""
    if url := os.environ.get("REDIS_URL"):
        return ExistingServer(url)
    if docker_answers():
        from testcontainers.redis import RedisContainer  # noqa: PLC0415, only where Docker answers

        container = RedisContainer(REDIS_IMAGE)
        container.start()
        host = container.get_container_host_ip()
        return Container(container, f"redis://{host}:{container.get_exposed_port(6379)}/0")
    return PrivateRedis(folder / "redis")


def postgresql(folder: Path) -> Server:
    """A PostgreSQL server. Raises ServerMissingError."""
    url = os.environ.get("DATABASE_URL", "")
    if url.startswith("postgresql"):
        return ExistingServer(url)
    if docker_answers():
        from testcontainers.postgres import PostgresContainer  # noqa: PLC0415, only where Docker answers

        container = PostgresContainer(POSTGRES_IMAGE, driver="psycopg")
        container.start()
        return Container(container, container.get_connection_url())
    return PrivatePostgreSQL(folder / "postgresql")


def management_url(server: Server) -> str:
    """Where a broker's management API is: its own word, or the usual port beside its AMQP address."""
    if own := getattr(server, "management_url", ""):
        return str(own)
    parts = urlsplit(server.url)
    return os.environ.get("MANAGEMENT_URL") or f"http://{parts.netloc.rpartition(':')[0]}:15672"


def vhost_url(server: Server, vhost: str) -> str:
    """The address of one virtual host of a broker."""
    parts = urlsplit(server.url)
    return f"{parts.scheme}://{parts.netloc}/{quote(vhost, safe='')}"


def docker_answers() -> bool:
    """Whether a Docker engine answers here."""
    if shutil.which("docker") is None:
        return False
    return subprocess.run(["docker", "info"], capture_output=True, check=False, timeout=20).returncode == 0


def _executable(name: str) -> str:
    """The real program, past Debian's wrapper in /usr/sbin, which changes user and loses the environment."""
    found = shutil.which(name)
    if found in (None, f"/usr/sbin/{name}"):
        real = Path("/usr/lib/rabbitmq/bin") / name
        found = str(real) if real.exists() else found
    if found is None:
        raise ServerMissingError(
            f"{name} is missing: install it (on Debian: apt-get install rabbitmq-server redis-server), "
            "start a Docker engine, or name running servers in AMQP_URL and REDIS_URL"
        )
    return found


def _postgres(name: str) -> str:
    """A program of PostgreSQL's, which Debian keeps off the PATH; the newest version wins."""
    candidates = sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{name}"))
    found = str(candidates[-1]) if candidates else shutil.which(name)
    if found is None:
        raise ServerMissingError(
            f"{name} is missing: install PostgreSQL, start a Docker engine, or name a server in DATABASE_URL"
        )
    return found


__all__ = [
    "ExistingServer",
    "NotReadyError",
    "PrivatePostgreSQL",
    "PrivateRabbitMQ",
    "PrivateRedis",
    "Server",
    "ServerMissingError",
    "docker_answers",
    "management_url",
    "postgresql",
    "rabbitmq",
    "redis",
    "vhost_url",
]
