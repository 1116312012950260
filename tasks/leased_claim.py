"""The claim of a running task in Redis: the lease that it keeps, the steps that it finished, how it ends."""

from __future__ import annotations

import time
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Final, Self

import structlog

from tasks.claim import Acquired, Claims, Completed, Conflict, Execution, FinishedStep, Held, Late
from tasks.errors import LeaseLostError, RedisUnavailableError, ResultUnrecordedError
from tasks.held_claim import KeyedClaim, check_step, is_interruption
from tasks.lease import RENEWALS
from tasks.results import keep, restore
from tasks.steps import Step

log = structlog.get_logger(__name__)

SHORTEST_PATIENCE_SECONDS: Final = 1.0
"""Even after its lease, a result gets one try to be recorded."""

ABANDON_PATIENCE_SECONDS: Final = 1.0


class LeasedClaim(KeyedClaim):
    """A claim in Redis, renewed from a thread while the ``with`` block runs.

    The block's end abandons what was not completed: as failed where an exception says that the run failed,
    as interrupted where something stopped it at a point that nobody knows.
    """

    def __init__(
        self,
        claims: Claims,
        execution: Execution,
        acquired: Acquired,
        *,
        deadline: float,
        max_result_bytes: float,
    ) -> None:
        super().__init__(execution, began_at=deadline - execution.lease_seconds)
        self._claims, self._acquired = claims, acquired
        self._deadline = deadline
        """On the monotonic clock; counted from before the question was sent, so never later than Redis'."""
        self._max_result_bytes = max_result_bytes
        self._lost = self._ended = False

    @property
    def fence(self) -> int:
        """For database writes: a write with a lower fence than the row's comes from a stale run."""
        return self._acquired.fence

    @property
    def attempt(self) -> int:
        """1 for the first run of the key."""
        return self._acquired.attempt

    @property
    def lost(self) -> bool:
        """Whether a renewal has found the claim to be another run's."""
        return self._lost

    def ensure_held(self) -> None:
        """Call before an effect. Raises LeaseLostError where the claim is another run's by now.

        Free while the lease is fresh; where it may have lapsed (a stopped process, Redis away), it is
        renewed here and now: one round trip.
        """
        if not self._lost and time.monotonic() >= self._deadline:
            try:
                self._renew()
            except RedisUnavailableError as error:
                raise LeaseLostError(f"{self._execution}: the lease lapsed and Redis is away") from error
        if self._lost:
            raise LeaseLostError(f"{self._execution}: the claim of attempt {self.attempt} was lost")

    def step(self, name: str) -> Step:
        """A named step, to be used once under this name in one run."""
        check_step(name, self._opened)
        stored = self._acquired.steps.get(name)
        return Step(
            self,
            name,
            provider_key=self._execution.provider_key(name),
            done=stored is not None,
            result=restore(stored) if stored is not None else None,
        )

    def save_step(self, name: str, result: Any) -> None:
        """Record a finished step. Raises LeaseLostError, after recording, where the claim is lost."""
        step = FinishedStep(name=name, result_json=keep(result, self._max_result_bytes).json)
        self._renew(step, patience_seconds=max(SHORTEST_PATIENCE_SECONDS, self._deadline - time.monotonic()))
        if self._lost:
            raise LeaseLostError(f"{self._execution}: the claim was lost during step {name!r}")

    def complete(self, result: Any) -> Any:
        """Record the result after the effect; returns what the caller gets: the one that stands.

        Raises ResultUnrecordedError where Redis stays away until the lease ends.
        """
        self._end()
        kept = keep(result, self._max_result_bytes)
        if kept.problem:
            log.warning("claim.result_not_kept", **self._fields(), placeholder=kept.json)
        patience = max(SHORTEST_PATIENCE_SECONDS, self._deadline - time.monotonic())
        try:
            answer = self._claims.complete(
                self._execution, kept.json, acquired=self._acquired, patience_seconds=patience
            )
        except RedisUnavailableError as error:
            raise ResultUnrecordedError(
                f"{self._execution}: the effect has happened but is not on record: {error}", result_json=kept.json
            ) from error
        match answer:
            case Completed():
                return kept.result
            case Late():
                log.warning("claim.completed_late", **self._fields())
                return kept.result
            case Conflict(result_json=standing):
                log.error("claim.conflict", **self._fields())
                return restore(standing)

    def abandon(self, *, interrupted: bool = False) -> None:
        """Give the claim up without a result. With Redis away the lease has to lapse instead."""
        self._end()
        execution = self._execution
        try:
            self._claims.abandon(
                execution.task_name,
                execution.key,
                execution.token,
                interrupted=interrupted,
                patience_seconds=ABANDON_PATIENCE_SECONDS,
            )
        except RedisUnavailableError as error:
            log.warning("claim.not_abandoned", **self._fields(), error=str(error))

    def __enter__(self) -> Self:
        RENEWALS.start(self, self._renew_when_due, after_seconds=self._execution.lease_seconds / 3)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self._ended:
            self.abandon(interrupted=is_interruption(kind))

    def _renew_when_due(self) -> float | None:
        """One renewal from the thread; answers when the next one is due."""
        if self._ended:
            return None
        try:
            self._renew(patience_seconds=0)
        except RedisUnavailableError as error:
            log.warning("claim.renewal_failed", **self._fields(), error=str(error))
            return self._execution.lease_seconds / 10
        return None if self._lost else self._execution.lease_seconds / 3

    def _renew(self, step: FinishedStep | None = None, *, patience_seconds: float = 1.0) -> None:
        asked_at = time.monotonic()
        answer = self._claims.renew(
            self._execution,
            self._acquired,
            may_restore=asked_at < self._deadline,
            step=step,
            patience_seconds=patience_seconds,
        )
        if isinstance(answer, Held):
            self._deadline = max(self._deadline, asked_at + self._execution.lease_seconds)
        elif not self._ended:
            self._lost = True
            log.error("claim.lost", **self._fields())

    def _end(self) -> None:
        self._ended = True
        RENEWALS.stop(self)

    def _fields(self) -> Mapping[str, Any]:
        return {
            "task": self._execution.task_name,
            "key": self._execution.key,
            "attempt": self.attempt,
            "fence": self.fence,
            "lease_share": round(self.lease_share, 3),
        }
