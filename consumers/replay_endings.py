"""How replayed letters end, in the tables of replays and letters: settled, or died again."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime

import sqlalchemy as sa

from broker_topology.notes import OutcomeNote
from consumers.audit import Act
from consumers.dead_letters import State, change_state
from consumers.groups import settle_emptied
from consumers.letters import storable
from consumers.replays import ItemState, replay_items


def settle_succeeded(connection: sa.Connection, notes: Mapping[str, OutcomeNote], *, now: datetime) -> int:
    """Settle the letters of these replay keys; returns how many."""
    items = connection.execute(
        sa.select(replay_items.c.id, replay_items.c.key, replay_items.c.letter_id, replay_items.c.replay_id).where(
            replay_items.c.key.in_(list(notes)),
            replay_items.c.state.in_([ItemState.WAITING.value, ItemState.PUBLISHED.value]),
        )
    ).all()
    for item in items:
        note = notes[item.key]
        outcome = {"hostname": note.hostname, "result_bytes": note.result_bytes}
        connection.execute(
            replay_items.update()
            .where(replay_items.c.id == item.id)
            .values(
                state=ItemState.SUCCEEDED.value,
                outcome_at=note.succeeded_at,
                outcome=storable(json.dumps(outcome)),
            )
        )
    settled = change_state(
        connection,
        [item.letter_id for item in items],
        State.SETTLED,
        now=now,
        from_states=[State.REPLAYED, State.REPLAYING],
    )
    numbers = ", ".join(str(number) for number in sorted({item.replay_id for item in items}))
    act = Act(actor=f"replay {numbers}", reason="all its letters are dealt with")
    settle_emptied(connection, settled, act, now=now)
    return len(items)


def link_renewed_deaths(connection: sa.Connection, deaths: dict[str, int], *, now: datetime) -> None:
    """Tell replays of letters that died again: replay key to the id of the new letter."""
    keys = list(deaths)
    items = connection.execute(
        sa.select(replay_items.c.id, replay_items.c.key, replay_items.c.letter_id).where(
            replay_items.c.key.in_(keys), replay_items.c.state != ItemState.SUCCEEDED.value
        )
    ).all()
    if not items:
        return
    connection.execute(
        replay_items.update().where(replay_items.c.id == sa.bindparam("item")),
        [
            {
                "item": item.id,
                "state": ItemState.FAILED_AGAIN.value,
                "outcome_at": now,
                "new_letter_id": deaths[item.key],
            }
            for item in items
        ],
    )
    change_state(
        connection,
        [item.letter_id for item in items],
        State.FAILED_AGAIN,
        now=now,
        from_states=[State.REPLAYED, State.REPLAYING],
    )
