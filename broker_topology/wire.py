"""Our connections to the broker with pika: the content header of a message stays the bytes that it is.

pika decodes every content header inside of its frame reader. One that it cannot decode, such as a timestamp
in milliseconds, raises there, looks like a lost connection, and comes back for ever; and what it decodes it
cannot encode again byte for byte. These connections read the frame of a content header themselves, leave its
decoding to whoever asks, and write it as it came.
"""

from __future__ import annotations

import ssl
import struct
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, Protocol

import pika
import pika.exceptions
import pika.frame
from pika.adapters.blocking_connection import BlockingConnection
from pika.adapters.utils.connection_workflow import AMQPConnectionWorkflowFailed, AMQPConnectorException

from broker_topology.address import BrokerAddress
from broker_topology.errors import BrokerUnavailableError

CONNECT_TIMEOUT_SECONDS = 5
HEARTBEAT_SECONDS = 60
BLOCKED_TIMEOUT_SECONDS = 30
"""How long a memory or disk alarm of the broker may hold us up."""

_NOTHING, _METHOD_FRAME, _HEADER_FRAME, _BODY_FRAME = 0, 1, 2, 3
_FRAME_OVERHEAD = 8
_FRAME_START = struct.Struct(">BHL")
_BODY_SIZE = struct.Struct(">Q")
# Delivery tag, redelivered, length of the exchange's name.
_DELIVERED = struct.Struct(">Q?B")
_BASIC_DELIVER = bytes([0, 60, 0, 60])
_RECEIVE_BYTES = 128 * 1024


@contextmanager
def wired(address: BrokerAddress, *, name: str = "broker-topology") -> Iterator[Any]:
    """A connected pika.BlockingConnection. Raises BrokerUnavailableError, also for what fails later."""
    try:
        connection = BlockingConnection(parameters(address, name), _impl_class=RawConnection)
    except (pika.exceptions.AMQPError, OSError) as error:
        raise BrokerUnavailableError(why_away(address, error)) from error
    try:
        yield connection
    except pika.exceptions.AMQPError as error:
        raise BrokerUnavailableError(f"the broker at {address.netloc} refuses: {said(error)}") from error
    finally:
        with suppress(pika.exceptions.AMQPError):
            connection.close()


def why_away(address: BrokerAddress, error: BaseException) -> str:
    """One sentence on why there is no connection, without the password."""
    match error:
        case pika.exceptions.ConnectionClosedByBroker():
            return f"the broker at {address.netloc} closed the connection: {error.reply_code} {said(error)}"
        case pika.exceptions.StreamLostError():
            return f"the connection to the broker at {address.netloc} was lost"
        case _:
            return f"the broker at {address.netloc} cannot be reached: {said(error)}"


def said(error: BaseException) -> str:
    """What the broker said, on one line; else the kind of the error."""
    error = _root(error)
    match error:
        case pika.exceptions.ConnectionClosed() | pika.exceptions.ChannelClosed():
            return " ".join(str(error.reply_text).split())
        case pika.exceptions.ProbableAuthenticationError() | pika.exceptions.AuthenticationError():
            return "it refuses user or password"
        case pika.exceptions.ProbableAccessDeniedError():
            return "it has no such virtual host for this user"
        case pika.exceptions.ConnectionBlockedTimeout():
            return "an alarm blocks publishers"
        case OSError(strerror=str() as text):
            return text
        case _:
            return " ".join(str(error).split()) or type(error).__name__


def _root(error: BaseException) -> BaseException:
    """What is behind pika's layers of attempts to connect."""
    match error:
        case AMQPConnectionWorkflowFailed(exceptions=[*_, BaseException() as last]):
            return _root(last)
        case AMQPConnectorException(exception=BaseException() as inner):
            return _root(inner)
        case pika.exceptions.AMQPConnectionError(args=(BaseException() as inner, *_)):
            return _root(inner)
        case _:
            return error


def parameters(address: BrokerAddress, name: str) -> pika.ConnectionParameters:
    """Connection parameters of pika for an address."""
    return pika.ConnectionParameters(
        host=address.host,
        port=address.port,
        virtual_host=address.vhost,
        credentials=pika.PlainCredentials(address.user, address.password),
        ssl_options=_ssl_options(address),
        heartbeat=HEARTBEAT_SECONDS,
        socket_timeout=CONNECT_TIMEOUT_SECONDS,
        stack_timeout=2 * CONNECT_TIMEOUT_SECONDS,
        blocked_connection_timeout=BLOCKED_TIMEOUT_SECONDS,
        client_properties={"connection_name": name},
    )


class RawProperties(pika.BasicProperties):  # type: ignore[misc]
    """The properties of one message as the bytes of its content header, never decoded."""

    def __init__(self, raw: bytes) -> None:
        # The fields of the base class stay unset: nothing of pika's reads them on the way in or out.
        self.raw = raw

    def encode(self) -> list[bytes]:
        """The very same bytes, for a publish."""
        return [self.raw]

    def decode(self, encoded: bytes, offset: int = 0) -> RawProperties:
        """Keep the bytes."""
        self.raw = encoded[offset:]
        return self


class DroppedError(pika.exceptions.StreamLostError):  # type: ignore[misc]
    """The connection was cut by ``RawConnection.drop()``."""


