"""A guarded task declares a result that its record can hold, or is refused when it is declared."""

from __future__ import annotations

from decimal import Decimal

import pytest
from celery import Celery

from tasks import Idempotency, install
from tasks.errors import ResultNotSerializableError
from tests.conftest import DEFINITIONS


@pytest.fixture
def app() -> Celery:
    """An app without tasks."""
    return install(Celery("shop", set_as_current=False), topology=DEFINITIONS)


def test_a_guarded_task_that_returns_what_json_cannot_hold_is_refused(app: Celery) -> None:
    """The error names the task and the type, long before an effect. (I4)"""

    @app.task(name="payments.total", idempotency=Idempotency(), shared=False)
    def total() -> Decimal:
        return Decimal("1.50")

    with pytest.raises(ResultNotSerializableError, match=r"payments\.total is guarded.*cannot hold a Decimal"):
        app.finalize()


def test_what_json_holds_and_what_is_not_declared_are_taken(app: Celery) -> None:
    """Plain types, no annotation, names that only a type checker knows, and tasks without a guard. (I4)"""

    @app.task(name="payments.plain", idempotency=Idempotency(), shared=False)
    def plain() -> dict[str, list[float]]:
        return {}

    @app.task(name="payments.silent", idempotency=Idempotency(), shared=False)
    def silent():  # type: ignore[no-untyped-def]
        return None

    @app.task(name="payments.unknown", idempotency=Idempotency(), shared=False)
    def unknown() -> OnlyForTypeCheckers:  # type: ignore[name-defined]  # noqa: F821
        return None

    @app.task(name="payments.unguarded", shared=False)
    def unguarded() -> Decimal:
        return Decimal(1)

    app.finalize()
    assert {"payments.plain", "payments.silent", "payments.unknown", "payments.unguarded"} <= set(app.tasks)
