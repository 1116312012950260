"""Claims on a majority of several independent Redis servers.

A failover of one Redis can lose a claim that it has just granted. With a quorum, two executions would have
to find two majorities, and any two majorities share a server. A server that is away counts as one that has
not answered: one of three away changes nothing, two of three away is Redis away.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace
from typing import Final, TypeVar

from broker_topology.errors import ConfigurationError
from tasks.ballot import Ballot
from tasks.claim import (
    Acquired,
    Began,
    Busy,
    Completed,
    Conflict,
    Done,
    Execution,
    Finished,
    FinishedStep,
    Held,
    IfInterrupted,
    InDoubt,
    Late,
    Lost,
    PayloadMismatch,
    Renewed,
)
from tasks.errors import RedisUnavailableError
from tasks.redis_claims import RedisClaims

A = TypeVar("A")

PAUSE_SECONDS: Final = 0.1
"""Between two ballots while too few servers answer."""


class QuorumClaims:
    """Claims on several servers: acquired on a majority, completed on all that answer."""

    def __init__(self, stores: Sequence[RedisClaims]) -> None:
        if len(stores) < 3 or len(stores) % 2 == 0:
            raise ConfigurationError(f"{len(stores)} Redis servers make no quorum: it takes an odd number, 3 or more")
        self.stores = tuple(stores)
        self._majority = len(stores) // 2 + 1
        self._ballot = Ballot(self.stores, majority=self._majority)

    def begin(
        self,
        execution: Execution,
        *,
        if_interrupted: IfInterrupted = IfInterrupted.REPEAT,
        may_be_forgotten: bool = False,
        permitted_attempt: int | None = None,
        patience_seconds: float = 5.0,
    ) -> Began:
        """Ask to run. See ``Claims.begin``.

        Two rounds where it succeeds: the highest fence of the majority is written back to it, so that the
        next majority, which shares a server with this one, goes higher.
        """
        try:
            answers = self._decide(
                lambda store: store.begin(
                    execution,
                    if_interrupted=if_interrupted,
                    may_be_forgotten=may_be_forgotten,
                    permitted_attempt=permitted_attempt,
                    patience_seconds=0,
                ),
                _side,
                patience_seconds,
                undecided=True,
            )
            acquired, done = _of(Acquired, answers), _of(Done, answers)
            if len(acquired) >= self._majority and not done:
                claim = _merged(acquired)
                renewed = self.renew(execution, claim, may_restore=True, patience_seconds=patience_seconds)
                if isinstance(renewed, Held):
                    return claim
        except RedisUnavailableError:
            self._withdraw(execution)
            raise
        if acquired or len(answers) < len(self.stores):
            self._withdraw(execution)
        if done:
            standing = _commonest(done)
            if len(done) < len(self.stores):
                self._spread(execution, standing)
            return standing
        return _refusal(answers)

    def renew(
        self,
        execution: Execution,
        acquired: Acquired,
        *,
        may_restore: bool = False,
        step: FinishedStep | None = None,
        patience_seconds: float = 5.0,
    ) -> Renewed:
        """Extend the lease, and record a finished step. See ``Claims.renew``."""
        answers = self._decide(
            lambda store: store.renew(execution, acquired, may_restore=may_restore, step=step, patience_seconds=0),
            type,
            patience_seconds,
        )
        return Held() if len(_of(Held, answers)) >= self._majority else Lost()

    def complete(
        self,
        execution: Execution,
        result_json: str,
        *,
        acquired: Acquired | None = None,
        patience_seconds: float = 5.0,
    ) -> Finished:
        """Put the result on record, after the effect. See ``Claims.complete``."""
        answers = self._decide(
            lambda store: store.complete(execution, result_json, acquired=acquired, patience_seconds=0),
            lambda answer: isinstance(answer, Conflict),
            patience_seconds,
        )
        if len(conflicts := _of(Conflict, answers)) >= self._majority:
            return _commonest(conflicts)
        # One server may not have known of the claim, or have another clock: only an event hangs on it.
        return Completed() if len(_of(Completed, answers)) >= len(_of(Late, answers)) else Late()

    def abandon(
        self,
        task_name: str,
        key: str,
        token: str,
        *,
        interrupted: bool = False,
        patience_seconds: float = 5.0,
    ) -> bool:
        """Give the claim up; owner only. See ``Claims.abandon``."""
        answers = self._decide(
            lambda store: store.abandon(task_name, key, token, interrupted=interrupted, patience_seconds=0),
            lambda _: True,
            patience_seconds,
        )
        return any(answers)

    def idle(self) -> bool:
        """Whether every server has answered; an answer given by a majority may still be on its way to the rest."""
        return self._ballot.idle()

    def close(self) -> None:
        """Let go of idle connections; the next call opens one."""
        for store in self.stores:
            store.close()

    def _decide(
        self,
        question: Callable[[RedisClaims], A],
        side: Callable[[A], Hashable],
        patience_seconds: float,
        *,
        undecided: bool = False,
    ) -> list[A]:
        """Ask until the answers decide; every call gives the same answer when it is repeated.

        ``undecided``: answers of a majority that do not agree are an answer too, once patience is over.
        """
        give_up_at = time.monotonic() + patience_seconds
        while True:
            answers, decided = self._ballot.ask(question, side)
            if decided:
                return answers
            if time.monotonic() + PAUSE_SECONDS >= give_up_at:
                break
            time.sleep(PAUSE_SECONDS)
        if undecided and len(answers) >= self._majority:
            return answers
        raise RedisUnavailableError(f"fewer than {self._majority} of {len(self.stores)} Redis servers agree")

    def _withdraw(self, execution: Execution) -> None:
        """Undo a begin that found no majority; a server that misses it waits for the lease."""
        self._ballot.tell(lambda store: store.withdraw(execution, patience_seconds=0))

    def _spread(self, execution: Execution, done: Done) -> None:
        """Tell a result to the servers that missed it, before those that know it are lost too."""
        self._ballot.tell(lambda store: store.complete(execution, done.result_json, patience_seconds=0))


def _side(answer: Began) -> Hashable:
    match answer:
        case Acquired():
            return "acquired"
        case Done(result_json=result_json):
            return ("done", result_json)
        case _:
            return "refused"


def _of(kind: type[A], answers: Sequence[object]) -> list[A]:
    return [answer for answer in answers if isinstance(answer, kind)]


def _merged(acquired: Sequence[Acquired]) -> Acquired:
    steps = {name: result for answer in acquired for name, result in answer.steps.items()}
    highest = max(acquired, key=lambda answer: answer.fence)
    return replace(highest, attempt=max(answer.attempt for answer in acquired), steps=steps)


def _commonest(answers: Sequence[A]) -> A:
    """What most servers say: an execution that finished late may have reached a minority of them."""
    return max(answers, key=answers.count)


def _refusal(answers: Sequence[Began]) -> Began:
    """A mismatch or a doubt that one server knows of is one: its record was written by a real begin."""
    refusals: list[Began] = [*_of(PayloadMismatch, answers), *_of(InDoubt, answers)]
    if refusals:
        return refusals[0]
    return Busy(retry_after_seconds=max((busy.retry_after_seconds for busy in _of(Busy, answers)), default=1.0))
