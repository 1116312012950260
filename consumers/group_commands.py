"""The commands for people about groups and alerts: groups, settle, ignore, reopen, mute, regroup, watch, alerts."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import click
import sqlalchemy as sa
from rich.console import Console

from broker_topology.errors import ConfigurationError
from consumers import alerts as outbox
from consumers import audit, finding, groups, showing, showing_groups
from consumers.alert_config import duration, read_alert_config
from consumers.alert_service import send_test
from consumers.audit import Act
from consumers.database import reading, transaction
from consumers.dead_letters import LIST_COLUMNS, Filter, State, dead_letters
from consumers.group_state import GroupState
from consumers.groups import Ignore
from consumers.regroup import regroup as regroup_letters
from consumers.sealing import keyring_of, shown
from consumers.shell import EXIT_REFUSED, database, login, masking, now, one_sentence, prepared_settings

PICTURE_HOURS = 24

c = dead_letters.c


class _Duration(click.ParamType[timedelta]):
    """``90s``, ``20m``, ``1h30m``, ``2d``."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> timedelta:
        """Read it."""
        try:
            return value if isinstance(value, timedelta) else duration(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)


def _acts(command: Callable[..., Any]) -> Callable[..., Any]:
    """Options of a command that changes something: why, and who."""
    command = click.option("--by", "actor", help="Who; the login by default.")(command)
    return click.option("--reason", required=True, help="Why; it stands in the audit log.")(command)


@click.group("groups", invoke_without_command=True)
@click.pass_context
def group_commands(context: click.Context) -> None:
    """Groups of letters that are the same failure; without a subcommand the open ones.

    \b
    Examples:
      dead-letters groups
      dead-letters groups show 3
      dead-letters groups settle 3 --reason "fixed in 1.4.2"
    """
    if context.invoked_subcommand is None:
        context.invoke(list_groups)


@group_commands.command("list")
@click.option(
    "--state",
    "states",
    multiple=True,
    type=click.Choice([*(state.value for state in GroupState), "all"]),
    help="Default: open.",
)
@click.option("--task", help="Name of the task.")
@click.option("--limit", default=50, show_default=True, type=click.IntRange(1, 10_000))
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line, for scripts.")
@one_sentence
def list_groups(
    states: tuple[str, ...] = (), task: str | None = None, limit: int = 50, as_json: bool = False
) -> None:
    """List groups, the one that was seen last first.

    \b
    Examples:
      dead-letters groups list --state settled
      dead-letters groups list --task payments.charge_customer --json
    """
    chosen = () if "all" in states else tuple(GroupState(state) for state in states) or (GroupState.OPEN,)
    with reading(database()) as connection:
        found = groups.page(connection, states=chosen, task=task, limit=limit)
        since = now() - timedelta(hours=PICTURE_HOURS)
        hours = groups.hours_of(connection, [group["id"] for group in found], since=since)
    if as_json:
        for group in found:
            click.echo(showing.as_json(showing_groups.described(group)))
    elif found:
        Console().print(showing_groups.groups_table(found, hours, now=now(), hours_shown=PICTURE_HOURS))
    else:
        click.echo("No groups.")


@group_commands.command("show")
@click.argument("group_id", type=int)
@click.option("--json", "as_json", is_flag=True, help="One JSON object, for scripts.")
@one_sentence
def show_group(group_id: int, as_json: bool) -> None:
    """Show one group: what, how often, since when, its newest letters, and what was done about it.

    \b
    Example:
      dead-letters groups show 3
    """
    with reading(database()) as connection:
        group = groups.get(connection, group_id)
        history = audit.audit_of(connection, group_id=group["id"])
        columns = (c.id, c.died_at, c.state, c.queue, c.reason)
        rows = finding.newest(connection, Filter(group_id=group["id"]), columns, limit=10)
        letters = [dict(row._mapping) for row in rows]
        hours = groups.hours_of(connection, [group["id"]], since=now() - timedelta(hours=PICTURE_HOURS))
    if as_json:
        shown = showing_groups.described(group) | {"newest_letters": letters, "history": history}
        click.echo(showing.as_json(shown))
    else:
        showing_groups.show_group(
            Console(), group, letters, history, hours[group["id"]], now=now(), hours_shown=PICTURE_HOURS
        )


