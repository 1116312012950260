"""Probe messages: sent through a broker's real exchanges and caught again before anybody else sees them.

A probe goes into a queue of its own that has the settings of the queue it stands for, so no worker gets it.
Where dead letters end it is caught by a consumer of the highest priority, so no drain gets it; what else
comes along is held back unacknowledged and returned at the end.
"""

from __future__ import annotations

import time
import uuid
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

import pika
import pika.exceptions

PREFIX = "broker-topology.probe."
"""What every queue, exchange and policy is called that a probe makes; they go away by themselves too."""

PROBE_QUEUE_EXPIRES_MS = 600_000
PRIORITY = 1_000_000
"""Of the consumers that catch probes; a drain has 0."""
MAX_HELD = 5_000
"""Messages that are held back in one queue while probes are caught there."""
MARGIN = 1_000
"""Messages that may come along while probes are caught."""

NOWHERE = "nowhere"


def new_token() -> str:
    """A name that no other probe has."""
    return f"{PREFIX}{uuid.uuid4().hex[:16]}"


class Catch:
    """Catches probes wherever they arrive in a set of queues."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self._channels: dict[str, Any] = {}
        self._caught: dict[str, deque[tuple[str, int, bool]]] = {}
        self._cancelled: list[str] = []

    def watch(self, queue: str, *, most: int) -> int:
        """Start catching in a queue, unless more than ``most`` messages wait there; how many do.

        Raises pika.exceptions.ChannelClosed.
        """
        channel = self._connection.channel()
        depth = int(channel.queue_declare(queue, passive=True).method.message_count)
        if depth > most:
            channel.close()
            return depth
        channel.basic_qos(prefetch_count=depth + MARGIN)
        channel.add_on_cancel_callback(lambda _: self._cancelled.append(queue))
        channel.basic_consume(
            queue,
            lambda _channel, method, _properties, body: self._deliver(queue, method, body),
            arguments={"x-priority": PRIORITY},
        )
        self._channels[queue] = channel
        return depth

    def arrival(self, token: str, *, seconds: float) -> str:
        """Where a probe arrives; NOWHERE at the deadline. It stays unacknowledged."""
        self._wait(lambda: bool(self._caught.get(token)), seconds)
        arrivals = self._caught.get(token)
        return arrivals[-1][0] if arrivals else NOWHERE

    def returns_survived(self, token: str, times: int, *, seconds: float) -> int:
        """Return an arrived probe to its queue that many times; how often it came back."""
        for survived in range(times):
            queue, tag, _ = self._caught[token].pop()
            self._channels[queue].basic_reject(tag, requeue=True)
            self._wait(lambda: bool(self._caught[token]), seconds)
            if not self._caught[token]:
                return survived
        return times

    def remove(self, token: str) -> None:
        """Take an arrived probe away for good."""
        for queue, tag, _ in self._caught.pop(token, ()):
            self._channels[queue].basic_ack(tag)

    def close(self) -> None:
        """Remove every probe and return everything else to where it was."""
        for token in list(self._caught):
            if token.startswith(PREFIX):
                self.remove(token)
        for channel in self._channels.values():
            if channel.is_open:
                channel.basic_nack(0, multiple=True, requeue=True)
                channel.close()

    def _deliver(self, queue: str, method: Any, body: bytes) -> None:
        token = body[:64].decode("latin-1")
        if token.startswith(PREFIX):
            self._caught.setdefault(token, deque()).append((queue, method.delivery_tag, method.redelivered))

    def _wait(self, ready: Callable[[], bool], seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while not ready() and time.monotonic() < deadline:
            self._connection.process_data_events(0.05)


class Deaths:
    """A probe queue with given settings, in which probes die in every way."""

    def __init__(self, connection: Any, name: str, arguments: Mapping[str, Any]) -> None:
        self.name = name
        self._channel = connection.channel()
        self._channel.confirm_delivery()
        self._connection = connection
        self._channel.queue_declare(name, durable=True, arguments={**arguments, "x-expires": PROBE_QUEUE_EXPIRES_MS})

    def reject(self) -> str:
        """A probe that is rejected."""
        token = self._publish()
        self._channel.basic_reject(self._get(), requeue=False)
        return token

    def expire(self) -> str:
        """A probe that expires."""
        return self._publish(expiration="20")

    def return_too_often(self, limit: int) -> str:
        """A probe that is returned until the delivery limit is exceeded."""
        token = self._publish()
        for _ in range(limit + 1):
            self._channel.basic_reject(self._get(), requeue=True)
        return token

    def is_full(self) -> bool:
        """Whether the queue refuses what is published, although nothing in it can be consumed."""
        for _ in range(40):
            try:
                self._publish()
            except pika.exceptions.NackError:
                return True
            self._channel.basic_ack(self._get())
            # A publisher learns from the fate of an earlier message that a quorum queue is full.
            self._connection.process_data_events(0.02)
        return False

    def close(self) -> None:
        """Delete the probe queue."""
        self._channel.queue_delete(self.name)
        self._channel.close()

    def _publish(self, *, expiration: str | None = None) -> str:
        token = new_token()
        properties = pika.BasicProperties(delivery_mode=2, expiration=expiration, app_id="broker-topology")
        self._channel.basic_publish("", self.name, token.encode(), properties, mandatory=True)
        return token

    def _get(self) -> int:
        """The delivery tag of the next probe; a quorum queue shows a message a moment after its confirm."""
        for _ in range(200):
            method, _, _ = self._channel.basic_get(self.name)
            if method is not None:
                return int(method.delivery_tag)
            self._connection.process_data_events(0.02)
        raise ProbeLostError(f"a probe is gone from its own queue {self.name}")


class ProbeLostError(Exception):
    """A probe is gone where it could not be."""


def publish_unroutable(connection: Any, exchange: str) -> str | None:
    """Publish a probe that no binding of an exchange takes; None where the broker hands it back."""
    channel = connection.channel()
    channel.confirm_delivery()
    token = new_token()
    try:
        channel.basic_publish(exchange, token, token.encode(), pika.BasicProperties(delivery_mode=2), mandatory=True)
    except pika.exceptions.UnroutableError:
        return None
    finally:
        channel.close()
    return token
