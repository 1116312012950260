"""Failure notes that could not be read when their letter came: fetched once Redis answers again."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import sqlalchemy as sa
import structlog

from broker_topology.notes import FailureNote
from consumers.database import reading, transaction
from consumers.dead_letters import dead_letters
from consumers.failure_notes import FailureNotes
from consumers.filing import Filing
from consumers.inserting import note_values
from consumers.refiling import refile
from consumers.sealing import keyring_of, sealed_with

log = structlog.get_logger()

BATCH = 500
AT_A_TIME_SECONDS = 1.0
"""Letters that arrive meanwhile wait for it."""


def complete(engine: sa.Engine, notes: FailureNotes, filing: Filing, *, now: datetime) -> int:
    """Read the notes that letters still wait for, as many as a moment allows; returns how many letters got theirs.

    Each goes into the group of its error. A letter whose note is gone for good waits no longer.
    Raises DatabaseUnavailableError.
    """
    until = time.monotonic() + AT_A_TIME_SECONDS
    completed = 0
    while waiting := _waiting(engine):
        found = notes.read([row.note_key for row in waiting])
        if found is None:
            break
        completed += _complete(engine, waiting, found, filing, now)
        if len(waiting) < BATCH or time.monotonic() > until:
            break
    return completed


def _waiting(engine: sa.Engine) -> Sequence[Any]:
    c = dead_letters.c
    with reading(engine) as connection:
        query = sa.select(c.id, c.note_key).where(c.note_key.is_not(None), _openable(connection))
        return connection.execute(query.order_by(c.id).limit(BATCH)).all()


def _complete(
    engine: sa.Engine, waiting: Sequence[Any], found: Mapping[str, FailureNote], filing: Filing, now: datetime
) -> int:
    c = dead_letters.c
    completed: list[int] = []
    with transaction(engine) as connection:
        keyring = keyring_of(connection)
        # Held, so that no change of keys comes in between.
        held = sa.select(c.id, c.note_key, c.key_id).where(
            c.id.in_([row.id for row in waiting]), _openable(connection)
        )
        for row in connection.execute(held.order_by(c.id).with_for_update()).all():
            note = found.get(row.note_key)
            values = note_values(note) if note else {}
            if row.key_id is not None:
                values = sealed_with(keyring, row.key_id, "dead_letters", values)
            connection.execute(dead_letters.update().where(c.id == row.id).values(**values | {"note_key": None}))
            if note is not None:
                completed.append(row.id)
        filed = refile(connection, filing, completed, now=now) if completed else []
    filing.committed(filed)
    log.info("failure_notes.completed", letters=len(completed), gone=len(waiting) - len(completed))
    return len(completed)


def _openable(connection: sa.Connection) -> sa.ColumnElement[bool]:
    """What is encrypted with a key that is not at hand waits for it."""
    c = dead_letters.c
    return c.key_id.is_(None) | c.key_id.in_(keyring_of(connection).key_ids)