class RawConnection(pika.SelectConnection):  # type: ignore[misc]
    """A connection whose messages carry RawProperties.

    Deliveries of the channels given to ``deliver()`` take a short way past pika's frame objects, callback
    tables and 4 kB reads, which cost more than all that a consumer of many small messages does with one.
    """

    _frame_buffer: bytes

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._arriving: dict[int, _Arriving] = {}
        super().__init__(*args, **kwargs)

    def deliver(self, channel_number: int, receiver: Receiver) -> None:
        """Hand whatever is delivered on that channel to ``receiver``, at once and whole."""
        self._arriving[channel_number] = _Arriving(receiver)
        self._transport._MAX_RECV_BYTES = _RECEIVE_BYTES

    def stop_delivering(self, channel_number: int) -> None:
        """The channel is gone."""
        if arriving := self._arriving.pop(channel_number, None):
            arriving.awaits = _NOTHING

    def drop(self) -> None:
        """Cut the connection at once, whatever is under way; the close callback follows."""
        for channel_number in list(self._arriving):
            self.stop_delivering(channel_number)
        self._terminate_stream(DroppedError())

    def _on_data_available(self, data_in: bytes) -> None:
        if not self._arriving:
            super()._on_data_available(data_in)
            return
        buffer = self._frame_buffer + data_in if self._frame_buffer else data_in
        offset, size = 0, len(buffer)
        while size - offset >= _FRAME_OVERHEAD:
            kind, channel_number, length = _FRAME_START.unpack_from(buffer, offset)
            end = offset + _FRAME_OVERHEAD + length
            if end > size:
                break
            if buffer[end - 1] != pika.spec.FRAME_END:
                raise pika.exceptions.InvalidFrameError("Invalid FRAME_END marker")
            arriving = self._arriving.get(channel_number)
            if arriving is None or not arriving.took(kind, buffer, offset + 7, end - 1):
                self._frame_buffer = buffer[offset:end]
                _, frame = self._read_frame()
                self._process_frame(frame)
            offset = end
            if not self._arriving:  # the connection was dropped or closed meanwhile
                break
        self.bytes_received += offset
        self._frame_buffer = buffer[offset:]

    def _read_frame(self) -> tuple[int, Any]:
        buffer = self._frame_buffer
        if buffer[0] != _HEADER_FRAME or len(buffer) < 7:
            return super()._read_frame()  # type: ignore[no-any-return]
        _, channel_number, size = _FRAME_START.unpack_from(buffer)
        end = size + _FRAME_OVERHEAD
        if end > len(buffer):
            return 0, None
        if buffer[end - 1] != pika.spec.FRAME_END:
            raise pika.exceptions.InvalidFrameError("Invalid FRAME_END marker")
        (body_size,) = _BODY_SIZE.unpack_from(buffer, 11)
        return end, pika.frame.Header(channel_number, body_size, RawProperties(buffer[19 : end - 1]))


class Receiver(Protocol):
    """Who takes the deliveries of one channel."""

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
        """A message has arrived whole; ``properties`` is its raw content header."""


class _Arriving:
    """The message that arrives on one channel, frame by frame."""

    __slots__ = (
        "_body_bytes",
        "_delivery_tag",
        "_exchange",
        "_filled_bytes",
        "_gathered",
        "_raw",
        "_receiver",
        "_redelivered",
        "_routing_key",
        "awaits",
    )

    def __init__(self, receiver: Receiver) -> None:
        self._receiver = receiver
        self.awaits = _NOTHING
        """The kind of frame that comes next of the message."""

    def took(self, kind: int, buffer: bytes, start: int, end: int) -> bool:
        """Take the payload of one frame; False where it is not part of a delivery."""
        if kind == _METHOD_FRAME and buffer[start : start + 4] == _BASIC_DELIVER:
            offset = start + 5 + buffer[start + 4]  # past the consumer tag: one consumer a channel
            self._delivery_tag, self._redelivered, length = _DELIVERED.unpack_from(buffer, offset)
            exchange_end = offset + 10 + length
            self._exchange = buffer[offset + 10 : exchange_end]
            self._routing_key = buffer[exchange_end + 1 : exchange_end + 1 + buffer[exchange_end]]
            self.awaits = _HEADER_FRAME
            return True
        if kind != self.awaits:
            return False
        if kind == _HEADER_FRAME:
            (self._body_bytes,) = _BODY_SIZE.unpack_from(buffer, start + 4)
            self._raw, self._filled_bytes = buffer[start + 12 : end], 0
            self.awaits = _BODY_FRAME
            self._receiver.announced(self._body_bytes)
            if self.awaits and not self._body_bytes:
                self._hand_over(b"")
        elif end - start >= self._body_bytes:
            self._hand_over(buffer[start:end])
        else:
            self._fill(memoryview(buffer)[start:end])
        return True

    def _fill(self, part: memoryview) -> None:
        """Gather a body of several frames in one place: pieces that are freed again leave holes in the heap."""
        if not self._filled_bytes:
            self._gathered = bytearray(self._body_bytes)
        filled = self._filled_bytes + len(part)
        self._gathered[self._filled_bytes : filled] = part
        self._filled_bytes = filled
        if filled >= self._body_bytes:
            body, self._gathered = bytes(self._gathered), bytearray()
            self._hand_over(body)

    def _hand_over(self, body: bytes) -> None:
        self.awaits = _NOTHING
        self._receiver.received(
            self._delivery_tag, self._redelivered, self._exchange, self._routing_key, self._raw, body
        )


def _ssl_options(address: BrokerAddress) -> pika.SSLOptions | None:
    if not address.tls:
        return None
    context: ssl.SSLContext = address.ssl_context()
    return pika.SSLOptions(context, address.host)
