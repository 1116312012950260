"""Replay: publish the original message again, deliberately, audited, and marked.

The letters are claimed in the database before anything is published, and marked after the broker has
confirmed. A crash in between leaves claimed letters, which ``resume`` publishes again with the same task id
and the same ``replay_id``: the idempotency claim of the task absorbs the copy.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import pika.exceptions
import sqlalchemy as sa
from pika.adapters.blocking_connection import BlockingChannel, BlockingConnection

from broker_topology.errors import BrokerUnavailableError, DeadLetterOfficeError
from broker_topology.topology import Topology
from consumers.audit import Act
from consumers.database import transaction
from consumers.dead_letters import State, dead_letters
from consumers.letters import UNROUTABLE
from consumers.raw_properties import MalformedPropertiesError, republished
from consumers.replays import (
    ReplayState,
    freeze,
    mark_published,
    mark_refused,
    set_replay_state,
    waiting_items,
)
from consumers.wire import RawProperties

BATCH_ITEMS = 100


class NothingToReplayError(DeadLetterOfficeError):
    """None of these letters is open."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayOptions:
    """How a replay goes about it."""

    to_queue: str | None = None
    """Send to this queue instead of the one that each letter came from."""
    keep_expiry: bool = False
    """Keep ``expiration`` and ``expires`` as they were."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayReport:
    """What a replay did."""

    replay_id: int
    published: list[int]
    """Ids of letters that the broker has confirmed."""
    refused: dict[int, str]
    """Ids of letters that could not be sent, and why; they are open again."""
    left_out: list[int]
    """Ids that were selected but not open: somebody else has them, or they are done."""


def replay(
    engine: sa.Engine,
    connection: BlockingConnection,
    topology: Topology,
    act: Act,
    letter_ids: Sequence[int],
    *,
    clock: Callable[[], datetime],
    options: ReplayOptions | None = None,
) -> ReplayReport:
    """Publish letters again to where they came from, each with a fresh retry budget.

    Raises NothingToReplayError, BrokerUnavailableError, DatabaseUnavailableError.
    """
    options = options or ReplayOptions()
    with transaction(engine) as database:
        replay_id, claimed = freeze(
            database,
            act,
            letter_ids,
            now=clock(),
            options={"to_queue": options.to_queue, "keep_expiry": options.keep_expiry},
        )
        if not claimed:
            raise NothingToReplayError(_why_none(database, letter_ids))
    report = ReplayReport(
        replay_id=replay_id,
        published=[],
        refused={},
        left_out=sorted(set(letter_ids) - set(claimed)),
    )
    _run(engine, connection, topology, report, options, clock)
    return report


def _run(
    engine: sa.Engine,
    connection: BlockingConnection,
    topology: Topology,
    report: ReplayReport,
    options: ReplayOptions,
    clock: Callable[[], datetime],
) -> None:
    channel: BlockingChannel | None = None
    while True:
        with transaction(engine) as database:
            items = waiting_items(database, report.replay_id, limit=BATCH_ITEMS)
        if not items:
            break
        published: dict[int, int] = {}
        refused: dict[int, tuple[int, str]] = {}
        for item in items:
            try:
                if channel is None or not channel.is_open:
                    channel = connection.channel()
                    channel.confirm_delivery()
                _publish(channel, item, topology, options)
            except RefusedError as error:
                refused[item["item_id"]] = (item["letter_id"], str(error))
            except pika.exceptions.ChannelClosedByBroker as error:
                refused[item["item_id"]] = (item["letter_id"], f"the broker refuses it: {error.reply_text}")
            except pika.exceptions.AMQPError as error:
                raise BrokerUnavailableError("the connection to the broker was lost during the replay") from error
            else:
                published[item["item_id"]] = item["letter_id"]
        with transaction(engine) as database:
            mark_published(database, list(published), now=clock())
            for item_id, (_, problem) in refused.items():
                mark_refused(database, item_id, problem, now=clock())
        report.published.extend(published.values())
        report.refused.update(dict(refused.values()))
    with transaction(engine) as database:
        set_replay_state(database, report.replay_id, ReplayState.PUBLISHED, now=clock())


class RefusedError(DeadLetterOfficeError):
    """This letter cannot be sent."""


def _publish(channel: BlockingChannel, item: dict[str, Any], topology: Topology, options: ReplayOptions) -> None:
    exchange, routing_key = destination(item, topology, to_queue=options.to_queue)
    raw = item["edited_properties"] or item["properties"]
    try:
        raw = republished(raw, replay_id=item["key"], keep_expiry=options.keep_expiry)
    except MalformedPropertiesError as error:
        raise RefusedError(f"its properties cannot be read: {error}") from error
    try:
        channel.basic_publish(
            exchange,
            routing_key,
            item["edited_body"] or item["body"],
            RawProperties(raw),
            mandatory=True,
        )
    except pika.exceptions.UnroutableError as error:
        where = f"queue {routing_key!r}" if not exchange else f"a queue for {routing_key!r} at {exchange!r}"
        raise RefusedError(f"there is no {where.removeprefix('a ')}") from error
    except pika.exceptions.NackError as error:
        raise RefusedError("the broker did not take it: the queue is full") from error


def destination(letter: dict[str, Any], topology: Topology, *, to_queue: str | None = None) -> tuple[str, str]:
    """Exchange and routing key that lead a letter back to where it came from. Raises RefusedError.

    A dead letter goes straight to its queue through the default exchange: its routing key may carry the
    prefix of a delayed delivery, and would reach every other queue that is bound to it.
    """
    if to_queue:
        return "", to_queue
    if letter["reason"] == UNROUTABLE:
        if letter["queue"] in {queue.name for queue in topology.work_queues}:
            return "", str(letter["queue"])
        return str(letter["exchange"]), str(letter["routing_key"])
    if letter["queue"] == letter["drained_queue"]:
        raise RefusedError("the broker does not say which queue it came from: name one with --to-queue")
    return "", str(letter["queue"])


def _why_none(database: sa.Connection, letter_ids: Sequence[int]) -> str:
    rows = database.execute(
        sa.select(dead_letters.c.id, dead_letters.c.state).where(dead_letters.c.id.in_(letter_ids))
    ).all()
    states = {row.id: State(row.state).value.replace("_", " ") for row in rows}
    words = [f"{letter_id} is {states.get(letter_id, 'unknown')}" for letter_id in letter_ids[:10]]
    return f"nothing to replay: {', '.join(words)}"
