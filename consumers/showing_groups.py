"""How groups and alerts look to people and to scripts."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from consumers.showing import age

BARS = "▁▂▃▄▅▆▇█"


def groups_table(
    groups: Sequence[dict[str, Any]],
    hours: Mapping[int, Mapping[datetime, int]],
    *,
    now: datetime,
    hours_shown: int,
) -> Table:
    """One line a group."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("id", "state", "letters", "first", "last", f"last {hours_shown} h", "task", "failure"):
        table.add_column(name, no_wrap=name not in {"task", "failure"}, overflow="fold")
    for group in groups:
        table.add_row(
            str(group["id"]),
            state_in_words(group, now),
            str(group["letters"]),
            age(group["first_seen_at"], now),
            age(group["last_seen_at"], now),
            sparkline(hours[group["id"]], now=now, hours_shown=hours_shown),
            plain(group["task_name"]),
            plain(group["title"], 200),
        )
    return table


def show_group(
    console: Console,
    group: dict[str, Any],
    letters: Sequence[dict[str, Any]],
    history: Sequence[dict[str, Any]],
    hours: Mapping[datetime, int],
    *,
    now: datetime,
    hours_shown: int,
) -> None:
    """Everything about one group."""
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    shown = {
        "group": group["id"],
        "failure": group["title"],
        "state": state_in_words(group, now),
        "letters": f"{group['letters']}, {group['returned']} of them after a replay",
        "first seen": f"{group['first_seen_at']:%Y-%m-%d %H:%M:%S} UTC, {age(group['first_seen_at'], now)}",
        "last seen": f"{group['last_seen_at']:%Y-%m-%d %H:%M:%S} UTC, {age(group['last_seen_at'], now)}",
        f"last {hours_shown} h": sparkline(hours, now=now, hours_shown=hours_shown),
        "regressions": group["regressions"] or "",
        "tasks": ", ".join(json.loads(group["tasks"])),
        "queues": ", ".join(json.loads(group["queues"])),
        "releases": ", ".join(json.loads(group["releases"])),
        "sample": f"dead-letters show {group['sample_letter_id']}" if group["sample_letter_id"] else "",
    }
    for name, value in shown.items():
        if value != "":
            table.add_row(name, plain(value))
    console.print(table)
    if letters:
        console.print(Text("\nnewest letters", style="bold"))
        for letter in letters:
            where = f"{letter['queue']} {letter['reason']}"
            console.print(plain(f"{letter['id']} {letter['state']} {age(letter['died_at'], now)} {where}"))
    if history:
        console.print(Text("\nhistory", style="bold"))
        for act in history:
            console.print(plain(f"{act['at']:%Y-%m-%d %H:%M:%S} {act['actor']}: {act['action']}: {act['reason']}"))


def alerts_table(alerts: Sequence[dict[str, Any]], *, now: datetime) -> Table:
    """One line for each alert and channel."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("at", "severity", "kind", "group", "channel", "state", "tries", "problem"):
        table.add_column(name, no_wrap=name != "problem", overflow="fold")
    for alert in alerts:
        table.add_row(
            age(alert["at"], now),
            alert["severity"],
            alert["kind"].replace("_", " "),
            str(alert["group_id"] or ""),
            plain(alert["channel"]),
            alert["state"],
            str(alert["attempts"]),
            plain(alert["error"], 200),
        )
    return table


def described(group: dict[str, Any]) -> dict[str, Any]:
    """A group for scripts, without what only alerts remember."""
    hidden = {
        "window_at",
        "window_letters",
        "usual_letters",
        "grown_at",
        "spoke_at",
        "spoke_letters",
        "follow_up_at",
        "merged_into",
    }
    shown = {name: value for name, value in group.items() if name not in hidden}
    return shown | {name: json.loads(group[name]) for name in ("tasks", "queues", "releases")}


def letter_line(letter: dict[str, Any]) -> str:
    """One new letter on one line."""
    error = ": ".join(part for part in (letter["error_type"], letter["error_message"]) if part)
    words = (
        f"{letter['died_at']:%H:%M:%S}",
        str(letter["id"]),
        letter["task_name"] or "unknown task",
        letter["queue"],
        letter["note_reason"] or letter["reason"],
        error or letter["decode_problem"] or "",
    )
    return " ".join(str(plain(" ".join(word.split()), 160)) for word in words).rstrip()


def state_in_words(group: dict[str, Any], now: datetime) -> str:
    """The state, and how long an ignoring or a muting lasts."""
    words = str(group["state"])
    if group["ignored_until"]:
        words += f" until {group['ignored_until']:%Y-%m-%d %H:%M}"
    if group["ignored_until_count"]:
        words += f" for {max(0, group['ignored_until_count'] - group['letters'])} more"
    if group["muted_until"] and group["muted_until"] > now:
        words += ", muted"
    return words


def sparkline(hours: Mapping[datetime, int], *, now: datetime, hours_shown: int) -> str:
    """Letters an hour as bars, the present hour last."""
    this_hour = now.replace(minute=0, second=0, microsecond=0)
    numbers = [hours.get(this_hour - timedelta(hours=back), 0) for back in reversed(range(hours_shown))]
    most = max(numbers)
    return (
        "".join(BARS[-(-number * (len(BARS) - 1) // most)] if number else " " for number in numbers) if most else ""
    )


def plain(value: object, length: int = 2_000) -> Text:
    """Text from a message: no markup, no control characters that a terminal would obey."""
    words = str(value if value is not None else "")[:length]
    return Text("".join(char if char.isprintable() else repr(char)[1:-1] for char in words))
