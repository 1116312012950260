"""Every list and count of the commands: read from an index, so many rows and no more, at any size (PostgreSQL)."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import pytest
import sqlalchemy as sa
from click.testing import CliRunner

from consumers import alert_chores, alerts, database, late_notes
from consumers.__main__ import main
from consumers.alert_config import AlertConfig
from consumers.failure_notes import FailureNotes
from consumers.filing import Filing
from consumers.finding import MAX_COUNTED, MAX_LOOKED_AT
from tests.integration.many_letters import fill

FILTERS = [
    "", "--task shop.task_3", "--task shop.quiet", "--queue queue-3", "--queue quiet", "--reason rejected",
    "--reason maxlen", "--error shop.Error3", "--error shop.QuietError", "--group 1", "--group 77", "--task nobody",
    "--task-id task-7", "--search order-7", "--search nowhere", "--task shop.quiet --queue queue-3",
    "--queue queue-3 --reason expired --search nowhere", "--before 2000", "--before 2000 --queue quiet",
]  # fmt: skip
STATES = ["", "--state all", "--state settled --state discarded", "--state replaying"]
COMMANDS = [
    *(f"list {state} {chosen} --json" for state in STATES for chosen in FILTERS),
    "show 500 --json", "groups", "groups list --state all", "groups list --task shop.task_3",
    "groups list --state all --task shop.task_3", "groups show 1", "groups show 77 --json", "replays",
    "replays show 3 --json", "alerts list", "purge --settled --older-than 1d",
]  # fmt: skip
SMALL = {"replays", "alembic_version", "alert_windows"}
"""Tables that stay small: one row for each act of a person, or each window of time."""


@dataclass(slots=True)
class Statements:
    """What was asked of the database."""

    asked: dict[str, Any] = field(default_factory=dict)
    milliseconds: float = 0.0
    started: float = 0.0


@contextmanager
def listening() -> Iterator[Statements]:
    """Hear every SELECT of every engine of this process."""
    heard = Statements()

    def before(*_: Any) -> None:
        heard.started = time.perf_counter()

    def after(_connection: Any, _cursor: Any, statement: str, parameters: Any, *_: Any) -> None:
        heard.milliseconds += (time.perf_counter() - heard.started) * 1000
        if statement.lstrip().startswith("SELECT") and "pg_catalog" not in statement:
            heard.asked[statement] = parameters

    sa.event.listen(sa.Engine, "before_cursor_execute", before)
    sa.event.listen(sa.Engine, "after_cursor_execute", after)
    try:
        yield heard
    finally:
        sa.event.remove(sa.Engine, "before_cursor_execute", before)
        sa.event.remove(sa.Engine, "after_cursor_execute", after)


def run(command: str, url: str) -> None:
    """Run one command in this process."""
    done = CliRunner().invoke(main, command.split(), env={"DATABASE_URL": url}, catch_exceptions=False)
    assert done.exit_code == 0, done.output


def do_chores(engine: sa.Engine) -> None:
    """What the drain asks beside storing."""
    now = datetime.now(UTC)
    alert_chores.follow_up(engine, AlertConfig(), now=now)
    alert_chores.end_storms(engine, AlertConfig(), now=now)
    alert_chores.digest(engine, AlertConfig(digest="hourly"), now=now)
    alerts.any_due(engine, "log", now=now)
    late_notes.complete(engine, FailureNotes(None), Filing(), now=now)


def scans(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The nodes of a plan that read a table."""
    if "Relation Name" in plan:
        yield plan
    for part in plan.get("Plans", []):
        yield from scans(part)


def rows_read(scan: dict[str, Any]) -> float:
    """Rows that a node looked at, those included that it threw away."""
    removed = sum(scan.get(f"Rows Removed by {why}", 0) for why in ("Filter", "Index Recheck"))
    return float((scan["Actual Rows"] + removed) * scan["Actual Loops"])


def check_plans(engine: sa.Engine, heard: Statements, what: str) -> None:
    with engine.connect() as connection:
        cursor: Any = connection.connection.cursor()
        for statement, parameters in heard.asked.items():
            cursor.execute(f"EXPLAIN (ANALYZE, FORMAT JSON) {statement}", parameters)
            ((explained,),) = cursor.fetchall()
            found = [scan for scan in scans(explained[0]["Plan"]) if scan["Relation Name"] not in SMALL]
            for scan in found:
                assert scan["Node Type"] != "Seq Scan", f"{what}: {statement}"
            # Each letter that is looked at is an entry of an index, then a row. A purge counts on along one index,
            # and a replay shows each of its letters.
            most = 100_001 if what.startswith(("purge", "replays")) else 2 * MAX_LOOKED_AT + 7 * (MAX_COUNTED + 1)
            assert sum(map(rows_read, found)) <= most, f"{what}: {statement}"


def test_no_list_and_no_count_reads_a_whole_table(postgresql_url: str) -> None:
    """Each command of people and each chore of the drain, explained as it ran: indexes alone, rows bounded (D1)."""
    engine = database.open_database(postgresql_url)
    database.upgrade(engine)
    fill(engine, letters=40_000, groups=2_000)
    for command in COMMANDS:
        with listening() as heard:
            run(command, postgresql_url)
        assert heard.asked
        check_plans(engine, heard, command)
    with listening() as heard:
        do_chores(engine)
    check_plans(engine, heard, "chores")
    engine.dispose()


@pytest.mark.soak
def test_a_million_letters_are_listed_within_100_ms(postgresql_url: str) -> None:
    """The time in the database of each command, the best of five: what else runs here does not count (D1)."""
    engine = database.open_database(postgresql_url)
    database.upgrade(engine)
    fill(engine, letters=1_000_000, groups=2_000)
    took = {}
    for command in COMMANDS:
        times = []
        for _ in range(5):
            with listening() as heard:
                run(command, postgresql_url)
            times.append(heard.milliseconds)
        check_plans(engine, heard, command)
        took[command] = min(times)
    slowest = sorted(took.items(), key=lambda entry: -entry[1])[:10]
    print(*(f"{milliseconds:6.1f} ms  {command}" for command, milliseconds in slowest), sep="\n")
    assert slowest[0][1] < 100
    engine.dispose()
