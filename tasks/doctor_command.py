"""``celery -A app doctor``, and the same as ``broker-topology doctor -A app``."""

from __future__ import annotations

import json
from dataclasses import asdict

import click
from celery import Celery
from celery.app.utils import find_app
from celery.bin.base import CeleryCommand, handle_preload_options
from rich.console import Console
from rich.table import Table

from tasks.doctor import Grade, examine

PURPOSE = """Examine a Celery app with its broker and its Redis: what loses, loops or blocks a message, what mends it.

Exits with 1 where there is an error.
"""

json_option = click.option("--json", "as_json", is_flag=True, help="One JSON object a line, for scripts.")
management_option = click.option(
    "--management-url", envvar="MANAGEMENT_URL", metavar="URL", help="The broker's management API."
)


@click.command(cls=CeleryCommand, help=f"{PURPOSE}\n\b\nExample:\n  celery -A shop.celery doctor")
@json_option
@management_option
@click.pass_context
@handle_preload_options
def doctor(ctx: click.Context, as_json: bool, management_url: str | None) -> None:
    """Examine the app that ``celery -A`` has loaded."""
    _report(ctx.obj.app, as_json, management_url)


@click.command("doctor", help=f"{PURPOSE}\n\b\nExample:\n  broker-topology doctor -A shop.celery")
@click.option("-A", "--app", required=True, metavar="APP", help="The Celery app, as for celery -A.")
@json_option
@management_option
def doctor_of(app: str, as_json: bool, management_url: str | None) -> None:
    """Load an app and examine it."""
    try:
        found = find_app(app)
    except (ImportError, AttributeError, ValueError) as error:
        raise click.UsageError(f"cannot load the Celery app {app}: {error}") from error
    _report(found, as_json, management_url)


def _report(app: Celery, as_json: bool, management_url: str | None) -> None:
    findings = examine(app, management_url)
    if as_json:
        for finding in findings:
            click.echo(json.dumps(asdict(finding)))
    elif findings:
        table = Table(box=None, pad_edge=False)
        for heading in ("", "about", "problem", "what mends it"):
            table.add_column(heading, overflow="fold")
        for finding in findings:
            table.add_row(finding.grade, finding.subject, finding.problem, finding.fix)
        Console().print(table)
    else:
        click.echo("nothing to mend")
    if any(finding.grade is Grade.ERROR for finding in findings):
        raise SystemExit(1)
