"""A publisher that goes on while a queue is replaced under it, and keeps the account."""

from __future__ import annotations

import threading
from collections import Counter
from typing import Any

import pika
import pika.exceptions


class LivePublisher:
    """Publishes numbered messages to an exchange, confirmed and mandatory, until it is stopped."""

    def __init__(self, url: str, exchange: str, routing_key: str, *, pause_seconds: float = 0.002) -> None:
        self._url, self._exchange, self._routing_key, self._pause = url, exchange, routing_key, pause_seconds
        self.sent: list[str] = []
        self.errors: list[str] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> LivePublisher:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(20)

    def _run(self) -> None:
        connection = pika.BlockingConnection(pika.URLParameters(self._url))
        channel = connection.channel()
        channel.confirm_delivery()
        number = 0
        while not self._stop.wait(self._pause):
            properties = pika.BasicProperties(
                message_id=str(number), delivery_mode=2, headers={"n": number}, timestamp=1_700_000_000_000
            )
            try:
                channel.basic_publish(
                    self._exchange, self._routing_key, str(number).encode(), properties, mandatory=True
                )
                self.sent.append(str(number))
            except pika.exceptions.AMQPError as error:
                self.errors.append(repr(error))
            number += 1
        connection.close()


def take_all(url: str, queue: str) -> list[tuple[Any, Any, bytes]]:
    """Everything in a queue: how it was delivered, its properties, its body."""
    connection = pika.BlockingConnection(pika.URLParameters(url))
    channel = connection.channel()
    found = []
    for method, properties, body in channel.consume(queue, auto_ack=True, inactivity_timeout=1.0):
        if method is None:
            break
        found.append((method, properties, body))
    connection.close()
    return found


def account(sent: list[str], found: list[bytes]) -> tuple[set[str], dict[str, int]]:
    """What is missing, and what is there more than once."""
    counts = Counter(body.decode() for body in found)
    return set(sent) - counts.keys(), {number: count for number, count in counts.items() if count > 1}
