"""What of a row is sealed when it is stored, and opened when a person or the drain asks for it.

A row with a ``key_id`` has tokens in these columns, and a row without has them clear; both may stand in one table, so
that encryption can be turned on and off, and keys can be changed, while letters come.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import sqlalchemy as sa

from consumers.keyring import NO_KEYS, Keyring, SealedError, no_such_key

SEALED: Mapping[str, tuple[str, ...]] = {
    "dead_letters": ("body", "properties", "args", "kwargs", "decode_problem", "error_message", "traceback"),
    "replay_items": ("edited_body", "edited_properties"),
    "failure_groups": ("title",),
    "alerts": ("payload",),
}
"""The columns of each table that have content of a message in them."""

HIDDEN = "(encrypted)"
_HIDDEN_AS: Mapping[str, Any] = {
    "body": b"",
    "properties": b"",
    "args": None,
    "kwargs": None,
    "payload": json.dumps({"note": "What this is about is encrypted, and its key is not at hand."}),
}


def keyring_of(connection: sa.Connection) -> Keyring:
    """The keys that the database was opened with."""
    keyring: Keyring = connection.get_execution_options().get("keyring", NO_KEYS)
    return keyring


def sealed(keyring: Keyring, table: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """Values of a new row as they are stored, the key's id among them."""
    return sealed_with(keyring, keyring.sealing_key_id, table, values)


def sealed_with(keyring: Keyring, key: str | None, table: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """The same with the key that the row has already: one row is sealed with one key. None leaves it clear."""
    if key is None:
        return {**values, "key_id": None}
    tokens = {name: keyring.seal(values[name], key=key) for name in SEALED[table] if values.get(name) is not None}
    return {**values, **tokens, "key_id": key}


def opened(keyring: Keyring, table: str, row: Mapping[Any, Any], *, key: str = "key_id") -> dict[str, Any]:
    """A row with its content clear; the id of its key stands in the column ``key``. Raises SealedError."""
    if row[key] is None:
        return dict(row)
    try:
        found = {name: keyring.open(row[key], row[name]) for name in SEALED[table] if row.get(name) is not None}
    except SealedError as error:
        raise SealedError(f"{_named(table, row)}: {error}") from error
    return {**row, **found}


def missing_key(key: str, what: str) -> SealedError:
    """The error for content whose key is not at hand."""
    return SealedError(f"{what}: {no_such_key(key)}")


def shown(keyring: Keyring, table: str, row: Mapping[Any, Any]) -> dict[str, Any]:
    """The same for a list that must not fail: what cannot be opened is hidden."""
    try:
        return opened(keyring, table, row)
    except SealedError:
        hidden = {name: _HIDDEN_AS.get(name, HIDDEN) for name in SEALED[table] if row.get(name) is not None}
        return {**row, **hidden}


def _named(table: str, row: Mapping[Any, Any]) -> str:
    words = {"dead_letters": "letter", "replay_items": "edited letter", "failure_groups": "group", "alerts": "alert"}
    number = row.get("letter_id") or row.get("id")
    return f"{words[table]} {number}" if number else f"a {words[table]}"
