"""The whole road on one virtual host: a publisher's app, workers and drains as processes that can be killed."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from urllib.parse import quote, urlsplit

import httpx
import pika
from celery import Celery

from broker_topology.deploy import deploy
from broker_topology.topology import read_topology
from sandbox import servers
from sandbox.processes import Process, eventually
from sandbox.services import OutsideServices
from tasks import install

ROOT = Path(__file__).parent.parent
DEFINITIONS = ROOT / "definitions.json"
BIN = Path(sys.executable).parent
QUIET_SECONDS = 6.0


@dataclass(kw_only=True)
class Road:
    """Where the road runs, and the processes on it. ``stop()`` ends them all."""

    folder: Path
    amqp_url: str
    management_url: str
    redis_url: str
    database_url: str
    services: OutsideServices
    definitions: Path = DEFINITIONS
    task_modules: str = "sandbox.demo_tasks"
    more_environment: dict[str, str] = field(default_factory=dict)
    processes: list[Process] = field(default_factory=list)
    _numbers: Any = field(default_factory=lambda: itertools.count(1))

    @property
    def environment(self) -> dict[str, str]:
        """What every command of the product needs to find this road."""
        return {
            "AMQP_URL": self.amqp_url,
            "MANAGEMENT_URL": self.management_url,
            "REDIS_URL": self.redis_url,
            "DATABASE_URL": self.database_url,
            "TOPOLOGY_FILE": str(self.definitions),
            "TASK_MODULES": self.task_modules,
            "PYTHONPATH": str(ROOT),
            "HEALTH_PORT": "0",
            **self.services.environment(),
            **self.more_environment,
        }

    @cached_property
    def publisher(self) -> Celery:
        """The app of whoever publishes, such as a web application: it knows tasks by name only."""
        app = Celery("shop", broker=self.amqp_url, set_as_current=False)
        return install(app, topology=self.definitions, redis_url=self.redis_url)

    def worker(self, *options: str, ready_seconds: float = 40.0) -> Process:
        """Start a worker and wait until it takes messages."""
        name = f"worker-{next(self._numbers)}"
        defaults = {"--concurrency": "2", "--loglevel": "INFO", "--hostname": f"{name}@localhost"}
        given = {option.partition("=")[0] for option in options}
        command = ["celery", "-A", "tasks", "worker", "--without-mingle", "--without-gossip"]
        command += [f"{key}={value}" for key, value in defaults.items() if key not in given]
        process = self.start(name, [*command, *options])
        process.until_ready(lambda: " ready." in process.output(), seconds=ready_seconds)
        return process

    def drain(self, *options: str) -> Process:
        """Start a drain."""
        return self.start(f"drain-{next(self._numbers)}", ["dead-letters", "drain", *options])

    def command(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run a command of the product as a person would."""
        return subprocess.run(
            [BIN / arguments[0], *arguments[1:]],
            env={"PATH": os.environ["PATH"], "COLUMNS": "118", **self.environment},
            cwd=self.folder,
            capture_output=True,
            text=True,
            check=False,
        )

    def letters(self) -> list[dict[str, Any]]:
        """The dead letters, newest first, as a script reads them."""
        listed = self.command("dead-letters", "list", "--state", "all", "--json", "--limit", "10000")
        return [json.loads(line) for line in listed.stdout.splitlines()] if listed.returncode == 0 else []

    def letter(self, number: int) -> dict[str, Any]:
        """All that is known of one dead letter."""
        shown = self.command("dead-letters", "show", str(number), "--json")
        return dict(json.loads(shown.stdout))

    def depth(self, *queues: str) -> int:
        """How many messages are ready in these queues."""
        with pika.BlockingConnection(pika.URLParameters(self.amqp_url)) as connection:
            channel = connection.channel()
            return sum(channel.queue_declare(name, passive=True).method.message_count for name in queues)

    def unsettled(self) -> int:
        """How many messages are anywhere on the road: ready, delayed or in a worker's hands; up to 5 s old."""
        vhost = quote(urlsplit(self.amqp_url).path[1:] or "/", safe="%")
        answer = httpx.get(f"{self.management_url}/api/queues/{vhost}?disable_stats=true&enable_queue_totals=true")
        return sum(queue.get("messages", 0) for queue in answer.json())

    def until_settled(self, *, seconds: float) -> None:
        """Wait until no message is anywhere on the road. A quorum queue tells its totals every 5 s only."""
        quiet_since = time.monotonic()

        def quiet() -> bool:
            nonlocal quiet_since
            if self.unsettled() > 0:
                quiet_since = time.monotonic()
            return time.monotonic() - quiet_since > QUIET_SECONDS

        eventually(quiet, seconds=seconds, every=0.5, what="every message to be settled")

    def stop(self) -> None:
        """End every process of the road."""
        for process in self.processes:
            process.kill()
        close_publisher(self.__dict__.pop("publisher", None))

    def start(self, name: str, command: list[str]) -> Process:
        """Start a command of the environment as a process of the road."""
        process = Process(
            [BIN / command[0], *command[1:]],
            log=self.folder / f"{name}.log",
            env=self.environment,
            cwd=self.folder,
        )
        self.processes.append(process)
        return process


def close_publisher(app: Celery | None) -> None:
    """Close an app's pooled connections and their sockets: Celery's own close leaves them open."""
    if app is not None:
        app.pool.force_close_all()
        app.close()


@contextmanager
def private_road(*, task_modules: str = "sandbox.demo_tasks", deployed: bool = True) -> Iterator[Road]:
    """A road on servers of its own, in a temporary folder; all ended afterwards. Dead letters in SQLite."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory(prefix="office-", ignore_cleanup_errors=True)))
        folder.chmod(0o755)
        broker, redis, services = servers.rabbitmq(folder), servers.redis(folder), OutsideServices(folder)
        for server in (broker, redis, services):
            stack.callback(server.stop)
        road = Road(
            folder=folder,
            amqp_url=broker.url if isinstance(broker, servers.ExistingServer) else servers.vhost_url(broker, "/"),
            management_url=servers.management_url(broker),
            redis_url=redis.url,
            database_url=f"sqlite:///{folder}/dead-letters.db",
            services=services,
            task_modules=task_modules,
        )
        stack.callback(road.stop)
        if deployed:
            deploy(read_topology(road.definitions), road.amqp_url, management_url=road.management_url)
        yield road
