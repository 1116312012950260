"""The table of failure groups and its verbs for people: list, show, settle, ignore, reopen, mute.

How letters are counted into it stands in ``consumers.grouping``.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import sqlalchemy as sa

from broker_topology.errors import DeadLetterOfficeError
from consumers.audit import Act, Action, record
from consumers.database import BigId, UtcDateTime, metadata
from consumers.dead_letters import State, dead_letters
from consumers.group_state import GroupState
from consumers.letters import storable
from consumers.sealing import keyring_of, shown

MAX_NAMES = 50
"""How many tasks, queues or releases a group remembers."""


failure_groups = sa.Table(
    "failure_groups",
    metadata,
    sa.Column("id", BigId, primary_key=True),
    sa.Column("digest", sa.String(64), nullable=False, unique=True),
    sa.Column("rules_version", sa.Integer, nullable=False),
    sa.Column("title", sa.Text, nullable=False),
    sa.Column("task_name", sa.String(255)),
    sa.Column("error_type", sa.String(255)),
    sa.Column("state", sa.String(20), nullable=False, server_default=GroupState.OPEN.value),
    sa.Column("state_at", UtcDateTime, nullable=False),
    sa.Column("state_by", sa.Text),
    sa.Column("state_reason", sa.Text),
    # The newest release that had been seen when a person settled the group.
    sa.Column("state_release", sa.String(255)),
    sa.Column("ignored_until", UtcDateTime),
    sa.Column("ignored_until_count", sa.BigInteger),
    sa.Column("muted_until", UtcDateTime),
    sa.Column("merged_into", sa.BigInteger),
    sa.Column("first_seen_at", UtcDateTime, nullable=False),
    sa.Column("last_seen_at", UtcDateTime, nullable=False),
    sa.Column("letters", sa.BigInteger, nullable=False, server_default="0"),
    # Of these, how many came back from a replay.
    sa.Column("returned", sa.BigInteger, nullable=False, server_default="0"),
    sa.Column("regressions", sa.Integer, nullable=False, server_default="0"),
    sa.Column("sample_letter_id", sa.BigInteger),
    # JSON lists, the newest last.
    sa.Column("tasks", sa.Text, nullable=False, server_default="[]"),
    sa.Column("queues", sa.Text, nullable=False, server_default="[]"),
    sa.Column("releases", sa.Text, nullable=False, server_default="[]"),
    # What alerts remember: see consumers.alert_rules.
    sa.Column("window_at", UtcDateTime),
    sa.Column("window_letters", sa.BigInteger, nullable=False, server_default="0"),
    sa.Column("usual_letters", sa.Float, nullable=False, server_default="0"),
    sa.Column("grown_at", UtcDateTime),
    sa.Column("spoke_at", UtcDateTime),
    sa.Column("spoke_letters", sa.BigInteger, nullable=False, server_default="0"),
    sa.Column("follow_up_at", UtcDateTime),
    # Which key the content of the row is encrypted with: see consumers.sealing.
    sa.Column("key_id", sa.String(12)),
    sqlite_autoincrement=True,
)
sa.Index("ix_failure_groups_state_last_seen_at", failure_groups.c.state, failure_groups.c.last_seen_at)
sa.Index(
    "ix_failure_groups_task_name_state_last_seen_at",
    failure_groups.c.task_name,
    failure_groups.c.state,
    failure_groups.c.last_seen_at,
)
sa.Index("ix_failure_groups_first_seen_at", failure_groups.c.first_seen_at)
sa.Index(
    "ix_failure_groups_follow_up_at",
    failure_groups.c.follow_up_at,
    postgresql_where=failure_groups.c.follow_up_at.is_not(None),
    sqlite_where=failure_groups.c.follow_up_at.is_not(None),
)

group_hours = sa.Table(
    "group_hours",
    metadata,
    sa.Column("group_id", sa.BigInteger, primary_key=True, autoincrement=False),
    # The hour in which letters died.
    sa.Column("hour", UtcDateTime, primary_key=True),
    sa.Column("letters", sa.BigInteger, nullable=False),
    sa.Index("ix_group_hours_hour", "hour"),
)


class NoSuchGroupError(DeadLetterOfficeError):
    """There is no such group."""


class GroupStateError(DeadLetterOfficeError):
    """The group is not in a state that allows this."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ignore:
    """How long a group is ignored; both ends may be open."""

    until: datetime | None = None
    more: int | None = None
    """For that many letters."""


