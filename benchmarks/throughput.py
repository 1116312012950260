"""Tasks a second that do nothing: ReliableTask, without and with a key, against plain Celery with late acks.

Each side works off the same backlog on the same quorum queue with two processes; sides take turns, and a figure is
the median of the rounds. The rate is that of the middle four fifths of the backlog.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
import uuid
from collections.abc import Callable

import pika

from sandbox.processes import Process
from sandbox.road import Road, private_road

QUEUE = "crm"


def main() -> None:
    """Print one JSON object per figure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tasks", type=int, default=3000)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    with private_road(task_modules="benchmarks.nothing_task") as road:
        measure(road, options.tasks, options.rounds)


def measure(road: Road, tasks: int, rounds: int) -> None:
    """Measure every side in turn, several times."""
    sides: dict[str, Callable[[], float]] = {
        "plain": lambda: rate(road, lambda: plain_worker(road), tasks, key=False),
        "no_key": lambda: rate(road, road.worker, tasks, key=False),
        "key": lambda: rate(road, road.worker, tasks, key=True),
    }
    rates: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(rounds):
        for name, side in sides.items():
            rates[name].append(side())
    median = {name: statistics.median(values) for name, values in rates.items()}
    for figure, name in (("tasks without a key", "no_key"), ("tasks with a key", "key")):
        line = {
            "bench": "throughput",
            "figure": figure,
            "value": round(median[name]),
            "unit": "tasks/s",
            "rival": "plain acks_late Celery",
            "rival_value": round(median["plain"]),
            "ratio": round(median[name] / median["plain"], 2),
        }
        print(json.dumps(line), flush=True)


def rate(road: Road, start: Callable[[], Process], tasks: int, *, key: bool) -> float:
    """Tasks a second with which a fresh worker works off a backlog."""
    with pika.BlockingConnection(pika.URLParameters(road.amqp_url)) as connection:
        channel = connection.channel()
        fill(channel, tasks, key=key)
        worker = start()
        first = reach(channel, tasks * 9 // 10)
        last = reach(channel, tasks // 10)
        reach(channel, 0)
        worker.stop()
    return (first[1] - last[1]) / (last[0] - first[0])


def plain_worker(road: Road) -> Process:
    """A worker of plain Celery."""
    command = ["celery", "-A", "benchmarks.plain_worker", "worker", "--concurrency=2", "--loglevel=INFO"]
    return road.start("plain", [*command, "--queues", QUEUE, "--without-mingle", "--without-gossip"])


def fill(channel: pika.adapters.blocking_connection.BlockingChannel, tasks: int, *, key: bool) -> None:
    """Publish the backlog."""
    body = b'[[], {}, {"callbacks": null, "errbacks": null, "chain": null, "chord": null}]'
    for _ in range(tasks):
        task_id = uuid.uuid4().hex
        headers = {"lang": "py", "task": "crm.nothing", "id": task_id, "root_id": task_id, "retries": 0}
        if key:
            headers["idempotency_key"] = task_id
        properties = pika.BasicProperties(
            headers=headers, delivery_mode=2, content_type="application/json", content_encoding="utf-8"
        )
        channel.basic_publish("work", QUEUE, body, properties)


def reach(channel: pika.adapters.blocking_connection.BlockingChannel, depth: int) -> tuple[float, int]:
    """Wait until no more than ``depth`` messages are ready; when that was, and how many there were."""
    while True:
        ready = int(channel.queue_declare(QUEUE, passive=True).method.message_count)
        if ready <= depth:
            return time.monotonic(), ready
        time.sleep(0.02)


if __name__ == "__main__":
    main()
