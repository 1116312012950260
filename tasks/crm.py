"""Example: a call that is idempotent by nature, so that it needs no key."""

from __future__ import annotations

from typing import Any

from celery import shared_task

from tasks.failure_reference import reference
from tasks.outside import call
from tasks.reliable_task import ReliableTask


@shared_task(name="crm.sync_customer_record", bind=True, base=ReliableTask, transient=reference, max_retries=4)
def sync_customer_record(self: ReliableTask, customer_id: str, record: dict[str, Any]) -> None:
    """Write a customer's record: PUT leaves the same state however often it is made.

    A customer whom the CRM does not know (404) is a permanent failure, a CRM that is down (503) a transient one.
    """
    call(self.app, "crm", "PUT", f"/customers/{customer_id}", json=record)
