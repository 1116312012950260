"""Deliveries of one guarded task, as the task base makes them."""

from __future__ import annotations

from typing import Any

from tasks.idempotency import Guard, HeldClaim, Idempotency, Run, Settlement
from tests.integration.claim_stores import Store

TASK = "payments.charge_customer"


def deliver(
    store: Store,
    *,
    key: str = "order-1",
    token: str | None = None,
    args: tuple[Any, ...] = ("order-1", 1250),
    age_seconds: float | None = None,
    settlement: Settlement | None = None,
    **policy: Any,
) -> Any:
    """One delivery: the verdict."""
    store.settle()
    guard = Guard(
        store.claims,
        Idempotency(**policy),
        task_name=TASK,
        key=key,
        token=token,
        args=args,
        age_seconds=age_seconds,
        settlement=settlement,
    )
    verdict = guard.begin()
    store.settle()
    return verdict


def running(store: Store, **options: Any) -> HeldClaim:
    """One delivery that is let in."""
    verdict = deliver(store, **options)
    assert isinstance(verdict, Run), verdict
    return verdict.claim


def interrupt(store: Store, **options: Any) -> None:
    """One delivery whose child is killed; its parent, which made the token, says so."""
    running(store, token="killed", **options)
    assert store.claims.abandon(TASK, options.get("key", "order-1"), "killed", interrupted=True)
    store.settle()
