"""A pytest plugin for tests of your own tasks: ``pytest_plugins = ["tasks.pytest_plugin"]`` in a conftest."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path

import pytest

from tasks.testing import Deliveries


@pytest.fixture
def deliveries(tmp_path: Path) -> Callable[..., Deliveries]:
    """Makes deliveries: ``deliveries(task, *args, key="order-1", effect="shop.stripe.charge")``."""
    return functools.partial(Deliveries, folder=tmp_path)
