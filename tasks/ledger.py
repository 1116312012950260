"""The ledger: one row per effect, with a unique key, in the caller's own transaction.

The second line behind the claim in Redis: whatever happens to claims, the row that marks an effect and the
rows that are the effect commit together, once::

    with Session(engine) as session, session.begin():
        with effect_once(session, self.claim.effect_key, fence=self.claim.fence) as effect:
            if not effect.done:
                session.add(Charge(...))
                effect.result = {"charge": 17}
    return effect.result

On SQLite and PostgreSQL. A delivery that meets an uncommitted row of the same key waits until it commits.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session, scoped_session

from broker_topology.errors import ConfigurationError
from tasks.errors import ResultNotSerializableError, StaleFenceError, StepError

metadata = sa.MetaData()
"""Holds the table ``effects`` alone: ``metadata.create_all(engine)``, or name it in Alembic's ``env.py``."""

effects = sa.Table(
    "effects",
    metadata,
    sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), primary_key=True),
    sa.Column("effect_key", sa.String(1024), nullable=False),
    sa.Column("fence", sa.BigInteger()),
    sa.Column("result", sa.Text(), nullable=False),
    sa.Column("recorded_at", sa.DateTime(timezone=True), nullable=False),
    sa.UniqueConstraint("effect_key", name="uq_effects_effect_key"),
)

Transaction = Session | scoped_session[Session] | sa.Connection
"""Whatever the caller has open: the ledger begins nothing and commits nothing."""


class Effect:
    """One effect, inside of ``effect_once``."""

    def __init__(self, key: str, *, done: bool, result: Any = None) -> None:
        self.key = key
        self.done = done
        """Whether an earlier delivery committed this effect: write nothing."""
        self._result = result

    @property
    def result(self) -> Any:
        """What the effect left for duplicates, as JSON holds it: the winner's where it was done before."""
        return self._result

    @result.setter
    def result(self, value: Any) -> None:
        if self.done:
            raise StepError(f"effect {self.key!r} is on record: ask effect.done before writing")
        self._result = value


@contextmanager
def effect_once(transaction: Transaction, key: str, *, fence: int | None = None) -> Iterator[Effect]:
    """Let an effect of this key into the database once.

    The block's writes and the effect's row stand or fall together, even where the caller catches an
    exception of the block and commits. Only the unique key means "already done": a foreign key, a check or
    another unique constraint stays an error. ``fence`` is the claim's; None skips its check.

    Raises StaleFenceError where the row was written under a newer claim than ``fence``: this run is stale.
    """
    if isinstance(transaction, scoped_session):
        transaction = transaction()
    _refuse_autocommit(transaction)
    if transaction.execute(_insert(transaction, key, fence)).first() is None:
        yield _recorded(transaction, key, fence)
        return
    effect = Effect(key, done=False)
    root = transaction.get_transaction()
    try:
        with transaction.begin_nested():
            yield effect
            if effect.result is not None:
                transaction.execute(_of(sa.update(effects), key).values(result=_json(effect)))
    except BaseException:
        if root is not None and root.is_active and transaction.get_transaction() is root:
            transaction.execute(_of(sa.delete(effects), key))
        raise


def violates(error: IntegrityError, constraint: sa.UniqueConstraint) -> bool:
    """Whether an integrity error is the violation of that unique constraint, and nothing else.

    For tables that have an idempotency key of their own, where its violation means "already done".
    """
    diagnosis = getattr(error.orig, "diag", None)  # PostgreSQL names the constraint
    if diagnosis is not None:
        return bool((diagnosis.table_name, diagnosis.constraint_name) == (constraint.table.name, constraint.name))
    columns = ", ".join(f"{constraint.table.name}.{column.name}" for column in constraint.columns)
    return str(error.orig) == f"UNIQUE constraint failed: {columns}"  # SQLite names the columns


def _insert(transaction: Session | sa.Connection, key: str, fence: int | None) -> Any:
    """An insert that yields to this key's row alone, and fails where the constraint is missing."""
    values = {"effect_key": key, "fence": fence, "result": "null", "recorded_at": datetime.now(UTC)}
    match _connection(transaction).dialect.name:
        case "sqlite":
            return (
                sqlite.insert(effects)
                .values(values)
                .on_conflict_do_nothing(index_elements=["effect_key"])
                .returning(effects.c.id)
            )
        case "postgresql":
            return (
                postgresql.insert(effects)
                .values(values)
                .on_conflict_do_nothing(index_elements=["effect_key"])
                .returning(effects.c.id)
            )
        case other:
            raise ConfigurationError(f"the ledger knows SQLite and PostgreSQL, not {other}")


def _recorded(transaction: Session | sa.Connection, key: str, fence: int | None) -> Effect:
    stored_fence, result = transaction.execute(_of(sa.select(effects.c.fence, effects.c.result), key)).one()
    if fence is not None and stored_fence is not None and fence < stored_fence:
        raise StaleFenceError(f"effect {key!r} was written under fence {stored_fence}, newer than {fence}")
    return Effect(key, done=True, result=json.loads(result))


def _of(statement: Any, key: str) -> Any:
    return statement.where(effects.c.effect_key == key)


def _json(effect: Effect) -> str:
    try:
        return json.dumps(effect.result, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise ResultNotSerializableError(f"the result of effect {effect.key!r} is no JSON: {error}") from error


def _connection(transaction: Session | sa.Connection) -> sa.Connection:
    return transaction if isinstance(transaction, sa.Connection) else transaction.connection()


def _refuse_autocommit(transaction: Session | sa.Connection) -> None:
    """In autocommit the effect's row would stand without the effect."""
    driver: Any = _connection(transaction).connection.dbapi_connection
    autocommit = getattr(driver, "autocommit", False) is True  # psycopg, and sqlite3 from 3.12 on
    if hasattr(driver, "in_transaction"):  # sqlite3
        autocommit = driver.isolation_level is None and not driver.in_transaction
    if autocommit:
        raise ConfigurationError("the ledger needs a transaction, and this connection commits every statement")
