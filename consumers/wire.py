"""Our connections to the broker: pika, with the content header kept as the bytes that came.

pika decodes every content header inside of its frame reader. One header that it cannot decode, such as a
timestamp in milliseconds, raises there, looks like a lost connection, and comes back for ever. These
connections read the frame of a content header themselves and leave its decoding to whoever asks.
"""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import pika
import pika.exceptions
import pika.frame
from pika.adapters.blocking_connection import BlockingConnection

from broker_topology.errors import BrokerUnavailableError, ConfigurationError

HEARTBEAT_SECONDS = 60
_HEADER_FRAME = 2
_FRAME_OVERHEAD = 8


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


class RawConnection(pika.SelectConnection):  # type: ignore[misc]
    """A connection whose messages carry RawProperties."""

    def _read_frame(self) -> tuple[int, Any]:
        buffer = self._frame_buffer
        if buffer[0] != _HEADER_FRAME or len(buffer) < 7:
            return super()._read_frame()  # type: ignore[no-any-return]
        channel_number, size = struct.unpack_from(">HL", buffer, 1)
        end = size + _FRAME_OVERHEAD
        if end > len(buffer):
            return 0, None
        if buffer[end - 1] != pika.spec.FRAME_END:
            raise pika.exceptions.InvalidFrameError("Invalid FRAME_END marker")
        (body_size,) = struct.unpack_from(">Q", buffer, 11)
        return end, pika.frame.Header(channel_number, body_size, RawProperties(buffer[19 : end - 1]))


def connection_parameters(url: str, *, name: str = "dead-letters") -> pika.URLParameters:
    """Read an AMQP address. Raises ConfigurationError."""
    # pika reads amqp://host// as the empty virtual host, kombu and everybody else as "/".
    if urlsplit(url).path == "//":
        url = url.replace(urlsplit(url).netloc + "//", urlsplit(url).netloc + "/%2F", 1)
    try:
        parameters = pika.URLParameters(url)
    except (ValueError, TypeError, AttributeError, IndexError) as error:
        raise ConfigurationError("AMQP_URL is not an AMQP address such as amqp://user:pw@host:5672/") from error
    if urlsplit(url).scheme not in {"amqp", "amqps"}:
        raise ConfigurationError("AMQP_URL must start with amqp:// or amqps://")
    parameters.client_properties = {"connection_name": name}
    if "heartbeat" not in urlsplit(url).query:
        parameters.heartbeat = HEARTBEAT_SECONDS
    return parameters


@contextlib.contextmanager
def connected(url: str, *, name: str = "dead-letters") -> Iterator[BlockingConnection]:
    """A blocking connection with raw properties. Raises BrokerUnavailableError, ConfigurationError."""
    parameters = connection_parameters(url, name=name)
    try:
        connection = BlockingConnection(parameters, _impl_class=RawConnection)
    except (pika.exceptions.AMQPError, OSError) as error:
        raise BrokerUnavailableError(connection_problem(parameters, error)) from error
    try:
        yield connection
    finally:
        with contextlib.suppress(pika.exceptions.AMQPError):
            connection.close()


def connection_problem(parameters: pika.ConnectionParameters, error: BaseException) -> str:
    """One sentence on why the broker cannot be reached, without the password."""
    where = f"{parameters.host}:{parameters.port}"
    match error:
        case pika.exceptions.ProbableAuthenticationError() | pika.exceptions.AuthenticationError():
            return f"the broker at {where} refuses the user or password"
        case pika.exceptions.ProbableAccessDeniedError():
            return f"the broker at {where} has no virtual host {parameters.virtual_host!r} for this user"
        case pika.exceptions.ConnectionClosedByBroker():
            return f"the broker at {where} closed the connection: {error.reply_code} {error.reply_text}"
        case pika.exceptions.StreamLostError():
            return f"the connection to the broker at {where} was lost"
        case _:
            return f"the broker at {where} cannot be reached"
