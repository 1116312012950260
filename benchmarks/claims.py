"""What guarding a task costs: round trips on the wire, and time added to a run, against other guards.

Every guard runs the same task body in turn, in the same run, against the same Redis; a figure is the median of
several rounds, less the bare body. Guards that forget a run when it ends (celery-once, celery-singleton) are
measured too, but a duplicate after success runs again under them: ``effects_of_a_duplicate`` says so.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import celery_once.backends.redis as once
import redis
from aws_lambda_powertools.utilities.idempotency import IdempotencyConfig, idempotent_function
from aws_lambda_powertools.utilities.idempotency.persistence.cache import CachePersistenceLayer
from celery import Celery
from celery_once import QueueOnce
from celery_singleton import Singleton, backends

from sandbox import servers
from sandbox.proxy import Proxy
from tasks.claim import Claims
from tasks.claims import connect_claims
from tasks.idempotency import AlreadyDone, Guard, Idempotency, Run

Run_ = Callable[[str], Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Contender:
    """One guard around the body: ``run(key)`` is one delivery."""

    name: str
    run: Run_


def main() -> None:
    """Print one JSON object per figure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=7)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="office-", ignore_cleanup_errors=True) as folder:
        server = servers.redis(Path(folder))
        try:
            measure(server.url, arguments.runs, arguments.rounds)
        finally:
            server.stop()


def measure(url: str, runs: int, rounds: int) -> None:
    """Measure every guard in turn, several times."""
    body = Body()
    port = urlsplit(url).port or 6379
    with Proxy(port) as proxy:
        trips = {
            guard.name: round_trips(guard, proxy) for guard in contenders(f"redis://127.0.0.1:{proxy.port}/0", body)
        }
    guards = contenders(url, body)
    repeated = {guard.name: effects_of_a_duplicate(guard, body) for guard in guards}
    first: dict[str, list[float]] = {guard.name: [] for guard in guards}
    again: dict[str, list[float]] = {guard.name: [] for guard in guards}
    for _ in range(rounds):
        for guard in guards:
            keys = [uuid.uuid4().hex for _ in range(runs)]
            first[guard.name].append(seconds_a_run(guard.run, keys))
            again[guard.name].append(seconds_a_run(guard.run, keys))
    bare = statistics.median(first.pop("bare"))
    tell("round_trips_of_a_run", "round trips", {name: trips[name][0] for name in first})
    tell("round_trips_of_a_duplicate", "round trips", {name: trips[name][1] for name in first})
    tell("effects_of_a_duplicate", "effects", repeated)
    tell("added_time_of_a_run", "us", {name: (statistics.median(first[name]) - bare) * 1e6 for name in first})
    tell("added_time_of_a_duplicate", "us", {name: (statistics.median(again[name]) - bare) * 1e6 for name in first})


class Body:
    """The task's body: it counts, and returns a small result."""

    def __init__(self) -> None:
        self.effects = 0

    def __call__(self, order_id: str) -> dict[str, str]:
        """One effect."""
        self.effects += 1
        return {"charge": order_id}


def contenders(url: str, body: Body) -> list[Contender]:
    """Ours, the bare body, and the others, each as its documentation says to use it."""
    return [
        Contender(name="bare", run=body),
        Contender(name="ours", run=partial(ours, connect_claims(url), body)),
        Contender(name="two-key lock", run=two_key_lock(url, body)),
        Contender(name="powertools", run=powertools(url, body)),
        Contender(name="celery-once", run=celery_once(url, body)),
        Contender(name="celery-singleton", run=celery_singleton(url, body)),
    ]


POLICY = Idempotency()


def ours(claims: Claims, body: Body, key: str) -> Any:
    """As the task base does it."""
    guard = Guard(claims, POLICY, task_name="charge", key=key, args=(key,), parameters=("order_id",))
    match guard.begin():
        case Run(claim=claim):
            with claim:
                return claim.complete(body(key))
        case AlreadyDone(result=result):
            return result
        case other:
            raise AssertionError(other)


RELEASE = "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('del', KEYS[1]) end return 0"


