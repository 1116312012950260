"""Publish and run Celery tasks that end in success or in the dead-letter queue."""

from tasks.errors import PermanentFailure, TransientFailure
from tasks.failure_reference import reference
from tasks.idempotency_policy import Idempotency
from tasks.installation import install
from tasks.reliable_task import ReliableTask
from tasks.retry_policy import RetryPolicy

__all__ = [
    "Idempotency",
    "PermanentFailure",
    "ReliableTask",
    "RetryPolicy",
    "TransientFailure",
    "install",
    "reference",
]
