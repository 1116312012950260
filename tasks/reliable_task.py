"""The Celery Task base: one attempt of one message, from the claim to success, a retry or a dead letter."""

from __future__ import annotations

import inspect
import json
import random
import sys
import time
from dataclasses import replace
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, ClassVar, NoReturn, cast

from celery import Celery, Task
from celery.app.task import Context
from celery.exceptions import Ignore, Reject, Retry
from celery.signals import task_success
from kombu.exceptions import OperationalError
from kombu.utils.json import loads as kombu_loads

from broker_topology.errors import DeadLetterOfficeError
from broker_topology.message import (
    ATTEMPT_HISTORY_HEADER,
    EDITED_FROM_HEADER,
    IDEMPOTENCY_KEY_HEADER,
    PUBLISHED_AT_HEADER,
    edited_from,
    is_broker_history,
)
from broker_topology.settlement import SETTLEMENT_HEADER, Settlement
from tasks.attempt_notes import history_with, note_failure, note_outcome
from tasks.errors import (
    LeaseLostError,
    NotGuardedError,
    PolicyError,
    ResultNotSerializableError,
    ResultUnrecordedError,
    TaskExitedError,
)
from tasks.held_claim import HeldClaim
from tasks.idempotency import COME_BACK_SECONDS, AlreadyDone, ComeBack, Guard, Refuse, Run
from tasks.idempotency_policy import Idempotency
from tasks.reliability import reliability_of
from tasks.result_backend import forgiving
from tasks.results import declared_result_problem
from tasks.retry_policy import GiveUp, GiveUpReason, RetryIn, RetryPolicy
from tasks.steps import Step


