"""What an alert says: a title and a text for people, and the JSON body for machines (pure)."""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any

from consumers.alert_rules import Kind
from consumers.alerts import Delivery

BODY_VERSION = 1
MAX_TITLE_LENGTH = 200
MAX_TEXT_LENGTH = 3_500
"""Chat services refuse more than some 4,000 characters."""


def title(delivery: Delivery) -> str:
    """One line: how bad, what kind, what failed."""
    facts = delivery.facts
    about = facts.get("group", {}).get("title") or facts.get("about", "")
    words = {
        Kind.FIRST_OCCURRENCE: "new failure",
        Kind.REGRESSION: "settled failure is back",
        Kind.IGNORED_NO_LONGER: "ignored failure goes on",
        Kind.GROWTH: "failure grows",
        Kind.FOLLOW_UP: f"{facts.get('since_then')} more letters",
        Kind.STORM: f"{facts.get('held_back')} more failures have something to say",
        Kind.DIGEST: f"{facts.get('letters')} dead letters {facts.get('period', '')}".rstrip(),
        Kind.QUEUE_DEPTH: "dead-letter queue is deep",
        Kind.QUEUE_AGE: "dead letters wait to be stored",
        Kind.CANNOT_STORE: "dead letters cannot be stored",
        Kind.STORES_AGAIN: "dead letters are stored again",
        Kind.TEST: "test of an alert channel",
    }[delivery.kind]
    return _one_line(f"[{delivery.severity}] {words}{': ' if about else ''}{about}", MAX_TITLE_LENGTH)


def text(delivery: Delivery) -> str:
    """What failed, how often, since when, a masked sample, and the command that shows it."""
    facts = delivery.facts
    lines: list[str] = []
    if group := facts.get("group"):
        lines += _group_lines(group)
    if settled := facts.get("contradicts"):
        release = f" at release {settled['release']}" if settled.get("release") else ""
        lines.append(f"It was settled by {settled['by']} on {_moment(settled['at'])}{release}: {settled['reason']}")
    if "since_then" in facts:
        lines.append(f"{facts['since_then']} letters since the alert of {_moment(facts['spoke_at'])}")
    if letter := facts.get("letter"):
        lines += _letter_lines(letter)
    for entry in facts.get("groups", []):
        lines.append(f"- {entry['letters']} x {entry['title']} (group {entry['id']})")
    if note := facts.get("note"):
        lines.append(str(note))
    if command := facts.get("command"):
        lines.append(f"See: {command}")
    lines.append(f"Alert {delivery.uid}")
    return "\n".join(_one_line(line, 600) for line in lines)[:MAX_TEXT_LENGTH]


def body(delivery: Delivery, *, sent_at: datetime) -> bytes:
    """The body of a webhook; docs/reference/groups-and-alerts.md describes it."""
    return json.dumps(
        {
            "version": BODY_VERSION,
            "id": delivery.uid,
            "kind": delivery.kind.value,
            "severity": delivery.severity.value,
            "at": delivery.at.isoformat(),
            "sent_at": sent_at.isoformat(),
            "attempt": delivery.attempts,
            "title": title(delivery),
            "text": text(delivery),
            **delivery.facts,
        },
        ensure_ascii=False,
    ).encode()


def _group_lines(group: dict[str, Any]) -> list[str]:
    lines = [
        f"What: {group['title']}",
        f"Task: {group['task'] or 'unknown'}; queue: {', '.join(group['queues']) or 'unknown'}",
        f"How often: {group['letters']} letters, {group['returned_from_replays']} of them after a replay",
        f"Since: {_moment(group['first_seen_at'])}; last: {_moment(group['last_seen_at'])}",
    ]
    if group["releases"]:
        lines.append(f"Releases: {', '.join(group['releases'][-5:])}")
    return lines


def _letter_lines(letter: dict[str, Any]) -> list[str]:
    lines = [f"Sample: letter {letter['id']}, task id {letter['task_id']}, {letter['reason']}"]
    if letter["returned_from_replay"]:
        lines.append("It came back after a replay.")
    if letter["args"] is not None or letter["kwargs"] is not None:
        lines.append(f"With: {letter['args']} {letter['kwargs']}")
    return lines


def _moment(text_or_none: str | None) -> str:
    if not text_or_none:
        return "unknown"
    return f"{datetime.fromisoformat(text_or_none):%Y-%m-%d %H:%M:%S} UTC"


def _one_line(words: str, length: int) -> str:
    line = " ".join("".join(char if char.isprintable() else " " for char in words).split())
    return line if len(line) <= length else line[: length - 4] + " ..."
