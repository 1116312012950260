"""What the storing transaction does beside storing: letters into groups, and what groups say into the outbox."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple, Protocol

import sqlalchemy as sa

from broker_topology.notes import FailureNote, cut
from consumers.alert_config import AlertConfig
from consumers.alerts import Alert, let_through, write
from consumers.fingerprints import Fingerprint, Remembered, fingerprint
from consumers.grouping import Groups, Sorted, Spoken, Stack, count
from consumers.groups import failure_groups
from consumers.letters import MAX_NAME_LENGTH, Letter, storable
from consumers.masking import USUAL, Masking
from consumers.sealing import keyring_of, shown


class Told(Protocol):
    """What alerts tell of a letter."""

    @property
    def task_id(self) -> str | None: ...  # noqa: D102, as in Letter
    @property
    def queue(self) -> str: ...  # noqa: D102
    @property
    def reason(self) -> str: ...  # noqa: D102
    @property
    def died_at(self) -> datetime: ...  # noqa: D102
    @property
    def args(self) -> str | None: ...  # noqa: D102
    @property
    def kwargs(self) -> str | None: ...  # noqa: D102


class Filed(NamedTuple):
    """One letter that was stored, with its group. A tuple, for there is one for every letter."""

    letter_id: int
    letter: Told
    about: Sorted
    group_id: int


class Filing:
    """Groups letters and lets groups speak; one for each process that stores."""

    def __init__(self, config: AlertConfig | None = None, masking: Masking = USUAL) -> None:
        self._config, self._masking = config or AlertConfig(), masking
        self._groups = Groups()
        self._remembered = Remembered()

    def place(
        self, connection: sa.Connection, letters: Sequence[tuple[Letter, FailureNote | None]], *, now: datetime
    ) -> list[tuple[Sorted, int]]:
        """What matters of each letter to its group, and the group's id."""
        return self.place_sorted(
            connection, [sorted_letter(letter, note, self._remembered) for letter, note in letters], now=now
        )

    def place_sorted(
        self, connection: sa.Connection, about: Sequence[Sorted], *, now: datetime
    ) -> list[tuple[Sorted, int]]:
        """The same for letters whose fingerprint is known."""
        return list(zip(about, self._groups.place(connection, about, now=now), strict=True))

    def count(self, connection: sa.Connection, filed: Sequence[Filed], *, now: datetime) -> None:
        """Count what was stored into the groups, and write down what they say."""
        stacks: dict[int, Stack] = {}
        for one in filed:
            stack = stacks.get(one.group_id)
            if stack is None:
                stack = stacks[one.group_id] = Stack(group_id=one.group_id)
            stack.letter_ids.append(one.letter_id)
            stack.kinds[one.about] += 1
        spoken = count(connection, list(stacks.values()), now=now, rules=self._config.rules)
        if spoken:
            self._write(connection, spoken, {one.letter_id: one for one in filed}, now)

    def committed(self, filed: Sequence[Filed]) -> None:
        """The transaction stands: its groups may be remembered."""
        self._groups.remember((one.about, one.group_id) for one in filed)

    def _write(self, connection: sa.Connection, spoken: list[Spoken], filed: dict[int, Filed], now: datetime) -> None:
        rules = self._config.rules
        number = int(now.timestamp() // rules.storm_window.total_seconds())
        window_at = datetime.fromtimestamp(number * rules.storm_window.total_seconds(), tz=now.tzinfo)
        allowed = let_through(connection, len(spoken), window_at=window_at, cap=rules.storm_cap)
        c = failure_groups.c
        heard, held_back = spoken[:allowed], spoken[allowed:]
        if held_back:
            silent = [one.group_id for one in held_back]
            connection.execute(
                failure_groups.update().where(c.id.in_(silent)).values(spoke_at=None, follow_up_at=None)
            )
        rows = connection.execute(sa.select(failure_groups).where(c.id.in_([one.group_id for one in heard])))
        keyring = keyring_of(connection)
        groups = {row.id: shown(keyring, "failure_groups", row._mapping) for row in rows}
        for one in heard:
            group, letter = groups[one.group_id], filed[one.letter_id]
            alert = Alert(
                kind=one.kind,
                # The count never comes back, so each time is another one.
                about=f"{one.kind}:group:{one.group_id}:{one.letters}",
                group_id=one.group_id,
                facts={
                    "group": group_facts(group),
                    "letter": letter_facts(letter, self._masking),
                    "contradicts": one.contradicts,
                    "command": f"dead-letters groups show {one.group_id}",
                },
            )
            addresses = self._config.addresses(
                one.kind, now=now, task=group["task_name"], queues=tuple(json.loads(group["queues"]))
            )
            write(connection, alert, addresses, now=now)


def sorted_letter(letter: Letter, note: FailureNote | None, remembered: Remembered) -> Sorted:
    """What of a letter and its note matters to the group."""
    if note is None:
        made, error_type, release = _unsaid(letter.task_name, letter.queue, letter.reason), None, None
    else:
        error_type, release = _name(str(note.error_type or "")), _name(str(note.release or ""))
        if note.fingerprint:
            made = fingerprint(own=str(note.fingerprint))
        elif error_type:
            made = remembered.of_error(
                letter.task_name, str(note.error_type), str(note.error_message), str(note.traceback)
            )
        else:
            made = _unsaid(letter.task_name, letter.queue, str(note.reason or letter.reason))
    return Sorted(
        fingerprint=made,
        task_name=letter.task_name,
        error_type=error_type,
        queue=letter.queue,
        release=release,
        died_at=letter.died_at,
        returned=letter.replay_key is not None,
    )


def fingerprint_of_row(row: Mapping[str, Any]) -> Fingerprint:
    """The fingerprint of a stored letter, by the present rules."""
    reason = row["note_reason"] if row["note_reason"] and not row["error_type"] else row["reason"]
    if not (row["error_type"] or row["note_fingerprint"]):
        return _unsaid(row["task_name"], row["queue"], reason)
    return fingerprint(
        task_name=row["task_name"],
        error_type=row["error_type"],
        error_message=row["error_message"],
        traceback=row["traceback"],
        own=row["note_fingerprint"],
        queue=row["queue"],
        reason=reason,
    )


@functools.lru_cache(maxsize=1024)
def _unsaid(task_name: str | None, queue: str, reason: str) -> Fingerprint:
    return fingerprint(task_name=task_name, queue=queue, reason=reason)


@functools.lru_cache(maxsize=1024)
def _name(text: str) -> str | None:
    return cut(storable(text) or "", MAX_NAME_LENGTH) or None


def group_facts(group: dict[str, Any]) -> dict[str, Any]:
    """A group as alerts tell it."""
    return {
        "id": group["id"],
        "title": group["title"],
        "task": group["task_name"],
        "error_type": group["error_type"],
        "state": group["state"],
        "letters": group["letters"],
        "returned_from_replays": group["returned"],
        "first_seen_at": group["first_seen_at"],
        "last_seen_at": group["last_seen_at"],
        "tasks": json.loads(group["tasks"]),
        "queues": json.loads(group["queues"]),
        "releases": json.loads(group["releases"]),
    }


def letter_facts(filed: Filed, masking: Masking = USUAL) -> dict[str, Any]:
    """One letter as alerts tell it: values of sensitive names are masked."""
    letter = filed.letter
    return {
        "id": filed.letter_id,
        "task_id": letter.task_id,
        "queue": letter.queue,
        "reason": letter.reason,
        "died_at": letter.died_at,
        "release": filed.about.release,
        "returned_from_replay": filed.about.returned,
        "args": masking.json(letter.args),
        "kwargs": masking.json(letter.kwargs),
    }
