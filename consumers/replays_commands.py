"""The commands for people about replays that have begun: list, show, resume, pause, cancel."""

from __future__ import annotations

from dataclasses import asdict

import click
import sqlalchemy as sa
from rich.console import Console
from rich.table import Table

from consumers import replays, showing
from consumers.audit import Act, Action
from consumers.choosing import acts
from consumers.database import reading, transaction
from consumers.publisher import Publisher
from consumers.replay import ReplayReport
from consumers.replay_screen import finish
from consumers.replays import Progress, ReplayState
from consumers.shell import database, login, now, one_sentence, prepared_settings


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
@acts
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
        finish(settings, engine, publisher, ReplayReport(replay_id=replay_id), as_json=as_json)


@replays_command.command("pause")
@click.argument("replay_id", type=int)
@acts
@one_sentence
def pause_replay(replay_id: int, reason: str, actor: str | None) -> None:
    """Hold a running replay; what is published stays published."""
    act = Act(actor=actor or login(), reason=reason)
    _move(database(), replay_id, act, Action.PAUSE, ReplayState.PAUSED, (ReplayState.RUNNING,))
    click.echo(f"Replay {replay_id} is paused.")


@replays_command.command("cancel")
@click.argument("replay_id", type=int)
@acts
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
