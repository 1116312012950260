"""Moves messages from a queue to wherever they belong, without losing one: confirmed, mandatory, then acknowledged.

A message is acknowledged where it was only after the broker has confirmed it where it goes. What was in
flight when this is killed is in both places afterwards, with the same message id.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pika
import pika.exceptions

from broker_topology.address import BrokerAddress
from broker_topology.errors import BrokerUnavailableError, DeadLetterOfficeError
from broker_topology.letter import Letter, Readdress
from broker_topology.wire import RawConnection, RawProperties, parameters, said, why_away

PREFETCH = 400
TICK_SECONDS = 0.05
OVERDUE_SECONDS = 2.0
"""How long what was on its way into a queue may take to arrive."""


class MoveRefusedError(DeadLetterOfficeError):
    """A message could not be moved; it is still where it was."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Moved:
    """What a move came to."""

    count: int
    late: int
    """How many came after the queue had been empty and quiet once."""
    by_default_exchange: int
    """How many had been published to the default exchange."""


def move(
    address: BrokerAddress,
    source: str,
    readdress: Readdress,
    *,
    quiet_seconds: float = 1.0,
    watch_seconds: float = 0.0,
    expected: int | None = None,
    progress: Callable[[int], object] = lambda _count: None,
) -> Moved:
    """Move everything from a queue, until it has been empty and quiet for ``quiet_seconds``.

    ``watch_seconds`` is how much longer it is watched for messages that should not come any more. Where they
    never cease, ``expected`` tells when the watch begins: some time after that many were moved.

    Raises MoveRefusedError where the broker does not take a message, BrokerUnavailableError.
    """
    mover = _Mover(address, source, readdress, quiet_seconds, watch_seconds, expected, progress)
    connection = RawConnection(
        parameters(address, "broker-topology migrate"),
        on_open_callback=mover.opened,
        on_open_error_callback=mover.not_opened,
        on_close_callback=mover.closed,
    )
    try:
        connection.ioloop.start()
    finally:
        connection.ioloop.close()
    if mover.error is not None:
        raise mover.error
    return Moved(count=mover.count, late=mover.late, by_default_exchange=mover.by_default_exchange)


class _Mover:
    def __init__(
        self,
        address: BrokerAddress,
        source: str,
        readdress: Readdress,
        quiet_seconds: float,
        watch_seconds: float,
        expected: int | None,
        progress: Callable[[int], object],
    ) -> None:
        self._address, self._source, self._readdress, self._progress = address, source, readdress, progress
        self._expected = expected
        self._expected_at: float | None = None
        self._quiet_seconds, self._watch_seconds = quiet_seconds, watch_seconds
        self.count, self.late, self.by_default_exchange = 0, 0, 0
        self.error: DeadLetterOfficeError | None = None
        self._connection: Any = None
        self._channel: Any = None
        self._published = 0
        self._waiting: dict[int, int] = {}
        """Delivery tag of each message that is published and not confirmed, by its number."""
        self._last_arrival = time.monotonic()
        self._quiet_since: float | None = None

    def opened(self, connection: Any) -> None:
        self._connection = connection
        connection.channel(on_open_callback=self._channel_opened)

    def not_opened(self, connection: Any, error: BaseException) -> None:
        self.error = BrokerUnavailableError(why_away(self._address, error))
        connection.ioloop.stop()

    def closed(self, connection: Any, reason: BaseException) -> None:
        if self.error is None and self._channel is not None and not self._done:
            self.error = BrokerUnavailableError(f"the connection to the broker was lost: {said(reason)}")
        connection.ioloop.stop()

    _done = False

    def _channel_opened(self, channel: Any) -> None:
        self._channel = channel
        channel.add_on_close_callback(self._channel_closed)
        channel.add_on_return_callback(self._returned)
        channel.add_on_cancel_callback(self._cancelled)
        channel.confirm_delivery(self._confirmed)
        channel.basic_qos(prefetch_count=PREFETCH)
        self._last_arrival = time.monotonic()
        channel.basic_consume(self._source, self._arrived)
        connection = self._connection
        connection.ioloop.call_later(TICK_SECONDS, self._tick)

    def _arrived(self, channel: Any, method: Any, properties: RawProperties, body: bytes) -> None:
        if self.error is not None or self._done:
            return  # not acknowledged, so it stays where it is
        self._last_arrival = time.monotonic()
        self.late += self._quiet_since is not None
        self.by_default_exchange += not method.exchange
        letter = self._readdress(
            Letter(exchange=method.exchange, routing_key=method.routing_key, properties=properties.raw)
        )
        channel.basic_publish(
            letter.exchange, letter.routing_key, body, RawProperties(letter.properties), mandatory=True
        )
        self._published += 1
        self._waiting[self._published] = method.delivery_tag
        if self._published == self._expected:
            self._expected_at = self._last_arrival

    def _confirmed(self, frame: Any) -> None:
        number, multiple = frame.method.delivery_tag, frame.method.multiple
        if isinstance(frame.method, pika.spec.Basic.Nack):
            self._fail(MoveRefusedError(f"a queue refuses messages from {self._source}: it is full"))
            return
        if self.error is not None:
            return
        done = [waiting for waiting in self._waiting if waiting <= number] if multiple else [number]
        for waiting in done:
            self._channel.basic_ack(self._waiting.pop(waiting))
        self.count += len(done)

    def _returned(self, _channel: Any, method: Any, _properties: Any, _body: bytes) -> None:
        # It comes before the confirm, which is then not heeded: the message stays where it was.
        where = f"exchange {method.exchange!r} with key {method.routing_key!r}"
        self._fail(MoveRefusedError(f"a message from {self._source} is unroutable: {where} leads nowhere"))

    def _cancelled(self, _frame: Any) -> None:
        self._fail(MoveRefusedError(f"queue {self._source} was deleted meanwhile"))

    def _channel_closed(self, _channel: Any, reason: BaseException) -> None:
        if self.error is not None or self._done:
            return
        if isinstance(reason, pika.exceptions.ChannelClosedByBroker):
            self._fail(MoveRefusedError(f"queue {self._source}: {said(reason)}"))
        else:
            self._fail(BrokerUnavailableError(f"the connection to the broker was lost: {said(reason)}"))

    def _tick(self) -> None:
        if self.error is not None:
            return
        now = time.monotonic()
        self._progress(self.count)
        idle = not self._waiting and now - self._last_arrival >= self._quiet_seconds
        overdue = self._expected_at is not None and now - self._expected_at >= OVERDUE_SECONDS
        if self._quiet_since is None and (idle or overdue):
            self._quiet_since = now
        watched = self._quiet_since is not None and now - self._quiet_since >= self._watch_seconds
        if watched and (idle or self.late):
            self._done = True
        if self._done and not self._waiting:
            self._connection.close()
            return
        self._connection.ioloop.call_later(TICK_SECONDS, self._tick)

    def _fail(self, error: DeadLetterOfficeError) -> None:
        if self.error is None:
            self.error = error
        if self._connection.is_open:
            self._connection.close()
