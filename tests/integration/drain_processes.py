"""The drain as a process of its own: started, asked how it is, and what it has stored counted."""

from __future__ import annotations

import contextlib
import json
import sys
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import sqlalchemy as sa

from consumers.database import reading
from consumers.dead_letters import dead_letters
from sandbox.processes import Process, eventually
from tests.conftest import DEFINITIONS
from tests.integration.mailroom import DEAD_LETTER_QUEUE, depth, raw_properties, task_headers

StartDrain = Callable[..., Process]
"""``start_drain(amqp_url, database_url, **settings)``"""


def drain_process(folder: Path, number: int, url: str, database_url: str, **settings: str) -> Process:
    """Start ``dead-letters drain`` with these settings; its log is ``drain-NUMBER.log``."""
    return Process(
        [sys.executable, "-m", "consumers", "drain"],
        log=folder / f"drain-{number}.log",
        env={
            "AMQP_URL": url,
            "DATABASE_URL": database_url,
            "TOPOLOGY_FILE": str(DEFINITIONS),
            "REDIS_URL": "",
            "HEALTH_PORT": "0",
            "LOG_FORMAT": "json",
            **settings,
        },
        cwd=folder,
    )


def stop_when_empty(*drains: Process, url: str) -> None:
    """Stop drains once nothing waits for them: a row may be there before its letter is acked, or comes again.

    What a drain holds when it is stopped it stores and acks before it ends.
    """
    eventually(lambda: depth(url, DEAD_LETTER_QUEUE) == 0)
    # Before that a signal ends it as it ends any process.
    eventually(lambda: all("broker.connected" in drain.output() for drain in drains))
    assert [drain.stop() for drain in drains] == [0] * len(drains)
    assert depth(url, DEAD_LETTER_QUEUE) == 0


def letters(count: int, *, padding: str = "") -> list[tuple[bytes, bytes]]:
    """Different letters, each as (raw properties, body)."""
    return [
        (raw_properties(task_headers(task_id=str(uuid.uuid4()))), json.dumps([[n, padding], {}, {}]).encode())
        for n in range(count)
    ]


def row_count(engine: sa.Engine) -> int:
    """How many letters are stored."""
    with reading(engine) as connection:
        return connection.execute(sa.select(sa.func.count()).select_from(dead_letters)).scalar_one()


def body_count(engine: sa.Engine) -> int:
    """How many different messages there are: more rows than that are doubles."""
    with reading(engine) as connection:
        query = sa.select(sa.func.count(sa.distinct(dead_letters.c.task_id)))
        return connection.execute(query).scalar_one()


def peak_kilobytes(drain: Process) -> int:
    """The most memory that a process had so far."""
    status = Path(f"/proc/{drain.pid}/status").read_text()
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM"))


def readiness(port: int) -> dict[str, Any]:
    """What ``/readyz`` says; ``ok`` is None while nobody answers."""
    try:
        answer: dict[str, Any] = httpx.get(f"http://127.0.0.1:{port}/readyz", timeout=5).json()
    except httpx.HTTPError as error:
        return {"ok": None, "reasons": [str(error)]}
    return answer


@contextlib.contextmanager
def locked(engine: sa.Engine) -> Iterator[None]:
    """Nothing can be stored meanwhile."""
    with engine.connect().execution_options(writes=True) as connection, connection.begin():
        if engine.dialect.name == "postgresql":
            connection.execute(sa.text("LOCK TABLE dead_letters IN EXCLUSIVE MODE"))
        yield
