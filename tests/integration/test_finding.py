"""Lists of letters: the newest first, page after page, whatever chooses them (both databases)."""

from __future__ import annotations

from typing import Any

import pytest
import sqlalchemy as sa
from alembic import command

from consumers import finding
from consumers.database import alembic_config, reading, schema_revision, transaction, upgrade
from consumers.dead_letters import Filter, State, change_state, dead_letters
from consumers.finding import find
from consumers.storing import store
from tests.integration.letters import NOW, arrival

STATES = (State.OPEN, State.SETTLED, State.DISCARDED)


@pytest.fixture
def ids(engine: sa.Engine) -> list[int]:
    """Thirty letters: of two queues, of three states, every fifth with a text in its arguments."""
    arrivals = [
        arrival(queue="payments" if number % 2 else "crm", args='["rare 50% off"]' if number % 5 == 0 else "[1]")
        for number in range(30)
    ]
    stored = [letter.letter_id for letter in store(engine, arrivals, now=NOW).new]
    with transaction(engine) as connection:
        for state in STATES[1:]:
            moved = stored[STATES.index(state) :: 3]
            change_state(connection, moved, state, now=NOW, from_states=[State.OPEN])
    return stored


def pages(engine: sa.Engine, where: Filter, **options: Any) -> list[int]:
    """The ids of all pages of four letters."""
    found: list[int] = []
    with reading(engine) as connection:
        while page := find(connection, where, limit=4, before_id=found[-1] if found else None, **options).letters:
            found += [letter["id"] for letter in page]
    return found


@pytest.mark.parametrize("states", [(), STATES[:1], STATES[1:], STATES])
@pytest.mark.parametrize("chosen", [{}, {"queue": "crm"}, {"queue": "crm", "task": "payments.charge_customer"}])
def test_pages_have_every_letter_once_newest_first(
    engine: sa.Engine,
    ids: list[int],
    states: tuple[State, ...],
    chosen: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One state, several or all, with and without a filter: the same as a plain query gives (D1)."""
    where = Filter(states=states, **chosen)  # type: ignore[arg-type]
    with reading(engine) as connection:
        plain = sa.select(dead_letters.c.id).where(*where.clauses()).order_by(dead_letters.c.id.desc())
        expected = list(connection.execute(plain).scalars())
        assert expected
        assert find(connection, where, limit=4).total == finding.count(connection, where) == len(expected)
    monkeypatch.setattr(finding, "MAX_COUNTED", 2)
    assert pages(engine, where) == expected
    assert set(expected) <= set(ids)


def test_a_text_is_found_as_it_is(engine: sa.Engine, ids: list[int]) -> None:
    """Signs that SQL gives a meaning are signs; another option narrows further (D1)."""
    assert pages(engine, Filter(search="50% off")) == ids[::5][::-1]
    assert pages(engine, Filter(search="50_ off")) == []
    assert pages(engine, Filter(search="rare", queue="crm", states=(State.OPEN,))) == [ids[0]]
    assert pages(engine, Filter(task_id="nobody", states=(State.OPEN,))) == []


def test_what_was_not_looked_at_is_said(engine: sa.Engine, ids: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """A search ends after so many letters and says where; it goes on from there, or looks at all (D1)."""
    monkeypatch.setattr(finding, "MAX_LOOKED_AT", 7)
    where = Filter(search="rare")
    with reading(engine) as connection:
        found = find(connection, where, limit=4)
        assert [letter["id"] for letter in found.letters] == [ids[25]]
        assert found.looked_to == ids[-7]
        found = find(connection, where, limit=4, before_id=found.looked_to)
        assert [letter["id"] for letter in found.letters] == [ids[20]]
        assert find(connection, where, limit=4, before_id=ids[5]).looked_to is None
        assert find(connection, where, limit=10, exhaustive=True).looked_to is None
        assert find(connection, Filter(queue="crm"), limit=10).looked_to is None
    assert pages(engine, where, exhaustive=True) == ids[::5][::-1]


def test_the_indexes_come_and_go_with_their_revision(engine: sa.Engine, ids: list[int]) -> None:
    """Down to 0003 and up again, with letters in the table (D1)."""
    with engine.begin() as connection:
        config = alembic_config()
        config.attributes["connection"] = connection
        command.downgrade(config, "0003")
    names = {index["name"] for index in sa.inspect(engine).get_indexes("dead_letters")}
    assert {"ix_dead_letters_open_task_name_id", "ix_dead_letters_queue_id"} <= names
    assert "ix_dead_letters_queue_state_id" not in names
    assert schema_revision(engine) == "0003"
    upgrade(engine)
    assert pages(engine, Filter(queue="crm")) == ids[::2][::-1]
