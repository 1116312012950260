"""The task of ``benchmarks.throughput`` on our side."""

from __future__ import annotations

from celery import shared_task

from tasks import ReliableTask


@shared_task(name="crm.nothing", base=ReliableTask)
def nothing() -> None:
    """Do nothing."""
