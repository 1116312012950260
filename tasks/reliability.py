"""What ``install`` puts on a Celery app: ready objects that its tasks and workers use."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from broker_topology.errors import ConfigurationError
from broker_topology.topology import Topology
from tasks.retry_policy import RetryPolicy

if TYPE_CHECKING:
    from celery import Celery

    from tasks.claims import Claims
    from tasks.metrics import WorkerMetrics
    from tasks.note_writer import NoteWriter


@dataclass(frozen=True, slots=True, kw_only=True)
class Reliability:
    """The parts that make one Celery app reliable."""

    topology: Topology
    claims: Claims
    notes: NoteWriter
    retry_policy: RetryPolicy
    """What holds for a task that sets nothing."""
    delivery_limits: Mapping[str, int]
    """For each work queue, how often the broker takes a message back before it dead-letters it."""
    metrics: WorkerMetrics
    release: str | None = None
    """Version of the user's app, for failure notes."""


def reliability_of(app: Celery) -> Reliability:
    """The app's parts. Raises ConfigurationError where ``install`` was not called."""
    reliability = getattr(app, "reliability", None)
    if not isinstance(reliability, Reliability):
        raise ConfigurationError(f"tasks.install(app, ...) was not called on the Celery app {app.main!r}")
    return reliability
