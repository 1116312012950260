"""The commands for people about replays: replay, discard, and replays."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import asdict
from datetime import datetime
from typing import Any

import click
import sqlalchemy as sa
from rich.console import Console
from rich.progress import BarColumn, TextColumn
from rich.progress import Progress as Bars
from rich.table import Table

from broker_topology.topology import read_topology
from consumers import replay as replaying
from consumers import replays, showing
from consumers.audit import Act, Action
from consumers.database import reading, transaction
from consumers.dead_letters import Filter
from consumers.outcomes import Outcomes
from consumers.publisher import Publisher
from consumers.replay import Preview, ReplayOptions, ReplayReport
from consumers.replays import Progress, ReplayState
from consumers.settings import Settings
from consumers.shell import EXIT_REFUSED, database, login, now, one_sentence, prepared_settings

MAX_NAMED = 20
"""Letters that are named one by one before only their number is said."""


def _acts(command: Callable[..., Any]) -> Callable[..., Any]:
    """Options of a command that changes something: why, and who."""
    command = click.option("--by", "actor", help="Who; the login by default.")(command)
    return click.option("--reason", required=True, help="Why; it stands in the audit log.")(command)


def _chooses(command: Callable[..., Any]) -> Callable[..., Any]:
    """Arguments and options that choose open letters."""
    for option in reversed(
        [
            click.argument("letter_ids", type=int, nargs=-1),
            click.option("--group", "group_id", type=int, help="All open letters of this group."),
            click.option("--task", help="All open letters of this task."),
            click.option("--queue", help="... that died in this queue."),
            click.option("--broker-reason", help="... that died for this reason, in the broker's words."),
            click.option("--error", "error_type", help="... with this exception type."),
            click.option("--release", help="... of this release."),
            click.option("--since", type=click.DateTime(), help="... that died at this time (UTC) or later."),
            click.option("--until", type=click.DateTime(), help="... that died before this time (UTC)."),
            click.option("--search", help="... with this text in args or kwargs."),
            click.option("--yes", is_flag=True, help="Do not ask before acting on what a filter chooses."),
        ]
    ):
        command = option(command)
    return command


@click.command("replay")
@_chooses
@_acts
@click.option("--dry-run", is_flag=True, help="Only say what would be replayed, and what stands against it.")
@click.option("--to-queue", help="Send to this queue instead of where each letter came from.")
@click.option("--keep-expiry", is_flag=True, help="Keep expiration and expires as they were.")
@click.option("--canary", default=0, type=click.IntRange(0), help="So many go first; their outcome is awaited.")
@click.option("--rate", help="Letters a second at most, such as 50/s.")
@click.option("--stop-at", "stop_share", default=0.2, show_default=True, type=click.FloatRange(0, 1))
@click.option("--await-seconds", default=300.0, show_default=True, help="How long a step's outcome is awaited.")
@click.option("--as", "settle_as", type=click.Choice(["repeat", "done"]), help="Settle letters in doubt.")
@click.option("--result", "result_json", help="With --as done: the result of the work, as JSON.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object, for scripts.")
@one_sentence
def replay_command(
    reason: str, actor: str | None, dry_run: bool, rate: str | None, yes: bool, as_json: bool, **given: Any
) -> None:
    """Publish dead letters again, each to the queue that it came from.

    The original bytes are sent, with a fresh retry budget, the same task id and the same idempotency key.
    What a filter chooses is frozen when it is confirmed: letters that come later are not in it. Nothing is
    ever replayed on a timer.

    \b
    Examples:
      dead-letters replay 17 18 --reason "provider is back"
      dead-letters replay --task crm.sync_customer_record --reason "customers exist now" --canary 5 --rate 50/s
      dead-letters replay --group 3 --reason "look first" --dry-run
      dead-letters replay 17 --reason "charged, says the provider" --as done --result '{"id": "ch_1"}'
    """
    settings = prepared_settings()
    act = Act(actor=actor or login(), reason=reason)
    topology, engine = read_topology(settings.topology_file), database(settings)
    letter_ids = _chosen(engine, given)
    options = ReplayOptions(
        rate=_rate(rate),
        result_json=_json_or_none(given.pop("result_json"), given["settle_as"]),
        **{name: given[name] for name in _OPTIONS},
    )
    seen = replaying.preview(engine, topology, letter_ids)
    if dry_run:
        _show_preview(seen, as_json=as_json)
        return
    if not given["letter_ids"] and not yes:
        _show_preview(seen, as_json=False)
        click.confirm(f"Replay these {seen.letters} letters?", abort=True, err=True)
    with Publisher(settings.amqp_url) as publisher:
        report = replaying.begin(engine, act, letter_ids, now=now(), options=options)
        _finish(settings, engine, publisher, report, as_json=as_json)


_OPTIONS = ("to_queue", "keep_expiry", "canary", "stop_share", "await_seconds", "settle_as")


def _finish(
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


@click.command("discard")
@_chooses
@_acts
@click.option("--json", "as_json", is_flag=True, help="One JSON object, for scripts.")
@one_sentence
def discard_command(reason: str, actor: str | None, yes: bool, as_json: bool, **given: Any) -> None:
    """Decide against dead letters: they stay in the database, and nobody waits for them any more.

    \b
    Example:
      dead-letters discard 17 --reason "test data"
    """
    act = Act(actor=actor or login(), reason=reason)
    engine = database()
    letter_ids = _chosen(engine, given)
    if not given["letter_ids"] and not yes:
        click.confirm(f"Discard {len(letter_ids)} letters?", abort=True, err=True)
    discarded = replaying.discard(engine, act, letter_ids, now=now())
    if as_json:
        click.echo(showing.as_json({"discarded": discarded}))
    else:
        click.echo(f"{len(discarded)} discarded.")
    if set(letter_ids) - set(discarded):
        click.echo(f"{len(set(letter_ids) - set(discarded))} were not open.", err=True)
        sys.exit(EXIT_REFUSED)


@click.group("replays", invoke_without_command=True)
@click.option("--limit", default=20, show_default=True, type=click.IntRange(1, 1000))
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line, for scripts.")
@click.pass_context
@one_sentence
def replays_command(context: click.Context, limit: int, as_json: bool) -> None:
    """Replays: who, why, how many, how far; newest first.

    \b
    Examples:
      dead-letters replays
      dead-letters replays show 3
      dead-letters replays resume 3 --reason "the broker is back"
    """
    if context.invoked_subcommand is not None:
        return
    with reading(database()) as connection:
        found = replays.list_replays(connection, limit=limit)
    if as_json:
        for one in found:
            click.echo(showing.as_json(one))
        return
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("id", "state", "begun", "by", "why", "letters", "sent", "succeeded", "failed again", "refused"):
        table.add_column(name, overflow="fold")
    for one in found:
        at = Progress(**one["progress"])
        numbers = [str(number) for number in (one["total"], at.sent, at.succeeded, at.failed_again, at.refused)]
        begun = showing.age(one["created_at"], now())
        table.add_row(
            str(one["id"]), one["state"], begun, showing.plain(one["actor"]), showing.plain(one["reason"]), *numbers
        )
    Console().print(table if found else "No replays.")


@replays_command.command("show")
@click.argument("replay_id", type=int)
@click.option("--json", "as_json", is_flag=True, help="One JSON object, for scripts.")
@one_sentence
def show_replay(replay_id: int, as_json: bool) -> None:
    """Show one replay and what became of each of its letters."""
    with reading(database()) as connection:
        stored = replays.get_replay(connection, replay_id)
        at = replays.progress(connection, replay_id)
        items = replays.items_of(connection, replay_id)
    if as_json:
        click.echo(showing.as_json(stored | {"progress": asdict(at), "items": items}))
        return
    console = Console()
    console.print(showing.plain(f"Replay {replay_id} by {stored['actor']}: {stored['reason']}"))
    note = f" ({stored['state_note']})" if stored["state_note"] else ""
    console.print(showing.plain(f"{stored['state']}{note}, begun {stored['created_at']:%Y-%m-%d %H:%M:%S} UTC"))
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("letter", "state", "published", "ended", "new letter", "error"):
        table.add_column(name, overflow="fold")
    for item in items:
        moments = [f"{m:%H:%M:%S}" if m else "" for m in (item["published_at"], item["outcome_at"])]
        table.add_row(
            str(item["letter_id"]),
            item["state"].replace("_", " "),
            *moments,
            str(item["new_letter_id"] or ""),
            showing.plain(item["error"]),
        )
    console.print(table)


@replays_command.command("resume")
@click.argument("replay_id", type=int)
@_acts
@click.option("--json", "as_json", is_flag=True, help="One JSON object, for scripts.")
@one_sentence
def resume_replay(replay_id: int, reason: str, actor: str | None, as_json: bool) -> None:
    """Go on with a replay that was paused, stopped, or whose process died."""
    settings = prepared_settings()
    engine = database(settings)
    with Publisher(settings.amqp_url) as publisher:
        allowed = (ReplayState.RUNNING, ReplayState.PAUSED, ReplayState.STOPPED)
        _move(
            engine, replay_id, Act(actor=actor or login(), reason=reason), Action.RESUME, ReplayState.RUNNING, allowed
        )
        _finish(settings, engine, publisher, ReplayReport(replay_id=replay_id), as_json=as_json)


@replays_command.command("pause")
@click.argument("replay_id", type=int)
@_acts
@one_sentence
def pause_replay(replay_id: int, reason: str, actor: str | None) -> None:
    """Hold a running replay; what is published stays published."""
    act = Act(actor=actor or login(), reason=reason)
    _move(database(), replay_id, act, Action.PAUSE, ReplayState.PAUSED, (ReplayState.RUNNING,))
    click.echo(f"Replay {replay_id} is paused.")


@replays_command.command("cancel")
@click.argument("replay_id", type=int)
@_acts
@one_sentence
def cancel_replay(replay_id: int, reason: str, actor: str | None) -> None:
    """End a replay: letters that are not published are open again."""
    act = Act(actor=actor or login(), reason=reason)
    allowed = (ReplayState.RUNNING, ReplayState.PAUSED, ReplayState.STOPPED)
    _move(database(), replay_id, act, Action.CANCEL, ReplayState.CANCELLED, allowed)
    click.echo(f"Replay {replay_id} is cancelled.")


def _move(
    engine: sa.Engine, replay_id: int, act: Act, action: Action, to: ReplayState, allowed: tuple[ReplayState, ...]
) -> None:
    with transaction(engine) as connection:
        replays.move_replay(connection, replay_id, act, action, to, now=now(), from_states=allowed)


def _chosen(engine: sa.Engine, given: dict[str, Any]) -> list[int]:
    """The ids that were named, or those that the filters choose."""
    where = Filter(
        task=given["task"],
        queue=given["queue"],
        reason=given["broker_reason"],
        error_type=given["error_type"],
        group_id=given["group_id"],
        release=given["release"],
        died_after=_utc(given["since"]),
        died_before=_utc(given["until"]),
        search=given["search"],
    )
    if given["letter_ids"]:
        if where.names_letters:
            raise click.UsageError("name letters or choose them with options, not both")
        return list(dict.fromkeys(given["letter_ids"]))
    if not where.names_letters:
        raise click.UsageError("say which letters: ids, or an option such as --group or --task")
    return replaying.select(engine, where)


def _utc(moment: datetime | None) -> datetime | None:
    return moment.replace(tzinfo=now().tzinfo) if moment else None


def _rate(text: str | None) -> float | None:
    if text is None:
        return None
    try:
        rate = float(text.removesuffix("/s"))
    except ValueError:
        rate = 0
    if not 0 < rate < float("inf"):
        raise click.BadParameter("give a rate such as 50/s", param_hint="--rate")
    return rate


def _json_or_none(text: str | None, settle_as: str | None) -> str | None:
    if text is None:
        return None
    if settle_as != "done":
        raise click.UsageError("--result goes with --as done")
    try:
        json.loads(text)
    except ValueError:
        raise click.BadParameter("it is not JSON", param_hint="--result") from None
    return text


def _show_preview(seen: Preview, *, as_json: bool) -> None:
    if as_json:
        click.echo(showing.as_json(asdict(seen)))
        return
    click.echo(f"{seen.letters} open letters", err=True)
    if seen.oldest and seen.newest:
        click.echo(f"died {showing.age(seen.oldest, now())} to {showing.age(seen.newest, now())}", err=True)
    for name, tally in (("task", seen.tasks), ("queue", seen.queues)):
        for value, number in sorted(tally.items(), key=lambda entry: -entry[1])[:MAX_NAMED]:
            click.echo(f"  {name} {value or 'unknown'}: {number}", err=True)
    if seen.in_doubt:
        click.echo(f"{seen.in_doubt} are in doubt: they need --as repeat or --as done", err=True)
    if seen.no_way_back:
        click.echo(f"{seen.no_way_back} came from nowhere that the broker knows: they need --to-queue", err=True)
    for queue in seen.unknown_queues:
        click.echo(f"queue {queue} is not in the topology", err=True)


REPLAY_COMMANDS = (replay_command, discard_command, replays_command)
