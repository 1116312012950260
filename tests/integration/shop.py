"""A user's shop: tasks that charge, and the provider that they call."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from celery import Celery

from tasks import Idempotency, PermanentFailure, ReliableTask, TransientFailure, install

DEFINITIONS = Path(__file__).parent.parent.parent / "definitions.json"


def charge(cents: int, key: str | None = None) -> dict[str, Any]:
    """The provider: the effect that tests watch."""
    return {"charged": cents, "by": bool(key)}


def shop(redis_url: str) -> Celery:
    """The shop's app, with its tasks."""
    app = install(Celery("shop", set_as_current=False), topology=DEFINITIONS, redis_url=redis_url)

    def task(name: str, *, bind: bool = False, **policy_options: Any) -> Any:
        policy = Idempotency(lease_seconds=2, **policy_options)
        return app.task(
            name=f"payments.{name}", idempotency=policy, bind=bind, transient=TransientFailure, shared=False
        )

    @task("repeat")
    def repeat(cents: int) -> dict[str, Any]:
        """Repeated after an interruption."""
        return charge(cents)

    @task("park", if_interrupted="park")
    def park(cents: int) -> dict[str, Any]:
        """In doubt after an interruption."""
        return charge(cents)

    @task("stepped", bind=True)
    def stepped(self: ReliableTask, cents: int, fails: str | None = None) -> dict[str, Any]:
        """Charges in a step, and then may fail."""
        charged: dict[str, Any] = self.step("charge").run(lambda key: charge(cents, key))
        if fails and self.request.retries == 0:
            raise TransientFailure(fails)
        return charged

    @task("refused")
    def refused(cents: int) -> None:
        """Fails for good."""
        raise PermanentFailure(f"cannot charge {cents}")

    app.finalize()
    return app
