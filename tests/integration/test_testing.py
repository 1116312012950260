"""The helpers that users test their own tasks with."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from celery import Celery

from sandbox.processes import eventually
from tasks.testing import Deliveries, Ending, Outcome, Point
from tests.integration.shop import DEFINITIONS, shop

pytestmark = pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")  # Python 3.12 warns of every fork
EFFECT = "tests.integration.shop.charge"
CHARGED = {"charged": 1250, "by": False}

Make = Callable[..., Deliveries]


@pytest.fixture
def make(redis_url: str, tmp_path: Path) -> Make:
    """Deliveries of one of the shop's tasks."""
    app: Celery = shop(redis_url)

    def make(name: str, *args: Any, **options: Any) -> Deliveries:
        task = app.tasks[f"payments.{name}"]
        return Deliveries(task, *(args or (1250,)), key="order-1", folder=tmp_path, effect=EFFECT, **options)

    return make


def test_twice_in_sequence_is_one_effect(make: Make) -> None:
    """The second delivery gets the first one's result (I10)."""
    charge = make("repeat")
    assert charge.twice() == [Outcome(ending=Ending.RETURNED, result=CHARGED)] * 2
    assert charge.effects == 1


def test_eight_at_once_are_one_effect(make: Make) -> None:
    """One runs, the others come back, and then get its result (I10)."""
    charge = make("repeat")
    endings = [outcome.ending for outcome in charge.at_once(8)]
    assert Ending.RETURNED in endings
    assert set(endings) <= {Ending.RETURNED, Ending.CAME_BACK}
    assert charge.once().result == CHARGED
    assert charge.effects == 1


@pytest.mark.parametrize(
    ("at", "repeated", "parked"),
    [
        (Point.AFTER_BEGIN, 1, 0),
        (Point.BEFORE_EFFECT, 1, 0),
        (Point.AFTER_EFFECT, 2, 1),
        (Point.AFTER_COMPLETE, 1, 1),
        (Point.BEFORE_ACK, 1, 1),
    ],
)
def test_killed_at_any_point_there_are_as_many_effects_as_the_policy_says(
    make: Make, at: Point, repeated: int, parked: int
) -> None:
    """Repeat runs again after the kill; park leaves a doubt to a person (I9, I10)."""
    charge = make("repeat")
    assert charge.killed(at=at).ending is Ending.KILLED
    assert charge.once().result == CHARGED
    assert charge.effects == repeated

    charge = make("park")
    assert charge.killed(at=at).ending is Ending.KILLED
    outcome = charge.once()
    if at in (Point.AFTER_COMPLETE, Point.BEFORE_ACK):
        assert outcome.result == CHARGED
    else:
        assert (outcome.ending, outcome.error_type) == (Ending.FAILED, "tasks.errors.InDoubtError")
    assert charge.effects == parked


def test_a_worker_that_dies_whole_leaves_its_lease_to_lapse(make: Make) -> None:
    """The redelivery comes back until then (I5, I10)."""
    charge = make("repeat")
    charge.killed(at="after_begin", whole_worker=True)
    outcome = charge.once()
    assert outcome.ending is Ending.CAME_BACK
    assert outcome.after_seconds is not None
    assert 0 < outcome.after_seconds <= 2
    assert eventually(lambda: charge.once().result) == CHARGED


def test_a_retry_after_a_partial_success_skips_what_is_done(make: Make) -> None:
    """The step's effect is not repeated, and its result is there (I2, R7)."""
    charge = make("stepped", 1250, fails="busy")
    outcome = charge.once()
    assert outcome.ending is Ending.RETRIED
    assert outcome.after_seconds is not None
    assert charge.once(retries=1).result == {"charged": 1250, "by": True}
    assert charge.effects == 1


def test_a_failure_is_told_with_its_error(make: Make) -> None:
    """Type and text (R1)."""
    outcome = make("refused").once()
    assert (outcome.ending, outcome.error) == (Ending.FAILED, "cannot charge 1250")
    assert outcome.error_type == "tasks.errors.PermanentFailure"


def test_a_delivery_that_misses_the_point_ends_as_it_ends(make: Make) -> None:
    """A kill that never comes is not taken for one that did (I10)."""
    assert make("refused").killed(at=Point.AFTER_EFFECT).ending is Ending.FAILED


def test_a_message_can_be_old(make: Make) -> None:
    """A dead letter replayed after a month is in doubt (I9)."""
    outcome = make("repeat", age_seconds=31 * 86_400).once()
    assert outcome.error_type == "tasks.errors.InDoubtError"


def test_the_helpers_change_nothing_in_the_test_itself(make: Make) -> None:
    """What is injected for a delivery stays in its process (I10)."""
    charge = make("repeat")
    before = charge._task.app.reliability
    charge.killed(at=Point.AFTER_BEGIN)
    assert charge._task.app.reliability is before


def test_the_plugin_gives_a_fixture(redis_url: str, tmp_path: Path) -> None:
    """A user's conftest names the plugin, a user's test asks for deliveries (I10)."""
    (tmp_path / "conftest.py").write_text('pytest_plugins = ["tasks.pytest_plugin"]\n')
    (tmp_path / "test_shop.py").write_text(
        f"""
from tests.integration.shop import shop

def test_twice(deliveries):
    task = shop({redis_url!r}).tasks["payments.repeat"]
    charge = deliveries(task, 1250, key="order-1", effect={EFFECT!r})
    charge.twice()
    assert charge.effects == 1
"""
    )
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-c", "/dev/null", str(tmp_path)]
    ran = subprocess.run(
        command,
        cwd=DEFINITIONS.parent,
        env={**os.environ, "PYTHONPATH": str(DEFINITIONS.parent)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "1 passed" in ran.stdout, ran.stdout


def test_only_a_reliable_task_can_be_delivered(tmp_path: Path) -> None:
    """Anything else is told at once (I10)."""
    with pytest.raises(TypeError, match="no ReliableTask"):
        Deliveries(print, key="order-1", folder=tmp_path)
