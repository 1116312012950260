"""The doctor: what it says of a plain Celery app, and that it has nothing to say of ours."""

from __future__ import annotations

import json
from typing import Any

import pytest

from sandbox.processes import eventually
from sandbox.road import Road
from tests.conftest import VirtualHost

PLAIN = """
from celery import Celery
from kombu import Exchange, Queue

app = Celery("plain", broker={broker!r})
app.conf.task_queues = [
    Queue("plain", Exchange("direct", type="direct"), "plain", queue_arguments={{"x-queue-type": "quorum"}}),
    Queue("classic", Exchange("direct", type="direct"), "classic"),
]

@app.task(name="plain.task")
def task(): ...
"""


def examined(
    road: Road, app: str, *, command: tuple[str, ...] = ("broker-topology", "doctor", "-A")
) -> list[dict[str, Any]]:
    """What the doctor finds."""
    road.more_environment["PYTHONPATH"] = f"{road.environment['PYTHONPATH']}:{road.folder}"
    done = road.command(*command, app, "--json")
    findings = [json.loads(line) for line in done.stdout.splitlines()]
    assert done.returncode == (1 if any(finding["grade"] == "error" for finding in findings) else 0), done.stderr
    return findings


def test_plain_celery_is_full_of_holes(road: Road) -> None:
    """Each setting of a plain app that loses, loops or blocks is named, with the line that mends it. (I1, D2)"""
    (road.folder / "plain.py").write_text(PLAIN.format(broker=road.amqp_url))
    findings = examined(road, "plain")
    said = {finding["subject"]: finding["fix"] for finding in findings}
    assert said["task_acks_on_failure"] == "app.conf.task_acks_on_failure = False"
    assert {"app", "task_acks_late", "task_reject_on_worker_lost", "broker_transport_options", "task plain.task",
            "queue plain", "queue classic"} <= set(said)  # fmt: skip
    problems = " ".join(finding["problem"] for finding in findings)
    assert "direct" in problems
    assert "no dead-letter exchange" in problems


def test_a_sound_road_has_no_errors(road: Road) -> None:
    """Our own app on a deployed broker with a drain: no error; what Redis could lose is a warning. (D2)"""
    assert "nobody drains it" in {finding["problem"] for finding in examined(road, "tasks")}
    road.drain("--auto-upgrade")
    eventually(lambda: "nobody drains it" not in {finding["problem"] for finding in examined(road, "tasks")})
    assert {(finding["grade"], finding["subject"]) for finding in examined(road, "tasks")} == {("warning", "redis")}


@pytest.mark.parametrize("sabotage", ["/queues/{vhost}/crm", "/exchanges/{vhost}/dead-letters"])
def test_what_is_missing_on_the_broker(road: Road, deployed: VirtualHost, sabotage: str) -> None:
    """A queue or exchange that is gone is an error, and deploy mends it. (D3)"""
    deployed.api("DELETE", sabotage)
    [error] = [finding for finding in examined(road, "tasks") if finding["grade"] == "error"]
    assert sabotage.rpartition("/")[2] in error["problem"]
    assert error["fix"] == "broker-topology deploy definitions.json"


def test_it_is_a_command_of_celery_too(road: Road) -> None:
    """``celery -A app doctor`` is the same. (D2)"""
    done = road.command("celery", "-A", "tasks", "doctor")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "appendonly yes" in done.stdout
