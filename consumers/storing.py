"""Letters into the database: one transaction a batch, each death once, one bad row never holding up the rest."""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from types import MappingProxyType
from typing import NamedTuple

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError

from broker_topology.notes import MAX_MESSAGE_LENGTH, cut
from consumers.database import database_problem, transaction
from consumers.dead_letters import State, dead_letters
from consumers.filing import Filed, Filing
from consumers.inserting import INSERTS, MOMENTS, Arrival, row_of, sealed_row
from consumers.letters import storable
from consumers.replay_endings import link_renewed_deaths
from consumers.sealing import keyring_of

NOTHING_SETTLING: Mapping[str, int] = MappingProxyType({})


class StoredLetter(NamedTuple):
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


def store(
    engine: sa.Engine,
    arrivals: Sequence[Arrival],
    *,
    now: datetime,
    filing: Filing | None = None,
    settling: Mapping[str, int] = NOTHING_SETTLING,
) -> Stored:
    """Store a batch, each letter with its group. A batch that the database refuses is split until the one is found.

    ``settling`` counts letters without an id, by content hash, that came on the same channels and were committed,
    while the broker may not have their acks: their rows are in doubt, but on a channel that is open none comes again.
    Raises DatabaseUnavailableError when nothing can be stored now; then nothing of the batch part in hand is.
    """
    if not arrivals:
        return Stored()
    filing = filing or Filing()
    try:
        return _store_all(engine, arrivals, now, filing, settling)
    except _RowRefusedError as error:
        if len(arrivals) == 1:
            return _store_raw(engine, arrivals[0], str(error), now, filing, settling)
    half = len(arrivals) // 2
    first = store(engine, arrivals[:half], now=now, filing=filing, settling=settling)
    committed = [a for a in arrivals[:half] if a.letter.content_hash and all(a is not r for r in first.refused)]
    settling = Counter(settling) + Counter(str(a.letter.content_hash) for a in committed)
    parts = [first, store(engine, arrivals[half:], now=now, filing=filing, settling=settling)]
    return Stored(
        new=[letter for part in parts for letter in part.new],
        known=sum(part.known for part in parts),
        refused=[arrival for part in parts for arrival in part.refused],
    )


def _store_raw(
    engine: sa.Engine, arrival: Arrival, problem: str, now: datetime, filing: Filing, settling: Mapping[str, int]
) -> Stored:
    """Store the bare bytes of a letter whose decoded values the database refuses."""
    raw = arrival.letter._replace(
        task_name=None,
        task_id=None,
        args=None,
        kwargs=None,
        idempotency_key=None,
        retries=0,
        decode_problem=storable(cut(f"the decoded letter was refused: {problem}", MAX_MESSAGE_LENGTH)),
    )
    try:
        return _store_all(engine, [Arrival(letter=raw)], now, filing, settling)
    except _RowRefusedError:
        return Stored(refused=[arrival])


class _RowRefusedError(Exception):
    """Some row of the batch is at fault, not the state of the database."""


def _store_all(
    engine: sa.Engine, arrivals: Sequence[Arrival], now: datetime, filing: Filing, settling: Mapping[str, int]
) -> Stored:
    with transaction(engine) as connection:
        try:
            fresh = _without_redelivered(connection, arrivals, now, settling)
            new, filed = _insert(connection, fresh, now, filing)
            if len(new) < len(fresh) and (late := _late_copies(connection, fresh, new)):
                more_new, more_filed = _insert(connection, late, now, filing)
                new, filed = new + more_new, filed + more_filed
            _link(connection, new, now)
            filing.count(connection, filed, now=now)
        except (DBAPIError, engine.dialect.loaded_dbapi.Error, ValueError, TypeError, OverflowError) as error:
            if _is_fault_of_row(error):
                raise _RowRefusedError(database_problem(error)) from error
            raise
    filing.committed(filed)
    return Stored(new=new, known=len(arrivals) - len(new))


