"""Celery's Consumer with the holes closed: what Celery would ack, drop or crash on is rejected.

The setting ``worker_consumer`` names it. A rejected message goes to the dead-letter exchange of its queue; a note
beside it says why.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import structlog
from amqp.exceptions import ResourceLocked
from celery.exceptions import InvalidTaskError, WorkerShutdown
from celery.worker import state
from celery.worker.consumer import Consumer

from tasks.attempt_notes import workers_note
from tasks.failure_text import describe_error
from tasks.handing_back import hand_back
from tasks.hostile_messages import read_hostile_messages
from tasks.reliability import reliability_of
from tasks.request import DeliveredTooOftenError, ReliableRequest
from tasks.startup import EX_CONFIG, StartupError, check_before_start

log = structlog.get_logger(__name__)


class ReliableConsumer(Consumer):  # type: ignore[misc]
    """Receives messages; whatever cannot become a task run is dead-lettered with a note."""

    never_started: Sequence[ReliableRequest] = ()
    is_checked = was_ready = False

    class Blueprint(Consumer.Blueprint):  # type: ignore[misc]
        """Without the step that makes the delay queues: deploy makes them, before the first publish."""

        default_steps: ClassVar[list[str]] = [
            step for step in Consumer.Blueprint.default_steps if "delayed_delivery" not in step
        ]

    def __init__(self, *args: Any, **options: Any) -> None:
        read_hostile_messages()
        super().__init__(*args, **options)

    def on_decode_error(self, message: Any, exc: BaseException) -> None:
        """Celery acks what it cannot decode, and it is gone."""
        self._dead_letter(message, "undecodable", exc)

    def on_unknown_message(self, body: Any, message: Any) -> None:
        """A message that is no task at all."""
        del body
        self._dead_letter(message, "invalid_message", InvalidTaskError("the message is not that of a task"))

    def on_unknown_task(self, body: Any, message: Any, exc: BaseException) -> None:
        """A task that this worker does not have. Celery would ask the result backend first, and may die of it."""
        del body
        self._dead_letter(message, "unknown_task", exc)

    def on_invalid_task(self, body: Any, message: Any, exc: BaseException) -> None:
        """A task message of a form that cannot be run."""
        del body
        reason = "delivered_too_often" if isinstance(exc, DeliveredTooOftenError) else "invalid_message"
        self._dead_letter(message, reason, exc)

    def create_task_handler(self, *args: Any, **kwargs: Any) -> Callable[[Any], Any]:
        """Tell each message which queue it came from, and let none of them kill the worker."""
        receive = super().create_task_handler(*args, **kwargs)

        def on_task_received(message: Any) -> Any:
            message.delivery_info["queue"] = self._queue_of(message)
            try:
                return receive(message)
            except self.connection_errors + self.channel_errors:
                raise
            except Exception as error:
                if message.acknowledged:
                    log.exception("message.settled_then_failed", error=type(error).__name__)
                else:
                    self._dead_letter(message, "invalid_message", error)
                return None

        return on_task_received

    def update_strategies(self) -> None:
        """Called on each connection, before the first message: see once that all is in place."""
        if not self.is_checked:
            try:
                check_before_start(self.app, self.connection)
                self.is_checked = True
            except StartupError as error:
                log.critical("worker.refuses_to_start", reason=str(error))
                raise WorkerShutdown(EX_CONFIG) from error
        super().update_strategies()

    def on_connection_error_after_connected(self, exc: BaseException) -> None:
        """From 4.3 on a node name belongs to one worker; a second one of that name would try for ever."""
        if isinstance(exc, ResourceLocked) and not self.was_ready:
            log.critical("worker.refuses_to_start", reason=f"another worker is named {self.hostname}")
            raise WorkerShutdown(EX_CONFIG) from exc
        super().on_connection_error_after_connected(exc)

    def on_ready(self) -> None:
        """Celery calls this when the first message may come."""
        self.was_ready = True
        super().on_ready()

    def on_close(self) -> None:
        """Celery forgets here which messages no child has started: remember them for the shutdown."""
        limited = [request for bucket in self.task_buckets.values() if bucket for request, _ in bucket.contents]
        waiting = {*state.reserved_requests, *state.scheduled_requests, *limited}
        self.never_started = [request for request in waiting if request not in state.active_requests]
        super().on_close()

    def shutdown(self) -> None:
        """The pool has ended by now: give back what it never started."""
        try:
            if self.connection:
                hand_back(self.app, self.connection, {*self.never_started, *state.reserved_requests})
        except Exception as error:
            log.warning("worker.not_handed_back", error=repr(error))
        super().shutdown()

    def _queue_of(self, message: Any) -> str | None:
        tag = message.delivery_info.get("consumer_tag")
        tags: Mapping[str, str] = self.task_consumer._active_tags
        return next((queue for queue, active in tags.items() if active == tag), None)

    def _dead_letter(self, message: Any, reason: str, error: BaseException) -> None:
        headers = message.headers if isinstance(message.headers, Mapping) else {}
        log.error("message.rejected", reason=reason, task=headers.get("task"), error=describe_error(error)[1])
        reliability_of(self.app).notes.failure(headers, workers_note(headers, reason, error, self.hostname))
        if not message.acknowledged:
            message.reject_log_error(log, self.connection_errors, requeue=False)
