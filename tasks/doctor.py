"""The Celery app, its broker and its Redis together: what loses, loops or blocks a message, and what fixes it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum

from amqp.exceptions import ChannelError
from celery import Celery
from kombu import Connection
from kombu.exceptions import OperationalError

from broker_topology.address import BrokerAddress
from broker_topology.errors import DeadLetterOfficeError
from broker_topology.management import ManagementApi, default_management_url
from broker_topology.topology import Topology
from tasks.errors import RedisUnavailableError
from tasks.installation import SETTINGS
from tasks.redis_checks import Severity, check_claims
from tasks.reliability import Reliability
from tasks.reliable_task import ReliableTask
from tasks.startup import StartupError, check_broker, shortest_consumer_timeout

TYPICAL_LETTER_AGE_SECONDS = 86_400
"""Dead letters wait a day for a person, often longer: a key forgotten before that is in doubt when replayed."""


class Grade(StrEnum):
    """How bad a finding is."""

    ERROR = "error"
    """A message can be lost, loop or block."""
    WARNING = "warning"
    """It depends on what else fails."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that is wrong, and the line that mends it."""

    grade: Grade
    subject: str
    """The setting, task, queue or server that it is about."""
    problem: str
    fix: str


def examine(app: Celery, management_url: str | None = None) -> list[Finding]:
    """Examine an app, installed or not, with whatever of broker and Redis can be reached. Errors come first."""
    app.loader.import_default_modules()
    app.finalize()
    reliability: Reliability | None = getattr(app, "reliability", None)
    findings = [*_settings(app), *_queues(app), *_tasks(app)]
    if reliability is None:
        findings.insert(
            0, _error("app", "reliability is not installed", "tasks.install(app, topology=..., redis_url=...)")
        )
    else:
        findings += [*_broker(app, reliability.topology, management_url), *_redis(reliability)]
    return sorted(findings, key=lambda finding: finding.grade is not Grade.ERROR)


def _error(subject: str, problem: str, fix: str) -> Finding:
    return Finding(grade=Grade.ERROR, subject=subject, problem=problem, fix=fix)


def _warning(subject: str, problem: str, fix: str) -> Finding:
    return Finding(grade=Grade.WARNING, subject=subject, problem=problem, fix=fix)


WITHOUT: dict[str, str] = {
    "task_acks_late": "a worker that is killed loses what it runs",
    "task_reject_on_worker_lost": "a task whose process was killed is acked and gone",
    "task_acks_on_failure": "failed tasks are acked and gone",
    "task_acks_on_timeout": "tasks over their time limit are acked and gone",
    "worker_prefetch_multiplier": "messages wait behind a long task in a worker that others could take",
    "task_create_missing_queues": "a typo makes a queue without a dead-letter exchange",
    "broker_channel_error_retry": "after a consumer timeout the worker idles for ever",
}
"""What happens where a setting is not what ``install`` makes it."""


def _settings(app: Celery) -> Iterator[Finding]:
    for name, problem in WITHOUT.items():
        right = SETTINGS[name]
        if app.conf[name] != right:
            yield _error(name, f"it is {app.conf[name]!r}: {problem}", f"app.conf.{name} = {right!r}")
    if not (app.conf.broker_transport_options or {}).get("confirm_publish"):
        yield _error(
            "broker_transport_options",
            "publishes are not confirmed: a broker that crashes loses them without a word",
            'app.conf.broker_transport_options = {"confirm_publish": True}',
        )


def _queues(app: Celery) -> Iterator[Finding]:
    for name, queue in app.amqp.queues.items():
        arguments = queue.queue_arguments or {}
        if not arguments.get("x-dead-letter-exchange"):
            yield _error(
                f"queue {name}",
                "it has no dead-letter exchange: what is rejected is gone",
                f"broker-topology add-queue definitions.json {name}",
            )
        if arguments.get("x-queue-type") == "quorum" and queue.exchange and queue.exchange.type == "direct":
            yield _error(
                f"queue {name}",
                "its exchange is direct: delayed tasks and retries block the worker until they are due",
                "bind it to a topic exchange",
            )
        if app.conf.task_acks_late and arguments.get("x-queue-type") != "quorum":
            yield _error(
                f"queue {name}",
                "late acks without a delivery limit: a task that kills its worker runs for ever",
                "make it a quorum queue with x-delivery-limit",
            )


