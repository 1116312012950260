"""Celery's result backend, kept from changing what becomes of a message.

With the backend away Celery dead-letters a task that succeeded, leaves a copy of a retry in the dead-letter queue,
and ends the worker over an unknown task. Here a result that cannot be stored is logged and lost; for a task with
an idempotency key, and for none other, it is stored later: the message comes back and finds its claim done.
"""

from __future__ import annotations

from typing import Any

import structlog
from celery import Task
from celery.backends.base import DisabledBackend

from broker_topology.message import IDEMPOTENCY_KEY_HEADER
from tasks.idempotency import COME_BACK_SECONDS

log = structlog.get_logger(__name__)

MOST_RETURNS = 30
RETURNS_HEADER = "result_returns"


class ForgivingBackend:
    """A result backend whose failures are logged. What is not written here is the backend's own."""

    def __init__(self, backend: Any, task: Task) -> None:
        self._backend, self._task = backend, task

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backend, name)

    def mark_as_done(self, task_id: str, result: Any, request: Any = None, *args: Any, **options: Any) -> None:
        """Store a result and count a chord's part; what has a key comes back to do it later."""
        try:
            self._backend.mark_as_done(task_id, result, request, *args, **options)
        except Exception as error:  # whatever the backend's driver raises
            log.warning("result.not_stored", task=self._task.name, task_id=task_id, error=repr(error))
            if request is not None and request.get(IDEMPOTENCY_KEY_HEADER) is not None:
                self._store_later(request)

    def _store_later(self, request: Any) -> None:
        """Let the message come back, without its callbacks, which are published already; not for ever."""
        returns = int(request.get(RETURNS_HEADER) or 0) + 1
        if returns > MOST_RETURNS:
            return
        try:
            self._task.signature_from_request(
                request,
                countdown=COME_BACK_SECONDS,
                retries=request.retries,
                link=None,
                chain=None,
                headers={RETURNS_HEADER: returns},
            ).apply_async()
        except Exception as error:  # the task has succeeded: nothing may change that any more
            log.warning("result.not_stored_later", task=self._task.name, error=repr(error))

    def mark_as_failure(self, task_id: str, error: BaseException, *args: Any, **options: Any) -> None:
        """Store a failure, fail a chord and call the errbacks."""
        self._forgive("mark_as_failure", task_id, error, *args, **options)

    def mark_as_retry(self, task_id: str, *args: Any, **options: Any) -> None:
        """Store that a retry is on its way."""
        self._forgive("mark_as_retry", task_id, *args, **options)

    def mark_as_revoked(self, task_id: str, *args: Any, **options: Any) -> None:
        """Store that the task was revoked or expired."""
        self._forgive("mark_as_revoked", task_id, *args, **options)

    def store_result(self, task_id: str, *args: Any, **options: Any) -> None:
        """Store a state, such as STARTED."""
        self._forgive("store_result", task_id, *args, **options)

    def process_cleanup(self) -> None:
        """Give back what one task used."""
        self._forgive("process_cleanup")

    def _forgive(self, method: str, *args: Any, **options: Any) -> None:
        try:
            getattr(self._backend, method)(*args, **options)
        except Exception as error:  # whatever the backend's driver raises
            log.warning("result.not_stored", task=self._task.name, call=method, error=repr(error))


def forgiving(backend: Any, task: Task) -> Any:
    """The backend as a reliable task uses it; the disabled one as it is."""
    return backend if isinstance(backend, DisabledBackend) else ForgivingBackend(backend, task)
