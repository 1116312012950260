"""The commands for whoever runs the service: config, purge, db."""

from __future__ import annotations

import sys
from datetime import timedelta

import click
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn
from rich.table import Table

from consumers import retention, rotation, showing
from consumers.alert_config import duration
from consumers.audit import Act
from consumers.database import open_database, schema_revision, upgrade
from consumers.rotation import Rotation
from consumers.settings import effective
from consumers.shell import EXIT_REFUSED, database, login, now, one_sentence, prepared_settings


@click.command("config")
@click.option("--json", "as_json", is_flag=True, help="One JSON object, for scripts.")
@one_sentence
def config_command(as_json: bool) -> None:
    """Show the effective settings, secrets hidden, and the variable that each comes from.

    \b
    Example:
      dead-letters config
    """
    settings = effective(prepared_settings())
    if as_json:
        click.echo(showing.as_json({name: value for name, value, _ in settings}))
        return
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("variable", "value", "meaning"):
        table.add_column(name, overflow="fold")
    for name, value, meaning in settings:
        table.add_row(name, showing.plain(value), meaning)
    Console().print(table)


@click.command("purge")
@click.option("--settled", is_flag=True, required=True, help="Letters that nobody waits for; never open ones.")
@click.option("--older-than", required=True, help="Settled longer ago than that, such as 90d.")
@click.option("--dry-run/--no-dry-run", default=True, show_default=True, help="Only say how many would go.")
@click.option("--reason", help="Why; required with --no-dry-run, it stands in the audit log.")
@click.option("--by", "actor", help="Who; the login by default.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object, for scripts.")
@one_sentence
def purge_command(
    settled: bool, older_than: str, dry_run: bool, reason: str | None, actor: str | None, as_json: bool
) -> None:
    """Delete letters that were settled long ago. Says only how many, unless --no-dry-run is given.

    \b
    Examples:
      dead-letters purge --settled --older-than 90d
      dead-letters purge --settled --older-than 90d --no-dry-run --reason "retention of the data protection plan"
    """
    del settled
    try:
        age: timedelta = duration(older_than)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--older-than") from None
    engine = database()
    if dry_run:
        number = retention.purgeable(engine, older_than=now() - age)
        said = {"would_purge": number}
        many = str(number) if number <= retention.MAX_COUNTED else f"More than {retention.MAX_COUNTED}"
        click.echo(
            showing.as_json(said) if as_json else f"{many} letters would go. Nothing was deleted; see --no-dry-run."
        )
        return
    act = Act(actor=actor or login(), reason=reason or "")
    number = retention.purge(engine, act, older_than=now() - age, now=now())
    click.echo(showing.as_json({"purged": number}) if as_json else f"{number} letters are gone.")


@click.group("db")
def db_command() -> None:
    """The schema of the database, and the keys that its content is encrypted with."""


@db_command.command("upgrade")
@one_sentence
def db_upgrade() -> None:
    """Bring the schema up to date; running it again changes nothing.

    \b
    Example:
      DATABASE_URL=postgresql://... dead-letters db upgrade
    """
    engine = open_database(prepared_settings().database_url)
    before = schema_revision(engine)
    upgrade(engine)
    after = schema_revision(engine)
    click.echo(f"The schema is at {after} already." if before == after else f"The schema is at {after} now.")


@db_command.command("rotate-keys")
@click.option("--dry-run/--no-dry-run", default=True, show_default=True, help="Only say how many rows would change.")
@click.option("--reason", help="Why; required with --no-dry-run, it stands in the audit log.")
@click.option("--by", "actor", help="Who; the login by default.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object, for scripts.")
@one_sentence
def db_rotate_keys(dry_run: bool, reason: str | None, actor: str | None, as_json: bool) -> None:
    """Encrypt what is stored with the first of ENCRYPTION_KEYS, whether it is clear or has an older key.

    With ENCRYPT_LETTERS=false it is decrypted instead. Cut off, it is simply run again. Says only how many rows
    would change, unless --no-dry-run is given.

    \b
    Examples:
      ENCRYPTION_KEYS=new,old dead-letters db rotate-keys
      ENCRYPTION_KEYS=new,old dead-letters db rotate-keys --no-dry-run --reason "yearly rotation"
    """
    engine = database()
    if dry_run:
        found = rotation.survey(engine)
        _tell_rotation(found, as_json=as_json, dry_run=True)
        return
    act = Act(actor=actor or login(), reason=reason or "")
    bars = Progress(TextColumn("{task.description}"), BarColumn(), console=Console(stderr=True), transient=True)
    with bars:
        bar = bars.add_task("encrypting")

        def watch(at: Rotation) -> None:
            total = at.waiting.total()
            bars.update(bar, description=f"{at.done} of {total} rows", completed=at.done, total=total)

        found = rotation.rotate(engine, act, clock=now, watch=watch)
    _tell_rotation(found, as_json=as_json, dry_run=False)
    if found.unopened_rows:
        sys.exit(EXIT_REFUSED)


def _tell_rotation(found: Rotation, *, as_json: bool, dry_run: bool) -> None:
    if as_json:
        waiting = [{"table": table, "key": key, "rows": number} for (table, key), number in found.waiting.items()]
        said = {"to": found.to, "rows": waiting, "done": found.done, "unopened": found.unopened_rows}
        click.echo(showing.as_json(said | {"applied": not dry_run}))
        return
    for (table, key), number in sorted(found.waiting.items(), key=str):
        click.echo(f"{table.replace('_', ' ')}: {number} {f'with key {key}' if key else 'clear'}", err=not dry_run)
    aim = f"encrypted with key {found.to}" if found.to else "clear"
    if dry_run:
        click.echo(f"{found.waiting.total()} rows would become {aim}. Nothing was changed; see --no-dry-run.")
        return
    click.echo(f"{found.done} rows are {aim} now.")
    for problem in found.unopened[:20]:
        click.echo(f"It stays as it is: {problem}", err=True)
    if found.unopened_rows:
        click.echo(f"{found.unopened_rows} rows could not be opened and stay as they are.", err=True)


UPKEEP_COMMANDS = (config_command, purge_command, db_command)