def page(
    connection: sa.Connection,
    *,
    states: Sequence[GroupState] = (GroupState.OPEN,),
    task: str | None = None,
    limit: int = 50,
) -> list[dict[str, Any]]:
    """Groups, the one that was seen last first."""
    c = failure_groups.c
    parts = []
    for state in states or SHOWN_STATES:
        # Each along its index: of all states together nothing is in order.
        part = sa.select(c.id, c.last_seen_at).where(c.state == state.value)
        if task:
            part = part.where(c.task_name == task)
        # A group whose letters all turned out to be something else has nothing to show.
        part = part.where(c.letters > 0).order_by(c.last_seen_at.desc(), c.id.desc()).limit(limit)
        parts.append(sa.select(part.subquery()))
    found = sa.union_all(*parts).subquery()
    newest = sa.select(found.c.id).order_by(found.c.last_seen_at.desc(), found.c.id.desc()).limit(limit)
    ids = connection.execute(newest).scalars().all()
    found_groups = connection.execute(sa.select(failure_groups).where(c.id.in_(ids)))
    keyring = keyring_of(connection)
    rows = {row.id: shown(keyring, "failure_groups", row._mapping) for row in found_groups}
    return [rows[group_id] for group_id in ids]


SHOWN_STATES = (GroupState.OPEN, GroupState.SETTLED, GroupState.IGNORED)


def get(connection: sa.Connection, group_id: int) -> dict[str, Any]:
    """One group; one that was merged gives the group that it went into. Raises NoSuchGroupError."""
    wanted: int | None = group_id
    seen: set[int] = set()
    while wanted is not None and wanted not in seen:
        seen.add(wanted)
        row = connection.execute(sa.select(failure_groups).where(failure_groups.c.id == wanted)).one_or_none()
        if row is None:
            break
        if row.merged_into is None:
            return shown(keyring_of(connection), "failure_groups", row._mapping)
        wanted = row.merged_into
    raise NoSuchGroupError(f"there is no group {group_id}")


def hours_of(
    connection: sa.Connection, group_ids: Sequence[int], *, since: datetime
) -> dict[int, dict[datetime, int]]:
    """How many letters of each group died in which hour."""
    c = group_hours.c
    found: dict[int, dict[datetime, int]] = {group_id: {} for group_id in group_ids}
    for row in connection.execute(
        sa.select(c.group_id, c.hour, c.letters).where(c.group_id.in_(group_ids), c.hour >= since)
    ):
        found[row.group_id][row.hour] = row.letters
    return found


def settle(
    connection: sa.Connection,
    group_id: int,
    act: Act,
    *,
    now: datetime,
    release: str | None = None,
    by_itself: bool = False,
) -> None:
    """Say that the cause is gone; a letter that dies from now on opens the group again.

    One that settles by itself is opened by any letter that comes, whenever that died.
    """
    group = _locked(connection, group_id)
    if group["state"] == GroupState.SETTLED:
        raise GroupStateError(f"group {group['id']} is settled already")
    who = {"state_by": None} if by_itself else {}
    release = release or _newest_release(group)
    _change(connection, group, GroupState.SETTLED, act, now=now, state_release=release, **who)
    record(
        connection,
        act,
        Action.SETTLE_GROUP,
        now=now,
        group_id=group["id"],
        details={"letters": group["letters"], "release": release},
    )


