"""Letters to the groups that the present rules give them: after better rules, and for letters stored before groups.

A group that a better rule takes apart or joins with another hands its state on: what a person settled or
ignored stays so. Counting goes on meanwhile; a letter that a running drain counts into a group which is merged
at that moment follows it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import sqlalchemy as sa

from consumers.audit import Act, Action, record
from consumers.database import insert_of, reading, transaction
from consumers.dead_letters import dead_letters
from consumers.filing import fingerprint_of_row
from consumers.fingerprints import RULES_VERSION, Fingerprint
from consumers.group_state import GroupState
from consumers.groups import failure_groups, group_hours, lock, reopen_waited_for
from consumers.sealing import keyring_of, opened, sealed

BATCH = 1_000

c, d = failure_groups.c, dead_letters.c

_INHERITED = (
    "state",
    "state_at",
    "state_by",
    "state_reason",
    "state_release",
    "ignored_until",
    "ignored_until_count",
    "muted_until",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """Letters that go from one group to another."""

    from_group: int | None
    """None for letters that were in no group."""
    to_title: str
    letters: int


@dataclass(slots=True, kw_only=True)
class Regrouping:
    """What a regrouping does, or would do."""

    letters: int = 0
    """Letters looked at."""
    moves: Counter[tuple[int | None, str, str]] = field(default_factory=Counter)
    """Letters by group that they leave, digest and title of the one they go to."""

    def told(self) -> list[Move]:
        """The moves, the largest first."""
        return [
            Move(from_group=group, to_title=title, letters=number)
            for (group, _, title), number in self.moves.most_common()
        ]


def regroup(engine: sa.Engine, act: Act | None, *, now: datetime) -> Regrouping:
    """Move every letter to the group of the present rules; without an act only say what would move.

    Raises DatabaseUnavailableError, SealedError. Interrupted, it is simply run again.
    """
    outcome = Regrouping()
    digests: dict[int, str] = {}
    targets: dict[int, Counter[int]] = {}
    last_id = 0
    while True:
        with transaction(engine) if act else reading(engine) as connection:
            letters = _letters_after(last_id)
            # Letters are held before groups, as by everybody else.
            rows = connection.execute(letters.with_for_update() if act else letters).all()
            if not rows:
                break
            last_id = rows[-1].id
            keyring = keyring_of(connection)
            outcome.letters += len(rows)
            digests.update(_digests(connection, {row.group_id for row in rows if row.group_id} - digests.keys()))
            moves: dict[tuple[int | None, Fingerprint], list[Any]] = {}
            for row in rows:
                made = fingerprint_of_row(opened(keyring, "dead_letters", row._mapping))
                if row.group_id is None or digests.get(row.group_id) != made.digest:
                    moves.setdefault((row.group_id, made), []).append(row)
            for (group, made), moved in sorted(moves.items(), key=lambda move: move[0][1].digest):
                outcome.moves[group, made.digest, made.title] += len(moved)
                if act:
                    target = _move(connection, group, made, moved, now)
                    if group is not None:
                        targets.setdefault(group, Counter())[target] += len(moved)
    if act:
        with transaction(engine) as connection:
            for group_id, into in sorted(targets.items()):
                _merge_if_empty(connection, group_id, into.most_common(1)[0][0], now)
            connection.execute(failure_groups.update().values(rules_version=RULES_VERSION))
            details = {"letters": outcome.letters, "moved": sum(outcome.moves.values())}
            record(connection, act, Action.REGROUP, now=now, details=details)
    return outcome


def _letters_after(last_id: int) -> sa.Select[Any]:
    return sa.select(*ROW_COLUMNS).where(d.id > last_id).order_by(d.id).limit(BATCH)


ROW_COLUMNS = (
    d.id, d.group_id, d.task_name, d.queue, d.reason, d.note_reason, d.error_type, d.error_message,
    d.traceback, d.note_fingerprint, d.died_at, d.replay_key, d.release, d.key_id,
)  # fmt: skip
"""What of a letter its fingerprint and its group need."""


def _digests(connection: sa.Connection, ids: set[int]) -> dict[int, str]:
    rows = connection.execute(sa.select(c.id, c.digest).where(c.id.in_(ids)))
    return {group_id: digest for group_id, digest in rows}  # noqa: C416, dict(rows) takes a result for a mapping


def _move(connection: sa.Connection, group_id: int | None, made: Fingerprint, rows: list[Any], now: datetime) -> int:
    """Move letters of one group into another, which is made where it is missing; returns its id."""
    target = _target(connection, group_id, made, rows, now)
    lock(connection, [target] if group_id is None else [target, group_id])
    connection.execute(dead_letters.update().where(d.id.in_([row.id for row in rows])).values(group_id=target))
    adjust(connection, target, rows, +1)
    reopen_waited_for(connection, target, now=now)
    if group_id is not None:
        adjust(connection, group_id, rows, -1)
    return target


def adjust(connection: sa.Connection, group_id: int, rows: Sequence[Any], sign: int) -> None:
    """Count letters into a group, or out of it."""
    returned = sum(row.replay_key is not None for row in rows)
    connection.execute(
        failure_groups.update()
        .where(c.id == group_id)
        .values(letters=_at_least_0(c.letters + sign * len(rows)), returned=_at_least_0(c.returned + sign * returned))
    )
    for hour, number in sorted(Counter(_hour(row.died_at) for row in rows).items()):
        insert = insert_of(connection, group_hours).values(
            group_id=group_id, hour=hour, letters=max(0, sign * number)
        )
        connection.execute(
            insert.on_conflict_do_update(
                index_elements=["group_id", "hour"],
                set_={"letters": _at_least_0(group_hours.c.letters + sign * number)},
            )
        )


def _target(
    connection: sa.Connection, group_id: int | None, made: Fingerprint, rows: list[Any], now: datetime
) -> int:
    died = [row.died_at for row in rows]
    existing = connection.execute(
        sa.select(c.id, c.first_seen_at, c.last_seen_at).where(c.digest == made.digest)
    ).one_or_none()
    if existing is not None:
        values: dict[str, Any] = {
            "first_seen_at": min(existing.first_seen_at, *died),
            "last_seen_at": max(existing.last_seen_at, *died),
            "rules_version": RULES_VERSION,
            "merged_into": None,
        }
        connection.execute(failure_groups.update().where(c.id == existing.id).values(**values))
        return int(existing.id)
    values = {
        "digest": made.digest,
        "rules_version": RULES_VERSION,
        "title": made.title,
        "task_name": rows[0].task_name,
        "error_type": rows[0].error_type,
        "state": GroupState.OPEN.value,
        "state_at": now,
        "first_seen_at": min(died),
        "last_seen_at": max(died),
        "sample_letter_id": rows[-1].id,
    }
    if group_id is not None:
        source = connection.execute(sa.select(failure_groups).where(c.id == group_id)).one()
        inherited = {name: source._mapping[name] for name in (*_INHERITED, "tasks", "queues", "releases")}
        values |= inherited
    values = sealed(keyring_of(connection), "failure_groups", values)
    statement = failure_groups.insert().values(**values).returning(c.id)
    return int(connection.execute(statement).scalar_one())


def _merge_if_empty(connection: sa.Connection, group_id: int, into: int, now: datetime) -> None:
    """A group whose letters are all gone elsewhere says where, and leaves what it counted there."""
    if connection.execute(sa.select(d.id).where(d.group_id == group_id).limit(1)).first() is not None:
        return
    group = connection.execute(sa.select(c.letters, c.returned).where(c.id == group_id).with_for_update()).one()
    connection.execute(
        failure_groups.update()
        .where(c.id == into)
        .values(letters=c.letters + group.letters, returned=c.returned + group.returned)
    )
    connection.execute(failure_groups.update().where(c.merged_into == group_id).values(merged_into=into))
    connection.execute(
        failure_groups.update()
        .where(c.id == group_id)
        .values(
            state=GroupState.MERGED.value,
            state_at=now,
            merged_into=into,
            letters=0,
            returned=0,
            follow_up_at=None,
        )
    )


def _at_least_0(value: Any) -> Any:
    return sa.case((value < 0, 0), else_=value)


def _hour(moment: datetime) -> datetime:
    return moment.replace(minute=0, second=0, microsecond=0)
