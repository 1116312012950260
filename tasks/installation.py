"""``install``: put reliability on a Celery app, a new one or one that a project already has."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import redis
import structlog
from celery import Celery
from celery.app.defaults import DEFAULTS

from broker_topology.declare import kombu_queues
from broker_topology.delays import shared_keys
from broker_topology.effective import effective_queue
from broker_topology.errors import ConfigurationError
from broker_topology.topology import Topology, read_topology
from broker_topology.versions import OLDEST
from tasks.chords import keep_chords
from tasks.claims import connect_claims
from tasks.metrics import WorkerMetrics
from tasks.metrics_server import offer_metrics
from tasks.note_writer import NoteWriter
from tasks.publishing import OUR_CONSUMER, ReliableAMQP, in_whole_seconds, route_by_name, route_or_refuse
from tasks.reliability import Reliability
from tasks.reliable_task import ReliableTask
from tasks.retry_policy import RetryPolicy

log = structlog.get_logger(__name__)

NOTE_TIMEOUT_SECONDS = 2.0
"""How long a worker waits for Redis to take a note, before it rejects without one."""

SETTINGS: dict[str, Any] = {
    # A message is settled after its run: losing a task silently is worse than running it twice.
    "task_acks_late": True,
    "task_reject_on_worker_lost": True,
    # Celery acks failures and hard timeouts by default, late or not.
    "task_acks_on_failure": False,
    "task_acks_on_timeout": False,
    "worker_prefetch_multiplier": 1,
    "worker_consumer": OUR_CONSUMER,
    # Deploy makes queues; a worker or publisher that made them would make them without a dead-letter exchange.
    "task_create_missing_queues": False,
    "task_default_queue_type": "quorum",
    "task_default_exchange_type": "topic",
    "broker_connection_retry_on_startup": True,
    # A publish that was not confirmed is tried once more, so that its caller hears of it soon.
    "task_publish_retry_policy": {"max_retries": 1, "interval_start": 0.2, "interval_step": 0.2, "interval_max": 1.0},
    # After a consumer timeout up to 4.2 the broker closes the channel; without this the worker idles for ever.
    "broker_channel_error_retry": True,
    # A task goes on over a lost connection; its redelivery meets the claim.
    "worker_cancel_long_running_tasks_on_connection_loss": False,
    "task_ignore_result": True,
    # Where results are kept, a backend that is away must not hold up a worker for long.
    "redis_socket_timeout": 5.0,
    "redis_socket_connect_timeout": 5.0,
    "result_backend_transport_options": {"retry_policy": {"max_retries": 1, "interval_start": 0.1}},
    "task_serializer": "json",
    "accept_content": ["json"],
}


def install(
    app: Celery,
    *,
    topology: Topology | str | Path = "definitions.json",
    redis_url: str = "redis://127.0.0.1:6379/0",
    retry_policy: RetryPolicy | None = None,
    release: str | None = None,
) -> Celery:
    """Make every task of a Celery app reliable. Opens no connection. Returns the app.

    ``topology`` is a definitions file or its values; ``redis_url`` may list several independent servers, separated
    by commas, for claims on a majority; ``retry_policy`` is what holds for a task that sets nothing; ``release``
    is the version of your app, for failure notes.

    Call it once, after the app is configured and before its tasks are declared. Raises ConfigurationError where it
    comes too late, TopologyError for a file that cannot be used.
    """
    if getattr(app, "reliability", None) is not None:
        raise ConfigurationError(f"tasks.install was called before on the Celery app {app.main!r}")
    if not isinstance(topology, Topology):
        topology = read_topology(topology)
    if not topology.work_queues:
        raise ConfigurationError("the topology has no work queue: none has an x-dead-letter-exchange")
    for shared in shared_keys(topology):
        raise ConfigurationError(str(shared))
    _refuse_foreign_tasks(app)
    app.reliability = Reliability(
        topology=topology,
        claims=connect_claims(redis_url),
        notes=NoteWriter(_note_client(redis_url)),
        retry_policy=retry_policy or RetryPolicy(),
        delivery_limits=_delivery_limits(topology),
        metrics=WorkerMetrics(),
        release=release,
    )
    _configure(app, topology)
    keep_chords(app)
    app.amqp_cls = ReliableAMQP
    app.task_cls = ReliableTask
    app.send_task = in_whole_seconds(app.send_task)
    offer_metrics(app)
    for made_already in ("amqp", "Task"):
        app.__dict__.pop(made_already, None)
    return app


def _configure(app: Celery, topology: Topology) -> None:
    if changed := [name for name in SETTINGS if app.conf[name] not in (DEFAULTS[name], SETTINGS[name])]:
        log.warning("install.settings_changed", settings=changed, app=app.main)
    names = [queue.name for queue in topology.work_queues]
    chosen = app.conf.task_default_queue
    default_queue = chosen if chosen in names else None
    routes = app.conf.task_routes or ()
    if not isinstance(routes, list | tuple):
        routes = (routes,)
    app.conf.update(
        SETTINGS,
        task_queues=kombu_queues(topology, no_declare=True),
        task_default_queue=default_queue or names[0],
        task_routes=(
            *routes,
            route_by_name(topology),
            route_or_refuse(topology, default_queue=default_queue),
        ),
        broker_transport_options={
            **(app.conf.broker_transport_options or {}),
            "confirm_publish": True,
        },
    )


def _delivery_limits(topology: Topology) -> dict[str, int]:
    limits = {queue.name: effective_queue(topology, queue, OLDEST).delivery_limit for queue in topology.work_queues}
    return {name: limit for name, limit in limits.items() if limit is not None}


def _refuse_foreign_tasks(app: Celery) -> None:
    """Tasks that were bound before, to Celery's own base, would fail without a dead letter."""
    foreign = sorted(
        name
        for name, task in app._tasks.items()
        if not isinstance(task, ReliableTask) and not name.startswith("celery.")
    )
    if foreign:
        raise ConfigurationError(
            f"call tasks.install(app) before tasks are declared: {', '.join(foreign)} came earlier"
        )


def _note_client(redis_url: str) -> redis.Redis:
    """The first server takes the notes, with a short wait: a note must never hold up a message."""
    return redis.Redis.from_url(
        redis_url.split(",", maxsplit=1)[0].strip(),
        socket_timeout=NOTE_TIMEOUT_SECONDS,
        socket_connect_timeout=NOTE_TIMEOUT_SECONDS,
        retry=None,
    )
