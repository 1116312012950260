"""ENTRY: the Celery app, for ``celery -A tasks worker``."""

from __future__ import annotations

from typing import Any

from celery import Celery
from celery.signals import worker_init

from tasks.installation import install
from tasks.settings import read_settings

settings = read_settings()

app = install(
    Celery("tasks", broker=settings.amqp_url, backend=settings.result_backend),
    topology=settings.topology_file,
    redis_url=settings.redis_url,
    release=settings.release,
)
app.conf.update(
    task_ignore_result=settings.task_ignore_result,
    imports=("tasks.payments", "tasks.notifications", "tasks.crm", *settings.task_modules),
    # What the example tasks need; a task reads them from its app.
    office_database_url=settings.database_url,
    office_payments_url=settings.payments_url,
    office_mail_url=settings.mail_url,
    office_crm_url=settings.crm_url,
    office_http_timeout_seconds=settings.http_timeout_seconds,
)


@worker_init.connect(weak=False)
def create_example_tables(**_: Any) -> None:
    """Once, in the worker's main process: its children would race."""
    from tasks.payments import create_tables  # noqa: PLC0415, the tasks are imported after their app

    create_tables(settings.database_url)
