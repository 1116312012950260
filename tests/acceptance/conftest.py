"""The whole road for a test: a deployed virtual host, the outside services, and the processes between them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from sandbox.road import Road
from sandbox.services import OutsideServices
from tests.conftest import VirtualHost


@pytest.fixture
def services(tmp_path: Path) -> Iterator[OutsideServices]:
    """The double of the payment, mail and CRM services, with an empty ledger."""
    services = OutsideServices(tmp_path)
    yield services
    services.stop()


@pytest.fixture
def road(deployed: VirtualHost, redis_url: str, services: OutsideServices, tmp_path: Path) -> Iterator[Road]:
    """The road on a deployed virtual host; worker and drain are started by the test. Dead letters in SQLite."""
    road = Road(
        folder=tmp_path,
        amqp_url=deployed.url,
        management_url=deployed.management_url,
        redis_url=redis_url,
        database_url=f"sqlite:///{tmp_path}/dead-letters.db",
        services=services,
    )
    yield road
    road.stop()
