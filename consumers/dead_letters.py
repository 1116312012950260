"""The table of dead letters and its verbs for people: find, show, change state.

How letters get in stands in ``consumers.storing``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from datetime import datetime
from enum import StrEnum
from typing import Any

import sqlalchemy as sa

from broker_topology.errors import DeadLetterOfficeError
from consumers.database import BigId, UtcDateTime, metadata
from consumers.keyring import SealedError
from consumers.letters import MAX_NAME_LENGTH
from consumers.sealing import keyring_of, missing_key, opened, shown


class State(StrEnum):
    """Where a letter stands."""

    OPEN = "open"
    """Nobody has decided yet."""
    REPLAYING = "replaying"
    """Claimed by a replay that has not published it yet."""
    REPLAYED = "replayed"
    """Published again; how that ended is not known yet."""
    FAILED_AGAIN = "failed_again"
    """Its replay died too: the new letter stands for it."""
    SETTLED = "settled"
    """Done: its replay succeeded, or a person said so."""
    DISCARDED = "discarded"
    """A person decided against it."""


SETTLED_STATES = (State.FAILED_AGAIN, State.SETTLED, State.DISCARDED)
"""States in which nobody waits for a letter any more."""

dead_letters = sa.Table(
    "dead_letters",
    metadata,
    sa.Column("id", BigId, primary_key=True),
    sa.Column("identity", sa.String(64), nullable=False, unique=True),
    sa.Column("content_hash", sa.String(64)),
    sa.Column("state", sa.String(20), nullable=False, server_default=State.OPEN.value),
    sa.Column("state_at", UtcDateTime, nullable=False),
    sa.Column("stored_at", UtcDateTime, nullable=False),
    sa.Column("died_at", UtcDateTime, nullable=False),
    sa.Column("task_name", sa.String(MAX_NAME_LENGTH)),
    sa.Column("task_id", sa.String(MAX_NAME_LENGTH)),
    sa.Column("args", sa.Text),
    sa.Column("kwargs", sa.Text),
    sa.Column("decode_problem", sa.Text),
    sa.Column("retries", sa.Integer, nullable=False, server_default="0"),
    sa.Column("idempotency_key", sa.String(512)),
    sa.Column("replay_key", sa.String(MAX_NAME_LENGTH)),
    sa.Column("drained_queue", sa.String(MAX_NAME_LENGTH), nullable=False),
    sa.Column("queue", sa.String(MAX_NAME_LENGTH), nullable=False),
    sa.Column("exchange", sa.String(MAX_NAME_LENGTH), nullable=False),
    sa.Column("routing_key", sa.String(MAX_NAME_LENGTH), nullable=False),
    sa.Column("reason", sa.String(MAX_NAME_LENGTH), nullable=False),
    sa.Column("body_bytes", sa.Integer, nullable=False),
    sa.Column("body", sa.LargeBinary, nullable=False),
    sa.Column("properties", sa.LargeBinary, nullable=False),
    sa.Column("encrypted", sa.Boolean, nullable=False, server_default=sa.false()),
    # From the failure note; note_key waits for one that could not be read yet.
    sa.Column("note_key", sa.Text),
    sa.Column("note_reason", sa.String(MAX_NAME_LENGTH)),
    sa.Column("error_type", sa.String(MAX_NAME_LENGTH)),
    sa.Column("error_message", sa.Text),
    sa.Column("traceback", sa.Text),
    sa.Column("hostname", sa.Text),
    sa.Column("pid", sa.BigInteger),
    sa.Column("runtime_seconds", sa.Float),
    sa.Column("release", sa.String(MAX_NAME_LENGTH)),
    sa.Column("claim_state", sa.String(MAX_NAME_LENGTH)),
    sa.Column("note_fingerprint", sa.Text),
    sa.Column("group_id", sa.BigInteger),
    # Which key the content of the row is encrypted with: see consumers.sealing.
    sa.Column("key_id", sa.String(12)),
    sqlite_autoincrement=True,
)

# Each question that people ask is one index, ending in the state and the id: see consumers.finding.
sa.Index("ix_dead_letters_state_id", dead_letters.c.state, dead_letters.c.id)
for _column in ("task_name", "queue", "reason", "error_type", "group_id"):
    sa.Index(f"ix_dead_letters_{_column}_state_id", dead_letters.c[_column], dead_letters.c.state, dead_letters.c.id)
sa.Index("ix_dead_letters_state_state_at", dead_letters.c.state, dead_letters.c.state_at)
sa.Index("ix_dead_letters_task_id", dead_letters.c.task_id)
sa.Index("ix_dead_letters_died_at", dead_letters.c.died_at)
sa.Index(
    "ix_dead_letters_replay_key",
    dead_letters.c.replay_key,
    postgresql_where=dead_letters.c.replay_key.is_not(None),
    sqlite_where=dead_letters.c.replay_key.is_not(None),
)
sa.Index(
    "ix_dead_letters_content_hash",
    dead_letters.c.content_hash,
    postgresql_where=dead_letters.c.content_hash.is_not(None),
    sqlite_where=dead_letters.c.content_hash.is_not(None),
)
sa.Index(
    "ix_dead_letters_note_key",
    dead_letters.c.id,
    postgresql_where=dead_letters.c.note_key.is_not(None),
    sqlite_where=dead_letters.c.note_key.is_not(None),
)
# Whether anything is encrypted at all.
sa.Index(
    "ix_dead_letters_key_id",
    dead_letters.c.id,
    postgresql_where=dead_letters.c.key_id.is_not(None),
    sqlite_where=dead_letters.c.key_id.is_not(None),
)


class NoSuchLetterError(DeadLetterOfficeError):
    """There is no such dead letter."""


class UnsearchableError(DeadLetterOfficeError):
    """A text cannot be looked for in encrypted letters, and some of these are: choose them otherwise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Filter:
    """Which letters: every field that is set must hold."""

    ids: tuple[int, ...] = ()
    states: tuple[State, ...] = ()
    task: str | None = None
    queue: str | None = None
    reason: str | None = None
    error_type: str | None = None
    task_id: str | None = None
    group_id: int | None = None
    release: str | None = None
    died_after: datetime | None = None
    died_before: datetime | None = None
    search: str | None = None
    """A text that args or kwargs contain; encrypted letters are not looked into."""
    encrypted: bool | None = None

    def clauses(self, c: Any = dead_letters.c) -> list[sa.ColumnElement[bool]]:
        """The filter as SQL conditions, on the table or on a subquery with its columns."""
        equal = {
            c.task_name: self.task,
            c.queue: self.queue,
            c.reason: self.reason,
            c.error_type: self.error_type,
            c.task_id: self.task_id,
            c.group_id: self.group_id,
            c.release: self.release,
            c.encrypted: self.encrypted,
        }
        clauses: list[sa.ColumnElement[bool]] = [
            column == value for column, value in equal.items() if value is not None
        ]
        if self.ids:
            clauses.append(c.id.in_(self.ids))
        if self.states:
            clauses.append(c.state.in_([state.value for state in self.states]))
        if self.died_after is not None:
            clauses.append(c.died_at >= self.died_after)
        if self.died_before is not None:
            clauses.append(c.died_at < self.died_before)
        if self.search:
            contains = c.args.contains(self.search, autoescape=True) | c.kwargs.contains(self.search, autoescape=True)
            # A token may contain any text by chance.
            clauses.append(contains & c.key_id.is_(None))
        return clauses

    @property
    def names_letters(self) -> bool:
        """Whether anything but the state restricts the choice."""
        return any(getattr(self, slot.name) not in {None, ()} for slot in fields(self) if slot.name != "states")


