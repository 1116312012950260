"""The effective policy of each task, and what a declaration may not say."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from celery import Celery

from broker_topology.errors import ConfigurationError
from broker_topology.topology import parse_topology
from tasks import ReliableTask, RetryPolicy, install
from tasks.errors import PolicyError
from tests.conftest import DEFINITIONS

BIN = Path(sys.executable).parent


@pytest.fixture
def app() -> Celery:
    """An installed app with a default of its own and annotations."""
    app = Celery("shop", set_as_current=False)
    app.conf.task_annotations = {"crm.annotated": {"max_retries": 9}}
    default = RetryPolicy(max_retries=3, transient=ConnectionError)
    return install(app, topology=DEFINITIONS, redis_url="redis://127.0.0.1:1", retry_policy=default)


def body() -> None:
    """Do nothing."""


def test_task_that_sets_nothing_has_the_default(app: Celery) -> None:
    """The default given to install holds, and is marked as such. (R6)"""
    task = app.task(name="crm.plain", shared=False, lazy=False)(body)
    assert (task.policy.max_retries, task.policy.named, task.has_default_policy) == (3, (ConnectionError,), True)


def test_task_overrides_by_decorator_class_and_annotation(app: Celery) -> None:
    """Each of Celery's ways to set an option reaches the policy. (R6)"""
    decorated = app.task(name="crm.decorated", shared=False, lazy=False, max_retries=2, transient=TimeoutError)(body)
    annotated = app.task(name="crm.annotated", shared=False, lazy=False)(body)

    class Own(ReliableTask):
        name = "crm.own"
        retry_policy = RetryPolicy(max_retries=10, cap_seconds=1800)

        def run(self) -> None:
            """Do nothing."""

    own = app.register_task(Own())
    assert (decorated.policy.max_retries, decorated.policy.named) == (2, (TimeoutError,))
    assert annotated.policy.max_retries == 9
    assert (own.policy.max_retries, own.policy.cap_seconds) == (10, 1800)
    assert not any(task.has_default_policy for task in (decorated, annotated, own))


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"transient": Exception}, "Exception"),
        ({"transient": (ValueError, BaseException)}, "BaseException"),
        ({"max_retries": None}, "max_retries"),
        ({"max_retries": -1}, "max_retries"),
        ({"acks_late": False}, "acks_late=False, which loses messages"),
        ({"acks_on_failure": True}, "acks_on_failure=True"),
        ({"reject_on_worker_lost": False}, "reject_on_worker_lost=False"),
    ],
)
def test_declaration_that_loses_messages_is_refused(app: Celery, options: dict[str, object], why: str) -> None:
    """What cannot be kept is refused when the task is declared, with the reason. (R1, I1)"""
    with pytest.raises(PolicyError, match=why):
        app.task(name="crm.refused", shared=False, lazy=False, **options)(body)


def test_low_risk_task_is_left_out_by_name(app: Celery) -> None:
    """``dead_letter=False`` gives Celery's own way back: acked on failure, timeout and lost worker. (D2)"""
    task = app.task(name="crm.low_risk", shared=False, lazy=False, dead_letter=False)(body)
    assert (task.acks_on_failure, task.acks_on_timeout, task.reject_on_worker_lost) == (True, True, False)


def test_command_lists_every_task() -> None:
    """``celery -A tasks policies --json`` has each task with what holds for it. (R6)"""
    command: list[str | Path] = [BIN / "celery", "-A", "tasks", "policies", "--json"]
    done = subprocess.run(command, cwd=DEFINITIONS.parent, capture_output=True, text=True, check=True)
    rows = {row["task"]: row for row in map(json.loads, done.stdout.splitlines())}
    charge = rows["payments.charge_customer"]
    assert (charge["max_retries"], charge["transient"], charge["default"]) == (2, ["reference"], False)
    assert charge["idempotency"]["if_interrupted"] == "park"
    assert rows["crm.sync_customer_record"]["idempotency"] is None


def test_key_that_ends_with_another_is_refused() -> None:
    """A delayed message for ``high.crm`` would be delivered to ``crm`` as well. (R3)"""
    definitions = json.loads(DEFINITIONS.read_text())
    for binding in definitions["bindings"]:
        if binding["destination"] == "payments":
            binding["routing_key"] = "high.crm"
    topology = parse_topology(json.dumps(definitions))
    with pytest.raises(ConfigurationError, match=r"'high\.crm' of queue payments ends with 'crm' of queue crm"):
        install(Celery(set_as_current=False), topology=topology)
