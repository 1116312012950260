"""Letters into the database: one transaction a batch, each death once, one bad row never holding up the rest."""

from __future__ import annotations

import functools
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError

from broker_topology.notes import MAX_MESSAGE_LENGTH, MAX_TRACEBACK_LENGTH, FailureNote, cut
from consumers.database import UtcDateTime, database_problem, transaction
from consumers.dead_letters import State, dead_letters
from consumers.filing import Filed, Filing
from consumers.letters import MAX_NAME_LENGTH, Letter, storable
from consumers.replays import link_renewed_deaths

Row = tuple[Any, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrival:
    """A letter with what its worker left beside it."""

    letter: Letter
    note: FailureNote | None = None
    note_key: str | None = None
    """Where its note would be, when Redis could not be asked."""
    copy: int = 0
    """Which of the equal copies that came back this is, on its channel; 0 for a first delivery."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredLetter:
    """One letter that is in the database now and was not before."""

    letter_id: int
    arrival: Arrival


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """What became of a batch. Whatever is not refused is committed."""

    new: list[StoredLetter] = field(default_factory=list)
    known: int = 0
    """Redeliveries of deaths that were stored before."""
    refused: list[Arrival] = field(default_factory=list)
    """Letters that the database does not take in any form."""


def store(engine: sa.Engine, arrivals: Sequence[Arrival], *, now: datetime, filing: Filing | None = None) -> Stored:
    """Store a batch, each letter with its group. A batch that the database refuses is split until the one is found.

    Raises DatabaseUnavailableError when nothing can be stored now; then nothing of the batch part in hand is.
    """
    if not arrivals:
        return Stored()
    filing = filing or Filing()
    try:
        return _store_all(engine, arrivals, now, filing)
    except _RowRefusedError as error:
        if len(arrivals) == 1:
            return _store_raw(engine, arrivals[0], str(error), now, filing)
    half = len(arrivals) // 2
    parts = [store(engine, part, now=now, filing=filing) for part in (arrivals[:half], arrivals[half:])]
    return Stored(
        new=[letter for part in parts for letter in part.new],
        known=sum(part.known for part in parts),
        refused=[arrival for part in parts for arrival in part.refused],
    )


def _store_raw(engine: sa.Engine, arrival: Arrival, problem: str, now: datetime, filing: Filing) -> Stored:
    """Store the bare bytes of a letter whose decoded values the database refuses."""
    raw = replace(
        arrival.letter,
        task_name=None,
        task_id=None,
        args=None,
        kwargs=None,
        idempotency_key=None,
        retries=0,
        decode_problem=storable(cut(f"the decoded letter was refused: {problem}", MAX_MESSAGE_LENGTH)),
    )
    try:
        return _store_all(engine, [Arrival(letter=raw)], now, filing)
    except _RowRefusedError:
        return Stored(refused=[arrival])


class _RowRefusedError(Exception):
    """Some row of the batch is at fault, not the state of the database."""


def _store_all(engine: sa.Engine, arrivals: Sequence[Arrival], now: datetime, filing: Filing) -> Stored:
    filed: list[Filed] = []
    insert = _INSERTS[engine.dialect.name]
    with transaction(engine) as connection:
        try:
            fresh = _without_redelivered(connection, arrivals, now)
            placed = filing.place(connection, [(arrival.letter, arrival.note) for arrival in fresh], now=now)
            rows = [_row(arrival, now, group_id) for arrival, (_, group_id) in zip(fresh, placed, strict=True)]
            ids = insert(connection, rows)
            new = []
            for arrival, (about, group_id) in zip(fresh, placed, strict=True):
                if (letter_id := ids.pop(arrival.letter.identity, None)) is not None:
                    new.append(StoredLetter(letter_id=letter_id, arrival=arrival))
                    filed.append(Filed(letter_id=letter_id, letter=arrival.letter, about=about, group_id=group_id))
            _link(connection, new, now)
            filing.count(connection, filed, now=now)
        except (DBAPIError, engine.dialect.loaded_dbapi.Error, ValueError, TypeError, OverflowError) as error:
            if _is_fault_of_row(error):
                raise _RowRefusedError(database_problem(error)) from error
            raise
    filing.committed(filed)
    return Stored(new=new, known=len(arrivals) - len(new))


_LARGE_BATCH_BYTES = 1024 * 1024

# Data, cardinality, integrity, program limits (an index row too large), raised by a trigger.
_ROW_FAULTS = frozenset({"21", "22", "23", "54", "P0"})


def _is_fault_of_row(error: Exception) -> bool:
    """Whether another row could be stored now: bad values, as opposed to a database that is away."""
    cause = error.orig if isinstance(error, DBAPIError) else error
    if sqlstate := getattr(cause, "sqlstate", None):
        return str(sqlstate)[:2] in _ROW_FAULTS
    if isinstance(cause, sqlite3.Error):
        return isinstance(cause, sqlite3.DataError | sqlite3.IntegrityError)
    return isinstance(cause, ValueError | TypeError | OverflowError)


def _without_redelivered(connection: sa.Connection, arrivals: Sequence[Arrival], now: datetime) -> Sequence[Arrival]:
    """Drop what has no id, was delivered before, and is stored.

    Only the broker's word tells a redelivery of such a message from another just like it. Of several equal
    copies that come back, as many are known as rows were stored lately.
    """
    hashes = {a.letter.content_hash for a in arrivals if a.copy and a.letter.content_hash}
    if not hashes:
        return arrivals
    c = dead_letters.c
    rows = connection.execute(
        sa.select(c.content_hash, sa.func.count())
        .where(c.content_hash.in_(hashes), c.stored_at > now - _REDELIVERY_WINDOW)
        .group_by(c.content_hash)
    )
    stored: dict[str | None, int] = {content: number for content, number in rows}  # noqa: C416, dict(rows) takes a result for a mapping
    return [a for a in arrivals if not a.copy or a.copy > stored.get(a.letter.content_hash, 0)]


_REDELIVERY_WINDOW = timedelta(hours=1)


def _row(arrival: Arrival, now: datetime, group_id: int) -> Row:
    letter, note = arrival.letter, arrival.note
    return (
        letter.identity,
        letter.content_hash,
        State.OPEN.value,
        now,
        now,
        letter.died_at,
        letter.task_name,
        letter.task_id,
        letter.args,
        letter.kwargs,
        letter.decode_problem,
        letter.retries,
        letter.idempotency_key,
        letter.replay_key,
        letter.drained_queue,
        letter.queue,
        letter.exchange,
        letter.routing_key,
        letter.reason,
        len(letter.body),
        letter.body,
        letter.properties,
        False,
        arrival.note_key,
        *(_NO_NOTE if note is None else note_values(note).values()),
        group_id,
    )


def note_values(note: FailureNote) -> dict[str, Any]:
    """The columns that come from a failure note, fit for any database."""
    return {
        "note_reason": _short(note.reason),
        "error_type": _short(note.error_type),
        "error_message": storable(cut(str(note.error_message), MAX_MESSAGE_LENGTH)),
        "traceback": storable(cut(str(note.traceback), MAX_TRACEBACK_LENGTH)),
        "hostname": _short(note.hostname),
        "pid": note.pid if isinstance(note.pid, int) and abs(note.pid) < 2**63 else None,
        "runtime_seconds": note.runtime_seconds if isinstance(note.runtime_seconds, int | float) else None,
        "release": _short(note.release),
        "claim_state": _short(note.claim_state),
        "note_fingerprint": _short(note.fingerprint),
    }


# In the order of the table, which _row follows.
_COLUMNS = [column.name for column in dead_letters.c if column.name != "id"]
_NO_NOTE = (None,) * 10


def _short(text: object) -> str | None:
    return None if text is None else cut(storable(str(text)) or "", MAX_NAME_LENGTH)


def _insert_sqlite(connection: sa.Connection, rows: Sequence[Row]) -> dict[str, int]:
    """Insert what is new; returns identity to id of that."""
    last = connection.execute(sa.select(sa.func.max(dead_letters.c.id))).scalar() or 0
    start = 0
    while start < len(rows):
        # Each step of a statement gives up the interpreter's lock, and waits to have it back: few, large ones.
        size = next(size for size in _SQLITE_CHUNKS if size <= len(rows) - start)
        values: list[Any] = []
        for row in rows[start : start + size]:
            at = len(values)
            values += row
            for number in _TIMES:
                values[at + number] = _sqlite_time(values[at + number])
        connection.exec_driver_sql(_SQLITE_INSERTS[size], tuple(values))
        start += size
    driver: Any = connection.connection.driver_connection
    return dict(driver.execute("SELECT identity, id FROM dead_letters WHERE id > ?", (last,)).fetchall())


_SQLITE_CHUNKS = (900, 256, 64, 8, 1)
_ONE_ROW = f"({', '.join('?' * len(_COLUMNS))})"
_SQLITE_INSERTS = {
    size: f"INSERT INTO dead_letters ({', '.join(_COLUMNS)}) VALUES {', '.join([_ONE_ROW] * size)} "  # noqa: S608
    "ON CONFLICT (identity) DO NOTHING"
    for size in _SQLITE_CHUNKS
}
_TIMES = [number for number, name in enumerate(_COLUMNS) if isinstance(dead_letters.c[name].type, UtcDateTime)]


@functools.lru_cache(maxsize=64)
def _sqlite_time(value: datetime) -> str:
    # As SQLAlchemy's DateTime writes it.
    return value.astimezone(UTC).replace(tzinfo=None).isoformat(" ", "microseconds")


def _insert_postgresql(connection: sa.Connection, rows: Sequence[Row]) -> dict[str, int]:
    """COPY into a temporary table, insert what is new from there; returns identity to id of that.

    Several times faster than INSERT with values, and the conflict is left to the unique constraint, so
    that several drains may store the same death at once.
    """
    columns = ", ".join(_COLUMNS)
    driver: Any = connection.connection.driver_connection
    with driver.cursor() as cursor:
        cursor.execute(
            f"CREATE TEMPORARY TABLE IF NOT EXISTS incoming_letters ON COMMIT DELETE ROWS "  # noqa: S608
            f"AS SELECT {columns} FROM dead_letters WITH NO DATA"
        )
        with cursor.copy(f"COPY incoming_letters ({columns}) FROM STDIN (FORMAT BINARY)") as copy:
            copy.set_types(_COPY_TYPES)
            for row in rows:
                copy.write_row(row)
        cursor.execute(
            f"INSERT INTO dead_letters ({columns}) SELECT {columns} FROM incoming_letters "  # noqa: S608
            "ON CONFLICT (identity) DO NOTHING RETURNING identity, id"
        )
        return dict(cursor.fetchall())


_SQL_TYPES: dict[type, str] = {
    sa.LargeBinary: "bytea",
    UtcDateTime: "timestamptz",
    sa.Integer: "int4",
    sa.BigInteger: "int8",
    sa.Boolean: "bool",
    sa.Float: "float8",
}
_COPY_TYPES = [_SQL_TYPES.get(type(dead_letters.c[name].type), "text") for name in _COLUMNS]
_INSERTS: Mapping[str, Callable[[sa.Connection, Sequence[Row]], dict[str, int]]] = {
    "sqlite": _insert_sqlite,
    "postgresql": _insert_postgresql,
}


def _link(connection: sa.Connection, new: Sequence[StoredLetter], now: datetime) -> None:
    """Tell the replays whose letters died again."""
    deaths = {s.arrival.letter.replay_key: s.letter_id for s in new if s.arrival.letter.replay_key}
    if deaths:
        link_renewed_deaths(connection, {key: value for key, value in deaths.items() if key}, now=now)
