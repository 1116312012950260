"""The tables of replays and their items, and their verbs: freeze a selection, mark, follow.

A replay is one deliberate act of a person: who, why, and which letters, frozen when it was confirmed. Each
of its items carries the key that goes into the message as its ``replay_id`` header, so that whatever
becomes of the message can be told to belong to it.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any

import sqlalchemy as sa

from broker_topology.errors import DeadLetterOfficeError
from consumers.audit import Act, Action, record
from consumers.database import BigId, UtcDateTime, metadata
from consumers.dead_letters import State, change_state, dead_letters
from consumers.editing import Edited
from consumers.letters import storable
from consumers.masking import Masking
from consumers.sealing import keyring_of, opened, sealed


class ReplayState(StrEnum):
    """Where a replay stands."""

    RUNNING = "running"
    PAUSED = "paused"
    CANCELLED = "cancelled"
    """By a person; its unpublished letters are open again."""
    STOPPED = "stopped"
    """By itself: too many of its letters failed again."""
    PUBLISHED = "published"
    """Every letter was published or refused."""


class ItemState(StrEnum):
    """Where one letter of a replay stands."""

    WAITING = "waiting"
    PUBLISHED = "published"
    REFUSED = "refused"
    """It could not be sent; its letter is open again."""
    CANCELLED = "cancelled"
    SUCCEEDED = "succeeded"
    FAILED_AGAIN = "failed_again"


replays = sa.Table(
    "replays",
    metadata,
    sa.Column("id", BigId, primary_key=True),
    sa.Column("created_at", UtcDateTime, nullable=False),
    sa.Column("actor", sa.Text, nullable=False),
    sa.Column("reason", sa.Text, nullable=False),
    sa.Column("options", sa.Text, nullable=False, server_default="{}"),
    sa.Column("state", sa.String(20), nullable=False),
    sa.Column("state_at", UtcDateTime, nullable=False),
    sa.Column("state_note", sa.Text),
    sa.Column("total", sa.Integer, nullable=False),
    sqlite_autoincrement=True,
)

replay_items = sa.Table(
    "replay_items",
    metadata,
    sa.Column("id", BigId, primary_key=True),
    sa.Column("replay_id", sa.BigInteger, sa.ForeignKey("replays.id", ondelete="CASCADE"), nullable=False),
    sa.Column("letter_id", sa.BigInteger, sa.ForeignKey("dead_letters.id", ondelete="CASCADE"), nullable=False),
    sa.Column("key", sa.String(64), nullable=False, unique=True),
    sa.Column("state", sa.String(20), nullable=False),
    sa.Column("published_at", UtcDateTime),
    sa.Column("error", sa.Text),
    sa.Column("outcome_at", UtcDateTime),
    sa.Column("outcome", sa.Text),
    sa.Column("new_letter_id", sa.BigInteger),
    # Set where the letter was edited: what is sent instead of the original.
    sa.Column("edited_body", sa.LargeBinary),
    sa.Column("edited_properties", sa.LargeBinary),
    # Which key the content of the row is encrypted with: see consumers.sealing.
    sa.Column("key_id", sa.String(12)),
    sa.Index("ix_replay_items_replay_id_state_id", "replay_id", "state", "id"),
    sa.Index("ix_replay_items_letter_id", "letter_id"),
    sqlite_autoincrement=True,
)


class NoSuchReplayError(DeadLetterOfficeError):
    """There is no such replay."""


def freeze(
    connection: sa.Connection,
    act: Act,
    letter_ids: Sequence[int],
    *,
    now: datetime,
    options: dict[str, Any],
) -> tuple[int, list[int]]:
    """Claim open letters for one new replay; letters that somebody else has claimed are left out.

    Returns the replay's id and the ids that are in it. Claim, items and audit are one transaction, the
    caller's: two operators who select the same letters cannot both have one.
    """
    claimed: list[int] = []
    for start in range(0, len(letter_ids), 500):
        claimed += change_state(
            connection,
            letter_ids[start : start + 500],
            State.REPLAYING,
            now=now,
            from_states=[State.OPEN],
        )
    replay_id: int = connection.execute(
        replays.insert().returning(replays.c.id),
        {
            "created_at": now,
            "actor": storable(act.actor),
            "reason": storable(act.reason),
            "options": json.dumps(options),
            "state": ReplayState.RUNNING.value,
            "state_at": now,
            "total": len(claimed),
        },
    ).scalar_one()
    if claimed:
        connection.execute(replay_items.insert(), [_new_item(replay_id, letter_id) for letter_id in claimed])
        record(connection, act, Action.REPLAY, now=now, letter_ids=claimed, replay_id=replay_id, details=options)
    return replay_id, claimed


def _new_item(replay_id: int, letter_id: int) -> dict[str, Any]:
    return {
        "replay_id": replay_id,
        "letter_id": letter_id,
        "key": uuid.uuid4().hex,
        "state": ItemState.WAITING.value,
    }


def store_edits(
    connection: sa.Connection,
    act: Act,
    replay_id: int,
    edit: Callable[[int, bytes, bytes], Edited],
    *,
    masking: Masking,
    now: datetime,
) -> None:
    """Put an edited message beside each item of a replay; the letters stay what they are. Audited, masked.

    ``edit`` gets a letter's id, properties and body, and may raise. Raises SealedError.
    """
    keyring, last = keyring_of(connection), 0
    query = (
        sa.select(
            replay_items.c.id.label("item_id"),
            dead_letters.c.id,
            dead_letters.c.key_id,
            dead_letters.c.properties,
            dead_letters.c.body,
        )
        .join(dead_letters, dead_letters.c.id == replay_items.c.letter_id)
        .where(replay_items.c.replay_id == replay_id)
        .order_by(replay_items.c.id)
        .limit(1)
    )
    while (row := connection.execute(query.where(replay_items.c.id > last)).one_or_none()) is not None:
        last = row.item_id
        letter = opened(keyring, "dead_letters", row._mapping)
        edited = edit(row.id, bytes(letter["properties"]), bytes(letter["body"]))
        values = {"edited_body": edited.body, "edited_properties": edited.properties}
        connection.execute(
            replay_items.update().where(replay_items.c.id == last).values(sealed(keyring, "replay_items", values))
        )
        # The audit log is not encrypted: of a letter that is, it says where it was changed and not how.
        changes = {
            path: None if row.key_id else {"from": masking.at(path, before), "to": masking.at(path, after)}
            for path, (before, after) in edited.differences.items()
        }
        record(connection, act, Action.EDIT, now=now, letter_ids=[row.id], replay_id=replay_id, details=changes)


def get_replay(connection: sa.Connection, replay_id: int) -> dict[str, Any]:
    """One replay. Raises NoSuchReplayError."""
    row = connection.execute(sa.select(replays).where(replays.c.id == replay_id)).one_or_none()
    if row is None:
        raise NoSuchReplayError(f"there is no replay {replay_id}")
    return dict(row._mapping)


def waiting_items(
    connection: sa.Connection, replay_id: int, *, limit: int, max_bytes: int, after: int = 0
) -> list[dict[str, Any]]:
    """The next items to publish behind the item ``after``, each with what its letter was, opened.

    As many as fit into ``max_bytes``, but at least one. Raises SealedError.
    """
    waiting = sa.and_(
        replay_items.c.replay_id == replay_id,
        replay_items.c.state == ItemState.WAITING.value,
        replay_items.c.id > after,
    )
    last = _last_that_fits(connection, waiting, limit=limit, max_bytes=max_bytes)
    query = (
        sa.select(
            replay_items.c.id.label("item_id"),
            replay_items.c.key,
            replay_items.c.edited_body,
            replay_items.c.edited_properties,
            dead_letters.c.id.label("letter_id"),
            dead_letters.c.body,
            dead_letters.c.properties,
            dead_letters.c.key_id,
            replay_items.c.key_id.label("edit_key_id"),
            dead_letters.c.drained_queue,
            dead_letters.c.queue,
            dead_letters.c.exchange,
            dead_letters.c.routing_key,
            dead_letters.c.reason,
            dead_letters.c.claim_state,
        )
        .join(dead_letters, dead_letters.c.id == replay_items.c.letter_id)
        .where(waiting, replay_items.c.id <= last)
        .order_by(replay_items.c.id)
    )
    keyring = keyring_of(connection)
    letters = [opened(keyring, "dead_letters", row._mapping) for row in connection.execute(query)]
    return [opened(keyring, "replay_items", item, key="edit_key_id") for item in letters]


def _last_that_fits(connection: sa.Connection, waiting: sa.ColumnElement[bool], *, limit: int, max_bytes: int) -> int:
    query = (
        sa.select(replay_items.c.id, dead_letters.c.body_bytes)
        .join(dead_letters, dead_letters.c.id == replay_items.c.letter_id)
        .where(waiting)
        .order_by(replay_items.c.id)
        .limit(limit)
    )
    last = size = 0
    for item in connection.execute(query):
        size += item.body_bytes
        if size > max_bytes and last:
            break
        last = item.id
    return last


def mark_published(connection: sa.Connection, item_ids: Sequence[int], *, now: datetime) -> None:
    """The broker has confirmed these items."""
    _mark(connection, item_ids, ItemState.PUBLISHED, State.REPLAYED, now=now, published_at=now)


def mark_refused(connection: sa.Connection, item_id: int, error: str, *, now: datetime) -> None:
    """This item could not be sent: its letter is open again, with the error beside it."""
    _mark(connection, [item_id], ItemState.REFUSED, State.OPEN, now=now, error=storable(error))


def _mark(
    connection: sa.Connection,
    item_ids: Sequence[int],
    item_state: ItemState,
    letter_state: State,
    *,
    now: datetime,
    **values: Any,
) -> None:
    letters = connection.execute(
        replay_items.update()
        .where(replay_items.c.id.in_(item_ids), replay_items.c.state == ItemState.WAITING.value)
        .values(state=item_state.value, **values)
        .returning(replay_items.c.letter_id)
    ).scalars()
    change_state(connection, list(letters), letter_state, now=now, from_states=[State.REPLAYING])


def set_replay_state(
    connection: sa.Connection, replay_id: int, state: ReplayState, *, now: datetime, note: str | None = None
) -> None:
    """Move a replay on."""
    connection.execute(
        replays.update()
        .where(replays.c.id == replay_id)
        .values(state=state.value, state_at=now, state_note=storable(note))
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How far a replay is: letters by where they stand."""

    waiting: int = 0
    published: int = 0
    """Published, and how that ended is not known yet."""
    succeeded: int = 0
    failed_again: int = 0
    refused: int = 0
    cancelled: int = 0

    @property
    def ended(self) -> int:
        """Letters whose outcome is known."""
        return self.succeeded + self.failed_again

    @property
    def sent(self) -> int:
        """Letters that the broker has confirmed."""
        return self.published + self.ended


