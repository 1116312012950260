"""The commands for whoever runs the service: config, purge, db."""

from __future__ import annotations

from datetime import timedelta

import click
from rich.console import Console
from rich.table import Table

from consumers import retention, showing
from consumers.alert_config import duration
from consumers.audit import Act
from consumers.database import open_database, schema_revision, upgrade
from consumers.settings import effective
from consumers.shell import database, login, now, one_sentence, prepared_settings


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
    """The schema of the database."""


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


UPKEEP_COMMANDS = (config_command, purge_command, db_command)
