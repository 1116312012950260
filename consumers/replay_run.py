"""One go of one replay: publish what waits, batch by batch, mark it, await outcomes, stop where something says so.

The letters are claimed in the database before anything is published, and marked after the broker has confirmed. A
crash in between leaves claimed letters, which the next go publishes again with the same task id and the same
``replay_id``: the idempotency claim of the task absorbs the copy.
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import sqlalchemy as sa

from broker_topology.errors import DeadLetterOfficeError
from broker_topology.raw_headers import MalformedHeaderError, long_string
from broker_topology.settlement import SETTLEMENT_HEADER, Settlement, attempt_in_doubt
from broker_topology.topology import Topology
from consumers.backoff import Backoff
from consumers.database import reading, transaction
from consumers.letters import UNROUTABLE
from consumers.outcomes import Outcomes
from consumers.publisher import Answer, Confirmed, Full, Outgoing, Publisher, Refused
from consumers.replays import (
    Progress,
    ReplayState,
    get_replay,
    mark_published,
    mark_refused,
    progress,
    set_replay_state,
    waiting_items,
)
from consumers.republishing import republished

MAX_BATCH = 500
MAX_BATCH_BYTES = 16 * 1024 * 1024
RAMP = 10
"""Each step of a ramp is so many times the one before."""
POLL_SECONDS = 0.2


class RefusedError(DeadLetterOfficeError):
    """This letter cannot be sent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayOptions:
    """How a replay goes about it. Stored with the replay, so that a resumed one goes on alike."""

    to_queue: str | None = None
    """Send to this queue instead of the one that each letter came from."""
    keep_expiry: bool = False
    """Keep ``expiration`` and ``expires`` as they were."""
    canary: int = 0
    """So many go first, and their outcome is awaited; then ten times as many, and so on."""
    rate: float | None = None
    """Letters a second at most."""
    stop_share: float = 0.2
    """Stop when more than this share of the outcomes so far are failures; only with a canary."""
    await_seconds: float = 300.0
    """How long the outcome of one step is awaited before the replay pauses."""
    settle_as: str | None = None
    """``repeat`` or ``done``: what a person found out about letters in doubt."""
    result_json: str | None = None
    """The result of work that is ``done``, as JSON."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayReport:
    """What a replay did in one go."""

    replay_id: int
    state: ReplayState = ReplayState.RUNNING
    published: list[int] = field(default_factory=list)
    """Ids of letters that the broker has confirmed."""
    refused: dict[int, str] = field(default_factory=dict)
    """Ids of letters that could not be sent, and why; they are open again."""
    left_out: list[int] = field(default_factory=list)
    """Ids that were selected but not open: somebody else has them, or they are done."""


class ReplayRun:
    """One go of one replay.

    While the broker confirms one batch, the batch before it is marked and the next one is read: a crash then
    repeats at most two batches.
    """

    def __init__(
        self,
        engine: sa.Engine,
        publisher: Publisher,
        topology: Topology,
        report: ReplayReport,
        clock: Callable[[], datetime],
        outcomes: Outcomes | None,
        watch: Callable[[Progress], None],
    ) -> None:
        self._engine, self._publisher, self._topology = engine, publisher, topology
        self._report, self._clock, self._outcomes, self._watch = report, clock, outcomes, watch
        with reading(engine) as connection:
            stored = get_replay(connection, report.replay_id)
        self._options = ReplayOptions(**json.loads(stored["options"]))
        self._unmarked: _Batch | None = None
        self._published: set[int] = set()

    def go(self) -> ReplayReport:
        """Publish until all is sent or something says stop."""
        step = self._options.canary or None
        while (state := self._state()) is ReplayState.RUNNING:
            sent = self._send(step)
            if not sent:
                self._end(ReplayState.PUBLISHED)
            elif step is not None:
                self._await_outcomes()
                step *= RAMP
        return ReplayReport(
            replay_id=self._report.replay_id,
            state=state,
            published=self._report.published,
            refused=self._report.refused,
            left_out=self._report.left_out,
        )

    def _state(self) -> ReplayState:
        with reading(self._engine) as connection:
            return ReplayState(get_replay(connection, self._report.replay_id)["state"])

    def _end(self, state: ReplayState, note: str | None = None) -> None:
        with transaction(self._engine) as database:
            # Somebody may have cancelled meanwhile: that stands.
            if get_replay(database, self._report.replay_id)["state"] == ReplayState.RUNNING.value:
                set_replay_state(database, self._report.replay_id, state, now=self._clock(), note=note)

    def _progress(self) -> Progress:
        with reading(self._engine) as connection:
            now = progress(connection, self._report.replay_id)
        self._watch(now)
        return now

    def _send(self, limit: int | None) -> int:
        """Publish the next letters, at most ``limit``; returns how many were dealt with."""
        dealt_with, rate = 0, self._options.rate
        batch = self._next_batch(limit)
        try:
            while batch and self._state() is ReplayState.RUNNING:
                dealt_with += len(batch.letters)
                following = self._publish(batch, None if limit is None else limit - dealt_with)
                if rate is not None:
                    self._mark_last()
                    time.sleep(len(batch.letters) / rate * random.uniform(0.8, 1.2))  # noqa: S311, jitter
                batch = following
        finally:
            self._mark_last()
        return dealt_with

    def _next_batch(self, limit: int | None, *, after: int = 0) -> _Batch | None:
        size = MAX_BATCH if limit is None else min(MAX_BATCH, limit)
        if self._options.rate is not None:
            size = min(size, max(1, int(self._options.rate / 5)))
        if not size:
            return None
        with reading(self._engine) as connection:
            items = waiting_items(
                connection, self._report.replay_id, limit=size, max_bytes=MAX_BATCH_BYTES, after=after
            )
        batch = _Batch(letters={item["key"]: item for item in items})
        for item in items:
            try:
                batch.outgoing.append(self._outgoing(item))
            except RefusedError as error:
                batch.answers[item["key"]] = Refused(str(error))
        return batch if items else None

    def _publish(self, batch: _Batch, left: int | None) -> _Batch | None:
        """Publish a batch; returns the next one, read while the broker confirms this one."""
        following = None

        def meanwhile() -> None:
            nonlocal following
            self._mark_last()
            following = self._next_batch(left, after=batch.last_item)

        batch.answers.update(self._publisher.publish(batch.outgoing, meanwhile))
        self._unmarked = batch
        backoff = Backoff(last_seconds=5.0)
        while full := [message for message in batch.outgoing if isinstance(batch.answers[message.key], Full)]:
            self._mark(batch)
            if self._state() is not ReplayState.RUNNING:
                break
            time.sleep(backoff.next())  # a full queue slows the replay down
            batch.answers.update(self._publisher.publish(full))
        return following

    def _mark_last(self) -> None:
        """Mark the batch whose answers are known: while the next is on its way, or at the end."""
        if self._unmarked is not None:
            self._mark(self._unmarked)
            self._unmarked = None

    def _mark(self, batch: _Batch) -> None:
        letters, answers = batch.letters, batch.answers
        confirmed = [letters[key] for key, answer in answers.items() if isinstance(answer, Confirmed)]
        with transaction(self._engine) as database:
            mark_published(database, [item["item_id"] for item in confirmed], now=self._clock())
            for key, answer in answers.items():
                if isinstance(answer, Refused):
                    mark_refused(database, letters[key]["item_id"], answer.problem, now=self._clock())
                    self._report.refused[letters[key]["letter_id"]] = answer.problem
        new = [item["letter_id"] for item in confirmed if item["letter_id"] not in self._published]
        self._published.update(new)
        self._report.published.extend(new)
        self._progress()

    def _outgoing(self, item: dict[str, Any]) -> Outgoing:
        exchange, routing_key = destination(item, self._topology, to_queue=self._options.to_queue)
        headers = {}
        if self._options.settle_as is not None:
            done = self._options.settle_as == "done"
            settlement = Settlement(
                result_json=(self._options.result_json or "null") if done else None,
                attempt=attempt_in_doubt(item["claim_state"]),
            )
            headers[SETTLEMENT_HEADER] = long_string(settlement.to_header())
        try:
            properties = republished(
                bytes(item["edited_properties"] or item["properties"]),
                replay_id=item["key"],
                keep_expiry=self._options.keep_expiry,
                headers=headers,
            )
        except MalformedHeaderError as error:
            raise RefusedError(f"its properties cannot be read: {error}") from error
        body = item["body"] if item["edited_body"] is None else item["edited_body"]
        return Outgoing(
            key=item["key"],
            exchange=exchange,
            routing_key=routing_key,
            properties=properties,
            body=bytes(body),
        )

    def _await_outcomes(self) -> None:
        """Wait until the step's letters have ended; pause or stop the replay when they do not or fail."""
        deadline = time.monotonic() + self._options.await_seconds
        while self._state() is ReplayState.RUNNING:
            if self._outcomes is not None:
                self._outcomes.collect()
            now = self._progress()
            if now.ended and now.failed_again / now.ended > self._options.stop_share:
                self._end(ReplayState.STOPPED, f"{now.failed_again} of {now.ended} failed again")
            elif not now.published:
                return
            elif time.monotonic() > deadline:
                self._end(ReplayState.PAUSED, f"the outcome of {now.published} letters is not known yet")
            else:
                time.sleep(POLL_SECONDS)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Batch:
    """Letters that go out together, by key, and what the broker answers."""

    letters: dict[str, dict[str, Any]]
    outgoing: list[Outgoing] = field(default_factory=list)
    answers: dict[str, Answer] = field(default_factory=dict)

    @property
    def last_item(self) -> int:
        """The item that the next batch begins behind."""
        last: int = max(item["item_id"] for item in self.letters.values())
        return last


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
