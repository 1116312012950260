"""One drained queue on a channel of its own: how much to ask for, what to take in, what to acknowledge."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import pika.exceptions
import structlog

from broker_topology.wire import RawConnection
from consumers.appetite import SMALLEST_START, Appetite
from consumers.backoff import Backoff
from consumers.letters import Delivery
from consumers.writer import Receipt

log = structlog.get_logger()


class Host(Protocol):
    """The drain, as its intakes see it."""

    def received(self, channel: Any, tag: int, delivery: Delivery, *, unroutable: bool) -> int:
        """Take one delivery in. Returns the bytes that were unpacked."""

    def forget(self, channel: Any) -> None:
        """A channel is gone, and with it the meaning of its delivery tags."""

    def later(self, seconds: float, call: Callable[[], None]) -> None:
        """Call back in the loop."""

    def consuming(self, queue: str, problem: str | None) -> None:
        """A queue is being consumed, or why it is not."""

    def certain(self, receipt: Receipt) -> None:
        """The broker has the acks of these letters without an id."""

    def asking_for(self, queue: str, letters: int) -> None:
        """That many letters may be in hand from a queue."""


class Intake:
    """One drained queue. Reopens its channel whenever that is closed; the connection is the drain's."""

    def __init__(self, queue: str, host: Host, appetite: Appetite, *, unroutable: bool) -> None:
        self.queue, self._host, self._appetite, self._unroutable = queue, host, appetite, unroutable
        self._backoff = Backoff()
        self._channel: Any = None
        self._forget_channel()

    def open(self, connection: RawConnection) -> None:
        """Open a channel and consume."""
        if connection.is_open:
            connection.channel(on_open_callback=self._channel_opened)

    def closed(self) -> None:
        """Forget the channel: whatever was unacknowledged on it comes again."""
        if self._channel is not None:
            self._channel.connection.stop_delivering(self._channel.channel_number)
            self._host.forget(self._channel)
        self._forget_channel()

    def acknowledge(self, receipt: Receipt) -> None:
        """Acknowledge what is committed, if it came on the channel that is open now."""
        channel = self._channel
        if channel is None or receipt.source is not channel or not channel.is_open:
            return
        self._refused.update(receipt.refused)
        self._blocked += len(receipt.refused)
        if self._refused:
            # A multiple ack would take the refused ones with it.
            for tag in receipt.tags:
                channel.basic_ack(tag)
        elif receipt.tags:
            channel.basic_ack(receipt.tags[-1], multiple=True)
        if receipt.equal:
            # Its answer comes after the acks were taken in; nothing else of AMQP confirms them.
            channel.basic_qos(prefetch_count=self._asked, callback=lambda _frame: self._host.certain(receipt))
        self._held_letters -= len(receipt.tags) + len(receipt.refused)
        self._held_bytes -= receipt.held_bytes
        self._backoff.reset()
        self._adjust()

    # --- deliveries

    def announced(self, body_bytes: int) -> None:
        """A body of that size is on its way."""
        self._held_letters += 1
        self._holds(body_bytes)

    def _holds(self, size: int) -> None:
        self._appetite.saw(size)
        self._held_bytes += size
        if self._appetite.draws_back(self._held_letters, self._held_bytes):
            log.warning("intake.too_much", queue=self.queue, letters=self._held_letters, bytes=self._held_bytes)
            # The broker has sent more than may be held: only a dropped connection stops what is under way.
            self._channel.connection.drop()
        elif self._held_letters == SMALLEST_START:
            # Enough to know their size by; the first commit would be long to wait for.
            self._adjust()

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
            exchange=str(exchange, "utf-8", "backslashreplace"),
            routing_key=str(routing_key, "utf-8", "backslashreplace"),
            redelivered=redelivered,
            properties=properties,
            body=body,
        )
        if unpacked := self._host.received(self._channel, delivery_tag, delivery, unroutable=self._unroutable):
            self._holds(unpacked)

    # --- the channel

    def _channel_opened(self, channel: Any) -> None:
        self._forget_channel()
        self._channel = channel
        channel.add_on_close_callback(self._channel_closed)
        channel.add_on_cancel_callback(self._cancelled)
        # Deliveries go past pika's channel, straight to announced() and received().
        channel.connection.deliver(channel.channel_number, self)
        self._consume()

    def _consume(self) -> None:
        channel = self._channel
        letters = self._asked = self._appetite.current
        self._blocked = 0

        def started(_frame: Any) -> None:
            self._adjusting = False
            self._host.consuming(self.queue, None)
            self._host.asking_for(self.queue, letters)

        def limited(_frame: Any) -> None:
            if channel is self._channel and channel.is_open:
                self._tag = channel.basic_consume(self.queue, lambda *_: None, callback=started)

        channel.basic_qos(prefetch_count=letters, callback=limited)

    def _adjust(self) -> None:
        """Ask for more or fewer letters from now on. A prefetch count holds for new consumers only."""
        self._appetite.change()
        # What the database refused is never acknowledged: the broker counts it until the consumer ends.
        if self._adjusting or (self._asked == self._appetite.current and self._blocked < self._asked):
            return
        self._adjusting = True
        channel = self._channel
        channel.basic_cancel(
            self._tag,
            callback=lambda _frame: self._consume() if channel is self._channel and channel.is_open else None,
        )

    def _cancelled(self, _frame: Any) -> None:
        self._host.consuming(self.queue, "the broker ended the consumer")
        if self._channel is not None and self._channel.is_open:
            self._channel.close()

    def _channel_closed(self, channel: Any, error: BaseException) -> None:
        if channel is not self._channel:
            return
        self.closed()
        connection = channel.connection
        if isinstance(error, pika.exceptions.ChannelClosed) and connection.is_open:
            wait = self._backoff.next()
            self._host.consuming(self.queue, getattr(error, "reply_text", "") or "the channel was closed")
            log.warning("channel.closed", queue=self.queue, problem=str(error), retry_in_seconds=round(wait, 2))
            self._host.later(wait, lambda: self.open(connection))

    def _forget_channel(self) -> None:
        self._channel = None
        self._tag = ""
        self._asked = self._blocked = 0
        self._adjusting = True
        self._refused: set[int] = set()
        self._held_letters = self._held_bytes = 0
