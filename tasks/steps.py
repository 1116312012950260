"""Named steps: what a finished part of a task left behind, so that the next attempt skips it.

    with self.claim.step("charge") as step:
        if not step.done:
            step.result = provider.charge(..., idempotency_key=step.provider_key)
    charge_id = step.result["id"]

or, in one line, ``charge = self.claim.step("charge").run(lambda key: provider.charge(..., idempotency_key=key))``.
"""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Any, Protocol, Self, TypeVar

from tasks.errors import StepError
from tasks.results import is_placeholder

R = TypeVar("R")


class StepKeeper(Protocol):
    """The claim, as a step needs it."""

    def ensure_held(self) -> None:
        """Raise LeaseLostError where the claim is lost."""
        ...

    def save_step(self, name: str, result: Any) -> None:
        """Record a finished step. Raises LeaseLostError, after recording, where the claim is lost."""
        ...


class Step:
    """One named step of a running task."""

    def __init__(self, keeper: StepKeeper, name: str, *, provider_key: str, done: bool, result: Any = None) -> None:
        self._keeper, self.name = keeper, name
        self.provider_key = provider_key
        """The same in every attempt: hand it to services that have idempotency keys of their own."""
        self.done = done
        """Whether an earlier attempt finished this step."""
        self._result = result

    @property
    def result(self) -> Any:
        """What the step's effect returned, in this attempt or an earlier one.

        Raises StepError where an earlier attempt's result could not be kept.
        """
        if self.done and is_placeholder(self._result):
            raise StepError(f"step {self.name!r} was done, but its result was not kept: {self._result}")
        return self._result

    @result.setter
    def result(self, value: Any) -> None:
        if self.done:
            raise StepError(f"step {self.name!r} was done by an earlier attempt: ask step.done before its effect")
        self._result = value

    def run(self, effect: Callable[[str], R]) -> R:
        """Call ``effect(provider_key)`` unless an earlier attempt did; either way, return its result."""
        with self:
            if not self.done:
                self.result = effect(self.provider_key)
        result: R = self.result
        return result

    def __enter__(self) -> Self:
        if not self.done:
            self._keeper.ensure_held()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None and not self.done:
            self._keeper.save_step(self.name, self._result)
