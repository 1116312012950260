"""The drain: dead letters from the broker into the database, acknowledged after the commit.

One network loop owns the connection and never blocks; one writer thread owns the database. Each drained
queue has a channel of its own, so that one which is missing or closed does not hold up the others.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import sqlalchemy as sa
import structlog
from pika.adapters.select_connection import IOLoop

from broker_topology.address import BrokerAddress
from broker_topology.errors import DeadLetterOfficeError
from broker_topology.message import MAX_DECODED_BYTES
from broker_topology.topology import Topology
from broker_topology.wire import DroppedError, RawConnection, parameters, why_away
from consumers.appetite import Appetite
from consumers.backoff import Backoff
from consumers.failure_notes import FailureNotes
from consumers.filing import Filing
from consumers.health import Health
from consumers.intake import Intake
from consumers.letters import Delivery, read_letter
from consumers.metrics import DrainMetrics
from consumers.storing import Stored
from consumers.writer import Inbox, Incoming, Receipt, Writer

log = structlog.get_logger()

DEPTH_SECONDS = 15.0
"""How often the depth of the queues is read."""
TURN_SECONDS = 2.0
WAITING_SECONDS = 5.0
"""A database that neither answers nor refuses for that long counts as away: a lock, a network that is gone."""
LARGE_LETTER_SECONDS = 0.1
"""How often to look whether the writer has let go of a large letter."""
CUT_OFF_SECONDS = 1.0
"""How long a writer that was given up is waited for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DrainOptions:
    """How the drain goes about it."""

    prefetch: int = 4000
    """Letters in hand at most, for each queue."""
    held_bytes: int = 16 * 1024 * 1024
    """Bytes of letters in hand, for each queue; large letters lower the prefetch accordingly."""
    max_batch_rows: int = 1500
    max_batch_bytes: int = 4 * 1024 * 1024
    max_decoded_bytes: int = MAX_DECODED_BYTES
    stop_seconds: float = 20.0
    """How long the batch in hand may take to finish after a stop was asked for."""


class DrainFailedError(DeadLetterOfficeError):
    """The drain failed by an error of its own; what it had not stored is still in the queue."""


def utc_now() -> datetime:
    """Aware UTC, from the system's clock."""
    return datetime.now(UTC)


