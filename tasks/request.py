"""Celery's Request with the holes closed: one message on its way through a worker.

The attribute ``Task.Request`` names it. It speaks, in the worker's main process, for a child that no longer can.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from datetime import datetime
from numbers import Real
from typing import Any

import structlog
from billiard.einfo import ExceptionWithTraceback
from celery.exceptions import (
    Ignore,
    InvalidTaskError,
    Reject,
    Retry,
    TaskRevokedError,
    TimeLimitExceeded,
    WorkerLostError,
)
from celery.worker import state
from celery.worker.request import Request

from broker_topology.message import IDEMPOTENCY_KEY_HEADER, REPLAY_ID_HEADER
from tasks.attempt_notes import workers_note
from tasks.claim import new_token
from tasks.errors import RedisUnavailableError
from tasks.reliability import Reliability, reliability_of

ABANDON_PATIENCE_SECONDS = 1.0
"""The worker's main process waits no longer for Redis; the lease then has to lapse."""

MOST_DELIVERIES = 50
"""A message that was handed out so often without being settled will never be."""

log = structlog.get_logger(__name__)


class DeliveredTooOftenError(InvalidTaskError):  # type: ignore[misc]
    """A message was handed out again and again and never settled."""


class ReliableRequest(Request):  # type: ignore[misc]
    """One message on its way through this worker."""

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
        returned = self._message.headers.get("x-delivery-count")
        limit = self._reliability.delivery_limits.get(self._delivery_info["queue"])
        return limit is not None and isinstance(returned, int) and returned >= limit

    def _give_up(self, reason: str, error: BaseException, *, only_if_missing: bool = False) -> None:
        if not self.acknowledged and self.task.dead_letter:
            self._note(reason, error, only_if_missing=only_if_missing)
            self._abandon_claim()
            self.reject(requeue=False)

    def _note(self, reason: str, error: BaseException, *, only_if_missing: bool = False) -> None:
        note = workers_note(self._request_dict, reason, error, self._hostname, release=self._reliability.release)
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
