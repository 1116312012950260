"""Which failure is worth another attempt, how long to wait for it, and when to give up (pure).

Everything that a task does not name as transient is permanent and fails at once. Waits double up to a cap and
are always jittered. The broker's delay queues count whole seconds and cut the fraction off, so a wait is never
shorter than one second, and already the first one reaches over two of them.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, Self, TypeAlias

from broker_topology.notes import cut
from tasks.errors import PermanentFailure, PolicyError, TransientFailure
from tasks.failure_judgement import Judgement, Reference, Verdict
from tasks.failure_reference import reference
from tasks.failure_signals import Signal, qualified_name, retry_after_seconds

Named: TypeAlias = type[BaseException] | Reference
"""One entry among the transient failures of a policy."""

MOST_RETRIES = 10_000
"""More are a mistake: a longer cap covers the same outage with fewer."""

LONGEST_WAIT_SECONDS = 2.0**28 - 1
"""What Celery's 28 delay queues can hold together."""


class GiveUpReason(StrEnum):
    """Why there is no further attempt."""

    PERMANENT = "permanent"
    RETRIES_EXHAUSTED = "retries_exhausted"


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryIn:
    """Another attempt is worth it."""

    seconds: float
    """At least 1, at most the policy's cap."""
    reason: str
    """Why the failure is transient, in words."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GiveUp:
    """No further attempt."""

    reason: GiveUpReason
    explanation: str
    """Why, in words."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """How a task is retried. Raises PolicyError where it cannot be kept."""

    max_retries: int = 5
    """Attempts after the first one."""
    backoff_seconds: float = 1.0
    """The first wait; later ones grow by ``factor``."""
    factor: float = 2.0
    cap_seconds: float = 600.0
    """No wait is longer, whatever a server asks for."""
    transient: Named | tuple[Named, ...] = ()
    """Exception types and references that are worth a retry; every other failure is permanent."""

    def __post_init__(self) -> None:
        problem = _limits_problem(self) or _transient_problem(self.named)
        if problem:
            raise PolicyError(problem)

    @property
    def named(self) -> tuple[Named, ...]:
        """The transient failures, always as a tuple."""
        return tuple(self.transient) if isinstance(self.transient, tuple | list) else (self.transient,)

    def decide(
        self, error: BaseException, retries: int, *, now: datetime, random: Callable[[], float]
    ) -> RetryIn | GiveUp:
        """What follows on ``error`` after ``retries`` earlier retries.

        ``random`` gives numbers from 0 to 1, as ``random.random`` does.
        """
        judgement = self._judge(error, now)
        if judgement.verdict is not Verdict.TRANSIENT:
            return GiveUp(reason=GiveUpReason.PERMANENT, explanation=judgement.because)
        if retries >= self.max_retries:
            explanation = f"{retries} retries are used up; the last failure: {judgement.because}"
            return GiveUp(reason=GiveUpReason.RETRIES_EXHAUSTED, explanation=explanation)
        seconds = self.delay(retries, random, not_before_seconds=judgement.retry_after_seconds)
        return RetryIn(seconds=seconds, reason=judgement.because)

    def delay(self, retries: int, random: Callable[[], float], *, not_before_seconds: float | None = None) -> float:
        """The wait in seconds after ``retries`` earlier retries, jittered, never over the cap.

        A failing service may ask to be left alone for ``not_before_seconds``. Beyond the cap that cannot be
        kept, and the wait is spread below the cap.
        """
        shortest, longest = self._window(retries)
        asked = not_before_seconds or 0.0
        if asked >= self.cap_seconds:
            shortest, longest = max(1.0, self.cap_seconds / 2), self.cap_seconds
        elif asked > shortest:
            shortest, longest = asked, min(self.cap_seconds, asked + longest - shortest)
        return min(longest, shortest + (longest - shortest) * random())

    def covers(self) -> timedelta:
        """The outage that the schedule outlasts for certain: every wait at its shortest, attempts at no time."""
        waits = (math.floor(self._window(retries)[0]) for retries in range(self.max_retries))
        return timedelta(seconds=sum(waits))

    @classmethod
    def for_outage(cls, outage: str | float | timedelta, **fields: Any) -> Self:
        """The policy with the fewest retries that covers an outage: ``RetryPolicy.for_outage("20m")``.

        ``outage`` is a timedelta, seconds, or a text such as ``90s``, ``20m``, ``1h30m``, ``2d``; ``fields``
        are those of the policy, except for ``max_retries``.
        """
        if "max_retries" in fields:
            raise PolicyError("for_outage works out max_retries itself: leave it out")
        wanted, policy, covered = _seconds(outage), cls(max_retries=0, **fields), 0
        retries = 0
        while covered < wanted:
            covered += math.floor(policy._window(retries)[0])
            retries += 1
            if retries > MOST_RETRIES:
                raise PolicyError(
                    f"an outage of {wanted:g} s would take more than {MOST_RETRIES} retries: raise cap_seconds"
                )
        return cls(max_retries=retries, **fields)

    def _judge(self, error: BaseException, now: datetime) -> Judgement:
        if isinstance(error, PermanentFailure):
            return _permanent("the task says that trying again cannot help")
        if isinstance(error, TransientFailure):
            return _transient("the task says that trying again may help", _asked_by_task(error))
        tables = [entry for entry in self.named if isinstance(entry, Reference)]
        types = tuple(entry for entry in self.named if isinstance(entry, type))
        # A class such as httpx.HTTPStatusError hides both kinds, so its status decides even where it is named.
        by_status = (tables or [reference])[0].judge(error, now=now)
        if by_status and by_status.signal is Signal.HTTP_STATUS and by_status.verdict is Verdict.PERMANENT:
            return by_status
        if isinstance(error, types):
            return _transient(f"{qualified_name(type(error))} is named transient", retry_after_seconds(error, now))
        for table in tables:
            if judgement := table.judge(error, now=now):
                return judgement
        return _permanent(f"{qualified_name(type(error))} is not named transient")

    def _window(self, retries: int) -> tuple[float, float]:
        """The shortest and the longest wait: half and one and a half of the nominal one.

        The longest is two seconds more than the shortest at least, so that failures of the same moment come
        back in two different seconds of a broker that cuts fractions off.
        """
        nominal = self.cap_seconds
        steps = math.log(self.cap_seconds / self.backoff_seconds)
        if self.factor == 1 or retries * math.log(self.factor) < steps:
            nominal = min(self.cap_seconds, self.backoff_seconds * self.factor**retries)
        shortest = max(1.0, nominal / 2)
        return shortest, min(self.cap_seconds, max(shortest + 2, nominal * 1.5))


def _permanent(because: str) -> Judgement:
    return Judgement(verdict=Verdict.PERMANENT, signal=None, because=because)


def _transient(because: str, retry_after: float | None) -> Judgement:
    return Judgement(verdict=Verdict.TRANSIENT, signal=None, because=because, retry_after_seconds=retry_after)


def _asked_by_task(error: TransientFailure) -> float | None:
    asked: object = error.retry_after
    if isinstance(asked, timedelta):
        return asked.total_seconds()
    if isinstance(asked, int | float) and not math.isnan(asked):
        return float(asked)
    return None


def _limits_problem(policy: RetryPolicy) -> str | None:
    if type(policy.max_retries) is not int or not 0 <= policy.max_retries <= MOST_RETRIES:
        return f"max_retries must be a whole number from 0 to {MOST_RETRIES}, not {policy.max_retries!r}"
    for name, least in (("backoff_seconds", 0.001), ("factor", 1), ("cap_seconds", 1)):
        value = getattr(policy, name)
        if type(value) not in (int, float) or not least <= value <= LONGEST_WAIT_SECONDS:
            return f"{name} must be a number from {least:g} to {LONGEST_WAIT_SECONDS:.0f}, not {value!r}"
    if policy.backoff_seconds > policy.cap_seconds:
        return f"backoff_seconds={policy.backoff_seconds:g} is more than cap_seconds={policy.cap_seconds:g}"
    return None


_FOR_CONTROL = frozenset({"celery.exceptions.Retry", "celery.exceptions.Ignore", "celery.exceptions.Reject"})


def _transient_problem(named: tuple[Named, ...]) -> str | None:
    entries: tuple[object, ...] = named
    for entry in entries:
        if isinstance(entry, Reference):
            continue
        if not isinstance(entry, type) or not issubclass(entry, BaseException):
            return f"transient takes exception types and the reference, not {entry!r}"
        name = qualified_name(entry)
        if entry in (Exception, BaseException):
            return f"{name} among the transient failures would retry every defect: name the specific ones"
        if not issubclass(entry, Exception) or name in _FOR_CONTROL:
            return f"{name} is no failure, so it cannot be transient"
        if issubclass(entry, PermanentFailure):
            return f"{name} says that trying again cannot help, so it cannot be transient"
    return None


_UNITS = {"d": 86_400, "h": 3600, "m": 60, "s": 1}


def _seconds(outage: str | float | timedelta) -> float:
    if isinstance(outage, timedelta):
        seconds = outage.total_seconds()
    elif isinstance(outage, str) and re.fullmatch(r"(\d{1,9}(\.\d+)?[dhms])+", outage):
        seconds = sum(float(number) * _UNITS[unit] for number, unit in re.findall(r"([\d.]+)([dhms])", outage))
    elif isinstance(outage, str):
        raise PolicyError(f"{cut(outage, 100)!r} is no duration: write 90s, 20m, 1h30m or 2d")
    else:
        seconds = float(outage)
    if not 0 <= seconds < math.inf:
        raise PolicyError(f"an outage of {outage!r} is no duration")
    return seconds
