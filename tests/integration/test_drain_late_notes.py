"""The drain without Redis: letters are stored without their failure note, which comes when it can be read."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest
import redis
import sqlalchemy as sa

from broker_topology.notes import FailureNote, failure_note_key
from consumers.database import reading
from consumers.dead_letters import dead_letters
from consumers.groups import failure_groups
from sandbox.processes import eventually
from sandbox.servers import PrivateRedis
from tests.conftest import VirtualHost
from tests.integration.drain_processes import StartDrain, row_count
from tests.integration.mailroom import publish, raw_properties, rows, task_headers

LETTERS = 800
"""More than are completed at a time."""


@pytest.fixture
def silent_redis(own_redis: PrivateRedis) -> Iterator[PrivateRedis]:
    """A Redis that holds a note for each letter but the last, and has stopped answering."""
    with redis.Redis.from_url(own_redis.url) as client:
        for number in range(LETTERS - 1):
            note = FailureNote(
                reason="failed",
                error_type="builtins.ValueError" if number % 2 else "builtins.KeyError",
                error_message="no such customer",
                traceback="Traceback ...",
                failed_at=datetime.now(UTC),
                retries=0,
                hostname="w1",
                pid=7,
            )
            client.set(failure_note_key(f"t-{number}", 0), note.to_json())
    own_redis.process.signal(signal.SIGSTOP)
    yield own_redis
    own_redis.process.signal(signal.SIGCONT)


def test_letters_are_completed_when_redis_answers_again(
    deployed: VirtualHost, engine: sa.Engine, start_drain: StartDrain, silent_redis: PrivateRedis
) -> None:
    """Error and group come late, also for what a killed drain stored; a note that is gone is not waited for (D1)."""
    url = engine.url.render_as_string(hide_password=False)
    messages = [(raw_properties(task_headers(task_id=f"t-{n}")), b"[[], {}, {}]") for n in range(LETTERS)]
    first = start_drain(deployed.url, url, REDIS_URL=silent_redis.url)
    publish(deployed.url, messages[: LETTERS // 2])
    eventually(lambda: row_count(engine) == LETTERS // 2)
    first.kill()
    second = start_drain(deployed.url, url, REDIS_URL=silent_redis.url)
    publish(deployed.url, messages[LETTERS // 2 :])
    eventually(lambda: row_count(engine) == LETTERS)
    assert waiting(engine) == LETTERS
    assert groups(engine) == {None: LETTERS}
    silent_redis.process.signal(signal.SIGCONT)
    eventually(lambda: waiting(engine) == 0)
    assert second.stop() == 0
    stored = rows(engine)
    assert len(stored) == LETTERS
    told = {row["task_id"]: (row["error_type"], row["traceback"], row["hostname"]) for row in stored}
    assert told["t-0"] == ("builtins.KeyError", "Traceback ...", "w1")
    assert told[f"t-{LETTERS - 1}"] == (None, None, None)
    assert groups(engine) == {"builtins.KeyError": LETTERS // 2, "builtins.ValueError": LETTERS // 2 - 1, None: 1}


def waiting(engine: sa.Engine) -> int:
    """How many letters wait for their note."""
    with reading(engine) as connection:
        return connection.execute(sa.select(sa.func.count(dead_letters.c.note_key))).scalar_one()


def groups(engine: sa.Engine) -> dict[Any, int]:
    """Error type of each group that counts letters, and how many."""
    with reading(engine) as connection:
        query = sa.select(failure_groups.c.error_type, failure_groups.c.letters)
        return {row.error_type: row.letters for row in connection.execute(query) if row.letters}
