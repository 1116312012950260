"""A pika connection for moving messages: their properties stay the bytes that they are.

pika decodes every content header inside of its frame reader. One that it cannot decode, such as a timestamp
in milliseconds, raises there and looks like a lost connection; and what it decodes it cannot encode again
byte for byte. Here a header is read past that decoding, and written as it came.
"""

from __future__ import annotations

import ssl
import struct
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pika
import pika.exceptions
import pika.frame
from pika.adapters.blocking_connection import BlockingConnection

from broker_topology.address import BrokerAddress
from broker_topology.errors import BrokerUnavailableError

CONNECT_TIMEOUT_SECONDS = 5
BLOCKED_TIMEOUT_SECONDS = 30
"""How long a memory or disk alarm of the broker may hold us up."""

_HEADER_FRAME = 2
_FRAME_OVERHEAD = 8


class RawProperties(pika.BasicProperties):  # type: ignore[misc]
    """The properties of one message as the bytes of its content header, flags first."""

    def __init__(self, raw: bytes) -> None:
        # The fields of the base class stay unset: nothing of pika's reads them on the way in or out.
        self.raw = raw

    def encode(self) -> list[bytes]:
        """The very same bytes, for a publish."""
        return [self.raw]


class RawConnection(pika.SelectConnection):  # type: ignore[misc]
    """A connection whose messages carry RawProperties."""

    _frame_buffer: bytes

    def _read_frame(self) -> tuple[int, Any]:
        buffer = self._frame_buffer
        if buffer[0] != _HEADER_FRAME or len(buffer) < 7:
            return super()._read_frame()  # type: ignore[no-any-return]
        channel_number, size = struct.unpack_from(">HL", buffer, 1)
        end = size + _FRAME_OVERHEAD
        if end > len(buffer):
            return 0, None
        (body_size,) = struct.unpack_from(">Q", buffer, 11)
        return end, pika.frame.Header(channel_number, body_size, RawProperties(buffer[19 : end - 1]))


@contextmanager
def wired(address: BrokerAddress, *, name: str = "broker-topology") -> Iterator[Any]:
    """A connected pika.BlockingConnection. Raises BrokerUnavailableError, also for what fails later."""
    try:
        connection = BlockingConnection(parameters(address, name), _impl_class=RawConnection)
    except (pika.exceptions.AMQPError, OSError) as error:
        raise BrokerUnavailableError(f"the broker at {address.netloc} cannot be reached: {said(error)}") from error
    try:
        yield connection
    except pika.exceptions.AMQPError as error:
        raise BrokerUnavailableError(f"the broker at {address.netloc} refuses: {said(error)}") from error
    finally:
        with suppress(pika.exceptions.AMQPError):
            connection.close()


def said(error: BaseException) -> str:
    """What the broker said, on one line; else the kind of the error."""
    match error:
        case pika.exceptions.ConnectionClosed() | pika.exceptions.ChannelClosed():
            return " ".join(str(error.reply_text).split())
        case pika.exceptions.ProbableAuthenticationError() | pika.exceptions.AuthenticationError():
            return "it refuses user or password"
        case pika.exceptions.ProbableAccessDeniedError():
            return "it has no such virtual host for this user"
        case pika.exceptions.ConnectionBlockedTimeout():
            return "an alarm blocks publishers"
        case _:
            return " ".join(str(error).split()) or type(error).__name__


def parameters(address: BrokerAddress, name: str) -> pika.ConnectionParameters:
    """Connection parameters of pika for an address."""
    return pika.ConnectionParameters(
        host=address.host,
        port=address.port,
        virtual_host=address.vhost,
        credentials=pika.PlainCredentials(address.user, address.password),
        ssl_options=_ssl_options(address),
        heartbeat=60,
        socket_timeout=CONNECT_TIMEOUT_SECONDS,
        stack_timeout=2 * CONNECT_TIMEOUT_SECONDS,
        blocked_connection_timeout=BLOCKED_TIMEOUT_SECONDS,
        client_properties={"connection_name": name},
    )


def _ssl_options(address: BrokerAddress) -> pika.SSLOptions | None:
    if not address.tls:
        return None
    context: ssl.SSLContext = address.ssl_context()
    return pika.SSLOptions(context, address.host)
