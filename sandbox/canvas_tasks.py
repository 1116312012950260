"""Tasks of a canvas that a person breaks and mends while the workers run; what they did is kept in Redis."""

from __future__ import annotations

import json
import time
from typing import Any

from celery import shared_task

from sandbox.road_tasks import counter


class BrokenError(Exception):
    """The fault that a person has not mended yet."""


@shared_task(name="crm.fixable")
def fixable(number: int) -> int:
    """Ten times a number, unless ``broken`` holds it."""
    with counter() as redis:
        redis.incr(f"began:{number}")
        if redis.sismember("broken", str(number)):
            raise BrokenError(f"{number} is broken")
    return number * 10


@shared_task(name="crm.keep")
def keep(received: Any, label: str) -> Any:
    """Keep what came, one entry a run, under ``kept:<label>``; the same goes on to whatever comes next."""
    with counter() as redis:
        redis.rpush(f"kept:{label}", json.dumps(received))
    return received


@shared_task(name="crm.wait_for")
def wait_for(label: str) -> str:
    """Take as long as the test wants: what it pushes to ``go:<label>`` is the result."""
    with counter() as redis:
        while (entry := redis.lpop(f"go:{label}")) is None:
            time.sleep(0.05)
    return str(entry, "utf-8")


@shared_task(name="crm.hear")
def hear(label: str) -> None:
    """Count one call under ``heard:<label>``: as an errback, published like any other task."""
    with counter() as redis:
        redis.incr(f"heard:{label}")
