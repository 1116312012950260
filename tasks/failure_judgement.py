"""How a table of failures judges an exception (pure).

Exceptions are matched by the names of their classes, so no library is imported that the user has not. The most
specific class that a row speaks of decides; rows of one class are asked in the order of the table.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum

from tasks.failure_signals import Signal, candidates, causes, names, retry_after_seconds

MAX_DEPTH = 5
"""How many wrappers are opened: an error can be its own cause."""


class Verdict(StrEnum):
    """What a row says of the exceptions that it speaks of."""

    TRANSIENT = "transient"
    PERMANENT = "permanent"
    AS_CAUSE = "as its cause"
    """A wrapper: what is inside decides."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One line of the reference."""

    library: str
    exceptions: tuple[str, ...]
    """Classes by module and name; subclasses are meant too. ``PEP 249 Error`` is every driver's."""
    verdict: Verdict
    signal: Signal | None = None
    """What else has to be looked at; None where the class says enough."""
    values: Collection[object] = ()
    """The row speaks of exceptions with one of these values; with none given, of those that have any."""
    because: str

    def speaks_of(self, error: BaseException) -> bool:
        """Whether the row's condition holds for an exception of one of its classes."""
        if self.signal is None:
            return True
        found = candidates(error, self.signal)
        return any(value in self.values for value in found) if self.values else bool(found)

    def because_of(self, error: BaseException) -> str:
        """Why the verdict holds for an exception, in words."""
        if self.signal is None:
            return self.because
        return f"{self.signal} {candidates(error, self.signal)[0]}: {self.because}"

    @property
    def title(self) -> str:
        """What tells the row from others, such as ``HTTP transient HTTP status``."""
        return f"{self.library} {self.verdict} {self.signal or ''}".strip()

    @property
    def condition(self) -> str:
        """The condition in words, empty where there is none."""
        if self.signal is None:
            return ""
        if isinstance(self.values, range):
            return f"{self.signal} {self.values[0]} to {self.values[-1]}"
        return f"{self.signal} {', '.join(str(value) for value in self.values)}".strip()


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """What the reference says of one exception."""

    verdict: Verdict
    """Never AS_CAUSE."""
    signal: Signal | None
    """What the row had to look at."""
    because: str
    retry_after_seconds: float | None = None
    """What the server asked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reference:
    """A table of rows that judges exceptions."""

    rows: tuple[Row, ...]
    _by_name: Mapping[str, Sequence[Row]] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        by_name: dict[str, list[Row]] = {}
        for row in self.rows:
            for name in row.exceptions:
                by_name.setdefault(name, []).append(row)
        object.__setattr__(self, "_by_name", by_name)

    def judge(self, error: BaseException, *, now: datetime) -> Judgement | None:
        """Transient, permanent, or None where no row speaks of the exception."""
        found = self._find(error, MAX_DEPTH)
        if found is None:
            return None
        row, why = found
        return Judgement(
            verdict=row.verdict,
            signal=row.signal,
            because=why,
            retry_after_seconds=retry_after_seconds(error, now),
        )

    def deciding_row(self, error: BaseException) -> Row | None:
        """The row that judges an exception or what it wraps; None where no row speaks of it."""
        found = self._find(error, MAX_DEPTH)
        return found[0] if found else None

    def _find(self, error: BaseException, depth: int) -> tuple[Row, str] | None:
        for name in names(error):
            for row in self._by_name.get(name, ()):
                if not row.speaks_of(error):
                    continue
                if row.verdict is not Verdict.AS_CAUSE:
                    return row, row.because_of(error)
                if inner := self._find_in_causes(error, row, depth):
                    return inner
        return None

    def _find_in_causes(self, error: BaseException, row: Row, depth: int) -> tuple[Row, str] | None:
        for cause in causes(error) if depth else ():
            if not row.values or any(name in row.values for name in names(cause)):
                return self._find(cause, depth - 1)
        return None
