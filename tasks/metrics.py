"""What a worker measures of its guarded runs, for Prometheus: how near they come to the end of their lease."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Histogram


class WorkerMetrics:
    """The metrics of one worker, in a registry of their own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._lease_share = Histogram(
            "reliable_task_lease_share",
            "Time of a guarded run over the lease of its claim; a run above 1 lives by its renewals",
            ["task"],
            buckets=[0.1, 0.25, 0.5, 0.75, 0.9, 1, 2, 5, 10],
            registry=self.registry,
        )

    def guarded_run(self, task_name: str, *, seconds: float, lease_seconds: float) -> None:
        """A guarded run has ended, in whatever way."""
        self._lease_share.labels(task_name).observe(seconds / lease_seconds)