@click.command("settle")
@click.argument("group_ids", type=int, nargs=-1, required=True)
@click.option("--release", help="The release that settles it; by default the newest that was seen.")
@_acts
@one_sentence
def settle(group_ids: tuple[int, ...], release: str | None, reason: str, actor: str | None) -> None:
    """Say that the cause of groups is gone: a letter that dies from now on opens its group again, and alerts.

    \b
    Example:
      dead-letters settle 3 --reason "customer id is checked first" --release 1.4.2
    """
    act = Act(actor=actor or login(), reason=reason)
    waiting: dict[int, int] = {}
    with transaction(database()) as connection:
        for group_id in sorted(group_ids):
            groups.settle(connection, group_id, act, now=now(), release=release)
            waiting[group_id] = finding.count(connection, Filter(group_id=group_id, states=(State.OPEN,)))
    for group_id, letters in waiting.items():
        click.echo(f"Group {group_id} is settled.{_waiting(letters, group_id)}")


@click.command("ignore")
@click.argument("group_ids", type=int, nargs=-1, required=True)
@click.option("--for", "lasting", type=_Duration(), help="For so long: 90s, 20m, 12h, 7d.")
@click.option("--more", type=click.IntRange(1), help="For so many more letters.")
@_acts
@one_sentence
def ignore(
    group_ids: tuple[int, ...], lasting: timedelta | None, more: int | None, reason: str, actor: str | None
) -> None:
    """Count groups in silence: for ever, for a time, or for a number of letters.

    \b
    Examples:
      dead-letters ignore 3 --for 7d --reason "the partner knows"
      dead-letters ignore 3 --more 100 --reason "only matters when there are many"
    """
    act = Act(actor=actor or login(), reason=reason)
    how = Ignore(until=now() + lasting if lasting else None, more=more)
    with transaction(database()) as connection:
        for group_id in sorted(group_ids):
            groups.ignore(connection, group_id, act, how, now=now())
    _say(group_ids, "ignored")


@click.command("reopen")
@click.argument("group_ids", type=int, nargs=-1, required=True)
@_acts
@one_sentence
def reopen(group_ids: tuple[int, ...], reason: str, actor: str | None) -> None:
    """Take a settling or an ignoring back.

    \b
    Example:
      dead-letters reopen 3 --reason "settled by mistake"
    """
    act = Act(actor=actor or login(), reason=reason)
    with transaction(database()) as connection:
        for group_id in sorted(group_ids):
            groups.reopen(connection, group_id, act, now=now())
    _say(group_ids, "open")


@group_commands.command("mute")
@click.argument("group_ids", type=int, nargs=-1, required=True)
@click.option("--for", "lasting", type=_Duration(), default="1d", show_default=True, help="20m, 12h, 7d.")
@click.option("--off", is_flag=True, help="Let them be heard again.")
@_acts
@one_sentence
def mute(group_ids: tuple[int, ...], lasting: timedelta, off: bool, reason: str, actor: str | None) -> None:
    """Send no alerts of groups for a while; they stay open.

    \b
    Example:
      dead-letters groups mute 3 --for 2h --reason "we are on it"
    """
    act = Act(actor=actor or login(), reason=reason)
    with transaction(database()) as connection:
        for group_id in sorted(group_ids):
            groups.mute(connection, group_id, act, now=now(), lasting=None if off else lasting)
    _say(group_ids, "heard again" if off else "muted")


@click.command("regroup")
@click.option("--apply", "apply_", is_flag=True, help="Do it; without this it is only shown.")
@click.option("--reason", help="Why; needed with --apply.")
@click.option("--by", "actor", help="Who; the login by default.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object, for scripts.")
@one_sentence
def regroup(apply_: bool, reason: str | None, actor: str | None, as_json: bool) -> None:
    """Group all letters by the rules of this version; a dry run by default.

    \b
    Examples:
      dead-letters regroup
      dead-letters regroup --apply --reason "new version"
    """
    act = Act(actor=actor or login(), reason=reason or "") if apply_ else None
    outcome = regroup_letters(database(), act, now=now())
    moved = sum(move.letters for move in outcome.told())
    if as_json:
        moves = [{"from": m.from_group, "to": m.to_title, "letters": m.letters} for m in outcome.told()]
        click.echo(showing.as_json({"letters": outcome.letters, "moved": moved, "applied": apply_, "moves": moves}))
        return
    for move in outcome.told()[:50]:
        source = f"group {move.from_group}" if move.from_group else "no group"
        click.echo(f"{move.letters} letters: {source} -> {showing_groups.plain(move.to_title)}")
    done = "moved" if apply_ else "would move; --apply does it"
    click.echo(f"{moved} of {outcome.letters} letters {done}.")