class ReliableTask(Task):  # type: ignore[misc]
    """A task whose every road ends in success or in the dead-letter queue.

    Declare what holds for it as options of ``@app.task`` (or class attributes)::

        @app.task(bind=True, transient=(ConnectionError,), max_retries=2, idempotency=Idempotency())
        def charge(self, order_id: str, amount_cents: int) -> str: ...
    """

    abstract = True
    Request = "tasks.request:ReliableRequest"

    idempotency: ClassVar[Idempotency | None] = None
    """What guards the task against running twice; publishing it then needs ``idempotency_key=``."""

    retry_policy: ClassVar[RetryPolicy | None] = None
    """The task's own policy; None takes the one given to ``install``."""

    transient: ClassVar[Any] = None
    """Short for the same policy with these transient failures; so is ``max_retries``."""

    dead_letter: ClassVar[bool] = True
    """False leaves a low-risk task out: its failures are acked and gone, as in Celery without us."""

    drop_expired: ClassVar[bool] = False
    """True drops a message that waited past its ``expires``, rather than dead-lettering it."""

    drop_revoked: ClassVar[bool] = False
    """True drops a message whose task was revoked, rather than dead-lettering it."""

    policy: ClassVar[RetryPolicy]
    """The effective policy: set when the task is bound to its app."""

    has_default_policy: ClassVar[bool]
    """Whether the task says nothing of its own about retries."""

    @classmethod
    def on_bound(cls, app: Celery) -> None:
        """Work out the effective policy. Raises PolicyError for one that cannot be kept.

        Raises ResultNotSerializableError where a guarded task declares a result that JSON cannot hold.
        """
        _settle_acks(cls)
        if getattr(cls, "autoretry_for", ()):
            raise PolicyError(
                f"task {cls.name} sets autoretry_for, which swallows what its own code rejects: use transient="
            )
        reliability = getattr(app, "reliability", None)
        policy = cls.retry_policy or (reliability.retry_policy if reliability else RetryPolicy())
        if cls.transient is not None:
            policy = replace(policy, transient=cls.transient)
        declares_limit = _declares(cls, "max_retries")
        if not declares_limit:
            cls.max_retries = policy.max_retries
        elif cls.max_retries is not None or not str(cls.name).startswith("celery."):
            # None is Celery's word for "for ever"; only Celery's own tasks may use it.
            policy = replace(policy, max_retries=cls.max_retries)
        cls.policy = policy
        if cls.idempotency is not None and (problem := declared_result_problem(cls.run)):
            raise ResultNotSerializableError(f"task {cls.name} is guarded, so its result is kept as JSON: {problem}")
        cls.has_default_policy = cls.retry_policy is None and cls.transient is None and not declares_limit

    @property
    def backend(self) -> Any:
        """The result backend, whose failures do not change what becomes of a message."""
        return forgiving(super().backend, self)

    @property
    def claim(self) -> HeldClaim:
        """The claim that this run holds. Raises NotGuardedError in a run without a key."""
        claim = getattr(self.request, "running_claim", None)
        if claim is None:
            raise NotGuardedError(f"{self.name} runs without an idempotency key, so it holds no claim")
        return cast(HeldClaim, claim)

    def step(self, name: str) -> Step:
        """A named step whose result is remembered under this run's claim: a retry skips what is done."""
        return self.claim.step(name)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run one attempt; called as a plain function, just the body."""
        request = self.request
        if request.called_directly:
            return super().__call__(*args, **kwargs)
        if request.is_eager:
            return self.run(*args, **kwargs)
        request.began_at = time.monotonic()
        return self._attempt(request, args, kwargs)

    def _attempt(self, request: Context, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run the body once; what it raises decides what becomes of the message."""
        try:
            return self._run_guarded(request, args, kwargs)
        except (Ignore, Retry):
            raise
        except ResultUnrecordedError as error:
            settlement = Settlement(result_json=error.result_json)
            self._come_back(COME_BACK_SECONDS, settlement)
        except LeaseLostError:
            self._come_back(COME_BACK_SECONDS)
        except Reject as rejection:
            if not rejection.requeue:
                self._note_failure(request, rejection, "rejected")
            raise
        except SystemExit as exit_:
            # Celery's own exits and those that a signal asks for are negative or kinds of it; this one is the task's.
            if type(exit_) is not SystemExit or (isinstance(exit_.code, int) and exit_.code < 0):
                raise
            failure = TaskExitedError(f"the task called sys.exit({exit_.code!r})")
            self._note_failure(request, failure, GiveUpReason.PERMANENT)
            raise failure from exit_
        except Exception as error:
            if request.get("gave_up_by_hand"):
                self._note_failure(request, error, GiveUpReason.RETRIES_EXHAUSTED)
                raise
            match self.policy.decide(error, request.retries, now=datetime.now(UTC), random=random.random):
                case RetryIn(seconds=seconds):
                    self.retry(exc=error, countdown=seconds)
                case GiveUp(reason=reason):
                    self._note_failure(request, error, reason)
            raise

    def _run_guarded(self, request: Context, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run the body under the claim on the caller's key, where there is one."""
        key = request.get(IDEMPOTENCY_KEY_HEADER)
        if key is None:
            return self.run(*args, **kwargs)
        guard = Guard(
            reliability_of(self.app).claims,
            self.idempotency or Idempotency(),
            task_name=self.name,
            key=key,
            token=request.delivery_info["claim_token"],
            args=args,
            kwargs=kwargs,
            parameters=_parameters(self.run),
            age_seconds=_age_seconds(request.get(PUBLISHED_AT_HEADER)),
            settlement=Settlement.from_header(request.get(SETTLEMENT_HEADER)),
            edited_from=_edited_from(request.get(EDITED_FROM_HEADER)),
        )
        match guard.begin():
            case AlreadyDone(result=result):
                return result
            case ComeBack(after_seconds=seconds):
                self._come_back(min(seconds, COME_BACK_SECONDS))
            case Refuse(error=error):
                raise error
            case Run(claim=claim):
                request.running_claim = claim
        with claim:
            return claim.complete(self.run(*args, **kwargs))

    def _come_back(self, seconds: float, settlement: Settlement | None = None) -> NoReturn:
        """Publish the same message again with a delay, at no cost in retries, and let this one be acked."""
        headers = {SETTLEMENT_HEADER: settlement.to_header()} if settlement else {}
        again = self.signature_from_request(
            self.request, countdown=max(1.0, seconds), retries=self.request.retries, headers=headers
        )
        try:
            again.apply_async()
        except (DeadLetterOfficeError, OperationalError, OSError) as error:
            # Back to its queue, slowly: each return counts toward the delivery limit.
            time.sleep(COME_BACK_SECONDS)
            raise Reject(error, requeue=True) from error
        raise Ignore(f"comes back in {seconds:.0f} s")

    def retry(
        self,
        args: Any = None,
        kwargs: Any = None,
        exc: BaseException | None = None,
        throw: bool = True,
        eta: datetime | None = None,
        countdown: float | None = None,
        max_retries: int | None = None,
        **options: Any,
    ) -> Any:
        """Celery's own retry, on the same road: the same history, and the policy's delay where none is given.

        Raises Retry once the message is published again, and ``exc`` where the limit is reached.
        """
        request = self.request
        limit = self.max_retries if max_retries is None else max_retries
        if not (request.called_directly or request.is_eager):
            request.gave_up_by_hand = limit is not None and request.retries >= limit
            if not eta and countdown is None and not _declares(type(self), "default_retry_delay"):
                countdown = self.policy.delay(request.retries, random.random)
            headers = {ATTEMPT_HISTORY_HEADER: history_with(request, exc or sys.exception())}
            options["headers"] = {**(options.get("headers") or {}), **headers}
        try:
            return super().retry(args, kwargs, exc, throw, eta, countdown, max_retries, **options)
        except Reject as rejection:
            # The broker did not take the retry, or did not say so in time.
            self._note_failure(request, rejection.reason, "retry_refused")
            raise
        finally:
            # Celery leaves a limit for one message on the task itself, where other messages would meet it.
            self.__dict__.pop("override_max_retries", None)

    def retry_in(self, seconds: float, *, because: BaseException | None = None) -> Retry:
        """Retry by hand after a delay that the failure decides: ``raise self.retry_in(30, because=error)``."""
        return cast(Retry, self.retry(exc=because, countdown=seconds, throw=False))

    def signature_from_request(
        self,
        request: Context | None = None,
        args: Any = None,
        kwargs: Any = None,
        queue: str | None = None,
        **extra: Any,
    ) -> Any:
        """The message to publish again: to the queue that this one came from, without the broker's history."""
        request = self.request if request is None else request
        headers = {name: value for name, value in (request.headers or {}).items() if not is_broker_history(name)}
        headers.update(extra.pop("headers", None) or {})
        queue = queue or (request.delivery_info or {}).get("queue")
        return super().signature_from_request(request, args, kwargs, queue=queue, headers=headers, **extra)

    def _note_failure(self, request: Context, error: BaseException, reason: str) -> None:
        if self.dead_letter:
            note_failure(reliability_of(self.app), request, error, reason)


@task_success.connect(weak=False)
def _note_success(sender: Any = None, **_: Any) -> None:
    """Only now, with its callbacks published and its result stored, has a replayed message succeeded."""
    if isinstance(sender, ReliableTask) and not sender.request.is_eager:
        note_outcome(reliability_of(sender.app), sender.request)


def _declares(task: type[Task], name: str) -> bool:
    """Whether a task's own classes set an attribute, rather than Celery's or ours."""
    own = task.__mro__[: task.__mro__.index(ReliableTask)]
    return any(name in vars(kind) for kind in own)


def _settle_acks(task: type[ReliableTask]) -> None:
    """A message is acked after its run, and rejected where that failed, unless the task was left out by name."""
    if not task.dead_letter:
        task.acks_on_failure = task.acks_on_timeout = True
        task.reject_on_worker_lost = False
        return
    for name, must_be in (
        ("acks_late", True),
        ("acks_on_failure", False),
        ("acks_on_timeout", False),
        ("reject_on_worker_lost", True),
    ):
        if getattr(task, name) is not must_be and not str(task.name).startswith("celery."):
            raise PolicyError(
                f"task {task.name} sets {name}={getattr(task, name)}, which loses messages; "
                "dead_letter=False leaves a low-risk task out by name"
            )


@lru_cache(maxsize=1024)
def _parameters(run: Any) -> tuple[str, ...]:
    """The names of a task's positional parameters, without ``self``."""
    try:
        return tuple(inspect.signature(run).parameters)
    except (TypeError, ValueError):
        return ()


def _edited_from(header: object) -> tuple[list[Any], dict[str, Any]] | None:
    """The call before an edit, as kombu decodes one: a Decimal rather than the object that it travels as."""
    call = edited_from(header)
    try:
        return None if call is None else tuple(kombu_loads(json.dumps(call)))
    except (ValueError, KeyError, TypeError, RecursionError):
        return None


def _age_seconds(published_at: object) -> float | None:
    try:
        published = datetime.fromisoformat(published_at) if isinstance(published_at, str) else None
    except ValueError:
        return None
    return (datetime.now(UTC) - published).total_seconds() if published and published.tzinfo else None
