"""Adopting it in a Celery project that exists: ten lines, every way to declare a task."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from sandbox.processes import eventually
from sandbox.road import ROOT, Road
from tests.conftest import DEFINITIONS

SHOP = """
import os

import httpx
from celery import Celery, shared_task

from tasks import Idempotency, PermanentFailure, ReliableTask, install, reference

app = install(
    Celery("shop", broker=os.environ["AMQP_URL"]),
    topology=os.environ["TOPOLOGY_FILE"],
    redis_url=os.environ["REDIS_URL"],
)


def pay(order_id, key):
    headers = {"Idempotency-Key": key}
    url = f"{os.environ['PAYMENTS_URL']}/charges"
    httpx.post(url, json={"order_id": order_id}, headers=headers).raise_for_status()


@app.task(name="shop.charge", bind=True, transient=reference, max_retries=5, idempotency=Idempotency())
def charge(self, order_id):
    return self.step("charge").run(lambda key: pay(order_id, key))


@shared_task(name="shop.shared")
def shared(order_id):
    pay(order_id, "shared")


class Refund(ReliableTask):
    name = "shop.refund"

    def run(self, order_id):
        raise PermanentFailure(f"nothing to refund for {order_id}")


app.register_task(Refund())
"""

PUBLISH = """
from shop import app, charge, shared

charge.apply_async(("order-1",), idempotency_key="order-charge-1", queue="payments")
charge.apply_async(("order-1",), idempotency_key="order-charge-1", queue="payments")
shared.apply_async(("order-2",), queue="crm")
app.tasks["shop.refund"].apply_async(("order-3",), queue="crm")
"""


@pytest.fixture
def shop(road: Road) -> Road:
    """A project with an app of its own, beside the road."""
    (road.folder / "shop.py").write_text(SHOP)
    (road.folder / "publish.py").write_text(PUBLISH)
    return road


def test_every_kind_of_task_of_an_existing_app(shop: Road) -> None:
    """``@app.task``, ``@shared_task`` and class-based tasks run, are guarded, and end in a letter. (I1, R6, D2)"""
    command = ["celery", "-A", "shop", "worker", "--concurrency=2", "--loglevel=INFO"]
    worker = shop.start("shop", command)
    worker.until_ready(lambda: " ready." in worker.output())
    shop.drain()
    published = subprocess.run(
        [sys.executable, "publish.py"],
        env=shop.environment | {"PATH": "/usr/bin:/bin", "PYTHONPATH": f"{ROOT}:{shop.folder}"},
        cwd=shop.folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert published.returncode == 0, published.stderr

    [letter] = eventually(shop.letters, what="the refund's letter")
    assert letter["task_name"] == "shop.refund"
    assert shop.letter(letter["id"])["error_type"] == "tasks.errors.PermanentFailure"
    eventually(lambda: len(shop.services.calls("payments")) == 2)
    shop.until_settled(seconds=60)
    assert sorted(call["body"]["order_id"] for call in shop.services.calls("payments")) == ["order-1", "order-2"]


def test_modules_of_ones_own_join_our_app(shop: Road) -> None:
    """``TASK_MODULES`` adds tasks to ``celery -A tasks``. (R6)"""
    (shop.folder / "jobs.py").write_text(
        "from celery import shared_task\n"
        "from tasks.outside import call\n"
        "from celery import current_app\n"
        '@shared_task(name="crm.own_job")\n'
        "def own_job():\n"
        '    call(current_app, "crm", "PUT", "/customers/own", json={})\n'
    )
    shop.task_modules = "jobs"
    shop.worker()
    shop.publisher.send_task("crm.own_job")
    eventually(lambda: len(shop.services.calls("crm")) == 1)


def test_importing_opens_no_connection_and_needs_no_environment(tmp_path: Path) -> None:
    """The packages can be imported anywhere: nothing connects, nothing is read from the environment. (D2)"""
    script = (
        "import socket, os\n"
        "def refuse(*a, **k): raise AssertionError('a connection at import')\n"
        "socket.socket.connect = refuse\n"
        "import tasks, consumers, broker_topology\n"
        "print('fine')\n"
    )
    done = subprocess.run(
        [sys.executable, "-W", "error::ResourceWarning", "-c", script],
        env={"PYTHONPATH": str(DEFINITIONS.parent)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout == "fine\n", done.stderr


def test_the_readme_shows_code_that_parses() -> None:
    """The ten lines of the README are Python, and import what there is. (R6)"""
    text = (DEFINITIONS.parent / "README.md").read_text()
    code = text.partition("```python\n")[2].partition("```")[0]
    [imports] = [node for node in ast.parse(code).body if isinstance(node, ast.ImportFrom) and node.module == "tasks"]
    import tasks  # noqa: PLC0415, what the README imports

    assert {alias.name for alias in imports.names} <= set(tasks.__all__)
