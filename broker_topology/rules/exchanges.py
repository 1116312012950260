"""Rules on exchanges, and on how tasks reach their queue."""

from __future__ import annotations

from collections.abc import Iterator

from broker_topology.delays import shared_keys
from broker_topology.routing import exchange_type
from broker_topology.rules.rule import Hit, Rule, Severity
from broker_topology.rules.subject import Role, Subject
from broker_topology.versions import QUORUM

_TYPES_OF_ALL_BROKERS = frozenset({"direct", "fanout", "headers", "topic"})
_TYPES_OF_SOME = {"x-local-random": "4.0", "x-modulus-hash": "4.3"}


def _alternate_undeclared(subject: Subject) -> Iterator[Hit]:
    for exchange in subject.topology.exchanges:
        name = subject.alternate(exchange.name)
        if name is not None and not subject.exchange_exists(name):
            yield Hit(object=f"exchange {exchange.name}", message=f"its alternate exchange {name!r} is not declared")


def _exchange_without_alternate(subject: Subject) -> Iterator[Hit]:
    for name in _publishing_exchanges(subject):
        if subject.topology.exchange(name) and subject.alternate(name) is None:
            yield Hit(
                object=f"exchange {name}",
                message="confirms and drops what no binding takes, unless it was published as mandatory; give it an "
                "alternate exchange",
            )


def _direct_exchange(subject: Subject) -> Iterator[Hit]:
    for queue in subject.queues(Role.WORK):
        bindings = subject.topology.bindings_of(queue.name)
        kinds = {exchange_type(subject.topology, binding.source) for binding in bindings}
        if subject.type_of(queue) == QUORUM and bindings and "topic" not in kinds:
            yield Hit(
                object=f"queue {queue.name}",
                message="no topic exchange leads to it: Celery's delayed delivery cannot reach it, and an ETA blocks "
                "a worker instead",
            )


def _work_queue_unbound(subject: Subject) -> Iterator[Hit]:
    for queue in subject.queues(Role.WORK):
        if not subject.topology.bindings_of(queue.name):
            yield Hit(
                object=f"queue {queue.name}",
                message="no exchange leads to it: publishers must use the default exchange, where an alternate "
                "exchange cannot catch what is unroutable",
            )


def _shared_key(subject: Subject) -> Iterator[Hit]:
    for shared in shared_keys(subject.topology):
        yield Hit(object=f"queue {shared.queue}", message=str(shared))


def _exchange_type(subject: Subject) -> Iterator[Hit]:
    for exchange in subject.topology.exchanges:
        if exchange.type in _TYPES_OF_ALL_BROKERS:
            continue
        since = _TYPES_OF_SOME.get(exchange.type)
        where = f"exists since {since}" if since else "needs a plugin; a broker without it refuses the file"
        yield Hit(object=f"exchange {exchange.name}", message=f"the type {exchange.type!r} {where}")


def _publishing_exchanges(subject: Subject) -> Iterator[str]:
    """The exchanges that tasks are published to."""
    sources = (
        binding.source for queue in subject.queues(Role.WORK) for binding in subject.topology.bindings_of(queue.name)
    )
    yield from dict.fromkeys(sources)


RULES = (
    Rule(
        id="alternate-undeclared",
        severity=Severity.ERROR,
        title="An alternate exchange is not declared",
        why="Brokers accept it, and what is unroutable is then dropped.",
        reference="https://www.rabbitmq.com/docs/ae",
        check=_alternate_undeclared,
    ),
    Rule(
        id="exchange-without-alternate",
        severity=Severity.WARNING,
        title="An exchange that tasks are published to has no alternate exchange",
        why="A publish that no binding takes is confirmed to its publisher and dropped.",
        reference="https://www.rabbitmq.com/docs/ae",
        check=_exchange_without_alternate,
    ),
    Rule(
        id="direct-exchange-with-delays",
        severity=Severity.WARNING,
        title="No topic exchange leads to a work queue",
        why="Celery's delayed delivery routes by topic; with a direct exchange delayed tasks wait in a worker.",
        reference="https://docs.celeryq.dev/en/stable/getting-started/backends-and-brokers/rabbitmq.html",
        check=_direct_exchange,
    ),
    Rule(
        id="work-queue-unbound",
        severity=Severity.WARNING,
        title="No exchange leads to a work queue",
        why="The default exchange has no alternate exchange and takes no delayed messages.",
        reference="https://www.rabbitmq.com/docs/exchanges",
        check=_work_queue_unbound,
    ),
    Rule(
        id="routing-key-shared-by-delays",
        severity=Severity.ERROR,
        title="The routing key of a work queue ends with that of another",
        why="Celery binds work queues to the end of a delay by the end of the key, so both get a delayed message.",
        reference="https://docs.celeryq.dev/en/stable/getting-started/backends-and-brokers/rabbitmq.html",
        check=_shared_key,
    ),
    Rule(
        id="exchange-type-of-some",
        severity=Severity.NOTE,
        title="An exchange type that not every broker has",
        why="A broker without the type refuses the exchange, and an import of the whole file.",
        reference="https://www.rabbitmq.com/docs/exchanges",
        check=_exchange_type,
    ),
)
