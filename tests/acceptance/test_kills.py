"""Workers and drains killed at random moments: afterwards every message is accounted for."""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from sandbox.processes import Process, eventually
from sandbox.road import Road


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "tasks", [100, pytest.param(300, marks=pytest.mark.long), pytest.param(1000, marks=pytest.mark.soak)]
)
def test_every_task_succeeds_once_or_is_one_letter(road: Road, tasks: int) -> None:
    """Mixed tasks under SIGKILLs of workers and drains: no loss, no double, one charge a key. (I2, D1, D3)"""
    seed = random.randrange(10**6)
    print(f"seed {seed}")
    expected = publish_mixed(road, tasks, random.Random(seed))
    processes = [lambda: road.worker(ready_seconds=90)] * 2 + [road.drain] * 2
    with killed_at_random(processes, random.Random(seed)):
        eventually(lambda: len(effects(road)) > tasks * 0.7, seconds=200, every=1, what="most tasks to be done")
    for start in (road.worker, road.drain):
        start()
    road.until_settled(seconds=120)

    letters = Counter(letter["task_id"] for letter in road.letters())
    assert max(letters.values()) == 1, "a task is at most one letter"
    done = effects(road)
    lost = [task_id for task_id, effect in expected.items() if task_id not in letters and effect not in done]
    assert lost == []
    keys = [effect for effect in expected.values() if effect.startswith("charge-")]
    assert [key for key, times in zip(keys, road.services.charges(*keys), strict=True) if times > 1] == []
    unknown = {task_id for task_id, effect in expected.items() if effect.startswith("/customers/unknown")}
    assert unknown <= set(letters), "what cannot succeed is a letter"


def publish_mixed(road: Road, tasks: int, chance: random.Random) -> dict[str, str]:
    """Publish, and say for each task id which effect it must have: a charge's key, or the path of a CRM record."""
    send = road.publisher.send_task
    expected = {}
    for number in range(tasks):
        task_id = f"task-{number}"
        if number % 400 == 399:
            send("notifications.kill_own_worker", task_id=task_id)
            continue
        if chance.random() < 0.6:
            expected[task_id] = f"charge-{number}"
            send("payments.charge_customer", (task_id, 100), task_id=task_id, idempotency_key=expected[task_id])
        else:
            customer = f"unknown-{number}" if chance.random() < 0.2 else f"customer-{number}"
            expected[task_id] = f"/customers/{customer}"
            send("crm.sync_customer_record", (customer, {}), task_id=task_id)
    return expected


def effects(road: Road) -> set[str]:
    """Every effect that the outside services know of, under the names of ``publish_mixed``."""
    records = {f"/{call['path']}" for call in road.services.calls("crm")}
    charged = {f"charge-{call['body']['order_id'].removeprefix('task-')}" for call in road.services.calls("payments")}
    return records | charged


@contextmanager
def killed_at_random(starts: list[Callable[[], Process]], chance: random.Random) -> Iterator[None]:
    """Keep these processes running, and kill each again and again after a random while."""
    over = threading.Event()

    def run(start: Callable[[], Process], number: int) -> None:
        moments = random.Random(f"{chance.random()}-{number}")
        while not over.is_set():
            process = start()
            over.wait(moments.uniform(0.2, 6.0))
            process.kill()

    threads = [threading.Thread(target=run, args=(start, number)) for number, start in enumerate(starts)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        over.set()
        for thread in threads:
            thread.join()
