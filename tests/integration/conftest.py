"""Fixtures of the dead letters, and stores of claims."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa

from consumers.database import open_database, require_schema
from sandbox.servers import PrivateRedis
from tests.integration.claim_stores import Store, store_on


@pytest.fixture
def engine(database_url: str) -> Iterator[sa.Engine]:
    """An empty database with the schema of the dead letters, once on SQLite and once on PostgreSQL."""
    engine = open_database(database_url)
    require_schema(engine, auto_upgrade=True)
    yield engine
    engine.dispose()


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
