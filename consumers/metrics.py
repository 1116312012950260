"""What the drain counts, for Prometheus."""

from __future__ import annotations

from collections import Counter as Tally
from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from consumers.storing import Stored

MAX_SERIES = 300
"""Names come from messages, which anybody may invent; beyond that many they count as ``other``."""


class DrainMetrics:
    """The metrics of one drain process, in a registry of their own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._labels: set[tuple[str, str, str]] = set()
        prefix, registry = "dead_letters", self.registry
        self._stored = Counter(
            f"{prefix}_stored_total", "Letters stored", ["queue", "task", "reason"], registry=registry
        )
        self._known = Counter(f"{prefix}_known_total", "Redeliveries of stored letters", registry=registry)
        self._refused = Counter(f"{prefix}_refused_total", "Letters the database refused", registry=registry)
        self._batch = Histogram(
            f"{prefix}_batch_letters",
            "Letters in one commit",
            buckets=[1, 10, 50, 100, 500, 1000, 2000],
            registry=registry,
        )
        self._commit = Histogram(f"{prefix}_commit_seconds", "Time of one commit", registry=registry)
        self.reconnects = Counter(
            f"{prefix}_broker_reconnects_total", "Connections lost or refused", registry=registry
        )
        self.database_failures = Counter(
            f"{prefix}_database_failures_total", "Batches that had to wait for the database", registry=registry
        )
        self.depth = Gauge(f"{prefix}_queue_depth", "Messages ready in a queue", ["queue"], registry=registry)
        self._oldest = Gauge(
            f"{prefix}_oldest_waiting_seconds", "Age of the oldest letter that is not stored", registry=registry
        )
        self._in_hand = Gauge(f"{prefix}_in_hand", "Letters received and not stored", registry=registry)
        self.turns = Counter(f"{prefix}_turns", "Rounds of the network loop's own clock", registry=registry)
        self.prefetch = Gauge(f"{prefix}_prefetch", "Letters asked for at once", ["queue"], registry=registry)

    def watch(self, *, oldest_seconds: Callable[[], float], in_hand: Callable[[], int]) -> None:
        """Read these when asked."""
        self._oldest.set_function(oldest_seconds)
        self._in_hand.set_function(in_hand)

    def depths(self) -> dict[str, float]:
        """Messages ready in each queue, as last read."""
        return {sample.labels["queue"]: sample.value for metric in self.depth.collect() for sample in metric.samples}

    def oldest_seconds(self) -> float:
        """Age of the oldest letter that waits to be stored."""
        return self.registry.get_sample_value("dead_letters_oldest_waiting_seconds") or 0.0

    def stored(self, batch: Stored, seconds: float) -> None:
        """Count one commit."""
        tally = Tally(
            (s.arrival.letter.queue, s.arrival.letter.task_name or "", s.arrival.letter.reason) for s in batch.new
        )
        for (queue, task, reason), number in tally.items():
            self._stored.labels(*self._bounded(queue, task, reason)).inc(number)
        self._known.inc(batch.known)
        self._refused.inc(len(batch.refused))
        self._batch.observe(len(batch.new) + batch.known)
        self._commit.observe(seconds)

    def _bounded(self, queue: str, task: str, reason: str) -> tuple[str, str, str]:
        labels = (queue, task, reason)
        if labels not in self._labels:
            if len(self._labels) >= MAX_SERIES:
                return "other", "other", "other"
            self._labels.add(labels)
        return labels
