"""Editing before a replay: by --set, or in the editor of whoever acts."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import click
import sqlalchemy as sa

from consumers.database import reading
from consumers.dead_letters import get
from consumers.editing import Call, Edited, EditError, NotEditableError, edited, read_call


def read_edit(
    engine: sa.Engine, letter_ids: list[int], *, by_hand: bool, assignments: tuple[str, ...]
) -> Callable[[int, bytes, bytes], Edited] | None:
    """What makes of a letter the message that is sent in its place; None where nothing is to be changed."""
    if by_hand and assignments:
        raise click.UsageError("use --edit or --set, not both")
    if by_hand:
        if len(letter_ids) != 1:
            raise click.UsageError("--edit changes one letter at a time; --set changes many alike")
        after = _edited_by_hand(engine, letter_ids[0])
        return _named(lambda properties, body: edited(properties, body, after))
    if assignments:
        changes = [_assignment(text) for text in assignments]

        def change(properties: bytes, body: bytes) -> Edited:
            after = read_call(properties, body)
            for path, value in changes:
                after = after.changed(path, value)
            return edited(properties, body, after)

        return _named(change)
    return None


def _named(change: Callable[[bytes, bytes], Edited]) -> Callable[[int, bytes, bytes], Edited]:
    """The same, with the letter's id in what it raises."""

    def edit(letter_id: int, properties: bytes, body: bytes) -> Edited:
        try:
            return change(properties, body)
        except (NotEditableError, EditError) as error:
            raise type(error)(f"letter {letter_id}: {error}") from error
        except RecursionError as error:
            raise NotEditableError(f"letter {letter_id}: its arguments are nested too deeply") from error

    return edit


def _edited_by_hand(engine: sa.Engine, letter_id: int) -> Call:
    """Let a person change the call in the editor; what is no call opens it again, until that is given up."""
    with reading(engine) as connection:
        letter = get(connection, letter_id)
    try:
        text = read_call(bytes(letter["properties"]), bytes(letter["body"])).to_json(indent=2) + "\n"
    except RecursionError as error:
        raise NotEditableError("its arguments cannot be edited: they are nested too deeply") from error
    while True:
        typed = click.edit(text, extension=".json")
        if typed is None:
            raise EditError("nothing is changed, so nothing is replayed")
        try:
            return Call.from_json(typed)
        except EditError as error:
            click.echo(f"This cannot be sent: {error}", err=True)
            click.confirm("Edit it again?", default=True, abort=True, err=True)
            text = typed


def _assignment(text: str) -> tuple[str, Any]:
    path, equals, value = text.partition("=")
    if not equals:
        raise click.BadParameter(f"{text!r} is not PATH=VALUE", param_hint="--set")
    try:
        return path, json.loads(value)
    except RecursionError:
        raise click.BadParameter("it is nested too deeply", param_hint="--set") from None
    except ValueError:
        return path, value
