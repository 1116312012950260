"""Letters without an id that equal each other: only the broker's word tells a copy from another letter."""

from __future__ import annotations

import json
from urllib.parse import urlsplit

import sqlalchemy as sa

from sandbox.processes import eventually
from sandbox.proxy import Proxy
from tests.conftest import VirtualHost
from tests.integration.drain_processes import StartDrain, locked, row_count
from tests.integration.mailroom import UNROUTABLE_QUEUE, depth, publish, raw_properties, take

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


def test_equal_letters_whose_acks_were_lost_are_not_stored_twice(
    deployed: VirtualHost, engine: sa.Engine, start_drain: StartDrain
) -> None:
    """10 are committed while the network swallows the acks, then the drain dies: 10 rows, and 5 for 5 others (D1)."""
    database_url = engine.url.render_as_string(hide_password=False)
    parts = urlsplit(deployed.url)
    with Proxy(parts.port or 0) as proxy:
        url = parts._replace(netloc=parts.netloc.replace(str(parts.port), str(proxy.port))).geturl()
        drain = start_drain(url, database_url)
        with locked(engine):
            publish(deployed.url, [EQUAL] * 10, exchange="work", routing_key="nowhere")
            eventually(lambda: "broker.connected" in drain.output() and depth(deployed.url, UNROUTABLE_QUEUE) == 0)
            proxy.partition()
        eventually(lambda: row_count(engine) == 10)
        drain.kill()
        proxy.cut()
        proxy.heal()
    eventually(lambda: depth(deployed.url, UNROUTABLE_QUEUE) == 10)
    publish(deployed.url, [EQUAL] * 5, exchange="work", routing_key="nowhere")
    drain = start_drain(deployed.url, database_url)
    eventually(lambda: row_count(engine) == 15)
    assert drain.stop() == 0
    assert depth(deployed.url, UNROUTABLE_QUEUE) == 0
    assert row_count(engine) == 15
