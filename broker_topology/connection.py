"""A kombu connection to a broker, with every way in which it can fail as one sentence of ours."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import amqp.exceptions
from kombu import Connection

from broker_topology.address import BrokerAddress
from broker_topology.errors import BrokerUnavailableError

CONNECT_TIMEOUT_SECONDS = 5
ANSWER_TIMEOUT_SECONDS = 30


@contextmanager
def connected(address: BrokerAddress) -> Iterator[Any]:
    """A connected ``kombu.Connection``. Raises BrokerUnavailableError, also for what fails later."""
    connection = Connection(
        connect_timeout=CONNECT_TIMEOUT_SECONDS,
        transport_options={
            "read_timeout": ANSWER_TIMEOUT_SECONDS,
            "write_timeout": ANSWER_TIMEOUT_SECONDS,
            "client_properties": {"connection_name": "broker-topology"},
        },
        **address.kombu_options(),
    )
    try:
        _connect(connection, address)
        yield connection
    except amqp.exceptions.AMQPError as error:
        raise BrokerUnavailableError(f"the broker at {address} refuses: {reply(error)}") from error
    except OSError as error:
        raise BrokerUnavailableError(f"the connection to {address} was lost: {_text(error)}") from error
    finally:
        with suppress(OSError, amqp.exceptions.AMQPError):
            connection.release()


def _connect(connection: Any, address: BrokerAddress) -> None:
    try:
        connection.ensure_connection(
            max_retries=1, interval_start=0, interval_step=0, reraise_as_library_errors=False
        )
    except amqp.exceptions.AccessRefused as error:
        raise BrokerUnavailableError(
            f"the broker at {address.netloc} refuses the login of user {address.user!r}"
        ) from error
    except amqp.exceptions.NotAllowed as error:
        missing = "not found" in reply(error)
        why = "does not exist there" if missing else f"is closed to user {address.user!r}: {reply(error)}"
        raise BrokerUnavailableError(
            f"virtual host {address.vhost!r} of the broker at {address.netloc} {why}"
        ) from error
    except ssl.SSLError as error:
        raise BrokerUnavailableError(f"no TLS connection to {address.netloc}: {error.reason or error}") from error
    except TimeoutError as error:
        raise BrokerUnavailableError(f"the broker at {address.netloc} does not answer in time") from error
    except socket.gaierror as error:
        raise BrokerUnavailableError(f"there is no host {address.host!r}") from error
    except (OSError, amqp.exceptions.AMQPError) as error:
        raise BrokerUnavailableError(f"the broker at {address.netloc} cannot be reached: {_text(error)}") from error


def reply(error: amqp.exceptions.AMQPError) -> str:
    """What the broker said, on one line."""
    return " ".join(str(error.reply_text or error).split())


def _text(error: Exception) -> str:
    return (isinstance(error, OSError) and error.strerror) or str(error) or type(error).__name__