def two_key_lock(url: str, body: Body) -> Run_:
    """The article's pattern: a marker with the result, and a lock with a token, released by compare-and-delete."""
    client = redis.Redis.from_url(url)
    release = client.register_script(RELEASE)

    def run(key: str) -> Any:
        done: Any = client.get(f"done:{key}")
        if done is not None:
            return json.loads(done)
        token = uuid.uuid4().hex
        if not client.set(f"lock:{key}", token, nx=True, ex=60):
            raise AssertionError("somebody else holds the lock")
        try:
            result = body(key)
            client.set(f"done:{key}", json.dumps(result), ex=86_400)
            return result
        finally:
            release(keys=[f"lock:{key}"], args=[token])

    return run


def powertools(url: str, body: Body) -> Run_:
    """AWS Powertools' idempotency on its Redis layer."""
    parts = urlsplit(url)
    layer = CachePersistenceLayer(client=redis.Redis(host=parts.hostname or "", port=parts.port or 6379))

    @idempotent_function(
        data_keyword_argument="order",
        persistence_store=layer,
        config=IdempotencyConfig(event_key_jmespath="key", expires_after_seconds=86_400),
    )
    def charge(order: dict[str, str]) -> dict[str, str]:
        return body(order["key"])

    return lambda key: charge(order={"key": key})


def celery_once(url: str, body: Body) -> Run_:
    """celery-once: the lock that ``apply_async`` takes, and that the end of the run releases."""
    once.redis = None  # it keeps its first connection for ever
    app = Celery("once", set_as_current=False)
    app.conf.ONCE = {"backend": "celery_once.backends.Redis", "settings": {"url": url, "default_timeout": 3600}}

    @app.task(base=QueueOnce, name="charge", shared=False)
    def charge(order_id: str) -> dict[str, str]:
        return body(order_id)

    def run(key: str) -> Any:
        charge.once_backend.raise_or_lock(charge.get_key((key,), {}), timeout=3600)
        try:
            return charge.run(key)
        finally:
            charge.after_return("SUCCESS", None, "id", (key,), {}, None)

    return run


def celery_singleton(url: str, body: Body) -> Run_:
    """celery-singleton: the lock that ``apply_async`` takes, and that success or failure releases."""
    backends._backend = None  # it keeps its first connection for ever
    app = Celery("singleton", set_as_current=False)
    app.conf.update(singleton_backend_url=url, singleton_lock_expiry=3600)

    @app.task(base=Singleton, name="charge", shared=False)
    def charge(order_id: str) -> dict[str, str]:
        return body(order_id)

    def run(key: str) -> Any:
        if not charge.aquire_lock(charge.generate_lock("charge", [key], {}), uuid.uuid4().hex):
            raise AssertionError("somebody else holds the lock")
        try:
            return charge.run(key)
        finally:
            charge.on_success(None, "id", (key,), {})

    return run


def seconds_a_run(run: Run_, keys: list[str]) -> float:
    """The mean time of one delivery."""
    began_at = time.perf_counter()
    for key in keys:
        run(key)
    return (time.perf_counter() - began_at) / len(keys)


def round_trips(guard: Contender, proxy: Proxy) -> tuple[int, int]:
    """Round trips of a first delivery and of its duplicate, on a connection that is open."""
    guard.run("warm")
    before = proxy.round_trips
    guard.run("order-1")
    between = proxy.round_trips
    guard.run("order-1")
    return between - before, proxy.round_trips - between


def effects_of_a_duplicate(guard: Contender, body: Body) -> int:
    """How many effects a duplicate after success has."""
    key = uuid.uuid4().hex
    guard.run(key)
    before = body.effects
    guard.run(key)
    return body.effects - before


def tell(figure: str, unit: str, values: Mapping[str, float]) -> None:
    """Print one figure against every rival."""
    mine = values["ours"]
    for rival, value in values.items():
        if rival in ("ours", "bare"):
            continue
        told = {"bench": "claims", "figure": figure, "value": round(mine, 2), "unit": unit, "rival": rival}
        ratio = round(value / mine, 2) if mine else None
        print(json.dumps({**told, "rival_value": round(value, 2), "ratio": ratio}))


if __name__ == "__main__":
    main()
