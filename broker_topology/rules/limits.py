"""Rules on limits: how often a message comes back, how long a queue grows, what a running broker holds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from broker_topology.rules.rule import Hit, Rule, Severity
from broker_topology.rules.subject import Role, Subject, on_versions
from broker_topology.topology import Queue
from broker_topology.versions import CLASSIC, QUORUM


def _delivery_limit_missing(subject: Subject) -> Iterator[Hit]:
    for queue in subject.queues(Role.WORK):
        if subject.type_of(queue) != QUORUM:
            continue
        bad = [version for version in subject.versions if subject.effective(queue, version).delivery_limit is None]
        if bad:
            yield Hit(
                object=f"queue {queue.name}",
                message=f"has no delivery limit {on_versions(bad)}: a task that kills its worker does so for ever; "
                "set x-delivery-limit",
            )


def _delivery_limit_negative(subject: Subject) -> Iterator[Hit]:
    bad = [version for version in subject.versions if version.major < 4]
    if not bad:
        return
    for queue in subject.topology.queues:
        limit = queue.arguments.get("x-delivery-limit")
        if isinstance(limit, int) and limit < 0:
            yield Hit(
                object=f"queue {queue.name}",
                message=f"x-delivery-limit {limit} means unlimited from 4.0 on, but {on_versions(bad)} it drops a "
                "message at its first return; set a large number instead",
            )
    for policy in subject.topology.policies:
        limit = policy.definition.get("delivery-limit")
        if isinstance(limit, int) and limit < 0:
            yield Hit(object=f"policy {policy.name}", message=f"delivery-limit {limit} is refused {on_versions(bad)}")


def _classic_work_queue(subject: Subject) -> Iterator[Hit]:
    for queue in subject.queues(Role.WORK):
        if subject.type_of(queue) == CLASSIC:
            yield Hit(
                object=f"queue {queue.name}",
                message="is classic: it has no delivery limit, so a task that kills its worker does so for ever, and "
                "no at-least-once dead-lettering; broker-topology migrate makes it a quorum queue",
            )


def _reject_publish_dlx(subject: Subject) -> Iterator[Hit]:
    for queue in subject.topology.queues:
        effective = subject.effective(queue)
        if effective.type == QUORUM and effective.overflow == "reject-publish-dlx":
            yield Hit(
                object=f"queue {queue.name}",
                message="overflow reject-publish-dlx is for classic queues; a quorum queue takes it and drops its "
                "oldest messages instead",
            )


def _delayed_retry_without_minimum(subject: Subject) -> Iterator[Hit]:
    for queue in subject.topology.queues:
        settings = _settings(subject, queue)
        kind = settings.get("delayed-retry-type", "disabled")
        if kind != "disabled" and "delayed-retry-min" not in settings:
            yield Hit(
                object=f"queue {queue.name}",
                message="has delayed-retry-type without delayed-retry-min: 4.3 refuses the policy, and ignores the "
                "argument",
            )


def _work_queue_expires(subject: Subject) -> Iterator[Hit]:
    for queue in subject.queues(Role.WORK):
        expires = subject.effective(queue).expires
        if expires is not None:
            yield Hit(
                object=f"queue {queue.name}",
                message=f"is deleted with everything in it after {expires} ms without a worker",
            )


def length_below_depth(subject: Subject) -> Iterator[Hit]:
    """Limits that are below what a queue holds now."""
    if subject.live is None:
        return
    for queue in subject.topology.queues:
        effective = subject.effective(queue)
        depth, size = subject.live.messages.get(queue.name, 0), subject.live.bytes.get(queue.name, 0)
        outcome = "refuses publishers" if effective.overflow == "reject-publish" else "drops the oldest messages"
        if effective.max_length is not None and depth > effective.max_length:
            yield Hit(
                object=f"queue {queue.name}",
                message=f"holds {depth} messages, and the length of {effective.max_length} {outcome}",
            )
        if effective.max_length_bytes is not None and size > effective.max_length_bytes:
            yield Hit(
                object=f"queue {queue.name}",
                message=f"holds {size} bytes, and the length of {effective.max_length_bytes} bytes {outcome}",
            )


def _single_copy(subject: Subject) -> Iterator[Hit]:
    live = subject.live
    for queue in subject.topology.queues:
        if subject.type_of(queue) != QUORUM:
            continue
        asked = queue.arguments.get("x-quorum-initial-group-size")
        if live is not None and live.nodes > 1 and live.members.get(queue.name, live.nodes) == 1:
            yield Hit(
                object=f"queue {queue.name}",
                message=f"has one copy in a cluster of {live.nodes} nodes: the loss of its node is its loss",
            )
        elif asked == 1:
            yield Hit(object=f"queue {queue.name}", message="x-quorum-initial-group-size 1 keeps a single copy")
    if live is not None and live.nodes == 1 and any(subject.type_of(q) == QUORUM for q in subject.topology.queues):
        yield Hit(
            object="broker",
            message="is a single node: its quorum queues have one copy each and are down when it is down",
        )


def _dead_letters_retained(subject: Subject) -> Iterator[Hit]:
    if subject.live is None:
        return
    for name, count in subject.live.retained.items():
        if count:
            yield Hit(
                object=f"queue {name}",
                message=f"holds {count} dead letters that its dead-letter exchange could not hand on; the broker "
                "tries again every 180 s",
            )


def _settings(subject: Subject, queue: Queue) -> Mapping[str, Any]:
    policy = subject.effective(queue).policy
    own = {name.removeprefix("x-"): value for name, value in queue.arguments.items()}
    return {**(policy.definition if policy else {}), **own}


_QUORUM = "https://www.rabbitmq.com/docs/quorum-queues"
_LENGTH = "https://www.rabbitmq.com/docs/maxlength"

RULES = (
    Rule(
        id="delivery-limit-missing",
        severity=Severity.ERROR,
        title="A quorum work queue has no delivery limit",
        why="Without a limit, a message that crashes its consumer is delivered for ever; 3.x has none by default.",
        reference=f"{_QUORUM}#poison-message-handling",
        check=_delivery_limit_missing,
    ),
    Rule(
        id="delivery-limit-negative",
        severity=Severity.ERROR,
        title="A negative delivery limit on 3.x",
        why="-1 means unlimited from 4.0 on; before, it drops a message at its first return.",
        reference=f"{_QUORUM}#poison-message-handling",
        check=_delivery_limit_negative,
    ),
    Rule(
        id="classic-work-queue",
        severity=Severity.WARNING,
        title="A work queue is classic",
        why="Classic queues know no delivery limit and no at-least-once dead-lettering, and are not replicated.",
        reference=_QUORUM,
        check=_classic_work_queue,
    ),
    Rule(
        id="reject-publish-dlx-on-quorum",
        severity=Severity.ERROR,
        title="A quorum queue has overflow reject-publish-dlx",
        why="Quorum queues take the value and treat it as drop-head.",
        reference=_LENGTH,
        check=_reject_publish_dlx,
    ),
    Rule(
        id="delayed-retry-without-minimum",
        severity=Severity.ERROR,
        title="Delayed retry without its minimum (4.3)",
        why="The delay of a return grows from delayed-retry-min; without it nothing is delayed.",
        reference=_QUORUM,
        check=_delayed_retry_without_minimum,
    ),
    Rule(
        id="work-queue-expires",
        severity=Severity.ERROR,
        title="A work queue expires",
        why="A queue that expires is deleted with its messages; they are not dead-lettered.",
        reference="https://www.rabbitmq.com/docs/ttl#queue-ttl",
        check=_work_queue_expires,
    ),
    Rule(
        id="length-below-depth",
        severity=Severity.ERROR,
        title="A length limit is below what the queue holds now",
        why="A limit takes effect at once: the excess is dropped, or publishers are refused until it is gone.",
        reference=_LENGTH,
        check=length_below_depth,
    ),
    Rule(
        id="single-copy-quorum",
        severity=Severity.NOTE,
        title="A quorum queue has a single copy",
        why="A quorum queue survives the loss of a node only where a majority of its copies is left.",
        reference=_QUORUM,
        check=_single_copy,
    ),
    Rule(
        id="dead-letters-retained",
        severity=Severity.WARNING,
        title="Dead letters are held back in their source queue",
        why="At-least-once dead-lettering keeps what it cannot hand on, and counts it toward the queue's limits.",
        reference=f"{_QUORUM}#limitations",
        check=_dead_letters_retained,
    ),
)
