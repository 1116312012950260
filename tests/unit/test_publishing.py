"""What is refused before anything reaches the broker."""

from __future__ import annotations

import pytest
from celery import Celery
from celery.exceptions import QueueNotFound
from structlog.testing import capture_logs

from tasks import Idempotency, ReliableTask, install
from tasks.errors import MissingKeyError
from tests.conftest import DEFINITIONS


@pytest.fixture
def app() -> Celery:
    """A publisher's app with one guarded and one unguarded task, and no broker."""
    app = Celery("shop", broker="amqp://127.0.0.1:1", set_as_current=False)
    install(app, topology=DEFINITIONS, redis_url="redis://127.0.0.1:1")

    def body(order_id: str) -> str:
        return order_id

    app.task(name="payments.guarded", shared=False, idempotency=Idempotency())(body)
    app.task(name="payments.unguarded", shared=False)(body)
    app.finalize()
    return app


def headers(app: Celery, name: str, **options: object) -> dict[str, object]:
    """The headers that a message would have."""
    return dict(app.amqp.as_task_v2("id-1", name, ("order-1",), **options).headers)


def test_guarded_task_without_a_key_is_refused(app: Celery) -> None:
    """Publishing a guarded task without a key raises at once, and the error says what to pass. (I3)"""
    with pytest.raises(MissingKeyError, match="idempotency_key="):
        app.tasks["payments.guarded"].delay("order-1")
    with pytest.raises(MissingKeyError):
        app.send_task("payments.guarded", ("order-1",))


@pytest.mark.parametrize("key", ["", "   ", "k" * 10_000, "a\x00b", "a\nb", 17, b"k"])
def test_unusable_key_is_refused_with_the_reason(app: Celery, key: object) -> None:
    """A key that cannot be stored or shown is refused, guarded or not. (I3)"""
    for name in ("payments.guarded", "payments.unguarded"):
        with pytest.raises(MissingKeyError, match="cannot take this idempotency key: it "):
            app.tasks[name].apply_async(("order-1",), idempotency_key=key)


def test_key_travels_in_the_headers(app: Celery) -> None:
    """The caller's key is a header of its own, whether given as an option or kept from an earlier attempt. (I3)"""
    assert headers(app, "payments.guarded", idempotency_key="k-1")["idempotency_key"] == "k-1"
    assert headers(app, "payments.guarded", headers={"idempotency_key": "k-2"})["idempotency_key"] == "k-2"
    assert "idempotency_key" not in headers(app, "payments.unguarded")


def test_task_is_routed_by_its_name(app: Celery) -> None:
    """The first part of a task's name is its work queue, where there is one of that name."""
    route = app.amqp.router.route({}, "crm.anything")
    assert route["queue"].name == "crm"


def test_task_without_a_queue_is_refused(app: Celery) -> None:
    """A name that leads to no queue is refused with the queues that there are, never put into some queue. (D2)"""
    with pytest.raises(QueueNotFound, match=r"no queue for task billing\.charge.*payments, notifications, crm"):
        app.send_task("billing.charge")
    with pytest.raises(QueueNotFound, match="paymnets"):
        app.send_task("billing.charge", queue="paymnets")


def test_own_default_queue_is_kept() -> None:
    """A default queue that the user chose from the topology takes what nothing else routes."""
    app = Celery("shop", set_as_current=False)
    app.conf.task_default_queue = "crm"
    install(app, topology=DEFINITIONS, redis_url="redis://127.0.0.1:1")
    assert app.amqp.router.route({}, "billing.charge")["queue"].name == "crm"


def test_settings_of_the_app_that_cannot_stay_are_named() -> None:
    """What the app had chosen and reliability cannot do with. (I1)"""
    app = Celery("shop", broker="amqp://127.0.0.1:1", set_as_current=False)
    app.conf.update(worker_prefetch_multiplier=8, task_serializer="yaml", task_acks_late=True, timezone="Europe/Rome")
    with capture_logs() as logs:
        install(app, topology=DEFINITIONS, redis_url="redis://127.0.0.1:1")
    (warning,) = logs
    assert warning["settings"] == ["worker_prefetch_multiplier", "task_serializer"]


def test_every_way_to_declare_a_task_is_reliable(app: Celery) -> None:
    """``@app.task`` and class-based tasks have the reliable base and its settings. (I1, R6)"""

    class Refund(ReliableTask):
        name = "payments.refund"
        max_retries = 7

        def run(self) -> None:
            """Do nothing."""

    app.register_task(Refund())
    for name in ("payments.guarded", "payments.refund"):
        task = app.tasks[name]
        assert isinstance(task, ReliableTask)
        assert task.acks_late
        assert task.reject_on_worker_lost
        assert not task.acks_on_failure
        assert not task.acks_on_timeout
    assert app.tasks["payments.refund"].policy.max_retries == 7
