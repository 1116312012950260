"""What is proven with probes: for each kind of death, and for each place where messages end."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pika.exceptions

from broker_topology.delays import EXCHANGE as DELAYED_EXCHANGE
from broker_topology.delays import delayed_queues
from broker_topology.effective import Effective, effective_alternate, effective_queue, matching
from broker_topology.management import ManagementApi
from broker_topology.probes import MAX_HELD, NOWHERE, Catch, Deaths, ProbeLostError, new_token, publish_unroutable
from broker_topology.routing import bindings_from, destinations, exchange_type, takes
from broker_topology.rules.subject import Subject
from broker_topology.snapshot import Snapshot
from broker_topology.topology import Policy, Queue
from broker_topology.verdict import Check
from broker_topology.versions import QUORUM
from broker_topology.wire import said

ARRIVAL_SECONDS = 15.0
RETURNS = 25
"""More than the 20 after which a quorum queue of 4.x drops a message unless told otherwise."""


class Proofs:
    """The proofs of one virtual host."""

    def __init__(
        self,
        subject: Subject,
        snapshot: Snapshot,
        management: ManagementApi,
        connection: Any,
        *,
        arrival_seconds: float = ARRIVAL_SECONDS,
    ) -> None:
        self._subject, self._snapshot = subject, snapshot
        self._management, self._connection = management, connection
        self._arrival_seconds = arrival_seconds
        self._kept_through_returns: set[str] = set()
        self._lost: set[str] = set()

    def checks(self) -> Iterator[Check]:
        """Try everything. Probes are removed, and what was held back is returned, when this ends."""
        catch = Catch(self._connection)
        try:
            yield from self._watch(catch)
            for queues in self._alike():
                yield from self._deaths(catch, queues)
            for exchange in self._publishing_exchanges():
                yield from self._unroutable(catch, exchange)
        finally:
            with suppress(pika.exceptions.AMQPError):
                catch.close()
        for queues in self._alike():
            yield from self._at_least_once(queues)

    def _watch(self, catch: Catch) -> Iterator[Check]:
        """Catch probes in every queue where one may arrive."""
        for name in self._subject.topology.drained_queues:
            if name not in self._snapshot.queues:
                continue
            fault = None
            try:
                depth = catch.watch(name, most=MAX_HELD)
                if depth > MAX_HELD:
                    fault = f"holds {depth} messages, and a probe would wait behind them: drain it first"
            except pika.exceptions.ChannelClosed as error:
                fault = f"cannot be consumed: {said(error)}"
            if fault is not None:
                yield Check(object=f"queue {name}", claim="probes can be caught", fault=fault)

    def _alike(self) -> list[tuple[Queue, ...]]:
        """The work queues in groups whose dead letters go the same way: one probe proves it for all."""
        groups: dict[tuple[object, ...], list[Queue]] = {}
        for queue in self._subject.topology.work_queues:
            live = self._live(queue)
            if live is not None:
                key = live.dead_letter_routing_key or self._key(queue)
                settings = (live.type, live.dead_letter_exchange, key, live.dead_letter_strategy, live.overflow)
                groups.setdefault((*settings, self._subject.dead_letters_go_to(queue)), []).append(queue)
        return [tuple(queues) for queues in groups.values()]

    def _deaths(self, catch: Catch, queues: tuple[Queue, ...]) -> Iterator[Check]:
        """Probes that are rejected, expire and come back too often arrive where the file says."""
        expected = sorted(self._subject.dead_letters_go_to(queues[0]) or ())
        with self._probe_queue(queues[0], {"x-delivery-limit": 1}) as probes:
            if probes is None:
                yield _refused(queues)
                return
            deaths = {"rejected": probes.reject, "expired": probes.expire}
            if self._subject.type_of(queues[0]) == QUORUM:
                deaths["returned too often"] = lambda: probes.return_too_often(1)
            for how, die in deaths.items():
                claim = f"what is {how} arrives in {' and '.join(expected)}"
                try:
                    token = die()
                except ProbeLostError as error:
                    yield Check(object=_label(queues), claim=claim, fault=str(error))
                    continue
                yield from self._arrival(catch, token, _label(queues), f"what is {how}", expected)

    def _unroutable(self, catch: Catch, exchange: str) -> Iterator[Check]:
        """A probe with a key that nobody wants arrives in the queue behind the alternate exchange."""
        alternate = effective_alternate(self._subject.topology, exchange)
        if alternate is None:
            return
        live, label = self._snapshot.topology, f"exchange {exchange}"
        if any(takes(live, binding, new_token()) for binding in bindings_from(live, exchange)):
            yield Check(object=label, claim="takes every key, so nothing is unroutable")
            return
        expected = sorted(destinations(self._subject.topology, alternate, None))
        token = publish_unroutable(self._connection, exchange)
        if token is None:
            claim, fault = (
                "what is unroutable is kept",
                "what is unroutable is handed back: no alternate exchange applies",
            )
            yield Check(object=label, claim=claim, fault=fault)
            return
        yield from self._arrival(catch, token, label, "what is unroutable", expected)

    def _arrival(self, catch: Catch, token: str, label: str, what: str, expected: list[str]) -> Iterator[Check]:
        # One probe that arrives nowhere has waited long enough for all that die in the same place.
        patience = 1.0 if label in self._lost else self._arrival_seconds
        arrived = catch.arrival(token, seconds=patience)
        if arrived == NOWHERE:
            self._lost.add(label)
        where = arrived if arrived == NOWHERE else f"in {arrived}"
        fault = (
            None if arrived in expected else f"{what} arrives {where}, not in {' or '.join(expected) or 'any queue'}"
        )
        yield Check(object=label, claim=f"{what} arrives in {' and '.join(expected)}", fault=fault)
        if arrived != NOWHERE and arrived not in self._kept_through_returns:
            self._kept_through_returns.add(arrived)
            survived = catch.returns_survived(token, RETURNS, seconds=5.0)
            fault = None if survived == RETURNS else f"loses a message after {survived} returns"
            yield Check(object=f"queue {arrived}", claim=f"keeps a message through {RETURNS} returns", fault=fault)
        catch.remove(token)

    def _at_least_once(self, queues: tuple[Queue, ...]) -> Iterator[Check]:
        """Dead letters that cannot be routed stay with their queue, and fill it; at-most-once drops them."""
        if not self._subject.effective(queues[0]).at_least_once:
            return
        void = new_token()
        channel = self._connection.channel()
        channel.exchange_declare(void, "fanout", durable=False)
        try:
            settings = {"x-dead-letter-exchange": void, "x-max-length": 1}
            with self._probe_queue(queues[0], settings) as probes:
                if probes is None:
                    yield _refused(queues)
                    return
                probes.reject()
                probes.reject()
                fault = "a dead letter that could not be handed on is gone: at-most-once is in effect"
                yield Check(
                    object=_label(queues),
                    claim="dead letters are kept until their queue has confirmed them",
                    fault=None if probes.is_full() else fault,
                )
        finally:
            channel.exchange_delete(void)

    @contextmanager
    def _probe_queue(self, queue: Queue, settings: dict[str, Any]) -> Iterator[Deaths | None]:
        """A queue that dead-letters as the live queue does; None where the broker refuses to make it."""
        live = self._live(queue) or self._subject.effective(queue)
        name = new_token()
        arguments: dict[str, Any] = {
            "x-queue-type": live.type,
            "x-dead-letter-exchange": live.dead_letter_exchange or "",
            "x-dead-letter-routing-key": live.dead_letter_routing_key or self._key(queue),
            "x-overflow": live.overflow,
        }
        if live.type == QUORUM:
            arguments |= {"x-dead-letter-strategy": live.dead_letter_strategy, **settings}
        self._shield(name, live)
        try:
            probes = Deaths(self._connection, name, arguments)
        except pika.exceptions.ChannelClosed:
            probes = None
        try:
            yield probes
        finally:
            if probes is not None:
                with suppress(pika.exceptions.AMQPError):
                    probes.close()
            self._management.delete_policy(self._snapshot.vhost, name)

    def _shield(self, name: str, live: Effective) -> None:
        """Give the probe queue the overflow that applies to the real one, where a wide policy would change it."""
        policies = self._snapshot.topology.policies
        if matching(policies, "queue", name, live.type):
            policy = Policy(
                name=name,
                pattern=f"^{name.replace('.', '[.]')}$",
                definition={"overflow": live.overflow},
                apply_to="queues",
                priority=max(policy.priority for policy in policies) + 1,
            )
            self._management.put_policy(self._snapshot.vhost, policy)

    def _live(self, queue: Queue) -> Effective | None:
        found = self._snapshot.topology.queue(queue.name)
        return effective_queue(self._snapshot.topology, found, self._snapshot.version) if found else None

    def _key(self, queue: Queue) -> str:
        """The routing key that a dead letter of this queue carries; a fanout ignores it."""
        live = self._live(queue)
        if exchange_type(self._subject.topology, (live and live.dead_letter_exchange) or "") == "fanout":
            return ""
        return next((key for key in self._subject.dead_letter_keys(queue) if key is not None), queue.name)

    def _publishing_exchanges(self) -> list[str]:
        wanted = self._subject.topology
        sources = [binding.source for queue in wanted.work_queues for binding in wanted.bindings_of(queue.name)]
        if delayed_queues(wanted):
            sources.append(DELAYED_EXCHANGE)
        return [name for name in dict.fromkeys(sources) if exchange_type(self._snapshot.topology, name) is not None]


def _refused(queues: tuple[Queue, ...]) -> Check:
    fault = "the broker refuses a probe queue with its settings"
    return Check(object=_label(queues), claim="dead letters arrive", fault=fault)


def _label(queues: tuple[Queue, ...]) -> str:
    names = ", ".join(queue.name for queue in queues[:4])
    more = f" and {len(queues) - 4} more" if len(queues) > 4 else ""
    return f"{'queue' if len(queues) == 1 else 'queues'} {names}{more}"
