"""Rules on the road from a work queue to its dead-letter queue."""

from __future__ import annotations

from collections.abc import Iterator

from broker_topology.effective import Effective
from broker_topology.rules.rule import Hit, Rule, Severity
from broker_topology.rules.subject import Role, Subject
from broker_topology.topology import Queue
from broker_topology.versions import QUORUM


def _work_queue_without_dlx(subject: Subject) -> Iterator[Hit]:
    for queue in subject.queues(Role.WORK):
        if subject.effective(queue).dead_letter_exchange is None:
            yield Hit(
                object=f"queue {queue.name}",
                message="has no dead-letter exchange: what is rejected, expires or comes back too often is gone; "
                "set x-dead-letter-exchange",
            )


def _dlx_undeclared(subject: Subject) -> Iterator[Hit]:
    for queue in subject.topology.queues:
        name = subject.effective(queue).dead_letter_exchange
        if name is not None and not subject.exchange_exists(name):
            yield Hit(object=f"queue {queue.name}", message=f"its dead-letter exchange {name!r} is not declared")


def _dlx_routes_nowhere(subject: Subject) -> Iterator[Hit]:
    for queue in subject.queues(Role.WORK):
        name = subject.effective(queue).dead_letter_exchange
        if name is None or not subject.exchange_exists(name):
            continue
        for key in subject.dead_letter_keys(queue):
            if not subject.dead_letters_with_key(name, key):
                shown = "any key" if key is None else f"key {key!r}"
                yield Hit(
                    object=f"queue {queue.name}",
                    message=f"its dead-letter exchange {name!r} routes {shown} to no queue, "
                    "and has no alternate exchange that does",
                )


def _dead_letter_cycle(subject: Subject) -> Iterator[Hit]:
    for cycle in _cycles(subject):
        if all(_leaves_unrejected(subject.effective(queue)) for queue in cycle):
            names = " -> ".join(queue.name for queue in (*cycle, cycle[0]))
            yield Hit(
                object=f"queue {cycle[0].name}",
                message=f"dead letters can come back by {names} without a reject on their way, and then the broker "
                "drops them; give one of these queues another dead-letter exchange",
            )


def _dead_letter_loop(subject: Subject) -> Iterator[Hit]:
    for queue in subject.topology.queues:
        if queue.name in (subject.dead_letters_go_to(queue) or ()):
            yield Hit(
                object=f"queue {queue.name}",
                message="dead letters come straight back to it: a message that fails does so for ever, at full speed",
            )


def _at_least_once_ineffective(subject: Subject) -> Iterator[Hit]:
    for queue in subject.topology.queues:
        effective = subject.effective(queue)
        asked = queue.arguments.get("x-dead-letter-strategy") == "at-least-once"
        asked |= bool(effective.policy) and _policy_asks(effective)
        if not asked or effective.at_least_once:
            continue
        if effective.type != QUORUM:
            why = f"a {effective.type} queue does not know it"
        elif effective.dead_letter_exchange is None:
            why = "there is no dead-letter exchange"
        elif effective.dead_letter_strategy != "at-least-once":
            why = f"the strategy that takes effect is {effective.dead_letter_strategy}"
        else:
            why = f"the overflow that takes effect is {effective.overflow}, not reject-publish"
        yield Hit(
            object=f"queue {queue.name}",
            message=f"asks for at-least-once dead-lettering and does not get it: {why}; "
            "the broker falls back to at-most-once without a word",
        )


def _policy_asks(effective: Effective) -> bool:
    return effective.policy is not None and effective.policy.definition.get("dead-letter-strategy") == "at-least-once"


def _at_least_once_unbounded(subject: Subject) -> Iterator[Hit]:
    for queue in subject.queues(Role.WORK):
        effective = subject.effective(queue)
        if effective.at_least_once and not effective.bounded:
            yield Hit(
                object=f"queue {queue.name}",
                message="keeps dead letters that it cannot hand on, without a bound; set max-length-bytes by policy",
            )


def _at_most_once(subject: Subject) -> Iterator[Hit]:
    for queue in subject.queues(Role.WORK):
        effective = subject.effective(queue)
        asked = queue.arguments.get("x-dead-letter-strategy") == "at-least-once" or _policy_asks(effective)
        if effective.type == QUORUM and effective.dead_letter_exchange is not None and not asked:
            yield Hit(
                object=f"queue {queue.name}",
                message="hands dead letters on at most once; set x-dead-letter-strategy to at-least-once and "
                "x-overflow to reject-publish",
            )


def _dlx_without_alternate(subject: Subject) -> Iterator[Hit]:
    for queue in subject.queues(Role.WORK):
        effective = subject.effective(queue)
        name = effective.dead_letter_exchange
        if effective.at_least_once and name and subject.exchange_exists(name) and subject.alternate(name) is None:
            yield Hit(
                object=f"queue {queue.name}",
                message=f"32 dead letters that exchange {name!r} cannot route stop all others; "
                "give it an alternate exchange",
            )


