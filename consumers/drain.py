"""The drain: dead letters from the broker into the database, acknowledged after the commit.

One network loop owns the connection and never blocks; one writer thread owns the database. Each drained
queue has a channel of its own, so that one which is missing or closed does not hold up the others.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import pika.exceptions
import sqlalchemy as sa
import structlog
from pika.adapters.select_connection import IOLoop

from broker_topology.errors import DeadLetterOfficeError
from broker_topology.message import MAX_DECODED_BYTES
from broker_topology.topology import Topology
from consumers.failure_notes import FailureNotes
from consumers.letters import Delivery, read_letter
from consumers.storing import Stored
from consumers.wire import RawConnection, connection_parameters, connection_problem
from consumers.writer import Inbox, Incoming, Receipt, Writer

log = structlog.get_logger()

FIRST_BACKOFF_SECONDS = 0.2
LAST_BACKOFF_SECONDS = 15.0


@dataclass(frozen=True, slots=True, kw_only=True)
class DrainOptions:
    """How the drain goes about it."""

    prefetch: int = 6000
    """Letters in hand at most, for each queue."""
    max_batch_rows: int = 1500
    max_batch_bytes: int = 16 * 1024 * 1024
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
        clock: Callable[[], datetime] = utc_now,
    ) -> None:
        self._parameters = connection_parameters(amqp_url, name="dead-letters drain")
        self._options = options or DrainOptions()
        self._clock, self._announce, self._notes = clock, announce, notes
        self._loop = IOLoop()
        self._connection: RawConnection | None = None
        self._backoff = Backoff()
        self._stopping = False
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
            idle=lambda: None,
            ended=lambda: self._loop.add_callback_threadsafe(self._writer_ended),
        )
        self._intakes = [
            Intake(queue, self, unroutable=queue in topology.unroutable_queues) for queue in topology.drained_queues
        ]

    def run(self) -> None:
        """Drain until stopped. Raises DrainFailedError."""
        self._writer.start()
        self._loop.add_callback(self._connect)
        try:
            self._loop.start()
        finally:
            self._writer.give_up()
            self._inbox.close()
            self._writer.join(self._options.stop_seconds)
            self._notes.close()
            self._loop.close()
        if self._writer.failed:
            raise DrainFailedError

    def stop(self) -> None:
        """Finish the batch in hand and end. Safe from a signal handler and from other threads."""
        self._loop.add_callback_threadsafe(self._begin_stop)

    # --- the connection

    def _connect(self) -> None:
        if not self._stopping:
            self._connection = RawConnection(
                self._parameters,
                on_open_callback=self._opened,
                on_open_error_callback=self._lost,
                on_close_callback=self._lost,
                custom_ioloop=self._loop,
            )

    def _opened(self, connection: RawConnection) -> None:
        log.info("broker.connected", host=self._parameters.host, vhost=self._parameters.virtual_host)
        for intake in self._intakes:
            intake.open(connection)

    def _lost(self, _connection: RawConnection, error: BaseException) -> None:
        self._connection = None
        for intake in self._intakes:
            intake.closed()
        if self._stopping:
            self._loop.stop()
            return
        wait = self._backoff.next()
        log.warning(
            "broker.away",
            problem=connection_problem(self._parameters, error),
            retry_in_seconds=round(wait, 2),
        )
        self._loop.call_later(wait, self._connect)

    # --- the writer's answers, in its thread

    def _committed(self, receipts: list[Receipt], stored: Stored, _seconds: float) -> None:
        self._loop.add_callback_threadsafe(lambda: self._acknowledge(receipts))
        self._announce(stored)

    def _database_away(self, problem: str) -> None:
        pass

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
        if self._connection is not None and self._connection.is_open:
            # What was prefetched but not stored goes back to the queue.
            self._connection.close()
        else:
            self._loop.stop()

    def _give_up(self) -> None:
        log.error("drain.gave_up", problem="the batch in hand could not be stored in time")
        self._writer.give_up()
        self._loop.stop()

    # --- for the intakes

    def received(self, channel: Any, tag: int, delivery: Delivery, *, unroutable: bool, copies: Copies) -> None:
        """Take one delivery in, unless the drain is about to end."""
        if self._stopping:
            return
        letter = read_letter(
            delivery,
            now=self._clock(),
            unroutable=unroutable,
            max_body_bytes=self._options.max_decoded_bytes,
        )
        self._inbox.put(
            Incoming(source=channel, tag=tag, letter=letter, copy=copies.number(letter.content_hash, delivery))
        )

    def forget(self, channel: Any) -> None:
        """A channel is gone, and with it the meaning of its delivery tags."""
        self._inbox.forget(channel)

    @property
    def prefetch(self) -> int:
        """Letters in hand at most, for each queue."""
        return self._options.prefetch

    def later(self, seconds: float, call: Callable[[], None]) -> None:
        """Call back in the loop."""
        self._loop.call_later(seconds, call)


class Intake:
    """One drained queue on its own channel."""

    def __init__(self, queue: str, drain: Drain, *, unroutable: bool) -> None:
        self.queue, self._drain, self._unroutable = queue, drain, unroutable
        self._channel: Any = None
        self._held: set[int] = set()
        self._copies = Copies()
        self._backoff = Backoff()

    def open(self, connection: RawConnection) -> None:
        """Open a channel and consume."""
        if connection.is_open:
            connection.channel(on_open_callback=self._channel_opened)

    def closed(self) -> None:
        """Forget the channel: whatever was unacknowledged on it comes again."""
        if self._channel is not None:
            self._channel.connection.stop_delivering(self._channel.channel_number)
            self._drain.forget(self._channel)
        self._channel = None
        self._held = set()

    def acknowledge(self, receipt: Receipt) -> None:
        """Acknowledge what is committed, if it came on the channel that is open now."""
        channel = self._channel
        if channel is None or receipt.source is not channel or not channel.is_open:
            return
        self._held.update(receipt.refused)
        if self._held:
            # A multiple ack would take the refused ones with it.
            for tag in receipt.tags:
                channel.basic_ack(tag)
        elif receipt.tags:
            channel.basic_ack(receipt.tags[-1], multiple=True)
        self._backoff.reset()

    def _channel_opened(self, channel: Any) -> None:
        self._channel, self._held, self._copies = channel, set(), Copies()
        channel.add_on_close_callback(self._channel_closed)
        channel.add_on_cancel_callback(self._cancelled)
        channel.basic_qos(prefetch_count=self._drain.prefetch, callback=lambda _frame: self._consume(channel))

    def _consume(self, channel: Any) -> None:
        channel.connection.deliver(channel.channel_number, self)
        # Deliveries go past pika's channel, straight to received().
        channel.basic_consume(self.queue, lambda *_: None)

    def announced(self, body_bytes: int) -> None:
        """A body of that size is on its way."""

    def received(
        self,
        delivery_tag: int,
        redelivered: bool,
        exchange: bytes,
        routing_key: bytes,
        properties: bytes,
        body: bytes,
    ) -> None:
        """A message has arrived whole."""
        delivery = Delivery(
            drained_queue=self.queue,
            exchange=_text(exchange),
            routing_key=_text(routing_key),
            redelivered=redelivered,
            properties=properties,
            body=body,
        )
        self._drain.received(self._channel, delivery_tag, delivery, unroutable=self._unroutable, copies=self._copies)

    def _cancelled(self, _frame: Any) -> None:
        log.warning("queue.cancelled", queue=self.queue, problem="the broker ended the consumer")
        if self._channel is not None and self._channel.is_open:
            self._channel.close()

    def _channel_closed(self, channel: Any, error: BaseException) -> None:
        if channel is not self._channel:
            return
        self.closed()
        connection = channel.connection
        if isinstance(error, pika.exceptions.ChannelClosed) and connection.is_open:
            wait = self._backoff.next()
            log.warning("channel.closed", queue=self.queue, problem=str(error), retry_in_seconds=round(wait, 2))
            self._drain.later(wait, lambda: self.open(connection))


class Copies:
    """Numbers the equal messages without an id that the broker delivers again on one channel."""

    def __init__(self) -> None:
        self._seen: dict[str, int] = {}

    def number(self, content_hash: str | None, delivery: Delivery) -> int:
        """Which of the redelivered copies this is, from 1; 0 for what was never delivered before."""
        if content_hash is None or not delivery.redelivered:
            return 0
        self._seen[content_hash] = self._seen.get(content_hash, 0) + 1
        return self._seen[content_hash]


class Backoff:
    """Seconds between attempts: doubling, capped, with jitter."""

    def __init__(self) -> None:
        self._seconds = FIRST_BACKOFF_SECONDS

    def next(self) -> float:
        """How long to wait now."""
        seconds = self._seconds
        self._seconds = min(seconds * 2, LAST_BACKOFF_SECONDS)
        return seconds * random.uniform(0.5, 1.0)  # noqa: S311, jitter

    def reset(self) -> None:
        """It works again."""
        self._seconds = FIRST_BACKOFF_SECONDS


def _text(value: bytes) -> str:
    return value.decode("utf-8", "backslashreplace")
