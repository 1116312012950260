"""Retention: letters that nobody waits for may go after a while, in small batches, audited; open ones never."""

from __future__ import annotations

from datetime import datetime

import sqlalchemy as sa

from consumers.audit import Act, Action, record
from consumers.database import reading, transaction
from consumers.dead_letters import SETTLED_STATES, dead_letters

BATCH = 500
MAX_COUNTED = 100_000
"""Beyond that many letters their exact number is not worth the wait."""


def purgeable(engine: sa.Engine, *, older_than: datetime) -> int:
    """How many letters were settled before that time; ``MAX_COUNTED + 1`` means more than ``MAX_COUNTED``.

    Raises DatabaseUnavailableError.
    """
    some = sa.select(dead_letters.c.id).where(*_settled_before(older_than)).limit(MAX_COUNTED + 1).subquery()
    with reading(engine) as connection:
        return connection.execute(sa.select(sa.func.count()).select_from(some)).scalar_one()


def purge(engine: sa.Engine, act: Act, *, older_than: datetime, now: datetime) -> int:
    """Delete letters that were settled before that time; returns how many. Raises DatabaseUnavailableError."""
    purged = 0
    while True:
        with transaction(engine) as connection:
            ids = list(
                connection.execute(
                    sa.select(dead_letters.c.id)
                    .where(*_settled_before(older_than))
                    .order_by(dead_letters.c.id)
                    .limit(BATCH)
                ).scalars()
            )
            if not ids:
                return purged
            connection.execute(dead_letters.delete().where(dead_letters.c.id.in_(ids)))
            record(connection, act, Action.PURGE, now=now, letter_ids=ids, details={"older_than": older_than})
        purged += len(ids)


def _settled_before(moment: datetime) -> list[sa.ColumnElement[bool]]:
    states = [state.value for state in SETTLED_STATES]
    return [dead_letters.c.state.in_(states), dead_letters.c.state_at < moment]
