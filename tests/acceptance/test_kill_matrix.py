"""The kill matrix: five points, three faults, three pools, two policies; effects counted by the service itself.

A key is named after its cell: ``park/after_effect``. Every cell is one message, or two where the worker is stopped:
its duplicate meets a worker that still runs.
"""

from __future__ import annotations

import os
import signal
import sqlite3
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from functools import partial

import pytest
import redis

from sandbox.faults import Fault
from sandbox.processes import NotReadyError, Process, eventually
from sandbox.road import Road
from tasks.testing import Point

POOLS = ["prefork", *(pytest.param(pool, marks=pytest.mark.long) for pool in ("threads", "solo"))]
POLICIES = ["repeat", "park"]

KILLED = {
    Point.AFTER_BEGIN: {"repeat": 1, "park": 0},
    Point.BEFORE_EFFECT: {"repeat": 1, "park": 0},
    Point.AFTER_EFFECT: {"repeat": 2, "park": 1},
    Point.AFTER_COMPLETE: {"repeat": 1, "park": 1},
    Point.BEFORE_ACK: {"repeat": 1, "park": 1},
}
"""Effects that a policy promises when the run is killed there. Park leaves the first three in doubt."""

STOPPED = {
    Point.AFTER_BEGIN: {"repeat": 1, "park": 1},
    Point.BEFORE_EFFECT: {"repeat": 2, "park": 1},
    Point.AFTER_EFFECT: {"repeat": 2, "park": 1},
    Point.AFTER_COMPLETE: {"repeat": 1, "park": 1},
    Point.BEFORE_ACK: {"repeat": 1, "park": 1},
}
"""The same when the run stands still there for longer than its lease, while its duplicate is delivered."""

CELLS = [(policy, point) for point in Point for policy in POLICIES]
IN_DOUBT = (Point.AFTER_BEGIN, Point.BEFORE_EFFECT, Point.AFTER_EFFECT)


@pytest.fixture
def road(road: Road, monkeypatch: pytest.MonkeyPatch) -> Road:
    """A road whose workers can be killed by plan."""
    road.task_modules = "sandbox.kill_tasks"
    road.drain()
    monkeypatch.setenv("REDIS_URL", road.redis_url)
    return road


@pytest.mark.timeout(900)
@pytest.mark.parametrize("pool", POOLS)
@pytest.mark.parametrize("fault", [Fault.CHILD_KILLED, Fault.WORKER_KILLED])
def test_killed_anywhere_the_effects_are_what_the_policy_promises(road: Road, pool: str, fault: Fault) -> None:
    """Every cell's count is the promised one, and every message is done or in doubt. (I2, I4, I9, I10)"""
    with plans_of(road, fault) as plans, kept_running(road, f"--pool={pool}", "--concurrency=1"):
        for policy, point in CELLS:
            send(road, policy, point)
        eventually(lambda: not plans.keys("plan:*"), seconds=200, every=0.2, what="every plan to be carried out")
        road.until_settled(seconds=100)
    assert counted(road) == promised(KILLED)
    assert doubts(road) == len(IN_DOUBT)


@pytest.mark.timeout(900)
@pytest.mark.parametrize("pool", POOLS)
def test_stopped_anywhere_the_effects_are_what_the_policy_promises(road: Road, pool: str) -> None:
    """A run that stands still beyond its lease does no more than its policy allows. (I2, I6, I9, I10)"""
    for _ in range(2):
        road.worker(f"--pool={pool}", "--concurrency=1")
    with plans_of(road, Fault.STOPPED) as plans:
        for policy, point in CELLS:
            key = f"{policy}/{point}"
            send(road, policy, point)
            group = eventually(partial(plans.get, f"stopped:{key}"), what=f"{key} to stop")
            before = (counted(road)[key], letters_stored(road))
            send(road, policy, point)
            if point in IN_DOUBT:
                eventually(partial(moved_on, road, key, before), seconds=60, what=f"the duplicate of {key}")
            os.killpg(int(str(group)), signal.SIGCONT)
        road.until_settled(seconds=100)
    assert counted(road) == promised(STOPPED)
    assert doubts(road) == len(IN_DOUBT)


def moved_on(road: Road, key: str, before: tuple[int, int]) -> bool:
    """Whether the duplicate has run, or is in doubt."""
    return (counted(road)[key], letters_stored(road)) != before


def doubts(road: Road) -> int:
    """How many messages wait for a person's word."""
    letters = [road.letter(letter["id"]) for letter in road.letters()]
    assert {letter["note_reason"] for letter in letters} <= {"in_doubt"}
    return len(letters)


def letters_stored(road: Road) -> int:
    """How many dead letters the drain has stored."""
    with closing(sqlite3.connect(road.database_url.removeprefix("sqlite:///"))) as database:
        return int(database.execute("SELECT count(*) FROM dead_letters").fetchone()[0])


def send(road: Road, policy: str, point: Point) -> None:
    """Publish the message of one cell."""
    road.publisher.send_task(f"payments.{policy}", idempotency_key=f"{policy}/{point}")


def counted(road: Road) -> Counter[str]:
    """How often the service was called for each cell."""
    return Counter(call["body"]["order_id"] for call in road.services.calls("payments"))


def promised(matrix: dict[Point, dict[str, int]]) -> Counter[str]:
    """What it should have been."""
    return +Counter({f"{policy}/{point}": matrix[point][policy] for policy, point in CELLS})


@contextmanager
def plans_of(road: Road, fault: Fault) -> Iterator[redis.Redis]:
    """One plan for each cell."""
    with redis.Redis.from_url(road.redis_url, decode_responses=True) as client:
        for policy, point in CELLS:
            client.set(f"plan:{policy}/{point}", f"{point} {fault}")
        yield client


@contextmanager
def kept_running(road: Road, *options: str) -> Iterator[None]:
    """Start a worker anew whenever it dies."""
    over = threading.Event()

    def ended(process: Process) -> bool:
        return over.is_set() or process.exit_code is not None

    def run() -> None:
        while not over.is_set():
            with suppress(NotReadyError):  # it met its plan before it was ready
                process = road.worker(*options)
                eventually(partial(ended, process), seconds=400)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
