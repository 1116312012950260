"""What a running task and its base may ask of its claim, whoever keeps it."""

from __future__ import annotations

import time
from types import TracebackType
from typing import Any, Protocol, Self

from billiard.exceptions import SoftTimeLimitExceeded

from broker_topology.message import key_problem
from tasks.claim import Execution
from tasks.errors import StepError
from tasks.steps import Step


class HeldClaim(Protocol):
    """What a running task and its base may ask of its claim."""

    @property
    def fence(self) -> int | None:
        """For database writes: a write with a lower fence than the row's comes from a stale run."""
        ...

    @property
    def attempt(self) -> int:
        """1 for the first run of the key."""
        ...

    @property
    def key(self) -> str:
        """The caller's idempotency key."""
        ...

    @property
    def effect_key(self) -> str:
        """The caller's key with the task's name: unique among tasks, for the ledger."""
        ...

    @property
    def provider_key(self) -> str:
        """Stable across attempts: for services that have idempotency keys of their own."""
        ...

    @property
    def lease_share(self) -> float:
        """How near the run has come to its lease: 1.0 is a whole lease since begin."""
        ...

    def ensure_held(self) -> None:
        """Call before an effect. Raises LeaseLostError where the claim is another run's by now."""
        ...

    def step(self, name: str) -> Step:
        """A named step, to be used once under this name in one run."""
        ...

    def complete(self, result: Any) -> Any:
        """Record the result after the effect; returns what the caller gets: the one that stands."""
        ...

    def abandon(self, *, interrupted: bool = False) -> None:
        """Give the claim up without a result. ``interrupted``: at a point that nobody knows."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class KeyedClaim:
    """What any claim knows of its own key and time."""

    def __init__(self, execution: Execution, *, began_at: float) -> None:
        self._execution = execution
        self._began_at = began_at
        """On the monotonic clock."""
        self._opened: set[str] = set()

    @property
    def key(self) -> str:
        """The caller's idempotency key."""
        return self._execution.key

    @property
    def effect_key(self) -> str:
        """The caller's key with the task's name: unique among tasks, for the ledger."""
        return self._execution.effect_key

    @property
    def provider_key(self) -> str:
        """Stable across attempts: for services that have idempotency keys of their own."""
        return self._execution.provider_key()

    @property
    def lease_share(self) -> float:
        """How near the run has come to its lease: 1.0 is a whole lease since begin."""
        return (time.monotonic() - self._began_at) / self._execution.lease_seconds


def is_interruption(kind: type[BaseException] | None) -> bool:
    """Whether an exception strikes at any line, so that nobody knows whether the effect happened.

    Soft time limits do, ``SystemExit`` and ``KeyboardInterrupt``.
    """
    return kind is not None and (not issubclass(kind, Exception) or issubclass(kind, SoftTimeLimitExceeded))


def check_step(name: str, opened: set[str]) -> None:
    """Refuse a name that is empty, or used before in this run: the second use would skip its effect."""
    if problem := key_problem(name):
        raise StepError(f"a step's name cannot be used: {problem}")
    if name in opened:
        raise StepError(f"step {name!r} is used twice in one run: give each its own name, such as {name + '-2'!r}")
    opened.add(name)
