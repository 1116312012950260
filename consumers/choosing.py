"""The options of commands that act on letters: which ones, why, and who."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any

import click
import sqlalchemy as sa

from broker_topology.errors import DeadLetterOfficeError
from consumers import replay as replaying
from consumers.database import reading
from consumers.dead_letters import Filter, require_letters
from consumers.shell import now


class NothingChosenError(DeadLetterOfficeError):
    """No open letter is chosen."""


def acts(command: Callable[..., Any]) -> Callable[..., Any]:
    """Options of a command that changes something: why, and who."""
    command = click.option("--by", "actor", help="Who; the login by default.")(command)
    return click.option("--reason", required=True, help="Why; it stands in the audit log.")(command)


def chooses(command: Callable[..., Any]) -> Callable[..., Any]:
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


def chosen(engine: sa.Engine, given: dict[str, Any]) -> list[int]:
    """The ids that were named, or those that the filters choose. Raises NoSuchLetterError, NothingChosenError."""
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
        letter_ids = list(dict.fromkeys(given["letter_ids"]))
        with reading(engine) as connection:
            require_letters(connection, letter_ids)
        return letter_ids
    if not where.names_letters:
        raise click.UsageError("say which letters: ids, or an option such as --group or --task")
    letter_ids = replaying.select(engine, where)
    if not letter_ids:
        raise NothingChosenError
    return letter_ids


def _utc(moment: datetime | None) -> datetime | None:
    return moment.replace(tzinfo=now().tzinfo) if moment else None
