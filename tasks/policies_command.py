"""``celery -A app policies``: every task with the retry policy and the guard that hold for it in the end."""

from __future__ import annotations

import json
from typing import Any

import click
from celery.bin.base import CeleryCommand, handle_preload_options
from rich.console import Console
from rich.table import Table

from tasks.reliable_task import ReliableTask


@click.command(cls=CeleryCommand)
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line, for scripts.")
@click.pass_context
@handle_preload_options
def policies(ctx: click.Context, as_json: bool) -> None:
    """List every task with its effective policy; those that only have the default are marked.

    \b
    Examples:
      celery -A tasks policies
      celery -A shop.celery policies --json | jq 'select(.default)'
    """
    app = ctx.obj.app
    app.loader.import_default_modules()
    app.finalize()
    rows = [row_of(task) for name, task in sorted(app.tasks.items()) if not name.startswith("celery.")]
    if as_json:
        for row in rows:
            click.echo(json.dumps(row))
        return
    table = Table(box=None, pad_edge=False)
    for heading in ("task", "retries", "first wait", "cap", "covers", "transient", "guard", "note"):
        table.add_column(heading, overflow="fold")
    for row in rows:
        table.add_row(*cells_of(row))
    Console().print(table)


def row_of(task: Any) -> dict[str, Any]:
    """What holds for one task, as JSON has it; durations in seconds."""
    if not isinstance(task, ReliableTask):
        return {"task": task.name, "reliable": False, "default": False}
    policy, guard = task.policy, task.idempotency
    return {
        "task": task.name,
        "reliable": True,
        "default": task.has_default_policy,
        "max_retries": policy.max_retries,
        "backoff_seconds": policy.backoff_seconds,
        "cap_seconds": policy.cap_seconds,
        "covers_seconds": policy.covers().total_seconds(),
        "transient": [named.__name__ if isinstance(named, type) else "reference" for named in policy.named],
        "idempotency": guard
        and {
            "lease_seconds": guard.lease_seconds,
            "retention_seconds": guard.retention_seconds,
            "if_interrupted": guard.if_interrupted,
        },
        "dead_letter": task.dead_letter,
    }


def cells_of(row: dict[str, Any]) -> list[str]:
    """The same for people."""
    if not row["reliable"]:
        return [row["task"], *[""] * 6, "not a ReliableTask: its failures are lost"]
    guard = row["idempotency"]
    notes = [
        note for note, holds in (("only the default", row["default"]), ("left out", not row["dead_letter"])) if holds
    ]
    return [
        row["task"],
        str(row["max_retries"]),
        f"{row['backoff_seconds']:g} s",
        f"{row['cap_seconds']:g} s",
        f"{row['covers_seconds']:g} s",
        ", ".join(row["transient"]) or "nothing",
        f"{guard['if_interrupted']}, kept {guard['retention_seconds'] / 86400:g} d" if guard else "none",
        ", ".join(notes),
    ]
