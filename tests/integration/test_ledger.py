"""The second line: one row per effect, in the caller's own transaction, on SQLite and PostgreSQL."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, wait

import pytest
import sqlalchemy as sa
from sqlalchemy.exc import IntegrityError, OperationalError
from sqlalchemy.orm import DeclarativeBase, Session

from broker_topology.errors import ConfigurationError
from tasks.errors import ResultNotSerializableError, StaleFenceError, StepError
from tasks.ledger import effect_once, effects, metadata, violates

tables = sa.MetaData()
customers = sa.Table("customers", tables, sa.Column("id", sa.Integer, primary_key=True))
charges = sa.Table(
    "charges",
    tables,
    sa.Column("id", sa.Integer, primary_key=True),
    sa.Column("order_id", sa.String(50), nullable=False),
    sa.Column("idempotency_key", sa.String(50)),
    sa.Column("customer_id", sa.ForeignKey("customers.id")),
    sa.Column("cents", sa.Integer, sa.CheckConstraint("cents > 0")),
    sa.UniqueConstraint("idempotency_key", name="uq_charges_idempotency_key"),
    sa.UniqueConstraint("order_id", name="uq_charges_order_id"),
)


class Base(DeclarativeBase):
    """The user's own models."""


class Charge(Base):
    """The user's own row, as an object."""

    __table__ = charges


KEY = "payments.charge_customer:order-1"


@pytest.fixture
def database(database_url: str) -> Iterator[sa.Engine]:
    """A database with the ledger and a user's tables; SQLite with its foreign keys on."""
    engine = sa.create_engine(database_url)
    if engine.dialect.name == "sqlite":
        sa.event.listen(engine, "connect", lambda driver, _: driver.execute("PRAGMA foreign_keys = ON"))
    metadata.create_all(engine)
    tables.create_all(engine)
    yield engine
    engine.dispose()


def charge(session: Session | sa.Connection, order_id: str = "order-1", **values: object) -> None:
    """The user's own row."""
    session.execute(charges.insert().values(order_id=order_id, **values))


def count(engine: sa.Engine, table: sa.Table) -> int:
    """How many rows are committed."""
    with engine.connect() as connection:
        return connection.scalar(sa.select(sa.func.count()).select_from(table)) or 0


def run(engine: sa.Engine, result: object = None, *, fence: int | None = None) -> object:
    """One delivery."""
    with Session(engine) as session, session.begin(), effect_once(session, KEY, fence=fence) as effect:
        if not effect.done:
            charge(session)
            effect.result = result
        return effect.result


@pytest.mark.parametrize("result", [None, {"charge": 17}, 1.5, "paid", [1, None]])
def test_the_second_delivery_writes_nothing_and_gets_the_result(database: sa.Engine, result: object) -> None:
    """One effect, one row, one answer, with its type (I8)."""
    assert run(database, result) == result
    assert run(database, "another") == result
    assert count(database, charges) == count(database, effects) == 1


def test_concurrent_deliveries_make_one_effect(database: sa.Engine) -> None:
    """Ten at once: one writes, the rest wait for it and get its result (I8, I10)."""
    barrier = threading.Barrier(10)

    def deliver(number: int) -> object:
        barrier.wait()
        return run(database, number)

    with ThreadPoolExecutor(10) as threads:
        answers = set(threads.map(deliver, range(10)))
    assert len(answers) == 1
    assert count(database, charges) == count(database, effects) == 1


def test_a_delivery_waits_for_one_that_has_not_committed(database: sa.Engine) -> None:
    """A rollback of the first lets the second write: nobody relies on what may never be (I8)."""
    first = Session(database)
    with ThreadPoolExecutor(1) as threads:
        with first.begin() as transaction:
            with effect_once(first, KEY):
                second = threads.submit(run, database, "second")
                assert not wait([second], timeout=0.3).done
            transaction.rollback()
        assert second.result() == "second"
    first.close()
    assert count(database, charges) == 1


def test_a_transaction_that_rolls_back_leaves_no_effect(database: sa.Engine) -> None:
    """The effect's row and the caller's rows fall together, even after the block (I8)."""
    with Session(database) as session:
        with effect_once(session, KEY) as effect:
            charge(session)
            effect.result = 1
        session.rollback()
    assert count(database, charges) == count(database, effects) == 0
    assert run(database, "again") == "again"


def test_an_exception_that_the_caller_swallows_takes_the_block_with_it(database: sa.Engine) -> None:
    """What was written in the block is undone, what was written around it stays (I8)."""
    with Session(database) as session, session.begin():
        charge(session, "before")
        with pytest.raises(ValueError, match="oh"):
            fail_after_writing(session)
        charge(session, "after")
    with database.connect() as connection:
        assert set(connection.scalars(sa.select(charges.c.order_id))) == {"before", "after"}
    assert count(database, effects) == 0


def fail_after_writing(session: Session) -> None:
    """A task's body that raises after its write."""
    with effect_once(session, KEY):
        charge(session)
        raise ValueError("oh")


def test_a_flush_that_fails_takes_the_block_with_it(database: sa.Engine) -> None:
    """The unit of work fails inside: the caller may go on and commit, and the effect is not on record (I8)."""
    with Session(database) as session, session.begin():
        with pytest.raises(IntegrityError):
            add_an_unknown_customer(session)
        charge(session, "after")
    assert (count(database, charges), count(database, effects)) == (1, 0)
    assert run(database, "corrected") == "corrected"


