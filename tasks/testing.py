"""Test your own tasks: deliver them twice, at once, and killed at a named point, and count their effects.

No broker and no worker is needed, only the Redis that the app was installed with. Each delivery runs the real
task, under its real claim, in a forked process of its own, as in a prefork worker::

    def test_a_customer_is_charged_once(tmp_path):
        charge = Deliveries(charge_customer, "order-1", 1250, key="order-charge-1",
                            effect="shop.stripe.charge", folder=tmp_path)
        charge.twice()
        charge.at_once(8)
        assert charge.effects == 1

    def test_a_charge_that_was_interrupted_is_not_repeated(tmp_path):
        charge = Deliveries(...)
        charge.killed(at=Point.AFTER_EFFECT)
        assert charge.once().error_type == "tasks.errors.InDoubtError"
        assert charge.effects == 1

``effect`` names the function that acts on the outside, where the task looks it up. With
``pytest_plugins = ["tasks.pytest_plugin"]`` there is a fixture ``deliveries`` that needs no folder.
"""

from __future__ import annotations

import functools
import json
import os
import pkgutil
import signal
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Final, NoReturn

from celery.exceptions import Ignore, Reject, Retry
from celery.signals import worker_process_init

from broker_topology.message import IDEMPOTENCY_KEY_HEADER, PUBLISHED_AT_HEADER
from broker_topology.settlement import SETTLEMENT_HEADER
from tasks.claim import Acquired, Began, Claims, Execution, Finished, new_token
from tasks.failure_text import describe_error
from tasks.reliability import reliability_of
from tasks.reliable_task import ReliableTask
from tasks.results import keep

PATIENCE_SECONDS: Final = 60.0
"""How long a delivery may take before the test fails."""


class Point(StrEnum):
    """Where a delivery can be killed."""

    AFTER_BEGIN = "after_begin"
    """The claim is acquired, nothing has happened."""
    BEFORE_EFFECT = "before_effect"
    """The effect is about to happen."""
    AFTER_EFFECT = "after_effect"
    """The effect has happened, nobody knows."""
    AFTER_COMPLETE = "after_complete"
    """The result is on record, the caller does not have it."""
    BEFORE_ACK = "before_ack"
    """All is done, the message is still the broker's."""


class Ending(StrEnum):
    """How a delivery ended."""

    RETURNED = "returned"
    CAME_BACK = "came_back"
    """Published again with a delay, at no cost in retries: another run holds the claim, or Redis is away."""
    RETRIED = "retried"
    FAILED = "failed"
    """It ends in the dead-letter queue."""
    KILLED = "killed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What became of one delivery."""

    ending: Ending
    result: Any = None
    error_type: str | None = None
    """Exception type with its module."""
    error: str | None = None
    after_seconds: float | None = None
    """The delay of a message that came back or is retried."""
    settlement: str | None = None
    """The header that a message carries which came back with its result, for ``once(settlement=...)``."""


class Deliveries:
    """Deliveries of one message of one task."""

    def __init__(
        self,
        task: Any,
        *args: Any,
        key: str,
        folder: Path,
        effect: str | None = None,
        age_seconds: float | None = None,
        **kwargs: Any,
    ) -> None:
        if not isinstance(task, ReliableTask):
            raise TypeError(f"{task!r} is no ReliableTask")
        self._task, self._args, self._kwargs, self._key = task, args, kwargs, key
        self._effect, self._published_at = effect, datetime.now(UTC) - timedelta(seconds=age_seconds or 0.0)
        self._ledger = folder / f"effects-{new_token()}"
        self._ledger.touch()

    @property
    def effects(self) -> int:
        """How often the effect was called, in all deliveries."""
        return self._ledger.stat().st_size

    def once(self, *, settlement: str | None = None, retries: int = 0) -> Outcome:
        """Deliver the message."""
        return self._delivered(1, settlement=settlement, retries=retries)[0]

    def twice(self) -> list[Outcome]:
        """Deliver it, and deliver it again after the first is over."""
        return [self.once(), self.once()]

    def at_once(self, processes: int = 2) -> list[Outcome]:
        """Deliver it from several processes at the same moment."""
        return self._delivered(processes)

    def killed(self, *, at: Point | str, whole_worker: bool = False) -> Outcome:
        """Deliver it, and kill the process when it comes to the point.

        The worker's parent process then ends the claim, as the real one does; ``whole_worker`` kills that too,
        and the claim's lease has to lapse. A delivery that does not come to the point ends as it ends.
        """
        token = new_token()
        outcome = self._delivered(1, kill_at=Point(at), token=token)[0]
        if outcome.ending is Ending.KILLED and not whole_worker:
            claims = reliability_of(self._task.app).claims
            claims.abandon(self._task.name, self._key, token, interrupted=True)
        return outcome

    def _delivered(
        self,
        processes: int,
        *,
        kill_at: Point | None = None,
        token: str | None = None,
        settlement: str | None = None,
        retries: int = 0,
    ) -> list[Outcome]:
        context = get_context("fork")  # as Celery's prefork pool does
        barrier = context.Barrier(processes)
        running = []
        for _ in range(processes):
            ours, theirs = context.Pipe(duplex=False)
            delivery = _Delivery(self, kill_at, token or new_token(), settlement, retries)
            process = context.Process(target=delivery.run, args=(barrier, theirs), daemon=True)
            process.start()
            theirs.close()
            running.append((process, ours))
        return [_outcome(process, pipe) for process, pipe in running]