def progress(connection: sa.Connection, replay_id: int) -> Progress:
    """Count the letters of a replay by where they stand."""
    query = (
        sa.select(replay_items.c.state, sa.func.count())
        .where(replay_items.c.replay_id == replay_id)
        .group_by(replay_items.c.state)
    )
    return Progress(**{str(row[0]): int(row[1]) for row in connection.execute(query)})


def list_replays(connection: sa.Connection, *, limit: int) -> list[dict[str, Any]]:
    """Replays, newest first, each with its progress."""
    query = sa.select(replays).order_by(replays.c.id.desc()).limit(limit)
    rows = [dict(row._mapping) for row in connection.execute(query)]
    return [row | {"progress": asdict(progress(connection, row["id"]))} for row in rows]


def items_of(connection: sa.Connection, replay_id: int) -> list[dict[str, Any]]:
    """What became of each letter of a replay, in the order of sending."""
    c = replay_items.c
    query = sa.select(c.letter_id, c.key, c.state, c.published_at, c.error, c.outcome_at, c.outcome, c.new_letter_id)
    query = query.where(c.replay_id == replay_id).order_by(c.id)
    return [dict(row._mapping) for row in connection.execute(query)]


class ReplayStateError(DeadLetterOfficeError):
    """The replay is in no state for that."""


def move_replay(
    connection: sa.Connection,
    replay_id: int,
    act: Act,
    action: Action,
    to: ReplayState,
    *,
    now: datetime,
    from_states: Sequence[ReplayState],
) -> None:
    """Pause, resume or cancel, audited; letters of a cancelled replay that are not sent are open again.

    Raises NoSuchReplayError, ReplayStateError.
    """
    state = ReplayState(get_replay(connection, replay_id)["state"])
    if state not in from_states:
        raise ReplayStateError(f"replay {replay_id} is {state}")
    set_replay_state(connection, replay_id, to, now=now)
    if to is ReplayState.CANCELLED:
        waiting = (
            connection.execute(
                replay_items.update()
                .where(replay_items.c.replay_id == replay_id, replay_items.c.state == ItemState.WAITING.value)
                .values(state=ItemState.CANCELLED.value)
                .returning(replay_items.c.letter_id)
            )
            .scalars()
            .all()
        )
        change_state(connection, waiting, State.OPEN, now=now, from_states=[State.REPLAYING])
    record(connection, act, action, now=now, replay_id=replay_id)