def _tasks(app: Celery) -> Iterator[Finding]:
    reliability: Reliability | None = getattr(app, "reliability", None)
    shortest = shortest_consumer_timeout(reliability.topology) if reliability else None
    for name, task in app.tasks.items():
        if name.startswith("celery."):
            continue
        if not isinstance(task, ReliableTask):
            yield _error(f"task {name}", "its base is not ReliableTask: its failures are lost", "base=ReliableTask")
            continue
        if shortest and task.time_limit and task.time_limit > shortest:
            yield _warning(
                f"task {name}",
                f"it may run {task.time_limit:g} s, and the broker takes a message back after {shortest:g} s",
                f"a time_limit below {shortest:g}, or a consumer-timeout policy above it",
            )
        guard = task.idempotency
        if guard and guard.retention_seconds < TYPICAL_LETTER_AGE_SECONDS:
            yield _warning(
                f"task {name}",
                f"its keys are kept {guard.retention_seconds:g} s: a letter replayed later is in doubt",
                "a longer retention_seconds",
            )


def _broker(app: Celery, topology: Topology, management_url: str | None) -> Iterator[Finding]:
    try:
        with app.connection_for_read() as connection:
            connection.ensure_connection(max_retries=1, timeout=5)
            check_broker(topology, connection)
            yield from _undrained(topology, connection)
    except StartupError as error:
        yield _error("broker", str(error), "broker-topology deploy definitions.json")
    except (OSError, OperationalError) as error:
        yield _error("broker", f"it cannot be reached: {error}", "see that AMQP_URL is right and the broker up")
        return
    yield from _retained(app, topology, management_url)


def _undrained(topology: Topology, connection: Connection) -> Iterator[Finding]:
    for name in topology.drained_queues:
        with connection.channel() as channel:
            try:
                consumers = channel.queue_declare(name, passive=True).consumer_count
            except ChannelError as error:
                yield _error(f"queue {name}", error.reply_text, "broker-topology deploy definitions.json")
                continue
        if consumers == 0:
            yield _warning(f"queue {name}", "nobody drains it", "dead-letters drain")


def _retained(app: Celery, topology: Topology, management_url: str | None) -> Iterator[Finding]:
    """Dead letters that the broker holds in their source queue, since they can go nowhere."""
    try:
        address = BrokerAddress.parse(app.conf.broker_url)
        with ManagementApi(management_url or default_management_url(address), address) as management:
            queues = {queue["name"]: queue for queue in management.queues(address.vhost)}
    except DeadLetterOfficeError as error:
        yield _warning("management API", str(error), "name it with MANAGEMENT_URL")
        return
    for queue in topology.work_queues:
        if held := queues.get(queue.name, {}).get("messages_dlx"):
            yield _error(
                f"queue {queue.name}",
                f"{held} dead letters are held in it, since they can go nowhere",
                "broker-topology verify definitions.json",
            )


REDIS_FIXES = {
    "evicts": "maxmemory-policy noeviction",
    "replica": "the address of its master",
    "too_old": "Redis 5.0 or newer",
    "no_persistence": "appendonly yes",
    "loses_a_second": "appendfsync always",
    "unknown_persistence": "appendonly yes",
}


def _redis(reliability: Reliability) -> Iterable[Finding]:
    try:
        findings = check_claims(reliability.claims)
    except RedisUnavailableError as error:
        return [_error("redis", str(error), "see that REDIS_URL is right and the server up")]
    grades = {Severity.REFUSE: _error, Severity.WARN: _warning}
    return [grades[finding.severity]("redis", finding.message, REDIS_FIXES[finding.code]) for finding in findings]
