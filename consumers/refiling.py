"""Letters whose failure note came late: out of the group of what the broker said, into that of their error."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from types import SimpleNamespace
from typing import Any

import sqlalchemy as sa

from consumers.dead_letters import dead_letters
from consumers.filing import Filed, Filing, fingerprint_of_row
from consumers.grouping import Sorted
from consumers.groups import lock
from consumers.regroup import ROW_COLUMNS, adjust
from consumers.sealing import keyring_of, shown

d = dead_letters.c


@dataclass(frozen=True, slots=True, kw_only=True)
class _LateLetter:
    """What alerts tell of a stored letter."""

    task_id: str | None
    queue: str
    reason: str
    died_at: datetime
    args: str | None
    kwargs: str | None


def refile(connection: sa.Connection, filing: Filing, letter_ids: Sequence[int], *, now: datetime) -> list[Filed]:
    """Move letters to the groups of their notes, as if they came now: a new group speaks.

    Returns what the caller tells ``filing.committed`` after the commit.
    """
    query = sa.select(*ROW_COLUMNS, d.task_id, d.args, d.kwargs).where(d.id.in_(letter_ids)).order_by(d.id)
    keyring = keyring_of(connection)
    rows = [SimpleNamespace(**shown(keyring, "dead_letters", row._mapping)) for row in connection.execute(query)]
    placed = filing.place_sorted(connection, [_sorted(row) for row in rows], now=now)
    filed: list[Filed] = []
    leaving: dict[int, list[Any]] = {}
    for row, (about, group_id) in zip(rows, placed, strict=True):
        if row.group_id == group_id:
            continue
        connection.execute(dead_letters.update().where(d.id == row.id).values(group_id=group_id))
        if row.group_id is not None:
            leaving.setdefault(row.group_id, []).append(row)
        filed.append(Filed(letter_id=row.id, letter=_late(row), about=about, group_id=group_id))
    lock(connection, [*leaving, *(one.group_id for one in filed)])
    for group_id, left in sorted(leaving.items()):
        adjust(connection, group_id, left, -1)
    filing.count(connection, filed, now=now)
    return filed


def _sorted(row: Any) -> Sorted:
    return Sorted(
        fingerprint=fingerprint_of_row(vars(row)),
        task_name=row.task_name,
        error_type=row.error_type,
        queue=row.queue,
        release=row.release,
        died_at=row.died_at,
        returned=row.replay_key is not None,
    )


def _late(row: Any) -> _LateLetter:
    return _LateLetter(
        task_id=row.task_id,
        queue=row.queue,
        reason=row.reason,
        died_at=row.died_at,
        args=row.args,
        kwargs=row.kwargs,
    )
