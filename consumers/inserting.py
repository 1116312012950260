"""Letters as rows, and the fastest safe way to insert many of them, for each database."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple

import sqlalchemy as sa

from broker_topology.notes import MAX_MESSAGE_LENGTH, MAX_TRACEBACK_LENGTH, FailureNote, cut
from consumers.database import UtcDateTime
from consumers.dead_letters import State, dead_letters
from consumers.keyring import Keyring
from consumers.letters import MAX_NAME_LENGTH, Letter, storable
from consumers.sealing import SEALED

LARGE_BODY_BYTES = 1024 * 1024

Row = tuple[Any, ...]


class Arrival(NamedTuple):
    """A letter with what its worker left beside it."""

    letter: Letter
    note: FailureNote | None = None
    note_key: str | None = None
    """Where its note would be, when Redis could not be asked."""


def row_of(arrival: Arrival, now: datetime, group_id: int, moment: Callable[[datetime], Any]) -> Row:
    """A letter as the values of its row, in the order of the table; ``moment`` is one of MOMENTS."""
    letter, note = arrival.letter, arrival.note
    stored_at = moment(now)
    return (
        letter.identity,
        letter.content_hash,
        _OPEN,
        stored_at,
        stored_at,
        moment(letter.died_at),
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
        None,
    )


def sealed_row(row: Row, keyring: Keyring, key: str) -> Row:
    """The same with its content encrypted."""
    values = list(row)
    for number in _SEALED:
        if values[number] is not None:
            values[number] = keyring.seal(values[number], key=key)
    values[_ENCRYPTED], values[_KEY_ID] = True, key
    return tuple(values)


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


# In the order of the table, which row_of follows.
_COLUMNS = [column.name for column in dead_letters.c if column.name != "id"]
_NO_NOTE = (None,) * 10
_OPEN = State.OPEN.value
_SEALED = [_COLUMNS.index(name) for name in SEALED["dead_letters"]]
_ENCRYPTED, _KEY_ID = _COLUMNS.index("encrypted"), _COLUMNS.index("key_id")


def _short(text: object) -> str | None:
    return None if text is None else cut(storable(str(text)) or "", MAX_NAME_LENGTH)


def _insert_sqlite(connection: sa.Connection, rows: Sequence[Row]) -> dict[str, int]:
    """Insert what is new; returns identity to id of that."""
    before = connection.execute(sa.select(sa.func.max(dead_letters.c.id))).scalar() or 0
    ids: dict[str, int] = {}
    small = [row for row in rows if len(row[_BODY]) <= LARGE_BODY_BYTES]
    start = 0
    while start < len(small):
        # Each step of a statement gives up the interpreter's lock, and waits to have it back: few, large ones.
        size = next(size for size in _SQLITE_CHUNKS if size <= len(small) - start)
        part = small[start : start + size]
        inserted = connection.exec_driver_sql(_SQLITE_INSERTS[size], tuple(itertools.chain.from_iterable(part)))
        if inserted.rowcount == size:
            # SQLite numbers the rows in their order, without a gap where none is known.
            first = inserted.lastrowid - size + 1
            ids |= {row[_IDENTITY]: letter_id for letter_id, row in enumerate(part, first)}
        else:
            ids |= _ids_after(connection, before)
        start += size
    for row in rows:
        if len(row[_BODY]) > LARGE_BODY_BYTES:
            ids |= _insert_large(connection, row)
    return ids


def _ids_after(connection: sa.Connection, before: int) -> dict[str, int]:
    rows = connection.execute(sa.select(dead_letters.c.identity, dead_letters.c.id).where(dead_letters.c.id > before))
    return {identity: letter_id for identity, letter_id in rows}  # noqa: C416, dict(rows) takes a result for a mapping


def _insert_large(connection: sa.Connection, row: Row) -> dict[str, int]:
    """Insert one letter with room for its body, then write that in place: two copies of it less in memory."""
    values = list(row)
    body = values[_BODY]
    values[_BODY] = len(body)
    inserted = connection.exec_driver_sql(_SQLITE_LARGE_INSERT, tuple(values)).first()
    if inserted is None:
        return {}
    driver: Any = connection.connection.driver_connection
    with driver.blobopen("dead_letters", "body", inserted[0]) as blob:
        for start in range(0, len(body), LARGE_BODY_BYTES):
            blob.write(body[start : start + LARGE_BODY_BYTES])
    return {row[_IDENTITY]: inserted[0]}


_SQLITE_CHUNKS = (750, 250, 64, 8, 1)
_ONE_ROW = f"({', '.join('?' * len(_COLUMNS))})"
_SQLITE_INSERTS = {
    size: f"INSERT INTO dead_letters ({', '.join(_COLUMNS)}) VALUES {', '.join([_ONE_ROW] * size)} "  # noqa: S608
    "ON CONFLICT (identity) DO NOTHING"
    for size in _SQLITE_CHUNKS
}
_IDENTITY, _BODY = _COLUMNS.index("identity"), _COLUMNS.index("body")
_SQLITE_LARGE_INSERT = (
    f"INSERT INTO dead_letters ({', '.join(_COLUMNS)}) "  # noqa: S608
    f"VALUES ({', '.join('zeroblob(?)' if name == 'body' else '?' for name in _COLUMNS)}) "
    "ON CONFLICT (identity) DO NOTHING RETURNING id"
)


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
INSERTS: Mapping[str, Callable[[sa.Connection, Sequence[Row]], dict[str, int]]] = {
    "sqlite": _insert_sqlite,
    "postgresql": _insert_postgresql,
}
MOMENTS: Mapping[str, Callable[[datetime], Any]] = {"sqlite": _sqlite_time, "postgresql": lambda moment: moment}
"""How a moment is handed to the driver."""