class Drain:
    """One drain process: ``run()`` until ``stop()``."""

    def __init__(
        self,
        *,
        amqp_url: str,
        topology: Topology,
        engine: sa.Engine,
        notes: FailureNotes,
        options: DrainOptions | None = None,
        announce: Callable[[Stored], None] = lambda _: None,
        chores: Callable[[], None] = lambda: None,
        health: Health | None = None,
        metrics: DrainMetrics | None = None,
        clock: Callable[[], datetime] = utc_now,
        filing: Filing | None = None,
    ) -> None:
        self._address = BrokerAddress.parse(amqp_url)
        self._parameters = parameters(self._address, "dead-letters drain")
        self._options = options or DrainOptions()
        self._clock, self._announce, self._notes = clock, announce, notes
        self.health, self.metrics = health or Health(), metrics or DrainMetrics()
        self._loop = IOLoop()
        self._connection: RawConnection | None = None
        self._backoff = Backoff()
        self._stopping = False
        self._join_seconds = self._options.stop_seconds
        self._inbox = Inbox(
            max_batch_rows=self._options.max_batch_rows, max_batch_bytes=self._options.max_batch_bytes
        )
        self._writer = Writer(
            self._inbox,
            engine,
            notes,
            clock=clock,
            committed=self._committed,
            unavailable=self._database_away,
            chores=chores,
            ended=lambda: self._loop.add_callback_threadsafe(self._writer_ended),
            filing=filing,
        )
        self._intakes = [
            Intake(
                queue,
                self,
                Appetite(most=self._options.prefetch, budget_bytes=self._options.held_bytes),
                unroutable=queue in topology.unroutable_queues,
            )
            for queue in topology.drained_queues
        ]
        self._depth_channel: Any = None
        self.metrics.watch(oldest_seconds=self._oldest_seconds, in_hand=lambda: len(self._inbox))

    def run(self) -> None:
        """Drain until stopped. Raises DrainFailedError."""
        self._writer.start()
        self._loop.add_callback(self._connect)
        self._loop.add_callback(self._turn)
        try:
            self._loop.start()
        finally:
            self._writer.give_up()
            self._inbox.close()
            self._writer.join(self._join_seconds)
            if not self._writer.is_alive():
                self._writer.end_doubts()
            self._notes.close()
            self._loop.close()
        if self._writer.failed:
            raise DrainFailedError

    def stop(self) -> None:
        """Finish the batch in hand and end. Safe from a signal handler and from other threads."""
        self._loop.add_callback_threadsafe(self._begin_stop)

    # --- the connection

    def _connect(self) -> None:
        if self._stopping:
            return
        if self._writer.large_bytes > self._options.max_batch_bytes:
            # It would come again, and be in memory twice.
            self._loop.call_later(LARGE_LETTER_SECONDS, self._connect)
            return
        self._connection = RawConnection(
            self._parameters,
            on_open_callback=self._opened,
            on_open_error_callback=self._lost,
            on_close_callback=self._lost,
            custom_ioloop=self._loop,
        )

    def _opened(self, connection: RawConnection) -> None:
        log.info("broker.connected", host=self._address.host, vhost=self._address.vhost)
        self.health.well("broker")
        for intake in self._intakes:
            intake.open(connection)
        connection.channel(on_open_callback=self._depth_channel_opened)

    def _lost(self, _connection: RawConnection, error: BaseException) -> None:
        self._connection = None
        for intake in self._intakes:
            intake.closed()
        if self._stopping:
            self._loop.stop()
            return
        wait = self._backoff.next()
        if isinstance(error, DroppedError):
            self._loop.call_later(wait, self._connect)
            return
        problem = why_away(self._address, error)
        self.metrics.reconnects.inc()
        self.health.ill("broker", problem)
        log.warning("broker.away", problem=problem, retry_in_seconds=round(wait, 2))
        self._loop.call_later(wait, self._connect)

    # --- the writer's answers, in its thread

    def _committed(self, receipts: list[Receipt], stored: Stored, seconds: float) -> None:
        self._loop.add_callback_threadsafe(lambda: self._acknowledge(receipts))
        self.health.well("database")
        self.metrics.stored(stored, seconds)
        for refused in stored.refused:
            log.error("dead_letter.refused", queue=refused.letter.queue, task_id=refused.letter.task_id)
        self._announce(stored)

    def _database_away(self, problem: str) -> None:
        self.health.ill("database", problem)
        self.metrics.database_failures.inc()

    # --- back in the loop

    def _acknowledge(self, receipts: Sequence[Receipt]) -> None:
        for receipt in receipts:
            for intake in self._intakes:
                intake.acknowledge(receipt)
        self._backoff.reset()

    def _begin_stop(self) -> None:
        if self._stopping:
            return
        self._stopping = True
        log.info("drain.stopping")
        self._inbox.close()
        self._loop.call_later(self._options.stop_seconds, self._give_up)
        if not self._writer.is_alive():
            self._writer_ended()

    def _writer_ended(self) -> None:
        """Everything in hand is stored, or never will be by this process."""
        self._stopping = True
        connection = self._connection
        if connection is None or connection.is_closed:
            self._loop.stop()
        elif connection.is_open:
            # What was prefetched but not stored goes back to the queue; the close callback ends the loop.
            connection.close()
        elif not connection.is_closing:
            connection.drop()

    def _give_up(self) -> None:
        log.error("drain.gave_up", problem="the batch in hand could not be stored in time")
        self._writer.give_up()
        self._join_seconds = CUT_OFF_SECONDS
        self._loop.stop()

    # --- for the intakes

    def received(self, channel: Any, tag: int, delivery: Delivery, *, unroutable: bool) -> int:
        """Take one delivery in, unless the drain is about to end. Returns the bytes that were unpacked."""
        if self._stopping:
            return 0
        letter = read_letter(
            delivery,
            now=self._clock(),
            unroutable=unroutable,
            max_body_bytes=self._options.max_decoded_bytes,
        )
        self._inbox.put(Incoming(source=channel, tag=tag, letter=letter))
        return letter.unpacked_bytes

    def forget(self, channel: Any) -> None:
        """A channel is gone, and with it the meaning of its delivery tags."""
        self._inbox.forget(channel)

    def later(self, seconds: float, call: Callable[[], None]) -> None:
        """Call back in the loop."""
        self._loop.call_later(seconds, call)

    def consuming(self, queue: str, problem: str | None) -> None:
        """A queue is being consumed, or why it is not."""
        if problem is None:
            self.health.well(f"queue {queue}")
        else:
            self.health.ill(f"queue {queue}", problem)

    def certain(self, receipt: Receipt) -> None:
        """The broker has the acks of these letters without an id."""
        self._writer.certain(receipt)

    def asking_for(self, queue: str, letters: int) -> None:
        """That many letters may be in hand from a queue."""
        self.metrics.prefetch.labels(queue).set(letters)

    # --- what is watched

    def _turn(self) -> None:
        self.health.turned()
        self.metrics.turns.inc()
        if (waiting := self._writer.busy_seconds) > WAITING_SECONDS and not self.health.problem("database"):
            self._database_away(f"no answer for {waiting:.0f} s")
        self._loop.call_later(TURN_SECONDS, self._turn)

    def _oldest_seconds(self) -> float:
        died_at = self._inbox.oldest_died_at()
        return max(0.0, (self._clock() - died_at).total_seconds()) if died_at else 0.0

    def _depth_channel_opened(self, channel: Any) -> None:
        self._depth_channel = channel
        self._read_depth(channel)

    def _read_depth(self, channel: Any) -> None:
        """Ask for the depth of each queue. One that is missing closes this channel; it is opened anew."""
        if not channel.is_open:
            connection = channel.connection
            if channel is self._depth_channel and connection.is_open:
                connection.channel(on_open_callback=self._depth_channel_opened)
            return
        for intake in self._intakes:
            gauge = self.metrics.depth.labels(intake.queue)
            channel.queue_declare(
                intake.queue,
                passive=True,
                callback=lambda frame, gauge=gauge: gauge.set(frame.method.message_count),
            )
        self._loop.call_later(DEPTH_SECONDS, lambda: self._read_depth(channel))
