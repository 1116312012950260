"""Publishing with confirms, many messages on their way at once, each with its own answer."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Self

import pika
import pika.exceptions
from pika.adapters.select_connection import IOLoop

from broker_topology.address import BrokerAddress
from broker_topology.errors import BrokerUnavailableError
from broker_topology.raw_properties import read_properties
from broker_topology.wire import RawConnection, RawProperties, parameters, why_away

ANSWER_SECONDS = 60.0
"""How long the broker may take to answer before it counts as away: a memory alarm blocks publishers."""

FRAME_BYTES = 20
"""What a frame with a content header takes besides the properties."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outgoing:
    """One message to publish."""

    key: str
    """Its ``replay_id`` header, by which a returned message is recognised."""
    exchange: str
    routing_key: str
    properties: bytes
    body: bytes


@dataclass(frozen=True, slots=True)
class Confirmed:
    """The broker has it."""


@dataclass(frozen=True, slots=True)
class Full:
    """The broker did not take it now: its queue is full."""


@dataclass(frozen=True, slots=True)
class Refused:
    """It cannot be sent."""

    problem: str


Answer = Confirmed | Full | Refused


class Publisher:
    """A connection that publishes and waits for the answers. A context manager."""

    def __init__(self, url: str) -> None:
        self._address = BrokerAddress.parse(url)
        self._loop = IOLoop()
        self._connection: Any = None
        self._channel: Any = None
        self._problem: str | None = None
        self._refusal: str | None = None
        self._tags: dict[int, str] = {}
        self._answers: dict[str, Answer] = {}
        self._last_tag = 0

    def __enter__(self) -> Self:
        """Connect. Raises BrokerUnavailableError."""
        self._connection = RawConnection(
            parameters(self._address, "dead-letters replay"),
            on_open_callback=lambda _: self._loop.stop(),
            on_open_error_callback=self._lost,
            on_close_callback=self._lost,
            custom_ioloop=self._loop,
        )
        try:
            self._wait(lambda: self._connection.is_open)
        except BrokerUnavailableError:
            self._loop.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        """Disconnect."""
        if self._connection.is_open:
            self._connection.close()
        with contextlib.suppress(BrokerUnavailableError):
            self._wait(lambda: self._connection.is_closed)
        self._loop.close()

    def publish(
        self, messages: Sequence[Outgoing], meanwhile: Callable[[], None] = lambda: None
    ) -> dict[str, Answer]:
        """Publish all, do something ``meanwhile``, wait for every answer, by key. Raises BrokerUnavailableError.

        Where the broker closes the channel over one of them, those that have no answer are sent again one by
        one, so that the one is found.
        """
        room = self._connection.params.frame_max - FRAME_BYTES
        answers: dict[str, Answer] = {
            message.key: Refused(f"its headers take {len(message.properties):,} bytes, and the broker takes {room:,}")
            for message in messages
            if len(message.properties) > room  # the broker would close the connection over it
        }
        answers |= self._publish([message for message in messages if message.key not in answers], meanwhile)
        unanswered = [message for message in messages if message.key not in answers]
        for message in unanswered:
            answer = self._publish([message], lambda: None).get(message.key)
            answers[message.key] = answer or Refused(f"the broker refuses it: {self._refusal}")
        return answers

    def _publish(self, messages: Sequence[Outgoing], meanwhile: Callable[[], None]) -> dict[str, Answer]:
        if self._channel is None or not self._channel.is_open:
            self._open_channel()
        self._answers, self._refusal = {}, None
        for message in messages:
            self._last_tag += 1
            self._tags[self._last_tag] = message.key
            self._channel.basic_publish(
                message.exchange,
                message.routing_key,
                message.body,
                RawProperties(message.properties),
                mandatory=True,
            )
        self._send_what_fits()
        meanwhile()
        self._wait(lambda: not self._tags)
        return self._answers

    def _open_channel(self) -> None:
        self._tags, self._last_tag, self._channel = {}, 0, None

        def ready(channel: Any) -> None:
            self._channel = channel
            self._loop.stop()

        def opened(channel: Any) -> None:
            channel.add_on_close_callback(self._closed)
            channel.add_on_return_callback(self._returned)
            channel.confirm_delivery(self._confirmed, callback=lambda _: ready(channel))

        if not self._connection.is_open:
            raise BrokerUnavailableError(self._problem)
        self._connection.channel(on_open_callback=opened)
        self._wait(lambda: self._channel is not None)

    def _send_what_fits(self) -> None:
        """Turn the loop once: pika keeps what is published until then."""
        self._loop.call_later(0, self._loop.stop)
        self._loop.start()

    def _wait(self, done: Callable[[], bool]) -> None:
        """Turn the loop until it is done. Raises BrokerUnavailableError."""
        timeout = self._loop.call_later(ANSWER_SECONDS, self._too_late)
        # A stop may be left over from before, so that the loop's end alone says nothing.
        while not done() and self._problem is None:
            self._loop.start()
        self._loop.remove_timeout(timeout)
        if self._problem is not None:
            raise BrokerUnavailableError(self._problem)

    # --- what the broker says

    def _confirmed(self, frame: Any) -> None:
        method = frame.method
        tags = [method.delivery_tag]
        if method.multiple:
            tags = [tag for tag in self._tags if tag <= method.delivery_tag]
        answer: Answer = Confirmed() if isinstance(method, pika.spec.Basic.Ack) else Full()
        for tag in tags:
            # A message that came back is confirmed as well, after its return.
            self._answers.setdefault(self._tags.pop(tag), answer)
        if not self._tags:
            self._loop.stop()

    def _returned(self, _channel: Any, method: Any, properties: RawProperties, _body: bytes) -> None:
        key = read_properties(properties.raw).headers.get("replay_id")
        where = f"queue {method.routing_key!r}"
        if method.exchange:
            where = f"queue for {method.routing_key!r} at exchange {method.exchange!r}"
        self._answers[str(key)] = Refused(f"there is no {where}")

    def _closed(self, channel: Any, error: BaseException) -> None:
        if channel is self._channel and isinstance(error, pika.exceptions.ChannelClosed):
            self._refusal = error.reply_text
            self._tags = {}
            self._loop.stop()

    def _lost(self, _connection: Any, error: BaseException) -> None:
        self._problem = why_away(self._address, error)
        self._loop.stop()

    def _too_late(self) -> None:
        self._problem = f"the broker did not answer within {ANSWER_SECONDS:.0f} s: it may have raised an alarm"
        self._loop.stop()
