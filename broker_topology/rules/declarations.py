"""Rules on single entries, queues above all: what a broker refuses, ignores or takes for something else."""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Iterator

from broker_topology.rules.policies import value_problem
from broker_topology.rules.rule import Hit, Rule, Severity
from broker_topology.rules.subject import Subject, is_control_queue, on_versions
from broker_topology.topology import Queue, is_export, topology_of, undeclared_ends
from broker_topology.versions import QUEUE_ARGUMENTS, QUEUE_TYPES, QUORUM, STREAM


def _malformed(subject: Subject) -> Iterator[Hit]:
    _, problems = topology_of(subject.definitions, subject.topology.vhost)
    for problem in problems:
        yield Hit(object=f"{problem.section}[{problem.index}]", message=problem.text)


def _binding_undeclared(subject: Subject) -> Iterator[Hit]:
    if not is_export(subject.definitions):
        yield from _loose_bindings(subject)


def _export_leaves_out(subject: Subject) -> Iterator[Hit]:
    if is_export(subject.definitions) and subject.live is None:
        for hit in _loose_bindings(subject):
            why = "a broker leaves exclusive queues and, from 4.3 on, internal exchanges out of an export"
            yield Hit(object=hit.object, message=f"{hit.message}: {why}")


def _loose_bindings(subject: Subject) -> Iterator[Hit]:
    for problem in undeclared_ends(subject.topology):
        binding = subject.topology.bindings[problem.index]
        yield Hit(object=f"binding {binding.source} -> {binding.destination}", message=problem.text)


def _declared_twice(subject: Subject) -> Iterator[Hit]:
    topology = subject.topology
    sections = (
        ("exchange", topology.exchanges),
        ("queue", topology.queues),
        ("policy", topology.policies),
    )
    for kind, entries in sections:
        for name, count in Counter(entry.name for entry in entries).items():
            if count > 1:
                yield Hit(
                    object=f"{kind} {name}", message=f"is declared {count} times; a broker takes one and says nothing"
                )


def _quorum_property(subject: Subject) -> Iterator[Hit]:
    for queue in subject.topology.queues:
        kind = queue.type
        if kind not in {QUORUM, STREAM}:
            continue
        properties = {
            "not durable": not queue.durable,
            "auto-delete": queue.auto_delete,
            "exclusive": queue.exclusive,
        }
        for name, present in properties.items():
            if present:
                yield Hit(object=f"queue {queue.name}", message=f"a {kind} queue cannot be {name}; brokers refuse it")


def _argument_not_for_type(subject: Subject) -> Iterator[Hit]:
    for queue in subject.topology.queues:
        kind = subject.type_of(queue)
        for name in queue.arguments:
            feature = QUEUE_ARGUMENTS.get(name)
            if feature is None:
                continue
            bad = [version for version in subject.versions if kind not in feature.types_on(version)]
            gone = [version for version in subject.versions if feature.until and version >= feature.until]
            if bad or gone:
                yield Hit(
                    object=f"queue {queue.name}",
                    message=f"{name} is refused on a {kind} queue {on_versions(sorted({*bad, *gone}))}",
                )


def _argument_value(subject: Subject) -> Iterator[Hit]:
    for queue in subject.topology.queues:
        for name, value in queue.arguments.items():
            feature = QUEUE_ARGUMENTS.get(name)
            if feature is not None and (problem := value_problem(feature, value)):
                yield Hit(object=f"queue {queue.name}", message=f"{name} is {value!r}; it must be {problem}")


def _argument_unknown(subject: Subject) -> Iterator[Hit]:
    for queue in subject.topology.queues:
        for name in queue.arguments:
            if name in QUEUE_ARGUMENTS:
                continue
            near = difflib.get_close_matches(name, QUEUE_ARGUMENTS, n=1, cutoff=0.8)
            hint = f"; {near[0]} was meant?" if near else ""
            yield Hit(object=f"queue {queue.name}", message=f"{name} is taken by brokers and does nothing{hint}")


def _argument_too_new(subject: Subject) -> Iterator[Hit]:
    for queue in subject.topology.queues:
        for name in queue.arguments:
            feature = QUEUE_ARGUMENTS.get(name)
            bad = [version for version in subject.versions if feature and version < feature.since]
            if bad:
                yield Hit(object=f"queue {queue.name}", message=f"{name} does nothing {on_versions(bad)}")