_HEAVY = {"body", "properties", "args", "kwargs", "traceback"}
LIST_COLUMNS = tuple(column for column in dead_letters.c if column.name not in _HEAVY)


def get(connection: sa.Connection, letter_id: int) -> dict[str, Any]:
    """One letter with everything, opened. Raises NoSuchLetterError, SealedError."""
    return opened(keyring_of(connection), "dead_letters", _get_sealed(connection, letter_id))


def require_letters(connection: sa.Connection, letter_ids: Sequence[int]) -> None:
    """Raises NoSuchLetterError for the first of these letters that does not exist."""
    for start in range(0, len(letter_ids), 500):
        chunk = letter_ids[start : start + 500]
        found = set(connection.execute(sa.select(dead_letters.c.id).where(dead_letters.c.id.in_(chunk))).scalars())
        for letter_id in chunk:
            if letter_id not in found:
                raise NoSuchLetterError(f"there is no dead letter {letter_id}")


def get_shown(connection: sa.Connection, letter_id: int) -> tuple[dict[str, Any], str | None]:
    """One letter as far as it can be opened, and why not all of it can. Raises NoSuchLetterError."""
    stored, keyring = _get_sealed(connection, letter_id), keyring_of(connection)
    try:
        return opened(keyring, "dead_letters", stored), None
    except SealedError as error:
        return shown(keyring, "dead_letters", stored), str(error)


def _get_sealed(connection: sa.Connection, letter_id: int) -> dict[str, Any]:
    row = connection.execute(sa.select(dead_letters).where(dead_letters.c.id == letter_id)).one_or_none()
    if row is None:
        raise NoSuchLetterError(f"there is no dead letter {letter_id}")
    return dict(row._mapping)


def require_keys(connection: sa.Connection, letter_ids: Sequence[int]) -> None:
    """See that the keys of these letters are at hand. Raises SealedError."""
    c, known = dead_letters.c, keyring_of(connection).key_ids
    for start in range(0, len(letter_ids), 500):
        chunk = letter_ids[start : start + 500]
        query = sa.select(c.id, c.key_id).where(c.id.in_(chunk), c.key_id.is_not(None), c.key_id.not_in(known))
        if row := connection.execute(query.limit(1)).first():
            raise missing_key(row.key_id, f"letter {row.id}")


def require_searchable(connection: sa.Connection, where: Filter) -> None:
    """See that no open letter that a filter might choose hides its text. Raises UnsearchableError."""
    clauses = replace(where, search=None, encrypted=True, states=(State.OPEN,)).clauses()
    if connection.execute(sa.select(dead_letters.c.id).where(*clauses).limit(1)).first() is not None:
        raise UnsearchableError


def change_state(
    connection: sa.Connection,
    letter_ids: Sequence[int],
    to: State,
    *,
    now: datetime,
    from_states: Sequence[State],
) -> list[int]:
    """Move letters that are in one of ``from_states``; returns the ids that moved."""
    moved = connection.execute(
        dead_letters.update()
        .where(dead_letters.c.id.in_(letter_ids), dead_letters.c.state.in_([state.value for state in from_states]))
        .values(state=to.value, state_at=now)
        .returning(dead_letters.c.id)
    )
    return sorted(moved.scalars())
