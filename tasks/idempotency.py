"""Idempotency: a task's declared policy, and what one delivery of it may do.

Nothing here reaches Redis by itself: the guard asks a store of claims.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import structlog

from broker_topology.message import key_problem
from tasks.claim import (
    Acquired,
    Began,
    Busy,
    Claims,
    Conflict,
    Done,
    Execution,
    IfInterrupted,
    InDoubt,
    PayloadMismatch,
    new_token,
)
from tasks.errors import (
    InDoubtError,
    MissingKeyError,
    PayloadMismatchError,
    PermanentFailure,
    RedisUnavailableError,
)
from tasks.held_claim import HeldClaim
from tasks.idempotency_policy import Idempotency, RedisDown
from tasks.leased_claim import LeasedClaim
from tasks.payload import fingerprint
from tasks.reconciliation import DidNotHappen, Doubt, Happened, Reconciled, Settlement, Unknown
from tasks.results import keep, restore
from tasks.unguarded_claim import UnguardedClaim

log = structlog.get_logger(__name__)

COME_BACK_SECONDS: Final = 10.0
"""How long a message waits in the broker for another run, or for Redis, to get out of its way."""

BEGIN_PATIENCE_SECONDS: Final = 5.0


# What a delivery may do: matched once, by the task base.


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """Run the task, inside of ``with claim:``."""

    claim: HeldClaim


@dataclass(frozen=True, slots=True, kw_only=True)
class AlreadyDone:
    """An earlier execution did the work: hand its result to the caller and ack."""

    result: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class ComeBack:
    """Not now: publish the message again with this delay and the same retry count, confirmed, then ack."""

    after_seconds: float
    why: str
    """``busy`` or ``redis_away``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Refuse:
    """Never: reject the message to the dead-letter queue with this error."""

    error: PermanentFailure


Verdict = Run | AlreadyDone | ComeBack | Refuse