def _insert(
    connection: sa.Connection, arrivals: Sequence[Arrival], now: datetime, filing: Filing
) -> tuple[list[StoredLetter], list[Filed]]:
    """Insert what is new, each letter in its group."""
    placed = filing.place(connection, [(arrival.letter, arrival.note) for arrival in arrivals], now=now)
    dialect = connection.dialect.name
    moment = MOMENTS[dialect]
    rows = [row_of(arrival, now, group_id, moment) for arrival, (_, group_id) in zip(arrivals, placed, strict=True)]
    keyring = keyring_of(connection)
    if (key := keyring.sealing_key_id) is not None:
        rows = [sealed_row(row, keyring, key) for row in rows]
    ids = INSERTS[dialect](connection, rows)
    new, filed = [], []
    for arrival, (about, group_id) in zip(arrivals, placed, strict=True):
        if (letter_id := ids.pop(arrival.letter.identity, None)) is not None:
            new.append(StoredLetter(letter_id=letter_id, arrival=arrival))
            filed.append(Filed(letter_id=letter_id, letter=arrival.letter, about=about, group_id=group_id))
    return new, filed


def _late_copies(
    connection: sa.Connection, arrivals: Sequence[Arrival], new: Sequence[StoredLetter]
) -> list[Arrival]:
    """Copies of messages that died after a person had dealt with the first: rows of their own, to be seen.

    While the first row is open, a copy says nothing that does not stand there.
    """
    inserted = {stored.arrival.letter.identity for stored in new}
    known = [a for a in arrivals if a.letter.death_identity and a.letter.identity not in inserted]
    if not known:
        return []
    c = dead_letters.c
    identities = {arrival.letter.identity for arrival in known}
    query = sa.select(c.identity, c.died_at).where(c.identity.in_(identities), c.state != State.OPEN.value)
    dealt_with = {row.identity: row.died_at for row in connection.execute(query)}
    return [
        arrival._replace(letter=arrival.letter._replace(identity=str(arrival.letter.death_identity)))
        for arrival in known
        if dealt_with.get(arrival.letter.identity, arrival.letter.died_at) != arrival.letter.died_at
    ]


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


def _without_redelivered(
    connection: sa.Connection, arrivals: Sequence[Arrival], now: datetime, settling: Mapping[str, int]
) -> Sequence[Arrival]:
    """Drop what has no id, was delivered before, and is stored.

    Only the broker's word tells a redelivery of such a message from another just like it. Of several equal
    copies that come back, as many are known as there are rows whose acks may not have reached the broker, save
    for those that are settling.
    """
    hashes = {a.letter.content_hash for a in arrivals if a.letter.redelivered and a.letter.content_hash}
    if not hashes:
        return arrivals
    c = dead_letters.c
    rows = connection.execute(
        sa.select(c.content_hash, sa.func.count())
        .where(c.content_hash.in_(hashes), c.stored_at > now - _REDELIVERY_WINDOW)
        .group_by(c.content_hash)
    )
    in_doubt = {content: number - settling.get(content, 0) for content, number in rows}
    fresh = []
    for arrival in arrivals:
        content = arrival.letter.content_hash
        if arrival.letter.redelivered and content and in_doubt.get(content, 0) > 0:
            in_doubt[content] -= 1
        else:
            fresh.append(arrival)
    return fresh


_REDELIVERY_WINDOW = timedelta(days=1)


def no_longer_in_doubt(engine: sa.Engine, equal: Mapping[str, int]) -> None:
    """So many letters without an id, by content hash, never come again: the broker has their acks.

    From now on another letter just like them is another letter, even when the broker redelivers it.
    Raises DatabaseUnavailableError.
    """
    c = dead_letters.c
    with transaction(engine) as connection:
        for content_hash, number in sorted(equal.items()):
            # Two drains may be certain at once, each of its own.
            oldest = sa.select(c.id).where(c.content_hash == content_hash).order_by(c.id).limit(number)
            ids = connection.execute(oldest.with_for_update(skip_locked=True)).scalars().all()
            connection.execute(dead_letters.update().where(c.id.in_(ids)).values(content_hash=None))


def _link(connection: sa.Connection, new: Sequence[StoredLetter], now: datetime) -> None:
    """Tell the replays whose letters died again."""
    deaths = {s.arrival.letter.replay_key: s.letter_id for s in new if s.arrival.letter.replay_key}
    if deaths:
        link_renewed_deaths(connection, {key: value for key, value in deaths.items() if key}, now=now)
