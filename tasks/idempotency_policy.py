"""A task's declared policy of idempotency. Pure: it reaches nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from tasks.claim import IfInterrupted
from tasks.errors import PolicyError
from tasks.reconciliation import Doubt, Reconciled


class RedisDown(StrEnum):
    """What a delivery does while Redis is away."""

    WAIT = "wait"
    """The message waits in the broker, at no cost in retries."""
    LEDGER = "ledger"
    """The task runs without a claim: only where its effects are in the ledger."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Idempotency:
    """How a task keeps a second run from doing its work twice. Raises PolicyError for what cannot be kept."""

    lease_seconds: float = 60.0
    """How long a claim lives without renewal; it is renewed while the task runs."""
    retention_seconds: float = 86_400.0
    """How long a result answers duplicates, and how old a message may be before no record means doubt."""
    if_interrupted: IfInterrupted | str = IfInterrupted.REPEAT
    redis_down: RedisDown | str = RedisDown.WAIT
    ignore_arguments: tuple[str, ...] = ()
    """Argument names that do not count as payload, such as a timestamp of the publisher's."""
    max_result_bytes: int = 64 * 1024
    """A result larger than this, as JSON, is replaced by a placeholder on record."""
    reconcile: Callable[[Doubt], Reconciled] | None = None
    """Asks the provider whether the effect of an interrupted run happened, and settles it without a person."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "if_interrupted", _member(IfInterrupted, self.if_interrupted, "if_interrupted"))
        object.__setattr__(self, "redis_down", _member(RedisDown, self.redis_down, "redis_down"))
        object.__setattr__(self, "ignore_arguments", _names(self.ignore_arguments))
        for name in ("lease_seconds", "retention_seconds", "max_result_bytes"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < float("inf"):
                raise PolicyError(f"{name} is {value!r}; it must be a number above 0")
        if self.retention_seconds < self.lease_seconds:
            raise PolicyError(
                f"retention_seconds ({self.retention_seconds:g}) is shorter than lease_seconds "
                f"({self.lease_seconds:g}): the record would vanish under a running task"
            )
        if self.reconcile is not None and not callable(self.reconcile):
            raise PolicyError(f"reconcile is {self.reconcile!r}; it must be callable")


def _member(kind: type[StrEnum], value: str, name: str) -> StrEnum:
    try:
        return kind(value)
    except ValueError:
        words = " or ".join(repr(member.value) for member in kind)
        raise PolicyError(f"{name} is {value!r}; it must be {words}") from None


def _names(value: object) -> tuple[str, ...]:
    if isinstance(value, str) or not isinstance(value, Sequence) or not all(isinstance(n, str) for n in value):
        raise PolicyError(f"ignore_arguments is {value!r}; it must be a tuple of argument names")
    return tuple(value)
