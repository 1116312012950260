"""One command and its reply, on a connection of a Redis client's but past its pool.

A claim costs a run two round trips, and most of the time of such a trip is spent in the client: redis-py's pool
checks a connection, times and records each command. Here a connection is taken, used and put back.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

import redis

Command = Callable[..., Any]


class RedisWire:
    """Sends commands, from any thread of any process; raises redis-py's errors.

    A client without a connection pool, such as one of Redis Cluster, is asked itself.
    """

    def __init__(self, client: redis.Redis) -> None:
        self._client, self._pool = client, getattr(client, "connection_pool", None)
        self._forget()

    def _forget(self) -> None:
        self._pid, self._idle = os.getpid(), deque[Any]()

    def ask(self, name: str, *parts: bytes | str | int) -> Any:
        """Send one command and return its reply.

        A command may run twice where its connection broke: only what gives the same answer when it is repeated
        may be sent.
        """
        if self._pool is None:
            execute: Command = self._client.execute_command
            return execute(name, *parts)
        if self._pid != os.getpid():
            self._forget()  # a connection that a fork shares would mix up replies
        command = _packed((name, *parts))
        try:
            connection = self._idle.pop()
        except IndexError:
            return self._exchange(_connected(self._pool), command)
        try:
            return self._exchange(connection, command)
        except redis.exceptions.ConnectionError:
            # Closed while it was idle, by a restart or a time limit: that says nothing of Redis now.
            return self._exchange(_connected(self._pool), command)

    def close(self) -> None:
        """Close the idle connections; the next command opens a new one."""
        while self._idle:
            self._idle.pop().disconnect()

    def _exchange(self, connection: Any, command: bytes) -> Any:
        """A connection goes back only after a whole reply: a late one would be taken for the next command's."""
        try:
            connection.send_packed_command((command,), check_health=False)
            reply = connection.read_response()
        except redis.exceptions.ReadOnlyError:
            connection.disconnect()  # a failover made a replica of it: ask anew where the master is
            raise
        except redis.exceptions.ResponseError:
            self._idle.append(connection)
            raise
        except BaseException:
            # A time limit's signal included, which may strike between question and answer.
            connection.disconnect()
            raise
        self._idle.append(connection)
        return reply


def _connected(pool: redis.ConnectionPool) -> Any:
    connection: Any = pool.connection_class(**pool.connection_kwargs)
    connection.connect()
    return connection


def _packed(parts: Iterable[bytes | str | int]) -> bytes:
    """A command as Redis reads it: https://redis.io/docs/latest/develop/reference/protocol-spec/"""
    encoded = [part if isinstance(part, bytes) else str(part).encode() for part in parts]
    words = [b"$%d\r\n%b\r\n" % (len(part), part) for part in encoded]
    return b"*%d\r\n%b" % (len(words), b"".join(words))
