"""Letters into their groups, in the transaction that stores them.

Groups are found or made before the letters are inserted, so that each letter is written once, with its group.
What was counted into a group is written last, so that several drains wait for each other only while they
commit. Both steps go through the groups in one order: two drains cannot wait for each other in a circle.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, NamedTuple

import sqlalchemy as sa

from consumers.alert_rules import AlertRules, Counted, Kind, Standing, count_in
from consumers.database import insert_of
from consumers.dead_letters import dead_letters
from consumers.fingerprints import RULES_VERSION, Fingerprint
from consumers.group_state import GroupState
from consumers.groups import MAX_NAMES, failure_groups, group_hours
from consumers.letters import storable
from consumers.sealing import keyring_of, sealed

MAX_KNOWN = 50_000
"""Digests whose group is remembered between batches."""
CHUNK = 500

c = failure_groups.c


class Sorted(NamedTuple):
    """What of one letter matters to its group. A tuple, for there is one for every letter that is stored."""

    fingerprint: Fingerprint
    task_name: str | None
    error_type: str | None
    queue: str
    release: str | None
    died_at: datetime
    returned: bool
    """Whether it came back from a replay."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Spoken:
    """A group that has something to say."""

    kind: Kind
    group_id: int
    letter_id: int
    """A letter of the batch that made it speak."""
    letters: int
    """Letters of the group so far."""
    contradicts: dict[str, Any] | None = None
    """Who settled it, when, why and at which release."""


class Groups:
    """Finds the group of a letter; remembers those that it has seen."""

    def __init__(self) -> None:
        self._known: dict[str, int] = {}

    def place(self, connection: sa.Connection, letters: Sequence[Sorted], *, now: datetime) -> list[int]:
        """The id of each letter's group; groups that do not exist are made, still without letters."""
        wanted = {letter.fingerprint.digest: letter for letter in letters}
        ids = {digest: self._known[digest] for digest in wanted if digest in self._known}
        missing = sorted(wanted.keys() - ids.keys())
        for start in range(0, len(missing), CHUNK):
            part = missing[start : start + CHUNK]
            ids.update(_found(connection, part))
            new = [digest for digest in part if digest not in ids]
            if new:
                ids.update(_made(connection, [wanted[digest] for digest in new], now))
        return [ids[letter.fingerprint.digest] for letter in letters]

    def remember(self, letters: Iterable[tuple[Sorted, int]]) -> None:
        """Take note of groups that are committed."""
        if len(self._known) > MAX_KNOWN:
            self._known.clear()
        for letter, group_id in letters:
            self._known[letter.fingerprint.digest] = group_id


def _found(connection: sa.Connection, digests: Sequence[str]) -> dict[str, int]:
    rows = connection.execute(sa.select(c.digest, sa.func.coalesce(c.merged_into, c.id)).where(c.digest.in_(digests)))
    return {digest: group_id for digest, group_id in rows}  # noqa: C416, dict(rows) takes a result for a mapping


def _made(connection: sa.Connection, letters: Sequence[Sorted], now: datetime) -> dict[str, int]:
    rows = [
        {
            "digest": letter.fingerprint.digest,
            "rules_version": RULES_VERSION,
            "title": storable(letter.fingerprint.title),
            "task_name": letter.task_name,
            "error_type": letter.error_type,
            "state": GroupState.OPEN.value,
            "state_at": now,
            "first_seen_at": letter.died_at,
            "last_seen_at": letter.died_at,
        }
        for letter in letters
    ]
    keyring = keyring_of(connection)
    # Sorted by digest: whoever comes second waits for the first to commit, and finds its groups.
    connection.execute(
        insert_of(connection, failure_groups)
        .values([sealed(keyring, "failure_groups", row) for row in rows])
        .on_conflict_do_nothing(index_elements=["digest"])
    )
    return _found(connection, [letter.fingerprint.digest for letter in letters])


@dataclass(slots=True, kw_only=True)
class Stack:
    """The letters of one group in one batch."""

    group_id: int
    letter_ids: list[int] = field(default_factory=list)
    kinds: Counter[Sorted] = field(default_factory=Counter)
    """In a storm most letters are alike."""

    @property
    def newest_died_at(self) -> datetime:
        """When the last of them died."""
        return max(kind.died_at for kind in self.kinds)


