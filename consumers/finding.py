"""Find letters, newest first, as fast among ten million as among ten.

Every list starts from one index that ends in the state and the id: the newest letters of a state are read from it
in order, without a sort, however many there are. What no index knows (a text in the arguments, a second option) is
looked for among the newest ``MAX_LOOKED_AT`` of them, and the answer says how far that was.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import sqlalchemy as sa

from consumers.dead_letters import LIST_COLUMNS, Filter, State, dead_letters
from consumers.sealing import keyring_of, shown

MAX_COUNTED = 1_000
"""Beyond that many letters their exact number is not worth the wait."""

MAX_LOOKED_AT = 5_000
"""Letters that are read to find those that match, at most."""

c = dead_letters.c


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """One page of letters."""

    letters: list[dict[str, Any]]
    """Without their bodies; the next page starts before the last id of this one."""
    total: int
    """Letters from this page on; ``MAX_COUNTED + 1`` means more than ``MAX_COUNTED``."""
    looked_to: int | None = None
    """The id of the oldest letter that was looked at, where older ones were not; None where all were."""
    unsearched: int = 0
    """Encrypted letters, into which a search for a text does not look; counted like ``total``."""


def find(
    connection: sa.Connection, where: Filter, *, limit: int, before_id: int | None = None, exhaustive: bool = False
) -> Found:
    """The letters that a filter chooses; ``exhaustive`` looks at all of them, however long that takes."""
    search, keyring = _Search(where, before_id, exhaustive=exhaustive), keyring_of(connection)
    ids = list(connection.execute(search.ids(max(limit, MAX_COUNTED) + 1)).scalars())
    query = sa.select(*LIST_COLUMNS).where(c.id.in_(ids[:limit])).order_by(c.id.desc())
    return Found(
        letters=[shown(keyring, "dead_letters", row._mapping) for row in connection.execute(query)] if ids else [],
        total=len(ids),
        looked_to=connection.execute(search.end()).scalar() if search.bounded and len(ids) <= limit else None,
        unsearched=_unsearched(connection, where, before_id, exhaustive=exhaustive) if where.search else 0,
    )


def _unsearched(connection: sa.Connection, where: Filter, before_id: int | None, *, exhaustive: bool) -> int:
    if connection.execute(sa.select(c.id).where(c.key_id.is_not(None)).limit(1)).first() is None:
        return 0
    encrypted = _Search(replace(where, search=None, encrypted=True), before_id, exhaustive=exhaustive)
    return len(connection.execute(encrypted.ids(MAX_COUNTED + 1)).all())


def count(connection: sa.Connection, where: Filter) -> int:
    """How many letters there are; ``MAX_COUNTED + 1`` means more than ``MAX_COUNTED``."""
    some = _Search(where, None, exhaustive=True).ids(MAX_COUNTED + 1).subquery()
    return connection.execute(sa.select(sa.func.count()).select_from(some)).scalar_one()


def newest(connection: sa.Connection, where: Filter, columns: Sequence[sa.Column[Any]], *, limit: int) -> list[Any]:
    """Some columns of the newest letters that a filter chooses."""
    ids = connection.execute(_Search(where, None, exhaustive=True).ids(limit)).scalars().all()
    return list(connection.execute(sa.select(*columns).where(c.id.in_(ids)).order_by(c.id.desc())))


# One index each, the most selective first: of several options the first one leads.
_LEADS = ("task_id", "group_id", "error_type", "task", "queue", "reason")


class _Search:
    """A filter as queries for ids, one for each state, each along one index."""

    def __init__(self, where: Filter, before_id: int | None, *, exhaustive: bool) -> None:
        lead = next((name for name in _LEADS if getattr(where, name) is not None), None)
        leading: dict[str, Any] = {lead: getattr(where, lead)} if lead else {}
        without: dict[str, Any] = dict.fromkeys(leading)
        self._lead = Filter(**leading)
        self._rest = replace(where, states=where.states if lead == "task_id" else (), **without)
        self._before_id = before_id
        # Of all letters the primary key has the order, and one task id has few.
        in_order = lead == "task_id" or (lead is None and not where.states)
        self._states: Sequence[State | None] = [None] if in_order else where.states or list(State)
        has_rest = any(getattr(self._rest, slot.name) for slot in fields(self._rest))
        self.bounded = has_rest and not exhaustive and lead != "task_id"

    def ids(self, limit: int) -> sa.Select[int]:
        """Ids of the newest letters, in order."""
        parts = [self._matching(state, limit) for state in self._states]
        return self._merged(parts).limit(limit)

    def end(self) -> sa.Select[int]:
        """The oldest id that ``ids`` has looked at; no row where it has looked at all."""
        last = [self._candidates(state).offset(self._share - 1).limit(1) for state in self._states]
        return self._merged(last).limit(1)

    @property
    def _share(self) -> int:
        return MAX_LOOKED_AT // len(self._states)

    def _candidates(self, state: State | None) -> sa.Select[int]:
        query = sa.select(c.id).where(*self._lead.clauses())
        if self._before_id is not None:
            query = query.where(c.id < self._before_id)
        if state is None:
            return query.order_by(c.id.desc())
        # A range, so that the state counts in the order, which only the index that ends in state and id has: with an
        # equality the planner may walk the primary key, through all the letters of other states.
        return query.where(c.state.between(state.value, state.value)).order_by(c.state.desc(), c.id.desc())

    def _matching(self, state: State | None, limit: int) -> sa.Select[Any]:
        if not self.bounded:
            return self._candidates(state).where(*self._rest.clauses()).limit(limit)
        # The ids come from the index alone, and each letter by its id: no plan can prefer to read the table.
        looked_at = self._candidates(state).limit(self._share).subquery()
        letter = dead_letters.alias()
        matches = sa.select(sa.and_(*self._rest.clauses(letter.c))).where(letter.c.id == looked_at.c.id)
        matching = sa.select(looked_at.c.id).where(matches.scalar_subquery())
        return matching.order_by(looked_at.c.id.desc()).limit(limit)

    def _merged(self, parts: list[sa.Select[Any]]) -> sa.Select[int]:
        if len(parts) == 1:
            whole = parts[0].subquery()
        else:
            whole = sa.union_all(*(sa.select(part.subquery().c.id) for part in parts)).subquery()
        return sa.select(whole.c.id).order_by(whole.c.id.desc())
