"""What must hold before a worker takes its first message; it refuses to start with one clear sentence."""

from __future__ import annotations

import os
from typing import Any, Final

import structlog
from amqp.exceptions import AccessRefused, ChannelError, NotFound, PreconditionFailed
from celery import Celery
from kombu import Connection

from broker_topology.declare import kombu_queues
from broker_topology.effective import matches
from broker_topology.errors import DeadLetterOfficeError
from broker_topology.topology import Queue, Topology
from tasks.errors import RedisUnavailableError
from tasks.redis_checks import Severity, check_claims
from tasks.reliability import reliability_of
from tasks.reliable_task import ReliableTask

log = structlog.get_logger(__name__)

EX_CONFIG: Final = os.EX_CONFIG
"""Exit code of a worker that refuses to start: starting it again will not help."""

BROKERS_OWN_TIMEOUT_SECONDS: Final = 1800
FIRST_DELAY: Final = "celery_delayed_27"


class StartupError(DeadLetterOfficeError):
    """The worker cannot start."""


def check_before_start(app: Celery, connection: Connection) -> None:
    """Check tasks, broker and Redis. Raises StartupError, in one sentence; what is only risky is logged."""
    reliability = reliability_of(app)
    _check_tasks(app)
    check_broker(reliability.topology, connection)
    _check_time_limits(app, reliability.topology)
    try:
        findings = check_claims(reliability.claims)
    except RedisUnavailableError as error:
        log.warning("startup.redis_away", error=str(error))
        return
    for finding in findings:
        if finding.severity is Severity.REFUSE:
            raise StartupError(finding.message)
        log.warning("startup.redis", code=finding.code, message=finding.message)


def _check_tasks(app: Celery) -> None:
    for name, task in app.tasks.items():
        if not isinstance(task, ReliableTask):
            raise StartupError(f"task {name} must have ReliableTask as its base: its failures would be lost")
        if task.idempotency and task.policy.covers().total_seconds() > task.idempotency.retention_seconds:
            # Its last retries would find that their key's record may have gone, which is a doubt.
            log.warning(
                "startup.retries_outlast_retention",
                task=name,
                retries_seconds=task.policy.covers().total_seconds(),
                retention_seconds=task.idempotency.retention_seconds,
            )


def check_broker(topology: Topology, connection: Connection) -> None:
    """See that exchanges and queues are there, as the topology says. Raises StartupError."""
    exchanges = {queue.dead_letter_exchange for queue in topology.work_queues}
    for name in [*sorted(filter(None, exchanges)), FIRST_DELAY]:
        _ask(connection, f"exchange {name}", "exchange_declare", exchange=name, type="topic", passive=True)
    for queue in kombu_queues(topology):
        _ask(connection, f"queue {queue.name}", "queue_declare", queue=queue.name, passive=True)
        _ask(
            connection,
            f"queue {queue.name}",
            "queue_declare",
            queue=queue.name,
            durable=queue.durable,
            auto_delete=queue.auto_delete,
            exclusive=False,
            arguments=dict(queue.queue_arguments or {}),
        )


def _ask(connection: Connection, what: str, method: str, **arguments: Any) -> None:
    """One question on a channel of its own, since a wrong answer closes it."""
    channel = connection.channel()
    try:
        getattr(channel, method)(**arguments)
    except NotFound as error:
        raise StartupError(f"{what} is missing on the broker: run broker-topology deploy") from error
    except PreconditionFailed as error:
        raise StartupError(f"{what} is not what the topology says: {error.reply_text}") from error
    except AccessRefused:
        pass  # a worker with few rights may not declare, so it cannot compare
    except ChannelError as error:
        raise StartupError(f"{what} cannot be used: {error.reply_text}") from error
    finally:
        if channel.is_open:
            channel.close()


def _check_time_limits(app: Celery, topology: Topology) -> None:
    """A task that may run longer than the broker waits for its ack is taken back while it still runs."""
    shortest = shortest_consumer_timeout(topology)
    for name, task in app.tasks.items():
        if task.time_limit and task.time_limit > shortest:
            log.warning(
                "startup.time_limit_beyond_consumer_timeout",
                task=name,
                time_limit_seconds=task.time_limit,
                consumer_timeout_seconds=shortest,
            )


def shortest_consumer_timeout(topology: Topology) -> float:
    """How long the broker waits for an ack, in seconds: from arguments and policies of the file, or its default."""
    return min(
        (_consumer_timeout(topology, queue) for queue in topology.work_queues), default=BROKERS_OWN_TIMEOUT_SECONDS
    )


def _consumer_timeout(topology: Topology, queue: Queue) -> float:
    policies = [
        policy.definition.get("consumer-timeout") for policy in topology.policies if matches(policy, queue.name)
    ]
    said = [value for value in (queue.arguments.get("x-consumer-timeout"), *policies) if isinstance(value, int)]
    return min(said) / 1000 if said else BROKERS_OWN_TIMEOUT_SECONDS