def _transient_queue(subject: Subject) -> Iterator[Hit]:
    for queue in subject.topology.queues:
        if not queue.durable and not queue.exclusive and not is_control_queue(queue.name):
            yield Hit(
                object=f"queue {queue.name}",
                message="is transient and not exclusive: it is gone with its node, and the feature is deprecated",
            )


def _queue_type_unknown(subject: Subject) -> Iterator[Hit]:
    for queue in subject.topology.queues:
        if queue.type is not None and queue.type not in QUEUE_TYPES and not _plugin_type(queue):
            yield Hit(object=f"queue {queue.name}", message=f"there is no queue type {queue.type!r}")


def _plugin_type(queue: Queue) -> bool:
    return queue.type is not None and queue.type.startswith(("x-", "rabbit_"))


_QUEUES = "https://www.rabbitmq.com/docs/queues"
_QUORUM = "https://www.rabbitmq.com/docs/quorum-queues"
_DEFINITIONS = "https://www.rabbitmq.com/docs/definitions"

RULES = (
    Rule(
        id="malformed-entry",
        severity=Severity.ERROR,
        title="An entry that cannot be read",
        why="A broker refuses the file, and a broken file at boot stops the node.",
        reference=_DEFINITIONS,
        check=_malformed,
        refused=True,
    ),
    Rule(
        id="binding-undeclared",
        severity=Severity.ERROR,
        title="A binding starts or ends at an object that is not declared",
        why="3.10 ignores such a binding without a word, 4.x refuses the file.",
        reference=_DEFINITIONS,
        check=_binding_undeclared,
        refused=True,
    ),
    Rule(
        id="export-leaves-out",
        severity=Severity.NOTE,
        title="A binding of an export leads to something that the export leaves out",
        why="What is missing is not made by an import or a deploy, and the binding is left out with it.",
        reference=_DEFINITIONS,
        check=_export_leaves_out,
    ),
    Rule(
        id="declared-twice",
        severity=Severity.ERROR,
        title="An object is declared twice",
        why="The second declaration is skipped silently, even where its arguments differ.",
        reference=_DEFINITIONS,
        check=_declared_twice,
        refused=True,
    ),
    Rule(
        id="quorum-property",
        severity=Severity.ERROR,
        title="A quorum queue or stream is exclusive, auto-delete or not durable",
        why="Brokers refuse to declare such a queue.",
        reference=f"{_QUORUM}#feature-comparison",
        check=_quorum_property,
        refused=True,
    ),
    Rule(
        id="argument-not-for-type",
        severity=Severity.ERROR,
        title="A queue argument that the queue's type does not take",
        why="Brokers refuse to declare such a queue: a priority on a quorum queue, a limit on a classic one.",
        reference=f"{_QUORUM}#feature-comparison",
        check=_argument_not_for_type,
        refused=True,
    ),
    Rule(
        id="argument-value",
        severity=Severity.ERROR,
        title="A queue argument of the wrong kind",
        why="Some brokers refuse a number in quotes, others take it and apply no limit at all.",
        reference=f"{_QUEUES}#optional-arguments",
        check=_argument_value,
        refused=True,
    ),
    Rule(
        id="argument-unknown",
        severity=Severity.WARNING,
        title="An x- argument that no broker knows",
        why="Brokers accept any x- argument, so a typo in a safety setting leaves the queue without it.",
        reference=f"{_QUEUES}#optional-arguments",
        check=_argument_unknown,
    ),
    Rule(
        id="argument-too-new",
        severity=Severity.WARNING,
        title="An x- argument that a target version does not know",
        why="An older broker accepts the argument and ignores it.",
        reference=f"{_QUEUES}#optional-arguments",
        check=_argument_too_new,
    ),
    Rule(
        id="queue-type-unknown",
        severity=Severity.ERROR,
        title="A queue type that does not exist",
        why="Brokers refuse to declare such a queue.",
        reference=_QUEUES,
        check=_queue_type_unknown,
        refused=True,
    ),
    Rule(
        id="transient-queue",
        severity=Severity.WARNING,
        title="A queue is transient and not exclusive",
        why="Its messages are gone when its node stops, and the feature is deprecated.",
        reference=f"{_QUEUES}#durability",
        check=_transient_queue,
    ),
)