@click.command("watch")
@click.option("--task", help="Name of the task.")
@click.option("--queue", help="Queue that they died in.")
@click.option("--every", type=click.FloatRange(0.2, 60), default=1.0, show_default=True, help="Seconds.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line, for scripts.")
@one_sentence
def watch(task: str | None, queue: str | None, every: float, as_json: bool) -> None:
    """Follow new letters live, until Ctrl-C.

    \b
    Example:
      dead-letters watch --task payments.charge_customer
    """
    settings = prepared_settings()
    engine, hides = database(settings), masking(settings)
    with reading(engine) as connection:
        last_id = connection.execute(sa.select(sa.func.max(c.id))).scalar() or 0
    while True:
        query = sa.select(*LIST_COLUMNS).where(c.id > last_id).order_by(c.id).limit(500)
        if task:
            query = query.where(c.task_name == task)
        if queue:
            query = query.where(c.queue == queue)
        with reading(engine) as connection:
            keyring = keyring_of(connection)
            letters = [
                hides.letter(shown(keyring, "dead_letters", row._mapping)) for row in connection.execute(query)
            ]
        for letter in letters:
            last_id = letter["id"]
            click.echo(showing.as_json(letter) if as_json else showing_groups.letter_line(letter))
        sys.stdout.flush()
        if len(letters) < 500:
            time.sleep(every)


@click.group("alerts")
def alert_commands() -> None:
    """Alerts: test the channels, and see what was sent."""


@alert_commands.command("test")
@click.option("--channel", help="Only this one.")
@one_sentence
def test_alerts(channel: str | None) -> None:
    """Send one test alert through every channel now, and say which answered.

    \b
    Example:
      ALERT_URLS="slack://..." dead-letters alerts test
    """
    settings = prepared_settings()
    config = read_alert_config(settings.alerts_file, settings.alert_urls)
    if not config.channels:
        raise ConfigurationError("there is no channel: set ALERT_URLS or ALERTS_FILE")
    outcome = send_test(config, clock=now, only=channel)
    if not outcome:
        raise ConfigurationError(f"there is no channel {channel!r}")
    for name, problem in outcome.items():
        click.echo(f"{name}: {'answered' if problem is None else problem}")
    if any(problem is not None for problem in outcome.values()):
        sys.exit(EXIT_REFUSED)


@alert_commands.command("list")
@click.option("--limit", default=50, show_default=True, type=click.IntRange(1, 10_000))
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line, for scripts.")
@one_sentence
def list_alerts(limit: int, as_json: bool) -> None:
    """List alerts and what became of them on each channel, newest first."""
    with reading(database()) as connection:
        found = outbox.recent(connection, limit=limit)
    if as_json:
        for alert in found:
            click.echo(showing.as_json(alert))
    elif found:
        Console().print(showing_groups.alerts_table(found, now=now()))
    else:
        click.echo("No alerts.")


def _say(group_ids: tuple[int, ...], state: str) -> None:
    for group_id in sorted(group_ids):
        click.echo(f"Group {group_id} is {state}.")


def _waiting(letters: int, group_id: int) -> str:
    if not letters:
        return ""
    many = str(letters) if letters <= finding.MAX_COUNTED else f"More than {finding.MAX_COUNTED}"
    return f" {many} of its letters are still open: dead-letters list --group {group_id}"


for _command in (settle, ignore, reopen):
    group_commands.add_command(_command)

COMMANDS: tuple[click.Command, ...] = (group_commands, settle, ignore, reopen, regroup, watch, alert_commands)
