"""The claim on one idempotency key: its vocabulary, and the four calls that every store of claims answers.

A claim is one record per task name and key. Its states::

    (none) --begin--> running --complete--> done
                        |  ^
                 failed |  | begin
                        v  |
                       free            running, lease lapsed --begin, if_interrupted=park--> in_doubt
                                       in_doubt --begin with leave--> running

The lease is a field, compared with Redis' own clock; the record outlives it, so that an interrupted run
leaves evidence. Every call is safe to repeat when its reply was lost.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from broker_topology.claim_records import record_name
from tasks.provider_keys import provider_key


class IfInterrupted(StrEnum):
    """What the next delivery does when a run ended between begin and complete, nobody knows how far it got."""

    REPEAT = "repeat"
    """Run again: for effects that a second run does not double, or only annoys."""
    PARK = "park"
    """Refuse as in doubt, for a person who can ask: for effects that cost money."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Execution:
    """One delivery that wants to run: whose key, by which token, with which payload, under which times."""

    task_name: str
    key: str
    token: str
    """Unique to this execution, never the task id: a redelivery is another execution."""
    payload: str
    """Fingerprint of the arguments."""
    lease_seconds: float
    retention_seconds: float

    @property
    def record_name(self) -> str:
        """The Redis key of the claim."""
        return record_name(self.task_name, self.key)

    @property
    def effect_key(self) -> str:
        """The caller's key with the task's name: unique among tasks, for the ledger."""
        return f"{self.task_name}:{self.key}"

    def provider_key(self, step: str = "") -> str:
        """The key to hand to an outside service, for the task or for one of its steps."""
        return provider_key(self.task_name, self.key, step)

    def __str__(self) -> str:
        """For the text of errors."""
        return f"{self.task_name}: key {self.key!r}"


def new_token() -> str:
    """A token for one execution."""
    return uuid.uuid4().hex


# Answers of begin.


@dataclass(frozen=True, slots=True, kw_only=True)
class Acquired:
    """The claim is this execution's: run."""

    fence: int
    """Grows with every acquisition of the key, even when the record was lost in between."""
    attempt: int
    """1 for the first run of the key."""
    steps: Mapping[str, str] = field(default_factory=dict)
    """Results, as JSON, of the named steps that earlier attempts finished."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """An earlier execution finished: its result, as JSON."""

    result_json: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Busy:
    """Another execution holds the lease, for so long at most unless it renews."""

    retry_after_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PayloadMismatch:
    """The key is on record with other arguments; both fingerprints."""

    stored: str
    given: str


@dataclass(frozen=True, slots=True, kw_only=True)
class InDoubt:
    """An attempt was interrupted, or the record may have expired: nobody knows whether the effect happened."""

    attempt: int
    """The interrupted attempt; 0 where there is no record but there may have been one."""
    steps: Mapping[str, str] = field(default_factory=dict)


Began = Acquired | Done | Busy | PayloadMismatch | InDoubt


# Answers of renew.


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """The lease runs anew from now."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lost:
    """The claim is not this execution's any more."""


Renewed = Held | Lost


# Answers of complete.


@dataclass(frozen=True, slots=True, kw_only=True)
class Completed:
    """The result is on record."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Late:
    """The lease had lapsed or the record was gone, but nobody else had finished: the result is on record."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Conflict:
    """Another execution finished first: its result stands, as JSON."""

    result_json: str


Finished = Completed | Late | Conflict


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishedStep:
    """A named step and its result, as JSON."""

    name: str
    result_json: str


class Claims(Protocol):
    """A store of claims. Every call raises RedisUnavailableError after ``patience_seconds`` of trying."""

    def begin(
        self,
        execution: Execution,
        *,
        if_interrupted: IfInterrupted = IfInterrupted.REPEAT,
        may_be_forgotten: bool = False,
        permitted_attempt: int | None = None,
        patience_seconds: float = 5.0,
    ) -> Began:
        """Ask to run.

        ``may_be_forgotten``: the message is older than records live, so that there is none proves nothing.
        ``permitted_attempt``: somebody who can know says that this attempt's effect did not happen.
        """
        ...

    def renew(
        self,
        execution: Execution,
        acquired: Acquired,
        *,
        may_restore: bool = False,
        step: FinishedStep | None = None,
        patience_seconds: float = 5.0,
    ) -> Renewed:
        """Extend the lease, and record a finished step.

        ``may_restore``: the caller's own clock says that the lease still runs, so a missing record was lost
        by Redis and is written anew. A step is recorded even where the claim is lost: its effect happened.
        """
        ...

    def complete(
        self,
        execution: Execution,
        result_json: str,
        *,
        acquired: Acquired | None = None,
        patience_seconds: float = 5.0,
    ) -> Finished:
        """Put the result on record, after the effect. ``acquired`` is None where no run preceded."""
        ...

    def abandon(
        self,
        task_name: str,
        key: str,
        token: str,
        *,
        interrupted: bool = False,
        patience_seconds: float = 5.0,
    ) -> bool:
        """Give the claim up; owner only. False where the token does not hold it: nothing changed.

        A run that failed leaves no doubt, and the next may begin at once. ``interrupted``: it was stopped at
        a point that nobody knows (a killed child, a time limit), and ``if_interrupted`` decides.
        """
        ...
