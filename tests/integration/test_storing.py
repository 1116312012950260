"""Batches into the database: each letter once, and its own id."""

from __future__ import annotations

import sqlalchemy as sa

from consumers.database import reading
from consumers.dead_letters import dead_letters
from consumers.inserting import LARGE_BODY_BYTES, Arrival
from consumers.storing import store
from tests.integration.letters import NOW, letter


def test_each_letter_of_a_batch_has_its_own_id(engine: sa.Engine) -> None:
    """Also where some of it are known, come twice, or are large (D1)."""
    letters = [letter(idempotency_key=f"key-{number}") for number in range(1200)]
    letters[701] = letters[701]._replace(body=bytes(LARGE_BODY_BYTES + 1))
    store(engine, [Arrival(letter=one) for one in letters[::7]], now=NOW)
    stored = store(engine, [Arrival(letter=one) for one in [*letters, *letters[5:30]]], now=NOW)
    assert stored.known == len(letters[::7]) + 25
    with reading(engine) as connection:
        c = dead_letters.c
        rows = {row.id: row for row in connection.execute(sa.select(c.id, c.identity, c.idempotency_key))}
    assert len(rows) == len(letters)
    for new in stored.new:
        row = rows[new.letter_id]
        assert (row.identity, row.idempotency_key) == (
            new.arrival.letter.identity,
            new.arrival.letter.idempotency_key,
        )
    assert len({new.letter_id for new in stored.new}) == len(letters) - len(letters[::7])
