"""Celery's Consumer and Request, with the holes closed: what Celery would ack, drop or crash on is rejected.

Both are Celery's own hooks: the setting ``worker_consumer`` and the attribute ``Task.Request``. A rejected message
goes to the dead-letter exchange of its queue; a note beside it says why.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from numbers import Real
from typing import Any, ClassVar

import structlog
from amqp.exceptions import ResourceLocked
from billiard.einfo import ExceptionWithTraceback
from celery.exceptions import (
    Ignore,
    InvalidTaskError,
    Reject,
    Retry,
    TaskRevokedError,
    TimeLimitExceeded,
    WorkerLostError,
    WorkerShutdown,
)
from celery.worker import state
from celery.worker.consumer import Consumer
from celery.worker.request import Request

from broker_topology.message import IDEMPOTENCY_KEY_HEADER, REPLAY_ID_HEADER
from broker_topology.notes import FailureNote
from tasks.claim import new_token
from tasks.errors import RedisUnavailableError
from tasks.failure_text import describe_error
from tasks.handing_back import hand_back
from tasks.hostile_messages import read_hostile_messages
from tasks.reliability import Reliability, reliability_of
from tasks.startup import EX_CONFIG, StartupError, check_before_start

ABANDON_PATIENCE_SECONDS = 1.0
"""The worker's main process waits no longer for Redis; the lease then has to lapse."""

MOST_DELIVERIES = 50
"""A message that was handed out so often without being settled will never be."""

log = structlog.get_logger(__name__)


class DeliveredTooOftenError(InvalidTaskError):  # type: ignore[misc]
    """A message was handed out again and again and never settled."""


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
        reliability_of(self.app).notes.failure(headers, _note(headers, reason, error, self.hostname))
        if not message.acknowledged:
            message.reject_log_error(log, self.connection_errors, requeue=False)


