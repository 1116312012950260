"""Letters without an id that equal each other: only the broker's word tells a copy from another letter."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from urllib.parse import urlsplit

import pytest
import sqlalchemy as sa

from consumers.inserting import Arrival
from consumers.letters import Delivery, read_letter
from consumers.storing import store
from sandbox.processes import eventually
from sandbox.proxy import Proxy
from tests.conftest import VirtualHost
from tests.integration.drain_processes import StartDrain, locked, row_count
from tests.integration.mailroom import UNROUTABLE_QUEUE, depth, publish, raw_properties, take

NOW = datetime(2026, 5, 4, tzinfo=UTC)
EQUAL = (raw_properties([]), json.dumps([[], {}, {}]).encode())


def test_equal_letters_that_come_again_are_not_taken_for_those_stored_before(
    deployed: VirtualHost, engine: sa.Engine, start_drain: StartDrain
) -> None:
    """Rows stored and acked are no measure for 20 more of the same that the broker hands out again (D1, D2)."""
    drain = start_drain(deployed.url, engine.url.render_as_string(hide_password=False))
    publish(deployed.url, [EQUAL] * 50, exchange="work", routing_key="nowhere")
    eventually(lambda: row_count(engine) == 50)
    assert drain.stop() == 0
    publish(deployed.url, [EQUAL] * 20, exchange="work", routing_key="nowhere")
    assert len(take(deployed.url, UNROUTABLE_QUEUE, ack=False)) == 20
    eventually(lambda: depth(deployed.url, UNROUTABLE_QUEUE) == 20)
    start_drain(deployed.url, engine.url.render_as_string(hide_password=False))
    eventually(lambda: depth(deployed.url, UNROUTABLE_QUEUE) == 0)
    eventually(lambda: row_count(engine) == 70)


@pytest.mark.parametrize("count", [10, 4000])
def test_equal_letters_whose_acks_were_lost_are_not_stored_twice(
    deployed: VirtualHost, engine: sa.Engine, start_drain: StartDrain, count: int
) -> None:
    """Committed while the network swallows the acks, then the drain dies: a row each, and 5 for 5 others (D1)."""
    database_url = engine.url.render_as_string(hide_password=False)
    parts = urlsplit(deployed.url)
    with Proxy(parts.port or 0) as proxy:
        url = parts._replace(netloc=parts.netloc.replace(str(parts.port), str(proxy.port))).geturl()
        drain = start_drain(url, database_url)
        with locked(engine):
            publish(deployed.url, [EQUAL] * count, exchange="work", routing_key="nowhere")
            eventually(lambda: "broker.connected" in drain.output() and depth(deployed.url, UNROUTABLE_QUEUE) == 0)
            proxy.partition()
        eventually(lambda: row_count(engine) == count)
        drain.kill()
        proxy.cut()
        proxy.heal()
    eventually(lambda: depth(deployed.url, UNROUTABLE_QUEUE) == count)
    publish(deployed.url, [EQUAL] * 5, exchange="work", routing_key="nowhere")
    drain = start_drain(deployed.url, database_url)
    eventually(lambda: row_count(engine) == count + 5)
    assert drain.stop() == 0
    assert depth(deployed.url, UNROUTABLE_QUEUE) == 0
    assert row_count(engine) == count + 5


def test_rows_of_a_channel_that_is_open_are_no_measure(engine: sa.Engine) -> None:
    """Only what was stored before can come again: neither what this channel stored nor what it knew again (D1)."""

    def store_some(number: int, *, redelivered: bool, settling: int = 0) -> tuple[int, int]:
        arrivals = [
            Arrival(read_letter(Delivery("dead-letters", "", "", redelivered, *EQUAL), now=NOW, unroutable=False))
            for _ in range(number)
        ]
        content = str(arrivals[0].letter.content_hash)
        stored = store(engine, arrivals, now=NOW, settling={content: settling})
        return len(stored.new), stored.known

    assert store_some(20, redelivered=False) == (20, 0)
    assert store_some(5, redelivered=True, settling=20) == (5, 0)  # another drain died with them unstored
    # The channel is closed with the acks of all 25 lost, and they come again in two batches and one more.
    assert store_some(16, redelivered=True) == (0, 16)
    assert store_some(10, redelivered=True, settling=16) == (1, 9)
