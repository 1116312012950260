"""How fast a replay without a rate limit publishes, against a bare pika publisher with batched confirms.

Both sides publish the same messages to the same quorum queue in the same run, in turn; a figure is the median of
several rounds. The replay reads its letters from the database, publishes each mandatory and confirmed, and marks it.
Broker, database and both sides share the machine.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import pika
from pika.adapters.select_connection import IOLoop

from benchmarks.drain import dead_letter, drain_rate
from benchmarks.stage import TOPOLOGY, medians, stage, tell
from consumers import replay as replaying
from consumers.audit import Act
from consumers.database import open_database, reading
from consumers.dead_letters import Filter
from consumers.publisher import Publisher
from consumers.replays import progress

QUEUE = "payments"
BARE_BATCH = 500


def main() -> None:
    """Print one JSON object per figure."""
    with stage(__doc__, letters=10_000) as on:
        median = medians(
            {
                "bare": lambda: bare_rate(on.url, on.letters),
                "PostgreSQL": lambda: replay_rate(on.url, on.postgresql, on.letters),
                "SQLite": lambda: replay_rate(on.url, on.sqlite, on.letters),
            },
            on.rounds,
        )
    for name in ("PostgreSQL", "SQLite"):
        figure = f"replay from {name} against bare pika with batched confirms"
        tell("replay", figure, median[name], "confirmed publishes/s", "bare", median["bare"])


def replay_rate(url: str, database_url: str, letters: int) -> float:
    """Our replay, from the first letter that it reads until the last is marked."""
    drain_rate(url, database_url, letters)
    empty(url)
    engine = open_database(database_url)
    chosen = replaying.select(engine, Filter(queue=QUEUE))
    report = replaying.begin(engine, Act(actor="bench", reason="how fast"), chosen, now=now())
    with Publisher(url) as publisher:
        started = time.perf_counter()
        report = replaying.run(engine, publisher, TOPOLOGY, report, clock=now)
        took = time.perf_counter() - started
    with reading(engine) as connection:
        sent = progress(connection, report.replay_id).published
    if sent != letters or depth(url) != letters:
        raise AssertionError(f"{sent} of {letters} marked, {depth(url)} in the queue")
    engine.dispose()
    return letters / took


def bare_rate(url: str, letters: int) -> float:
    """A pika publisher that waits for the confirms of each batch, and does nothing else."""
    empty(url)
    messages = []
    for number in range(letters):
        raw, body = dead_letter(number)
        properties = pika.BasicProperties()
        properties.decode(raw)
        properties.headers = {name: value for name, value in properties.headers.items() if not name.startswith("x-")}
        messages.append((properties, body))
    took = _Bare(url, messages).run()
    if depth(url) != letters:
        raise AssertionError(f"{depth(url)} of {letters} in the queue")
    return letters / took


class _Bare:
    """Batches of publishes, each followed by its confirms."""

    def __init__(self, url: str, messages: Sequence[tuple[pika.BasicProperties, bytes]]) -> None:
        self._messages, self._next, self._confirmed = messages, 0, 0
        self._loop = IOLoop()
        self._channel: Any = None
        self._started = self._took = 0.0
        self._connection = pika.SelectConnection(
            pika.URLParameters(url),
            on_open_callback=lambda connection: connection.channel(on_open_callback=self._opened),
            on_close_callback=lambda *_: self._loop.stop(),
            custom_ioloop=self._loop,
        )

    def run(self) -> float:
        """Publish all; returns the seconds from the first publish to the last confirm."""
        self._loop.start()
        self._loop.close()
        return self._took

    def _opened(self, channel: Any) -> None:
        self._channel = channel
        channel.confirm_delivery(self._on_confirm, callback=lambda _: self._begin())

    def _begin(self) -> None:
        self._started = time.perf_counter()
        self._publish()

    def _publish(self) -> None:
        for properties, body in self._messages[self._next : self._next + BARE_BATCH]:
            self._channel.basic_publish("", QUEUE, body, properties, mandatory=True)
        self._next = min(self._next + BARE_BATCH, len(self._messages))

    def _on_confirm(self, frame: Any) -> None:
        if frame.method.multiple:
            self._confirmed = frame.method.delivery_tag
        else:
            self._confirmed += 1
        if self._confirmed == len(self._messages):
            self._took = time.perf_counter() - self._started
            self._connection.close()
        elif self._confirmed == self._next:
            self._publish()


def empty(url: str) -> None:
    """Empty the queue that both sides publish to."""
    with pika.BlockingConnection(pika.URLParameters(url)) as connection:
        connection.channel().queue_purge(QUEUE)


def depth(url: str) -> int:
    """How many messages the queue has."""
    with pika.BlockingConnection(pika.URLParameters(url)) as connection:
        count: int = connection.channel().queue_declare(QUEUE, passive=True).method.message_count
        return count


def now() -> datetime:
    """Aware UTC."""
    return datetime.now(UTC)


if __name__ == "__main__":
    main()