class _Delivery:
    """One delivery, in its own process: whatever it changes here, it changes for itself."""

    def __init__(
        self, message: Deliveries, kill_at: Point | None, token: str, settlement: str | None, retries: int
    ) -> None:
        self._message, self._kill_at = message, kill_at
        self._token, self._settlement, self._retries = token, settlement, retries
        self._republished: list[dict[str, Any]] = []

    def run(self, barrier: Any, pipe: Any) -> NoReturn:
        """Run the task as a worker would, and tell its outcome."""
        try:
            worker_process_init.send(sender=None)
            self._inject()
            barrier.wait()
            outcome = self._outcome()
            self._reached(Point.BEFORE_ACK)
            pipe.send_bytes(json.dumps(asdict(outcome)).encode())
        finally:
            sys.stdout.flush()
            os._exit(0)

    def _inject(self) -> None:
        message, task = self._message, self._message._task
        reliability = reliability_of(task.app)
        points = ClaimPoints(reliability.claims, lambda point, _: self._reached(point))
        task.app.reliability = replace(reliability, claims=points)
        task.__dict__["signature_from_request"] = self._republish
        if message._effect is not None:
            owner, _, name = message._effect.rpartition(".")
            watch_effect(pkgutil.resolve_name(owner), name, self._reached, message._ledger)

    def _reached(self, point: Point) -> None:
        if point is self._kill_at:
            os.kill(os.getpid(), signal.SIGKILL)

    def _republish(self, *_: Any, **options: Any) -> Any:
        self._republished.append(options)
        return _Unsent()

    def _outcome(self) -> Outcome:
        message, task = self._message, self._message._task
        headers = {
            IDEMPOTENCY_KEY_HEADER: message._key,
            PUBLISHED_AT_HEADER: message._published_at.isoformat(),
            **({SETTLEMENT_HEADER: self._settlement} if self._settlement else {}),
        }
        task.push_request(
            id=new_token(),
            task=task.name,
            args=message._args,
            kwargs=message._kwargs,
            retries=self._retries,
            called_directly=False,
            is_eager=False,
            hostname="testing",
            delivery_info={"claim_token": self._token},
            headers=headers,
            **headers,
        )
        try:
            result = task(*message._args, **message._kwargs)
        except Retry:
            return Outcome(ending=Ending.RETRIED, after_seconds=self._republished[-1].get("countdown"))
        except Ignore:
            again = self._republished[-1]
            carried = (again.get("headers") or {}).get(SETTLEMENT_HEADER)
            return Outcome(ending=Ending.CAME_BACK, after_seconds=again.get("countdown"), settlement=carried)
        except (Exception, Reject, SystemExit) as error:
            error_type, text = describe_error(error)
            return Outcome(ending=Ending.FAILED, error_type=error_type, error=text)
        return Outcome(ending=Ending.RETURNED, result=json.loads(keep(result, float("inf")).json))


class _Unsent:
    """A message that is not published: the test sees it in the outcome."""

    def apply_async(self, *_: Any, **__: Any) -> None:
        """Stay here."""


class ClaimPoints:
    """Claims that tell when a run comes to a point: injected by tests, around the real ones."""

    def __init__(self, claims: Claims, reached: Callable[[Point, str], None]) -> None:
        self._claims, self._reached = claims, reached
        self.renew, self.abandon = claims.renew, claims.abandon

    def begin(self, execution: Execution, **options: Any) -> Began:
        """Begin, and tell where the claim was acquired."""
        answer = self._claims.begin(execution, **options)
        if isinstance(answer, Acquired):
            self._reached(Point.AFTER_BEGIN, execution.key)
        return answer

    def complete(self, execution: Execution, result_json: str, **options: Any) -> Finished:
        """Complete, and tell."""
        answer = self._claims.complete(execution, result_json, **options)
        self._reached(Point.AFTER_COMPLETE, execution.key)
        return answer


def watch_effect(owner: Any, name: str, reached: Callable[[Point], None], ledger: Path) -> None:
    """Put a function in the place of ``owner.name`` that tells of each call and counts it in a file."""
    effect = getattr(owner, name)

    @functools.wraps(effect)
    def watched(*args: Any, **kwargs: Any) -> Any:
        reached(Point.BEFORE_EFFECT)
        with ledger.open("ab") as file:
            file.write(b".")
        result = effect(*args, **kwargs)
        reached(Point.AFTER_EFFECT)
        return result

    setattr(owner, name, watched)


def _outcome(process: Any, pipe: Any) -> Outcome:
    if not pipe.poll(PATIENCE_SECONDS):
        process.kill()
        raise TimeoutError(f"a delivery took longer than {PATIENCE_SECONDS:g} s")
    try:
        told = json.loads(pipe.recv_bytes())
    except EOFError:
        told = None
    process.join()
    pipe.close()
    if process.exitcode == -signal.SIGKILL:
        return Outcome(ending=Ending.KILLED)
    if told is None:
        raise RuntimeError("a delivery ended without an outcome: see its traceback above")
    return Outcome(**{**told, "ending": Ending(told["ending"])})