def count(connection: sa.Connection, stacks: Sequence[Stack], *, now: datetime, rules: AlertRules) -> list[Spoken]:
    """Count letters into their groups; returns the groups that have something to say."""
    spoken: list[Spoken] = []
    stacks = sorted(stacks, key=lambda stack: stack.group_id)
    for start in range(0, len(stacks), CHUNK):
        part = {stack.group_id: stack for stack in stacks[start : start + CHUNK]}
        rows = connection.execute(
            sa.select(failure_groups).where(c.id.in_(part)).order_by(c.id).with_for_update()
        ).all()
        updates, moved = [], []
        for row in rows:
            stack = part[row.id]
            if row.merged_into is not None:
                moved.append(_moved(connection, stack, row.merged_into))
                continue
            counted = count_in(
                _standing(row),
                len(stack.letter_ids),
                newest_died_at=stack.newest_died_at,
                now=now,
                rules=rules,
            )
            updates.append(_update(row, stack, counted, now))
            if counted.speaks:
                spoken.append(_spoken(row, stack, counted))
        if updates:
            connection.execute(failure_groups.update().where(c.id == sa.bindparam("group")), updates)
        _count_hours(connection, [part[update["group"]] for update in updates])
        if moved:
            spoken += count(connection, moved, now=now, rules=rules)
    return spoken


def _moved(connection: sa.Connection, stack: Stack, group_id: int) -> Stack:
    """The group was merged into another since this drain looked it up."""
    letters = dead_letters.c
    connection.execute(dead_letters.update().where(letters.id.in_(stack.letter_ids)).values(group_id=group_id))
    return Stack(group_id=group_id, letter_ids=stack.letter_ids, kinds=stack.kinds)


def _standing(row: Any) -> Standing:
    return Standing(
        state=GroupState(row.state),
        state_at=row.state_at,
        letters=row.letters,
        by_itself=row.state_by is None,
        ignored_until=row.ignored_until,
        ignored_until_count=row.ignored_until_count,
        muted_until=row.muted_until,
        window_at=row.window_at,
        window_letters=row.window_letters,
        usual_letters=row.usual_letters,
        grown_at=row.grown_at,
        follow_up_at=row.follow_up_at,
    )


def _update(row: Any, stack: Stack, counted: Counted, now: datetime) -> dict[str, Any]:
    after, kinds = counted.standing, stack.kinds
    return {
        "group": row.id,
        "state": after.state.value,
        "state_at": after.state_at,
        "ignored_until": after.ignored_until,
        "ignored_until_count": after.ignored_until_count,
        "first_seen_at": min(row.first_seen_at, *(kind.died_at for kind in kinds)),
        "last_seen_at": max(row.last_seen_at, stack.newest_died_at),
        "letters": after.letters,
        "returned": row.returned + sum(number for kind, number in kinds.items() if kind.returned),
        "regressions": row.regressions + (row.state == GroupState.SETTLED and after.state is GroupState.OPEN),
        "sample_letter_id": stack.letter_ids[-1],
        "tasks": _with_names(row.tasks, (kind.task_name for kind in kinds)),
        "queues": _with_names(row.queues, (kind.queue for kind in kinds)),
        "releases": _with_names(row.releases, (kind.release for kind in kinds)),
        "window_at": after.window_at,
        "window_letters": after.window_letters,
        "usual_letters": after.usual_letters,
        "grown_at": after.grown_at,
        "spoke_at": now if counted.speaks else row.spoke_at,
        "spoke_letters": after.letters if counted.speaks else row.spoke_letters,
        "follow_up_at": after.follow_up_at,
    }


def _with_names(known: str, names: Iterable[str | None]) -> str:
    """A JSON list with names that are not in it yet, the newest kept."""
    new = dict.fromkeys(name for name in names if name)
    if all(json.dumps(name) in known for name in new):
        return known
    found: list[str] = json.loads(known)
    found += [name for name in new if name not in found]
    return json.dumps(found[-MAX_NAMES:])


def _spoken(row: Any, stack: Stack, counted: Counted) -> Spoken:
    contradicts = None
    if counted.speaks is Kind.REGRESSION:
        contradicts = {
            "by": row.state_by or "itself",
            "at": row.state_at,
            "reason": row.state_reason,
            "release": row.state_release,
        }
    assert counted.speaks is not None  # noqa: S101, for the type
    return Spoken(
        kind=counted.speaks,
        group_id=row.id,
        letter_id=stack.letter_ids[0],
        letters=counted.standing.letters,
        contradicts=contradicts,
    )


def _count_hours(connection: sa.Connection, stacks: Sequence[Stack]) -> None:
    hours: dict[tuple[int, datetime], int] = {}
    for stack in stacks:
        for kind, number in stack.kinds.items():
            key = (stack.group_id, kind.died_at.replace(minute=0, second=0, microsecond=0))
            hours[key] = hours.get(key, 0) + number
    rows = [{"group_id": group, "hour": hour, "letters": number} for (group, hour), number in sorted(hours.items())]
    insert = insert_of(connection, group_hours)
    statement = insert.on_conflict_do_update(
        index_elements=["group_id", "hour"],
        set_={"letters": group_hours.c.letters + insert.excluded.letters},
    )
    for start in range(0, len(rows), CHUNK):
        connection.execute(statement, rows[start : start + CHUNK])
