"""Rules on the queues where dead letters end: nothing may leave them but by a drain."""

from __future__ import annotations

from collections.abc import Iterator

from broker_topology.rules.rule import Hit, Rule, Severity
from broker_topology.rules.subject import Role, Subject, on_versions
from broker_topology.versions import CLASSIC, QUORUM

ENOUGH_RETURNS = 100_000
"""A delivery limit that no crash-looping drain reaches before somebody looks."""


def _dlq_drops_returned(subject: Subject) -> Iterator[Hit]:
    for queue in subject.queues(Role.DEAD_LETTER, Role.UNROUTABLE):
        if subject.type_of(queue) != QUORUM:
            continue
        limits = {version: subject.effective(queue, version).delivery_limit for version in subject.versions}
        bad = [version for version, limit in limits.items() if limit is not None and limit < ENOUGH_RETURNS]
        if bad:
            limit = limits[bad[0]]
            yield Hit(
                object=f"queue {queue.name}",
                message=f"drops a message after {max(limit or 0, 0)} returns {on_versions(bad)}, and a drain that "
                "crash-loops returns it that often; set x-delivery-limit to 1000000, which is safe on all versions",
            )


def _dlq_can_drop(subject: Subject) -> Iterator[Hit]:
    for queue in subject.queues(Role.DEAD_LETTER, Role.UNROUTABLE):
        effective = subject.effective(queue)
        reasons = []
        if effective.message_ttl is not None:
            reasons.append(f"messages expire after {effective.message_ttl} ms")
        if effective.expires is not None:
            reasons.append(f"the queue is deleted after {effective.expires} ms without a consumer")
        if effective.bounded and effective.overflow != "reject-publish":
            reasons.append(f"a full queue drops its oldest messages (overflow {effective.overflow})")
        for reason in reasons:
            yield Hit(object=f"queue {queue.name}", message=f"{reason}: dead letters would be gone for good")


def _classic_dead_letter_queue(subject: Subject) -> Iterator[Hit]:
    for queue in subject.queues(Role.DEAD_LETTER, Role.UNROUTABLE):
        if subject.type_of(queue) == CLASSIC:
            nodes = subject.live.nodes if subject.live else 0
            where = f", and this cluster has {nodes} nodes" if nodes > 1 else ""
            yield Hit(
                object=f"queue {queue.name}",
                message=f"is classic: it lives on one node alone and is away with it{where}; make it a quorum queue",
            )


_QUORUM = "https://www.rabbitmq.com/docs/quorum-queues"

RULES = (
    Rule(
        id="dlq-drops-returned",
        severity=Severity.ERROR,
        title="A dead-letter queue has a delivery limit within reach",
        why="From 4.0 a quorum queue drops a message after 20 returns unless told otherwise, and a DLQ has no DLX; "
        "on 3.x a limit of -1 drops at the first return.",
        reference=f"{_QUORUM}#poison-message-handling",
        check=_dlq_drops_returned,
    ),
    Rule(
        id="dlq-can-drop",
        severity=Severity.ERROR,
        title="A dead-letter queue expires, or drops when it is full",
        why="What leaves a dead-letter queue by TTL, expiry or drop-head has no further place to go.",
        reference="https://www.rabbitmq.com/docs/ttl",
        check=_dlq_can_drop,
    ),
    Rule(
        id="classic-dead-letter-queue",
        severity=Severity.WARNING,
        title="A dead-letter queue is classic",
        why="A classic queue is not replicated: while its node is down nothing can be dead-lettered to it.",
        reference=_QUORUM,
        check=_classic_dead_letter_queue,
    ),
)
