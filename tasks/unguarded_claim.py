"""What stands in for a claim while Redis is away and the ledger is the guard."""

from __future__ import annotations

import time
from types import TracebackType
from typing import Any, Self

from tasks.claim import Claims, Conflict, Execution
from tasks.errors import RedisUnavailableError
from tasks.held_claim import KeyedClaim, check_step
from tasks.results import keep, restore
from tasks.steps import Step


class UnguardedClaim(KeyedClaim):
    """Stands in for a claim while Redis is away, where the ledger is the guard (``redis_down="ledger"``)."""

    fence: None = None
    attempt = 1

    def __init__(self, claims: Claims, execution: Execution, max_result_bytes: float) -> None:
        super().__init__(execution, began_at=time.monotonic())
        self._claims, self._max_result_bytes = claims, max_result_bytes

    def ensure_held(self) -> None:
        """There is nothing to lose: the ledger decides."""

    def step(self, name: str) -> Step:
        """A named step that nothing remembers: its effect has to be in the ledger too."""
        check_step(name, self._opened)
        key = self._execution.provider_key(name)
        return Step(self, name, provider_key=key, done=False)

    def save_step(self, name: str, result: Any) -> None:
        """Nothing keeps it."""

    def complete(self, result: Any) -> Any:
        """Record the result if Redis is back; else the ledger answers the duplicates."""
        result_json = keep(result, self._max_result_bytes).json
        try:
            answer = self._claims.complete(self._execution, result_json, patience_seconds=0)
        except RedisUnavailableError:
            return result
        return restore(answer.result_json) if isinstance(answer, Conflict) else result

    def abandon(self, *, interrupted: bool = False) -> None:
        """There is nothing to give up."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """There is nothing to end."""
