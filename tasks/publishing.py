"""How task messages leave: with a key where one is owed, mandatory, and confirmed.

``ReliableAMQP`` takes the place of Celery's ``app.amqp``, through which ``delay``, ``apply_async``, ``send_task``,
chains, chords, retries and beat all publish.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from functools import wraps
from math import ceil
from typing import Any

from amqp.exceptions import ChannelError, MessageNacked
from celery.app.amqp import AMQP
from celery.exceptions import QueueNotFound
from kombu.exceptions import OperationalError

from broker_topology.errors import ConfigurationError, DeadLetterOfficeError
from broker_topology.message import IDEMPOTENCY_KEY_HEADER, PUBLISHED_AT_HEADER, key_problem
from broker_topology.topology import Topology
from tasks.errors import MissingKeyError, PublishRefusedError, UnroutableTaskError

OUR_CONSUMER = "tasks.worker:ReliableConsumer"
"""The setting by which an installed app is known."""

CONFIRM_TIMEOUT_SECONDS = 15.0
"""How long a publisher waits for the broker's confirm, for example under a memory alarm."""

_DELAY_EXCHANGE_PREFIX = "celery_delayed_"


class ReliableAMQP(AMQP):  # type: ignore[misc]
    """Celery's gate to the broker, which refuses what could be lost."""

    def as_task_v2(self, task_id: str, name: str, *args: Any, idempotency_key: object = None, **options: Any) -> Any:
        """Make the message, with the caller's key in its headers. Raises MissingKeyError."""
        key = idempotency_key
        if key is None:
            key = (options.get("headers") or {}).get(IDEMPOTENCY_KEY_HEADER)
        guarded = getattr(self.app._tasks.get(name), "idempotency", None) is not None
        if guarded or key is not None:
            _check_key(name, key)
        message = super().as_task_v2(task_id, name, *args, **options)
        if key is not None:
            message.headers[IDEMPOTENCY_KEY_HEADER] = key
        message.headers[PUBLISHED_AT_HEADER] = datetime.now(UTC).isoformat()  # a retry's own headers win
        return message

    def _create_task_sender(self) -> Callable[..., Any]:
        if self.app.conf.worker_consumer != OUR_CONSUMER:
            raise ConfigurationError("the app's configuration was replaced after tasks.install: configure it before")
        send = super()._create_task_sender()

        def send_task_message(
            producer: Any, name: str, message: Any, idempotency_key: object = None, **options: Any
        ) -> Any:
            del idempotency_key  # it is in the headers by now
            # Queues are declared by deploy, never by whoever publishes. A task that sets nothing passes None.
            defaults = {"declare": [], "mandatory": True, "confirm_timeout": CONFIRM_TIMEOUT_SECONDS}
            options = {**options, **{name: value for name, value in defaults.items() if options.get(name) is None}}
            # The broker would let it expire inside of a delay queue, and so cut the delay short, or in its work
            # queue, where no worker can say so. The header "expires" holds: the worker checks it.
            options.pop("expiration", None)
            if _is_delayed(options):
                message.headers["eta"] = None  # the broker waits, not the worker
            try:
                return send(_CleanProducer(producer), name, message, **options)
            except BaseException as error:
                if ours := _own_error(name, error):
                    raise ours from error
                raise

        return send_task_message


def in_whole_seconds(send_task: Callable[..., Any]) -> Callable[..., Any]:
    """``app.send_task``, through which everything passes, for delays as the delay queues keep them.

    They count whole seconds. Celery cuts the fraction off, raises for a delay below one second, and would have the
    worker hold the message for the fraction.
    """

    @wraps(send_task)
    def send(
        name: str,
        args: Any = None,
        kwargs: Any = None,
        countdown: float | None = None,
        eta: datetime | None = None,
        **options: Any,
    ) -> Any:
        if isinstance(eta, datetime) and not countdown:
            countdown, eta = max(0.0, (eta - datetime.now(eta.tzinfo)).total_seconds()), None
        return send_task(name, args, kwargs, countdown and ceil(countdown), eta, **options)

    return send


def route_by_name(topology: Topology) -> Callable[..., dict[str, str] | None]:
    """A Celery router: ``payments.charge_customer`` goes to the work queue ``payments``, if there is one."""
    queues = {queue.name for queue in topology.work_queues}

    def route(
        name: str, args: Any, kwargs: Any, options: dict[str, Any], task: Any = None, **_: Any
    ) -> dict[str, str] | None:
        del args, kwargs, task
        if _is_routed(options):
            return None
        queue = name.partition(".")[0]
        return {"queue": queue} if queue in queues else None

    return route


def route_or_refuse(topology: Topology, *, default_queue: str | None) -> Callable[..., dict[str, str] | None]:
    """The last Celery router: a task that nothing else routes goes to the user's own default queue.

    Without one it is refused, rather than put into a queue that nobody chose. Celery's own tasks, such as
    ``celery.chord_unlock``, go to the first work queue.
    """
    names = [queue.name for queue in topology.work_queues]

    def route(
        name: str, args: Any, kwargs: Any, options: dict[str, Any], task: Any = None, **_: Any
    ) -> dict[str, str] | None:
        del args, kwargs, task
        if _is_routed(options):
            return None
        if default_queue is not None:
            return {"queue": default_queue}
        if name.startswith("celery."):
            return {"queue": names[0]}
        raise QueueNotFound(
            f"no queue for task {name}: name one with queue=, task_routes or task_default_queue; "
            f"there are {', '.join(names)}"
        )

    return route


def _is_routed(options: dict[str, Any]) -> bool:
    """Whether the caller chose; a task that chooses nothing passes None."""
    return bool(options.get("queue") or options.get("exchange"))


def _check_key(task_name: str, key: object) -> None:
    if key is None:
        raise MissingKeyError(
            f"{task_name} needs an idempotency key, made where the decision is made: "
            f'apply_async(args=..., idempotency_key="order-charge-17")'
        )
    if problem := key_problem(key):
        raise MissingKeyError(f"{task_name} cannot take this idempotency key: {problem}")


def _own_error(name: str, error: BaseException) -> DeadLetterOfficeError | None:
    """What the broker's answer means; kombu hides it in an OperationalError."""
    cause = error.__cause__ if isinstance(error, OperationalError) else error
    match cause:
        case MessageNacked():
            return PublishRefusedError(f"the broker refused {name}: its queue is full or unavailable")
        case TimeoutError():
            return PublishRefusedError(f"the broker did not confirm {name} in time: it may or may not have it")
        case ChannelError():
            return UnroutableTaskError(f"the broker cannot route {name}: {cause.reply_text}")
        case _:
            return None


def _is_delayed(options: dict[str, Any]) -> bool:
    exchange = options.get("exchange")
    return str(getattr(exchange, "name", exchange) or "").startswith(_DELAY_EXCHANGE_PREFIX)


class _CleanProducer:
    """A producer that drops its connection after each failed publish, those that Celery tries again included.

    A returned or timed-out message leaves its confirm unread on the channel; the next publish would take it for
    its own and call a lost message confirmed.
    """

    def __init__(self, producer: Any) -> None:
        self._producer = producer

    def __getattr__(self, name: str) -> Any:
        return getattr(self._producer, name)

    def publish(self, *args: Any, **options: Any) -> Any:
        try:
            return self._producer.publish(*args, **options)
        except BaseException:
            self._producer.connection.collect(socket_timeout=1)
            raise
