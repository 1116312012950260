"""Rows to the newest key: old ones encrypted, those of an older key encrypted anew, or all of them made clear.

Each row is either at the old key or at the new one, so that the work can be cut off anywhere and begun again: it goes
on with the rows that are not at the newest key yet. Letters come and are replayed meanwhile.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import sqlalchemy as sa

from consumers.alerts import alerts
from consumers.audit import Act, Action, record
from consumers.database import reading, transaction
from consumers.dead_letters import dead_letters
from consumers.groups import failure_groups
from consumers.keyring import SealedError
from consumers.replays import replay_items
from consumers.sealing import SEALED, keyring_of, opened, sealed

BATCH_ROWS = 200
BATCH_BYTES = 16 * 1024 * 1024

TABLES: Sequence[sa.Table] = (dead_letters, replay_items, failure_groups, alerts)


@dataclass(slots=True, kw_only=True)
class Rotation:
    """What a rotation does, or would do."""

    to: str | None
    """The id of the newest key; None where everything becomes clear."""
    waiting: Counter[tuple[str, str | None]] = field(default_factory=Counter)
    """Rows that are not there yet, by table and by the key that they have; None for clear ones."""
    done: int = 0
    unopened: list[str] = field(default_factory=list)
    """Rows that the keys at hand do not open, and why; they stay as they are. The first hundred."""
    unopened_rows: int = 0


def survey(engine: sa.Engine) -> Rotation:
    """Count what a rotation would do. Raises DatabaseUnavailableError."""
    with reading(engine) as connection:
        found = Rotation(to=keyring_of(connection).sealing_key_id)
        for table in TABLES:
            query = (
                sa.select(table.c.key_id, sa.func.count()).where(*_not_at(table, found.to)).group_by(table.c.key_id)
            )
            for key, number in connection.execute(query):
                found.waiting[table.name, key] = number
    return found


def rotate(
    engine: sa.Engine, act: Act, *, clock: Callable[[], datetime], watch: Callable[[Rotation], None] = lambda _: None
) -> Rotation:
    """Bring every row to the newest key, some at a time; audited when it begins and when it ends.

    Raises DatabaseUnavailableError; whatever is done then stays done.
    """
    rotation = survey(engine)
    with transaction(engine) as connection:
        rows = {f"{table} {key or 'clear'}": number for (table, key), number in rotation.waiting.items()}
        details: dict[str, Any] = {"to": rotation.to, "rows": rows}
        record(connection, act, Action.ROTATE_KEYS, now=clock(), details=details | {"stage": "begun"})
    for table in TABLES:
        last_id: int | None = 0
        while last_id is not None:
            last_id = _rotate_some(engine, table, last_id, rotation)
            watch(rotation)
    with transaction(engine) as connection:
        details = {"to": rotation.to, "done": rotation.done, "unopened": rotation.unopened_rows, "stage": "ended"}
        record(connection, act, Action.ROTATE_KEYS, now=clock(), details=details)
    return rotation


def _rotate_some(engine: sa.Engine, table: sa.Table, last_id: int, rotation: Rotation) -> int | None:
    """Bring the next rows of a table to the newest key; returns the last id that was looked at, None at the end."""
    c, to = table.c, rotation.to
    size = c.body_bytes if table is dead_letters else sa.literal(0)
    with reading(engine) as connection:
        query = sa.select(c.id, size.label("size")).where(*_not_at(table, to), c.id > last_id)
        ids = _fitting(connection.execute(query.order_by(c.id).limit(BATCH_ROWS)).all())
    if not ids:
        return None
    columns = [c[name] for name in SEALED[table.name]]
    updates = []
    with transaction(engine) as connection:
        keyring = keyring_of(connection)
        held = sa.select(c.id, c.key_id, *columns).where(c.id.in_(ids), *_not_at(table, to)).order_by(c.id)
        for row in connection.execute(held.with_for_update()).all():
            try:
                clear = opened(keyring, table.name, row._mapping)
            except SealedError as error:
                rotation.unopened_rows += 1
                rotation.unopened = [*rotation.unopened, str(error)][:100]
                continue
            values = sealed(keyring, table.name, {name: clear[name] for name in SEALED[table.name]})
            updates.append({"row": row.id, **values})
        if updates:
            statement = table.update().where(c.id == sa.bindparam("row"))
            if table is dead_letters:
                statement = statement.values(encrypted=to is not None)
            names = [name for name in updates[0] if name != "row"]
            connection.execute(statement.values({name: sa.bindparam(name) for name in names}), updates)
    rotation.done += len(updates)
    return ids[-1]


def _not_at(table: sa.Table, key: str | None) -> list[sa.ColumnElement[bool]]:
    """Rows with content that another key seals, or none."""
    has_content = sa.or_(*(table.c[name].is_not(None) for name in SEALED[table.name]))
    return [table.c.key_id.is_distinct_from(key), has_content]


def _fitting(rows: Sequence[Any]) -> list[int]:
    size = 0
    for number, row in enumerate(rows):
        size += row.size
        if size > BATCH_BYTES and number:
            return [row.id for row in rows[:number]]
    return [row.id for row in rows]
