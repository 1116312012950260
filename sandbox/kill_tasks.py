"""Tasks that are killed or stopped at a named point, once for each key, as a plan in Redis says.

The plan is a Redis key: ``plan:KEY`` holds ``POINT FAULT``. Nothing of the product knows of it: this module puts
itself around the worker's claims and request class when ``TASK_MODULES`` names it.
"""

from __future__ import annotations

import os
import signal
import time
from dataclasses import replace
from typing import Any

import redis
from celery import shared_task
from celery.signals import worker_init

from broker_topology.message import IDEMPOTENCY_KEY_HEADER
from sandbox.faults import Fault
from tasks import Idempotency, ReliableTask, TransientFailure
from tasks.outside import call
from tasks.reliability import reliability_of
from tasks.request import ReliableRequest
from tasks.testing import ClaimPoints, Point

LEASE_SECONDS = 1.5
STOPPING_SECONDS = 0.3


def plans() -> redis.Redis:
    """The Redis that holds the plans, for tasks and tests alike."""
    return redis.Redis.from_url(os.environ["REDIS_URL"], decode_responses=True)


def reached(point: Point, key: str, *, child: int | None = None) -> None:
    """Come to a point: what is planned for it happens once."""
    with plans() as client:
        planned = client.get(f"plan:{key}")
        if not isinstance(planned, str) or planned.split()[0] != point or not client.delete(f"plan:{key}"):
            return
        match Fault(planned.split()[1]):
            case Fault.CHILD_KILLED:
                os.kill(child or os.getpid(), signal.SIGKILL)
            case Fault.WORKER_KILLED:
                os.killpg(os.getpgrp(), signal.SIGKILL)
            case Fault.STOPPED:
                client.set(f"stopped:{key}", os.getpgrp())
                os.killpg(os.getpgrp(), signal.SIGSTOP)
                # A process with several threads stops a little later: not a line further than here.
                time.sleep(STOPPING_SECONDS)


class KillableRequest(ReliableRequest):
    """A request that comes to a point before its ack."""

    def acknowledge(self) -> None:
        """Ack, unless killed before."""
        reached(Point.BEFORE_ACK, self._request_dict[IDEMPOTENCY_KEY_HEADER], child=self.worker_pid)
        super().acknowledge()


class Killable(ReliableTask):
    """A task that charges in a step, with points before and after."""

    abstract = True
    Request = "sandbox.kill_tasks:KillableRequest"

    def charge(self, provider_key: str) -> str:
        """The effect, and the points around it."""
        key = self.claim.key
        reached(Point.BEFORE_EFFECT, key)
        body = {"order_id": key, "amount_cents": 100}
        charge_id = call(self.app, "payments", "POST", "/charges", json=body, key=provider_key)["id"]
        reached(Point.AFTER_EFFECT, key)
        return str(charge_id)


def _policy(if_interrupted: str) -> dict[str, Any]:
    return {
        "bind": True,
        "base": Killable,
        "idempotency": Idempotency(lease_seconds=LEASE_SECONDS, if_interrupted=if_interrupted),
    }


@shared_task(name="payments.repeat", **_policy("repeat"))
def repeat(self: Killable) -> str:
    """Charge; repeated after an interruption."""
    return self.step("charge").run(self.charge)


@shared_task(name="payments.park", **_policy("park"))
def park(self: Killable) -> str:
    """Charge; in doubt after an interruption."""
    return self.step("charge").run(self.charge)


@shared_task(name="payments.second_try", **_policy("repeat"), transient=TransientFailure, max_retries=1)
def second_try(self: Killable) -> int:
    """Fail once in a way that is worth a retry; says which try it was."""
    if self.request.retries == 0:
        raise TransientFailure("not yet", retry_after=1)
    return int(self.request.retries)


@worker_init.connect(weak=False)
def inject(sender: Any, **_: Any) -> None:
    """Put the points around the claims of a worker that starts."""
    reliability = reliability_of(sender.app)
    sender.app.reliability = replace(reliability, claims=ClaimPoints(reliability.claims, reached))
