"""What a person sees of a replay: what it would be, how far it is, what became of it."""

from __future__ import annotations

import sys
from dataclasses import asdict

import click
import sqlalchemy as sa
from rich.console import Console
from rich.progress import BarColumn, TextColumn
from rich.progress import Progress as Bars

from broker_topology.topology import read_topology
from consumers import replay as replaying
from consumers import replays, showing
from consumers.database import reading
from consumers.obstacles import Obstacles
from consumers.outcomes import Outcomes
from consumers.publisher import Publisher
from consumers.replay import Preview, ReplayReport
from consumers.replays import Progress, ReplayState
from consumers.settings import Settings
from consumers.shell import EXIT_REFUSED, now

MAX_NAMED = 20
"""Letters that are named one by one before only their number is said."""


def show_preview(seen: Preview, against: Obstacles, *, as_json: bool) -> None:
    """What a replay would be, and what stands against it."""
    if as_json:
        click.echo(showing.as_json(asdict(seen) | {"against": asdict(against)}))
        return
    click.echo(f"{seen.letters} open letters", err=True)
    if seen.oldest and seen.newest:
        click.echo(f"died {showing.age(seen.oldest, now())} to {showing.age(seen.newest, now())}", err=True)
    for name, tally in (("task", seen.tasks), ("queue", seen.queues)):
        for value, number in sorted(tally.items(), key=lambda entry: -entry[1])[:MAX_NAMED]:
            click.echo(f"  {name} {value or 'unknown'}: {number}", err=True)
    for line in (*_objections(seen), *_more_objections(against)):
        click.echo(line, err=True)


def _objections(seen: Preview) -> list[str]:
    said = []
    if seen.in_doubt:
        said.append(f"{seen.in_doubt} are in doubt: they need --as repeat or --as done")
    if seen.no_way_back:
        said.append(f"{seen.no_way_back} came from nowhere that the broker knows: they need --to-queue")
    return said + [f"queue {queue} is not in the topology" for queue in seen.unknown_queues]


def _more_objections(against: Obstacles) -> list[str]:
    kinds = (
        (against.already_done, "have a key that is on record as done: a replay gets that result and runs nothing"),
        (against.running, "have a key that a run holds at this moment: a replay waits for it"),
        (against.in_doubt, "have a key that is in doubt: they come back unless --as repeat or --as done settles it"),
        (against.forgotten, "have a key of which Redis has no record: in doubt where older than its retention"),
    )
    said = [f"{len(ids)} {words} ({_some(ids)})" for ids, words in kinds if ids]
    said += [f"queue {queue} does not exist on the broker" for queue in against.missing_queues]
    if against.workers == 0:
        said.append("no worker answers: what is published waits for one")
    said += [f"task {task} is unknown to the {against.workers} workers that are up" for task in against.unknown_tasks]
    return said + [f"{who} could not be asked: {why}" for who, why in against.away.items()]


def _some(letter_ids: list[int]) -> str:
    named = ", ".join(str(letter_id) for letter_id in letter_ids[:5])
    return f"{named}, ..." if len(letter_ids) > 5 else named


def finish(
    settings: Settings, engine: sa.Engine, publisher: Publisher, report: ReplayReport, *, as_json: bool
) -> None:
    """Run a replay with a progress bar, say what became of it, and exit accordingly."""
    outcomes = Outcomes(settings.redis_url, engine, clock=now)
    topology = read_topology(settings.topology_file)
    bars = Bars(TextColumn("{task.description}"), BarColumn(), console=Console(stderr=True), transient=True)
    with bars:
        bar = bars.add_task("replaying")

        def watch(at: Progress) -> None:
            said = (
                f"{at.sent} published, {at.succeeded} succeeded, {at.failed_again} failed again, {at.waiting} waiting"
            )
            bars.update(
                bar, description=said, completed=at.sent + at.refused, total=at.sent + at.refused + at.waiting
            )

        try:
            report = replaying.run(engine, publisher, topology, report, clock=now, outcomes=outcomes, watch=watch)
        finally:
            outcomes.close()
    if as_json:
        click.echo(showing.as_json(asdict(report)))
    else:
        _tell(engine, report)
    if report.refused or report.left_out or report.state is not ReplayState.PUBLISHED:
        sys.exit(EXIT_REFUSED)


def _tell(engine: sa.Engine, report: ReplayReport) -> None:
    click.echo(f"Replay {report.replay_id}: {len(report.published)} published.")
    if report.state is not ReplayState.PUBLISHED:
        with reading(engine) as connection:
            note = replays.get_replay(connection, report.replay_id)["state_note"]
        click.echo(f"It is {report.state}{': ' + note if note else ''}.", err=True)
    for letter_id, problem in list(report.refused.items())[:MAX_NAMED]:
        click.echo(f"{letter_id} could not be sent and stays open: {problem}", err=True)
    if len(report.refused) > MAX_NAMED:
        click.echo(f"... and {len(report.refused) - MAX_NAMED} more.", err=True)
    for letter_id in report.left_out[:MAX_NAMED]:
        click.echo(f"{letter_id} is not open and was left out.", err=True)