def _routing_key_without_dlx(subject: Subject) -> Iterator[Hit]:
    for queue in subject.topology.queues:
        if "x-dead-letter-routing-key" in queue.arguments and "x-dead-letter-exchange" not in queue.arguments:
            yield Hit(
                object=f"queue {queue.name}",
                message="has x-dead-letter-routing-key without x-dead-letter-exchange, which brokers refuse",
            )


def _leaves_unrejected(effective: Effective) -> bool:
    """Whether messages can die here without anybody rejecting them."""
    drops = effective.bounded and effective.overflow == "drop-head"
    returns = effective.type == QUORUM and effective.delivery_limit is not None
    return effective.message_ttl is not None or drops or returns


def _cycles(subject: Subject) -> Iterator[tuple[Queue, ...]]:
    """Every way in which dead letters come back to where they were, shortest first, each once."""
    queues = {queue.name: queue for queue in subject.topology.queues}
    next_of = {name: sorted(subject.dead_letters_go_to(queue) or ()) for name, queue in queues.items()}
    seen: set[frozenset[str]] = set()
    for start in queues:
        paths: list[tuple[str, ...]] = [(start,)]
        visited: set[str] = set()
        while paths:
            path = paths.pop(0)
            for following in next_of.get(path[-1], []):
                if following == start and frozenset(path) not in seen:
                    seen.add(frozenset(path))
                    yield tuple(queues[name] for name in path)
                elif following in queues and following not in visited and following != start:
                    visited.add(following)
                    paths.append((*path, following))


_DLX = "https://www.rabbitmq.com/docs/dlx"
_QUORUM = "https://www.rabbitmq.com/docs/quorum-queues"

RULES = (
    Rule(
        id="work-queue-without-dlx",
        severity=Severity.ERROR,
        title="A work queue has no effective dead-letter exchange",
        why="A message that is rejected, expires or exceeds the delivery limit is deleted where no DLX is set.",
        reference=_DLX,
        check=_work_queue_without_dlx,
    ),
    Rule(
        id="dlx-undeclared",
        severity=Severity.ERROR,
        title="A dead-letter exchange is not declared",
        why="Brokers accept a DLX that does not exist; dead letters are then dropped, or held back for ever.",
        reference=_DLX,
        check=_dlx_undeclared,
    ),
    Rule(
        id="dlx-routes-nowhere",
        severity=Severity.ERROR,
        title="A dead-letter exchange leads to no queue and has no alternate exchange",
        why="A dead letter that no binding takes is dropped (at-most-once) or held back for ever (at-least-once).",
        reference=_DLX,
        check=_dlx_routes_nowhere,
    ),
    Rule(
        id="dead-letter-cycle",
        severity=Severity.ERROR,
        title="Dead letters can go round a cycle without a reject",
        why="The broker drops a message that expiry, length or delivery limit alone bring back to a queue it was in.",
        reference=f"{_DLX}#routing",
        check=_dead_letter_cycle,
    ),
    Rule(
        id="dead-letter-loop",
        severity=Severity.WARNING,
        title="The dead-letter exchange of a queue leads straight back to it",
        why="A message that cannot be processed circulates without a pause and takes the workers with it.",
        reference=_DLX,
        check=_dead_letter_loop,
    ),
    Rule(
        id="at-least-once-ineffective",
        severity=Severity.ERROR,
        title="At-least-once dead-lettering is asked for and not in effect",
        why="It needs a quorum queue, a DLX and an effective overflow of reject-publish, and silently becomes "
        "at-most-once where one is missing.",
        reference=f"{_QUORUM}#activating-at-least-once-dead-lettering",
        check=_at_least_once_ineffective,
    ),
    Rule(
        id="at-least-once-unbounded",
        severity=Severity.WARNING,
        title="A source of at-least-once dead-lettering has no length bound",
        why="Dead letters that cannot be handed on stay in the source queue and grow until the disk alarm.",
        reference=f"{_QUORUM}#limitations",
        check=_at_least_once_unbounded,
    ),
    Rule(
        id="at-most-once",
        severity=Severity.WARNING,
        title="A quorum work queue dead-letters at most once",
        why="At-most-once dead-lettering does not wait for the target: a missing or full DLQ loses the message.",
        reference=f"{_QUORUM}#dead-lettering",
        check=_at_most_once,
    ),
    Rule(
        id="dlx-without-alternate",
        severity=Severity.WARNING,
        title="The dead-letter exchange of an at-least-once queue has no alternate exchange",
        why="Unroutable dead letters are retried for ever, and 32 of them stop the dead-lettering of the queue.",
        reference="https://www.rabbitmq.com/docs/ae",
        check=_dlx_without_alternate,
    ),
    Rule(
        id="dead-letter-key-without-dlx",
        severity=Severity.ERROR,
        title="A queue has a dead-letter routing key and no dead-letter exchange",
        why="Brokers refuse to declare such a queue.",
        reference=_DLX,
        check=_routing_key_without_dlx,
        refused=True,
    ),
)
