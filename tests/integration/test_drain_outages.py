"""The drain while its database is away: letters are held, nothing more is taken, and it goes on by itself."""

from __future__ import annotations

import random
import string
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
import sqlalchemy as sa

from consumers.database import open_database, reading
from consumers.groups import failure_groups
from sandbox.processes import eventually, free_port
from tests.conftest import VirtualHost
from tests.integration import outages
from tests.integration.drain_processes import (
    StartDrain,
    body_count,
    letters,
    readiness,
    row_count,
    stop_when_empty,
)
from tests.integration.mailroom import DEAD_LETTER_QUEUE, depth, publish
from tests.integration.outages import Outage

PREFETCH = 50
BEFORE, DURING = 20, 300


@pytest.fixture(
    params=[
        outages.sqlite_full,
        outages.sqlite_locked,
        outages.sqlite_read_only,
        outages.postgresql_full,
        outages.postgresql_locked,
        pytest.param(outages.postgresql_read_only, marks=pytest.mark.soak),
        pytest.param(outages.postgresql_without_connections, marks=pytest.mark.soak),
        pytest.param(outages.postgresql_stopped, marks=pytest.mark.soak),
    ],
    ids=lambda make: make.__name__,
)
def outage(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Outage]:
    """A database that can go away."""
    with request.param(tmp_path, request) as outage:
        yield outage


def test_a_database_that_is_away_is_waited_for(
    outage: Outage, deployed: VirtualHost, start_drain: StartDrain
) -> None:
    """Unready with the reason, no more in hand than agreed, nothing acked without its row, then all stored (D1)."""
    port = free_port()
    drain = start_drain(deployed.url, outage.url, HEALTH_PORT=str(port), DRAIN_PREFETCH=str(PREFETCH))
    publish(deployed.url, letters(BEFORE))
    eventually(lambda: _rows(outage.url) == BEFORE)
    outage.begin()
    publish(deployed.url, letters(DURING, padding=_noise()))
    eventually(lambda: outage.words in "".join(readiness(port)["reasons"]))
    assert readiness(port)["ok"] is False
    stored = _rows(outage.count_url) if outage.count_url else BEFORE
    assert stored < BEFORE + DURING
    eventually(lambda: in_queue(deployed) == BEFORE + DURING - stored)
    assert depth(deployed.url, DEAD_LETTER_QUEUE) >= BEFORE + DURING - stored - PREFETCH
    assert httpx.get(f"http://127.0.0.1:{port}/livez", timeout=5).status_code == 200
    outage.end()
    eventually(lambda: readiness(port)["ok"])
    eventually(lambda: _rows(outage.url) == BEFORE + DURING)
    stop_when_empty(drain, url=deployed.url)
    engine = open_database(outage.url)
    assert row_count(engine) == body_count(engine) == _counted_in_groups(engine) == BEFORE + DURING
    engine.dispose()


def in_queue(vhost: VirtualHost) -> int:
    """Letters in the dead-letter queue, those in a drain's hand included; the broker tells it seconds late."""
    messages: int = vhost.api("GET", f"/queues/{{vhost}}/{DEAD_LETTER_QUEUE}").json().get("messages", -1)
    return messages


def _rows(url: str) -> int:
    engine = open_database(url)
    try:
        return row_count(engine)
    finally:
        engine.dispose()


def _counted_in_groups(engine: sa.Engine) -> int:
    with reading(engine) as connection:
        return int(connection.execute(sa.select(sa.func.sum(failure_groups.c.letters))).scalar_one())


def _noise() -> str:
    """Text that no database makes much smaller."""
    return "".join(random.choices(string.ascii_letters + string.digits, k=6000))