def settle_emptied(connection: sa.Connection, letter_ids: Sequence[int], act: Act, *, now: datetime) -> list[int]:
    """Settle the open groups of these letters in which nobody waits for a letter any more; returns those.

    The groups are held before their letters are looked at: a drain that stores one at this moment counts it into a
    settled group afterwards, which opens it again.
    """
    c = dead_letters.c
    found: set[int | None] = set()
    for start in range(0, len(letter_ids), 500):
        chunk = letter_ids[start : start + 500]
        found.update(connection.execute(sa.select(c.group_id).where(c.id.in_(chunk)).distinct()).scalars())
    group_ids = sorted(group_id for group_id in found if group_id is not None)
    if not group_ids:
        return []
    lock(connection, group_ids)
    settled = []
    for group_id in group_ids:
        state = connection.execute(
            sa.select(failure_groups.c.state).where(failure_groups.c.id == group_id)
        ).scalar_one_or_none()
        waited_for = (
            sa.select(c.id).where(c.group_id == group_id, c.state.in_([s.value for s in WAITED_FOR])).limit(1)
        )
        if state == GroupState.OPEN.value and connection.execute(waited_for).first() is None:
            settle(connection, group_id, act, now=now, by_itself=True)
            settled.append(group_id)
    return settled


def reopen_waited_for(connection: sa.Connection, group_id: int, *, now: datetime) -> None:
    """Open a group that had settled by itself where somebody waits for one of its letters."""
    g, d = failure_groups.c, dead_letters.c
    waited_for = sa.exists().where(d.group_id == group_id, d.state.in_([state.value for state in WAITED_FOR]))
    settled_itself = (g.state == GroupState.SETTLED.value, g.state_by.is_(None))
    connection.execute(
        failure_groups.update()
        .where(g.id == group_id, *settled_itself, waited_for)
        .values(state=GroupState.OPEN.value, state_at=now)
    )


WAITED_FOR = (State.OPEN, State.REPLAYING, State.REPLAYED)
"""States of letters whose end is not known."""


def ignore(connection: sa.Connection, group_id: int, act: Act, how: Ignore, *, now: datetime) -> None:
    """Count a group in silence."""
    group = _locked(connection, group_id)
    _change(
        connection,
        group,
        GroupState.IGNORED,
        act,
        now=now,
        ignored_until=how.until,
        ignored_until_count=None if how.more is None else group["letters"] + how.more,
    )
    details = {"until": how.until, "more": how.more}
    record(connection, act, Action.IGNORE_GROUP, now=now, group_id=group["id"], details=details)


def reopen(connection: sa.Connection, group_id: int, act: Act, *, now: datetime) -> None:
    """Take a settling or an ignoring back."""
    group = _locked(connection, group_id)
    if group["state"] == GroupState.OPEN:
        raise GroupStateError(f"group {group['id']} is open")
    _change(connection, group, GroupState.OPEN, act, now=now)
    record(connection, act, Action.REOPEN_GROUP, now=now, group_id=group["id"], details={"was": group["state"]})


def mute(connection: sa.Connection, group_id: int, act: Act, *, now: datetime, lasting: timedelta | None) -> None:
    """Send no alerts of a group for a while; None ends that."""
    group = _locked(connection, group_id)
    until = now + lasting if lasting else None
    connection.execute(failure_groups.update().where(failure_groups.c.id == group["id"]).values(muted_until=until))
    record(connection, act, Action.MUTE_GROUP, now=now, group_id=group["id"], details={"until": until})


def lock(connection: sa.Connection, group_ids: Iterable[int]) -> None:
    """Hold groups until the caller's transaction ends; in the one order in which drains take them."""
    c = failure_groups.c
    connection.execute(sa.select(c.id).where(c.id.in_(set(group_ids))).order_by(c.id).with_for_update())


def _locked(connection: sa.Connection, group_id: int) -> dict[str, Any]:
    """The group, which no drain counts into until the caller's transaction ends."""
    found = get(connection, group_id)["id"]
    query = sa.select(failure_groups).where(failure_groups.c.id == found).with_for_update()
    return dict(connection.execute(query).one()._mapping)


def _change(
    connection: sa.Connection, group: dict[str, Any], to: GroupState, act: Act, *, now: datetime, **values: Any
) -> None:
    ends = {"ignored_until": None, "ignored_until_count": None, "state_release": None, "follow_up_at": None}
    said = {"state_by": storable(act.actor), "state_reason": storable(act.reason)}
    connection.execute(
        failure_groups.update()
        .where(failure_groups.c.id == group["id"])
        .values(state=to.value, state_at=now, **(ends | said | values))
    )


def _newest_release(group: dict[str, Any]) -> str | None:
    releases = json.loads(group["releases"])
    return releases[-1] if releases else None
