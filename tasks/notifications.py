"""Example: an effect without a second line. A mail that is out cannot be rolled back, nor asked about."""

from __future__ import annotations

from celery import shared_task

from tasks.failure_reference import reference
from tasks.idempotency_policy import Idempotency
from tasks.outside import call
from tasks.reliable_task import ReliableTask

WEEK_SECONDS = 7 * 24 * 3600


@shared_task(
    name="notifications.send_order_confirmation",
    bind=True,
    base=ReliableTask,
    transient=reference,
    max_retries=8,
    # Lenient where a duplicate only annoys: an interrupted run is repeated. The marker is kept for a week.
    idempotency=Idempotency(retention_seconds=WEEK_SECONDS, if_interrupted="repeat"),
)
def send_order_confirmation(self: ReliableTask, order_id: str, to: str) -> str:
    """Send the mail that confirms an order, once per key. Returns the mail service's message id."""
    body = {"to": to, "template": "order-confirmation", "order_id": order_id}
    message_id: str = call(self.app, "mail", "POST", "/messages", json=body)["id"]
    return message_id