def add_an_unknown_customer(session: Session) -> None:
    """A task's body whose last object violates a foreign key when the block ends."""
    with effect_once(session, KEY):
        session.add(Charge(order_id="order-1", customer_id=404))


@pytest.mark.parametrize("end", ["commit", "rollback"])
def test_a_block_that_ends_its_own_transaction_is_an_error(database: sa.Engine, end: str) -> None:
    """It is told, and what is on record is what was committed (I8)."""
    with Session(database) as session, pytest.raises(sa.exc.InvalidRequestError):
        end_inside(session, end)
    assert count(database, charges) == count(database, effects) == (1 if end == "commit" else 0)


def end_inside(session: Session, end: str) -> None:
    """A task's body that commits or rolls back by itself."""
    with effect_once(session, KEY) as effect:
        charge(session)
        effect.result = 1
        getattr(session, end)()


@pytest.mark.parametrize(
    ("values", "what"),
    [({"customer_id": 404}, "foreign"), ({"cents": -1}, "check"), ({"order_id": "taken"}, "unique")],
)
def test_any_other_violation_stays_an_error(database: sa.Engine, values: dict[str, object], what: str) -> None:
    """A foreign key, a check or another unique constraint does not mean "already done" (I8)."""
    with database.begin() as connection:
        charge(connection, "taken")
    with Session(database) as session:
        with pytest.raises(IntegrityError, match=f"(?i){what}"), session.begin(), effect_once(session, KEY):
            charge(session, **{"order_id": "order-1", **values})  # type: ignore[arg-type]
        assert count(database, effects) == 0
    assert run(database, "corrected") == "corrected"


def test_a_stale_run_is_refused(database: sa.Engine) -> None:
    """A row written under a newer claim turns the older claim away; a later claim gets the result (I7)."""
    assert run(database, "newer", fence=20) == "newer"
    with pytest.raises(StaleFenceError, match="20, newer than 19"):
        run(database, "older", fence=19)
    assert run(database, "later", fence=21) == "newer"
    assert run(database, "unguarded", fence=None) == "newer"
    assert count(database, charges) == 1


def test_a_connection_serves_as_well_as_a_session(database: sa.Engine) -> None:
    """The ledger takes part in whatever transaction there is (I8)."""
    for _ in range(2):
        with database.begin() as connection, effect_once(connection, KEY) as effect:
            if not effect.done:
                charge(connection)
                effect.result = "core"
        assert effect.result == "core"
    assert count(database, charges) == 1


def test_an_effect_that_is_done_takes_no_result(database: sa.Engine) -> None:
    """Writing without asking whether it was done is told at once (I8)."""
    run(database, 1)
    with (
        Session(database) as session,
        effect_once(session, KEY) as effect,
        pytest.raises(StepError, match="on record"),
    ):
        effect.result = 2


def test_a_result_that_is_no_json_undoes_the_effect(database: sa.Engine) -> None:
    """It is told before anything is committed (I4, I8)."""
    with pytest.raises(ResultNotSerializableError, match="no JSON"):
        run(database, {1, 2})
    assert count(database, charges) == count(database, effects) == 0


def test_a_connection_without_a_transaction_is_refused(database: sa.Engine) -> None:
    """In autocommit the marker would stand without the effect (I8)."""
    with (
        database.connect().execution_options(isolation_level="AUTOCOMMIT") as connection,
        pytest.raises(ConfigurationError, match="commits every statement"),
        effect_once(connection, KEY),
    ):
        pass
    assert count(database, effects) == 0


def test_a_ledger_without_its_constraint_is_an_error(database: sa.Engine) -> None:
    """A schema that was migrated badly does not let doubles through in silence (I8)."""
    with database.begin() as connection:
        effects.drop(connection)
        copy = sa.Table(
            "effects", sa.MetaData(), *(sa.Column(c.name, c.type, primary_key=c.primary_key) for c in effects.c)
        )
        copy.create(connection)
    with pytest.raises((OperationalError, sa.exc.ProgrammingError), match=r"(?i)on conflict"):
        run(database, 1)


def test_a_snapshot_that_cannot_see_the_winner_fails(postgresql_url: str) -> None:
    """Under REPEATABLE READ a winner after the snapshot is a serialization failure: retry, do not double (I8)."""
    engine = sa.create_engine(postgresql_url, isolation_level="REPEATABLE READ")
    metadata.create_all(engine)
    tables.create_all(engine)
    with Session(engine) as session, session.begin():
        session.execute(sa.select(effects)).all()
        run(engine, "winner")
        with pytest.raises(OperationalError, match="could not serialize"), effect_once(session, KEY):
            pass
    engine.dispose()


def test_a_users_own_key_is_told_from_other_violations(database: sa.Engine) -> None:
    """Of all integrity errors, one constraint's is "already done", whichever database says it (I8)."""
    own = next(c for c in charges.constraints if c.name == "uq_charges_idempotency_key")
    assert isinstance(own, sa.UniqueConstraint)
    with database.begin() as connection:
        charge(connection, "one", idempotency_key="k")
    offences: list[tuple[dict[str, object], bool]] = [
        ({"order_id": "two", "idempotency_key": "k"}, True),
        ({"order_id": "one", "idempotency_key": "k2"}, False),
        ({"order_id": "three", "customer_id": 404}, False),
        ({"order_id": "four", "cents": 0}, False),
    ]
    for values, already_done in offences:
        with pytest.raises(IntegrityError) as violation, database.begin() as connection:
            connection.execute(charges.insert().values(**values))
        assert violates(violation.value, own) is already_done