class Guard:
    """Decides what one delivery of a guarded task may do.

    ``token`` is made per execution by the worker's parent process (``new_token()``), so that the parent can
    abandon the claim of a child that died. ``age_seconds`` is the time since the message was first
    published, None where it is not known. ``parameters`` are the names of the task's positional parameters.
    ``edited_from`` is the call that a person changed before a replay: what the key was first used with, which
    the claim knows, while the run and ``reconcile`` get what it is now.
    Raises MissingKeyError, and PayloadNotSerializableError for arguments without a stable form.
    """

    def __init__(
        self,
        claims: Claims,
        policy: Idempotency,
        *,
        task_name: str,
        key: str,
        token: str | None = None,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        parameters: Sequence[str] = (),
        age_seconds: float | None = None,
        settlement: Settlement | None = None,
        edited_from: tuple[Sequence[Any], Mapping[str, Any]] | None = None,
    ) -> None:
        if problem := key_problem(key):
            raise MissingKeyError(f"the idempotency key of {task_name} cannot be used: {problem}")
        self._claims, self._policy = claims, policy
        self._args, self._kwargs = tuple(args), dict(kwargs or {})
        self._age_seconds, self._settlement = age_seconds, settlement
        self._asked_at = 0.0
        self._execution = Execution(
            task_name=task_name,
            key=key,
            token=token or new_token(),
            payload=fingerprint(
                *(edited_from or (args, self._kwargs)), ignore=policy.ignore_arguments, parameters=parameters
            ),
            lease_seconds=policy.lease_seconds,
            retention_seconds=policy.retention_seconds,
        )

    def begin(self) -> Verdict:
        """Ask for the claim: one round trip, unless something has to be settled first."""
        settlement = self._settlement
        try:
            if settlement and settlement.result_json is not None:
                return self._record(settlement.result_json)
            answer = self._ask(settlement.attempt if settlement else None)
        except RedisUnavailableError as error:
            known_as_done = settlement is not None and settlement.result_json is not None
            if self._policy.redis_down is RedisDown.LEDGER and not known_as_done:
                log.warning("claim.unguarded", task=self._execution.task_name, error=str(error))
                return Run(claim=UnguardedClaim(self._claims, self._execution, self._policy.max_result_bytes))
            return self._come_back(error)
        if not isinstance(answer, InDoubt):
            return self._verdict(answer)
        try:
            return self._settle(answer)
        except RedisUnavailableError as error:
            return self._come_back(error)

    def _ask(self, permitted_attempt: int | None) -> Began:
        policy = self._policy
        # The deadline counts from before the question: Redis starts the lease somewhere in between.
        self._asked_at = time.monotonic()
        return self._claims.begin(
            self._execution,
            if_interrupted=IfInterrupted(policy.if_interrupted),
            may_be_forgotten=self._age_seconds is not None and self._age_seconds > policy.retention_seconds,
            permitted_attempt=permitted_attempt,
            patience_seconds=min(BEGIN_PATIENCE_SECONDS, policy.lease_seconds / 3),
        )

    def _verdict(self, answer: Began) -> Verdict:
        policy = self._policy
        match answer:
            case Acquired():
                deadline = self._asked_at + policy.lease_seconds
                claim = LeasedClaim(
                    self._claims,
                    self._execution,
                    answer,
                    deadline=deadline,
                    max_result_bytes=policy.max_result_bytes,
                )
                return Run(claim=claim)
            case Done(result_json=result_json):
                return AlreadyDone(result=restore(result_json))
            case Busy(retry_after_seconds=seconds):
                return ComeBack(after_seconds=seconds, why="busy")
            case PayloadMismatch(stored=stored, given=given):
                return Refuse(error=self._mismatch(stored, given))
            case InDoubt():
                return Refuse(error=self._in_doubt(answer))

    def _come_back(self, error: RedisUnavailableError) -> ComeBack:
        log.warning("claim.redis_away", task=self._execution.task_name, error=str(error))
        return ComeBack(after_seconds=COME_BACK_SECONDS, why="redis_away")

    def _settle(self, doubt: InDoubt) -> Verdict:
        """Ask the provider where the policy knows how; a doubt that stays is a person's."""
        match self._reconciled(doubt):
            case Happened(result=result):
                return self._record(keep(result, self._policy.max_result_bytes).json)
            case DidNotHappen():
                # Only this attempt was asked about: a doubt that another run left since is another doubt.
                return self._verdict(self._ask(doubt.attempt))
            case Unknown():
                return self._verdict(doubt)

    def _reconciled(self, doubt: InDoubt) -> Reconciled:
        execution, reconcile = self._execution, self._policy.reconcile
        if reconcile is None:
            return Unknown()
        outcome = reconcile(
            Doubt(
                task_name=execution.task_name,
                key=execution.key,
                args=self._args,
                kwargs=self._kwargs,
                attempt=doubt.attempt,
                steps={name: restore(result) for name, result in doubt.steps.items()},
            )
        )
        log.info("claim.reconciled", task=execution.task_name, key=execution.key, outcome=type(outcome).__name__)
        return outcome

    def _record(self, result_json: str) -> Verdict:
        """Put on record what is known to have happened, and answer with what stands."""
        answer = self._claims.complete(self._execution, result_json)
        standing = answer.result_json if isinstance(answer, Conflict) else result_json
        return AlreadyDone(result=restore(standing))

    def _mismatch(self, stored: str, given: str) -> PayloadMismatchError:
        return PayloadMismatchError(
            f"{self._execution} was used before with other arguments (payload {stored} on record, {given} now)",
            stored=stored,
            given=given,
        )

    def _in_doubt(self, doubt: InDoubt) -> InDoubtError:
        why = (
            f"attempt {doubt.attempt} was interrupted between effect and marker"
            if doubt.attempt
            else "the message is older than its key's record is kept"
        )
        return InDoubtError(f"{self._execution} is in doubt: {why}", attempt=doubt.attempt)


__all__ = [
    "AlreadyDone",
    "ComeBack",
    "DidNotHappen",
    "Doubt",
    "Guard",
    "Happened",
    "HeldClaim",
    "Idempotency",
    "IfInterrupted",
    "RedisDown",
    "Refuse",
    "Run",
    "Settlement",
    "Unknown",
    "Verdict",
    "fingerprint",
]