class ReliableRequest(Request):  # type: ignore[misc]
    """One message on its way through this worker; speaks for a child that can no longer speak."""

    _began_at: float | None = None

    def __init__(self, message: Any, **options: Any) -> None:
        super().__init__(message, **options)
        self._refuse_malformed()
        self._refuse_endless(message)
        # In delivery_info, since Celery copies any other addition into the headers of a retry.
        self._delivery_info["queue"] = message.delivery_info.get("queue")
        self._delivery_info["claim_token"] = new_token()

    def on_accepted(self, pid: int, time_accepted: float) -> None:
        """A child has begun to run it; ``time_accepted`` is on the monotonic clock."""
        self._began_at = time_accepted
        super().on_accepted(pid, time_accepted)

    def acknowledge(self) -> None:
        """The run is over, and the message with it."""
        self._measure()
        super().acknowledge()

    def reject(self, requeue: bool = False) -> None:
        """The run is over: the message is dead-lettered, or goes back."""
        self._measure()
        super().reject(requeue)

    def on_timeout(self, soft: bool, timeout: float) -> None:
        """A task over its hard limit is dead-lettered at once, rather than run again to the delivery limit."""
        if not soft and not state.should_terminate:
            self._give_up("time_limit", TimeLimitExceeded(timeout))
        super().on_timeout(soft, timeout)

    def on_failure(self, exc_info: Any, send_failed_event: bool = True, return_ok: bool = False) -> Any:
        """Settle the message before Celery touches the result backend, which may be down."""
        error = exc_info.exception
        if isinstance(error, ExceptionWithTraceback):
            error = error.exc
        lost = False
        if not state.should_terminate:
            match error:
                case MemoryError():
                    # Celery raises it again in the worker's main process and so ends the worker. The child has
                    # left its note, unless memory was too short for that as well.
                    self._give_up("out_of_memory", error, only_if_missing=True)
                    if not self.acknowledged:
                        self.acknowledge()
                    state.task_ready(self)
                    return None
                case TimeLimitExceeded():
                    self._give_up("time_limit", error)
                case WorkerLostError() | SystemExit() | KeyboardInterrupt():
                    lost = True
                    self._note("worker_lost", error)
                    self._abandon_claim()
                case Reject():
                    self.reject(requeue=error.requeue)
                case Exception() if self.task.dead_letter and not isinstance(error, Ignore | Retry):
                    # Where the task's own code was over, or had not begun, nothing has left word yet.
                    self._note("failed", error, only_if_missing=True)
        returned = super().on_failure(exc_info, send_failed_event, return_ok)
        if lost and self._is_last_delivery() and not self._success_was_stored():
            # No Python is left to say so: fail the chord, call the errbacks.
            self.task.backend.mark_as_failure(self.id, error, request=self._context, store_result=self.store_errors)
        return returned

    def maybe_expire(self) -> bool:
        """Whether the message is past its time. Celery also bars its id for hours, a later replay included."""
        return self.expires is not None and datetime.now(self.expires.tzinfo) > self.expires

    def revoked(self) -> bool:
        """A replay is a person's later word than the revoke of the same id."""
        replayed = isinstance(self._request_dict.get(REPLAY_ID_HEADER), str)
        if replayed and not self.expires and not self._already_revoked:
            return False
        return bool(super().revoked())

    def _announce_revoked(self, reason: str, terminated: bool, signum: Any, expired: bool) -> None:
        """Celery acks what is expired or revoked; here it becomes a dead letter."""
        dropped = self.task.drop_expired if expired else self.task.drop_revoked
        if not dropped:
            self._give_up("expired" if expired else "revoked", TaskRevokedError(f"the task was {reason}"))
        super()._announce_revoked(reason, terminated, signum, expired)

    def _refuse_malformed(self) -> None:
        """Find what would end the worker, leak a pool slot or escape every account later on."""
        if not isinstance(self.id, str) or not self.id:
            raise InvalidTaskError(f"id must be a text, not {self.id!r}")
        retries = self._request_dict.get("retries")
        if not (retries is None or (isinstance(retries, int) and retries >= 0)):
            raise InvalidTaskError(f"retries must be a whole number, not {retries!r}")
        limits = self.time_limits
        if not (
            isinstance(limits, list | tuple)
            and len(limits) == 2
            and all(limit is None or isinstance(limit, Real) for limit in limits)
        ):
            raise InvalidTaskError(f"timelimit must be two numbers or nulls, not {limits!r}")
        embed = self._payload[2]
        if not isinstance(self._args, list | tuple) or not isinstance(self._kwargs, Mapping):
            raise InvalidTaskError("args must be a list and kwargs an object")
        if not (embed is None or isinstance(embed, Mapping)):
            raise InvalidTaskError("the third part of the body must be an object")

    def _refuse_endless(self, message: Any) -> None:
        """From 4.3 on, consumer timeouts do not count toward the delivery limit: stop what would run for ever."""
        acquired = (message.headers or {}).get("x-acquired-count")
        if isinstance(acquired, int) and acquired > MOST_DELIVERIES:
            raise DeliveredTooOftenError(f"delivered {acquired} times and never settled")

    def _is_last_delivery(self) -> bool:
        """Whether the broker dead-letters the message when it is returned once more."""
        returned = self._message.headers.get("x-delivery-count") or 0
        limit = self._reliability.delivery_limits.get(self._delivery_info["queue"])
        return limit is not None and returned >= limit

    def _give_up(self, reason: str, error: BaseException, *, only_if_missing: bool = False) -> None:
        if not self.acknowledged and self.task.dead_letter:
            self._note(reason, error, only_if_missing=only_if_missing)
            self._abandon_claim()
            self.reject(requeue=False)

    def _note(self, reason: str, error: BaseException, *, only_if_missing: bool = False) -> None:
        note = _note(self._request_dict, reason, error, self._hostname, release=self._reliability.release)
        self._reliability.notes.failure(self._request_dict, note, only_if_missing=only_if_missing)

    def _abandon_claim(self) -> None:
        """The child is gone: let the next delivery in at once, rather than at the end of its lease."""
        key = self._request_dict.get(IDEMPOTENCY_KEY_HEADER)
        if isinstance(key, str):
            token = self._delivery_info["claim_token"]
            try:
                self._reliability.claims.abandon(
                    self._type, key, token, interrupted=True, patience_seconds=ABANDON_PATIENCE_SECONDS
                )
            except RedisUnavailableError as error:
                log.warning("claim.not_abandoned", task=self._type, key=key, error=str(error))

    def _measure(self) -> None:
        policy = self.task.idempotency
        if policy is not None and self._began_at is not None and not self.acknowledged:
            seconds = time.monotonic() - self._began_at
            self._reliability.metrics.guarded_run(self._type, seconds=seconds, lease_seconds=policy.lease_seconds)

    @property
    def _reliability(self) -> Reliability:
        return reliability_of(self._app)


def _note(
    headers: Mapping[str, Any],
    reason: str,
    error: BaseException,
    hostname: str,
    *,
    release: str | None = None,
) -> FailureNote:
    error_type, text = describe_error(error)
    retries = headers.get("retries")
    return FailureNote(
        reason=reason,
        error_type=error_type,
        error_message=text,
        failed_at=datetime.now(UTC),
        retries=retries if isinstance(retries, int) else 0,
        hostname=hostname,
        pid=os.getpid(),
        release=release,
    )
