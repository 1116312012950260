"""Every kind of task at once, while a nemesis kills, stops and cuts whatever there is."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
import redis

from broker_topology.deploy import deploy
from broker_topology.topology import read_topology
from sandbox.processes import NotReadyError, Process, eventually
from sandbox.road import Road
from sandbox.servers import PrivateRabbitMQ, PrivateRedis, management_url, vhost_url
from sandbox.services import OutsideServices
from tests.conftest import DEFINITIONS

SUCCEEDS = "succeeds"
FAILS = "fails"
LEFT_OUT = "left out"

KINDS: list[tuple[str, str, tuple[object, ...], int]] = [
    (SUCCEEDS, "crm.echo", (), 40),
    (SUCCEEDS, "crm.sleep", (0.1,), 20),
    (FAILS, "crm.end", ("value_error",), 10),
    (FAILS, "crm.end", ("unpicklable",), 3),
    (FAILS, "crm.end", ("recursion",), 2),
    (FAILS, "crm.end", ("sys_exit",), 3),
    (FAILS, "crm.end", ("sigkill",), 1),
    (FAILS, "crm.end", ("os_exit",), 1),
    (FAILS, "crm.end", ("reject",), 3),
    (FAILS, "crm.end_transient", (), 6),
    (FAILS, "crm.hard_limit", (), 1),
    (FAILS, "crm.soft_limit", (), 1),
    (FAILS, "crm.nobody_has_it", (), 3),
    (LEFT_OUT, "crm.low_risk", ("value_error",), 6),
]
"""Outcome, task, arguments, and how often in a hundred."""


@pytest.mark.parametrize(
    "tasks",
    [
        pytest.param(250, marks=pytest.mark.timeout(900)),
        pytest.param(10_000, marks=[pytest.mark.soak, pytest.mark.timeout(3600)]),
    ],
)
def test_sums_of_outcomes_equal_what_was_published(
    tasks: int,
    own_rabbitmq: PrivateRabbitMQ,
    own_redis: PrivateRedis,
    redis_url: str,
    services: OutsideServices,
    tmp_path: Path,
) -> None:
    """Whatever is killed or cut: each task has succeeded, is one letter, or was left out, by id. (I2, D1, D3)"""
    url, management = vhost_url(own_rabbitmq, "/"), management_url(own_rabbitmq)
    deploy(read_topology(DEFINITIONS), url, management_url=management)
    road = Road(
        folder=tmp_path,
        amqp_url=url,
        management_url=management,
        redis_url=own_redis.url,
        database_url=f"sqlite:///{tmp_path}/dead-letters.db",
        services=services,
        task_modules="sandbox.road_tasks",
        more_environment={"COUNTER_URL": redis_url},
    )
    chance = random.Random(random.randrange(10**6))
    published = publish(road, tasks, chance)
    with redis.Redis.from_url(redis_url, decode_responses=True) as counter:
        try:
            with nemesis(road, own_rabbitmq, own_redis, chance):
                eventually(
                    lambda: len(counter.keys("runs:*")) > tasks * 0.7, seconds=tasks / 2, every=1, what="most tasks"
                )
            for start in (road.worker, road.worker, road.drain):
                start()
            road.until_settled(seconds=max(120, tasks / 10))
            stored = road.letters()
        finally:
            road.stop()
        ran = {key.removeprefix("runs:") for key in counter.keys("runs:*")}
    letters = Counter(letter["task_id"] for letter in stored)
    assert [letter for letter in stored if letters[letter["task_id"]] > 1] == [], "a task is at most one letter"
    assert {task_id for task_id in published if published[task_id] == FAILS} <= set(letters)
    unaccounted = {task_id for task_id in published if task_id not in letters and task_id not in ran}
    assert unaccounted == set()
    assert set(letters) <= set(published)


def publish(road: Road, tasks: int, chance: random.Random) -> dict[str, str]:
    """Publish a mixture of every kind; returns the outcome that each id must have."""
    app = road.publisher
    published = {}
    for number in range(tasks):
        outcome, name, arguments, _ = chance.choices(KINDS, weights=[kind[3] for kind in KINDS])[0]
        task_id = f"task-{number}"
        app.send_task(name, arguments, task_id=task_id)
        published[task_id] = outcome
    return published


@contextmanager
def nemesis(road: Road, broker: PrivateRabbitMQ, claims: PrivateRedis, chance: random.Random) -> Iterator[None]:
    """Keep two workers and two drains running, and do harm to all there is, at random."""
    over = threading.Event()
    worker: Callable[[], Process] = lambda: road.worker(ready_seconds=90)  # noqa: E731, one line of harm
    starts: list[Callable[[], Process]] = [worker, worker, road.drain, road.drain]
    running = [start() for start in starts]

    def kill_child() -> None:
        listed = subprocess.run(["pgrep", "-P", str(running[0].pid)], capture_output=True, text=True, check=False)
        for child in listed.stdout.split()[:1]:
            subprocess.run(["kill", "-9", child], check=False)

    def close_connections() -> None:
        for connection in json.loads(httpx.get(f"{road.management_url}/api/connections").text):
            httpx.delete(f"{road.management_url}/api/connections/{connection['name']}")

    def stop_redis() -> None:
        claims.kill()
        over.wait(3)
        claims.start()

    harms: list[tuple[Callable[[], object], int]] = [
        (kill_child, 4),
        (lambda: chance.choice(running).kill(), 4),
        (lambda: chance.choice(running).signal(signal.SIGTERM), 4),
        (close_connections, 2),
        (claims.restart, 1),
        (stop_redis, 1),
        (broker.restart, 1),
    ]

    def harm() -> None:
        while not over.wait(chance.uniform(0.5, 3)):
            chance.choices([act for act, _ in harms], weights=[weight for _, weight in harms])[0]()
            for number, process in enumerate(running):
                if process.exit_code is not None:
                    try:
                        running[number] = starts[number]()
                    except NotReadyError:
                        continue  # it was started while the broker was away: again at the next turn

    thread = threading.Thread(target=harm)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
        for process in running:
            process.kill()
