"""Fixtures of the dead letters, and stores of claims."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa

from consumers.database import open_database, require_schema
from sandbox.processes import Process
from sandbox.servers import PrivateRedis
from tests.integration.claim_stores import Store, store_on
from tests.integration.drain_processes import StartDrain, drain_process


@pytest.fixture
def engine(database_url: str) -> Iterator[sa.Engine]:
    """An empty database with the schema of the dead letters, once on SQLite and once on PostgreSQL."""
    engine = open_database(database_url)
    require_schema(engine, auto_upgrade=True)
    yield engine
    engine.dispose()


@pytest.fixture
def start_drain(tmp_path: Path) -> Iterator[StartDrain]:
    """Starts drain processes; whatever still runs in the end is killed."""
    started: list[Process] = []

    def start(url: str, database_url: str, **settings: str) -> Process:
        started.append(drain_process(tmp_path, len(started), url, database_url, **settings))
        return started[-1]

    yield start
    for process in started:
        process.kill()


@pytest.fixture(scope="session")
def redis_trio(servers_folder: Path) -> Iterator[list[PrivateRedis]]:
    """Three independent Redis servers that the tests of the quorum share; none may stop them."""
    trio = [PrivateRedis(servers_folder / f"trio-{number}") for number in range(3)]
    yield trio
    for server in trio:
        server.stop()


@pytest.fixture(params=["one", "quorum"])
def store(request: pytest.FixtureRequest) -> Iterator[Store]:
    """An empty store of claims, once on one server and once on a quorum of three."""
    if request.param == "one":
        store = store_on(request.getfixturevalue("redis_url"))
    else:
        store = store_on(*(server.url for server in request.getfixturevalue("redis_trio")))
    store.clear()
    yield store
    store.close()
