"""How letters look to people and to scripts."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime
from decimal import Decimal
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from broker_topology.message import EDITED_FROM_HEADER
from broker_topology.raw_properties import read_properties
from consumers.masking import USUAL, Masking


def as_json(value: Any) -> str:
    """JSON for scripts: times as ISO 8601, bytes as escaped text."""
    return json.dumps(value, default=_jsonable, ensure_ascii=True)


def _jsonable(value: Any) -> Any:
    match value:
        case datetime():
            return value.isoformat()
        case bytes() | memoryview():
            return bytes(value).decode("utf-8", "backslashreplace")
        case Decimal():
            return str(value)
        case _:
            return str(value)


def letters_table(letters: Sequence[dict[str, Any]], *, now: datetime) -> Table:
    """One line a letter."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("id", "state", "died", "task", "queue", "reason", "error"):
        table.add_column(name, no_wrap=name in {"id", "state", "died"}, overflow="fold")
    for letter in letters:
        error = ": ".join(part for part in (letter["error_type"], letter["error_message"]) if part)
        table.add_row(
            str(letter["id"]),
            letter["state"].replace("_", " "),
            age(letter["died_at"], now),
            plain(letter["task_name"] or letter["decode_problem"]),
            plain(letter["queue"]),
            plain(letter["note_reason"] or letter["reason"]),
            plain(error or letter["decode_problem"], 120),
        )
    return table


def show_letter(
    console: Console, letter: dict[str, Any], audit: Sequence[dict[str, Any]], masking: Masking = USUAL
) -> None:
    """Everything about one letter."""
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    details = described(letter, masking)
    for name, value in details.items():
        if value is None or value == "" or name in {"traceback", "headers", "body"}:
            continue
        table.add_row(name.replace("_", " "), plain(_in_words(value)))
    console.print(table)
    for name in ("headers", "body", "traceback"):
        if details[name]:
            console.print(Text(f"\n{name}", style="bold"))
            console.print(plain(_in_words(details[name])), soft_wrap=True)
    if audit:
        console.print(Text("\nhistory", style="bold"))
        for act in audit:
            console.print(plain(f"{act['at']:%Y-%m-%d %H:%M:%S} {act['actor']}: {act['action']}: {act['reason']}"))


def described(letter: dict[str, Any], masking: Masking = USUAL) -> dict[str, Any]:
    """A letter with its properties decoded, sensitive values masked, without what only the machine needs."""
    properties = read_properties(letter["properties"])
    hidden = {"identity", "content_hash", "body", "properties", "encrypted", "note_key", "group_id"}
    shown = {name: value for name, value in masking.letter(letter).items() if name not in hidden}
    for name in ("args", "kwargs"):
        shown[name] = masking.value(json.loads(letter[name])) if letter[name] is not None else None
    return shown | {
        "content_type": properties.content_type,
        "message_id": properties.message_id,
        "correlation_id": properties.correlation_id,
        "headers": _masked_headers(properties.headers, masking),
        "deaths": properties.headers.get("x-death"),
        "body": bytes(letter["body"][:4000]) if letter["args"] is None else None,
    }


def _masked_headers(headers: dict[str, Any], masking: Masking) -> dict[str, Any]:
    """The headers, sensitive values masked; the texts that Celery makes of arguments are left to those."""
    hidden = {"x-death", "argsrepr", "kwargsrepr"}
    shown: dict[str, Any] = masking.value({key: value for key, value in headers.items() if key not in hidden})
    if isinstance(original := headers.get(EDITED_FROM_HEADER), str):
        shown[EDITED_FROM_HEADER] = masking.json(original)
    return shown


def age(moment: datetime, now: datetime) -> str:
    """How long ago, in one unit."""
    seconds = max(0, int((now - moment).total_seconds()))
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds // size} {unit} ago"
    return f"{seconds} s ago"


def _in_words(value: Any) -> str:
    match value:
        case datetime():
            return value.isoformat(" ", "seconds")
        case bytes():
            return repr(value)[2:-1]
        case dict() | list():
            return json.dumps(value, default=_jsonable, ensure_ascii=False)
        case _:
            return str(value)


def plain(value: object, length: int = 20_000) -> Text:
    """Text from a message: no markup, no control characters that a terminal would obey."""
    text = str(value if value is not None else "")[:length]
    return Text("".join(char if char.isprintable() or char in "\n\t" else repr(char)[1:-1] for char in text))
