"""Example: a charge, with belt and braces: the claim in Redis, and a row with a unique key in the database.

A run that was interrupted between the provider's effect and our marker is not repeated blindly: the provider is
asked by its key whether the charge was made.
"""

from __future__ import annotations

from datetime import UTC, datetime
from functools import lru_cache

import httpx
import sqlalchemy
from celery import current_app, shared_task
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from tasks import ledger
from tasks.failure_reference import reference
from tasks.idempotency_policy import Idempotency
from tasks.ledger import effect_once
from tasks.outside import call
from tasks.reconciliation import DidNotHappen, Doubt, Happened, Reconciled
from tasks.reliable_task import ReliableTask


class Base(DeclarativeBase):
    """The tables of the example."""


class Charge(Base):
    """One charge of one order."""

    __tablename__ = "charges"

    id: Mapped[int] = mapped_column(primary_key=True)
    idempotency_key: Mapped[str] = mapped_column(unique=True)
    order_id: Mapped[str]
    amount_cents: Mapped[int]
    provider_charge_id: Mapped[str]
    charged_at: Mapped[datetime] = mapped_column(sqlalchemy.DateTime(timezone=True))


def ask_provider(doubt: Doubt) -> Reconciled:
    """Settle an interrupted charge by asking the payment service for its key; what it knows is booked here too."""
    try:
        charge = call(current_app, "payments", "GET", f"/charges/{doubt.provider_key('charge')}")
    except httpx.HTTPStatusError as error:
        if error.response.status_code == httpx.codes.NOT_FOUND:
            return DidNotHappen()
        raise
    order_id, amount_cents = doubt.args
    book(doubt.key, order_id, amount_cents, charge["id"], effect_key=f"{doubt.task_name}:{doubt.key}")
    return Happened(result=charge["id"])


@shared_task(
    name="payments.charge_customer",
    bind=True,
    base=ReliableTask,
    transient=reference,
    max_retries=2,
    # Strict where a duplicate costs money.
    idempotency=Idempotency(if_interrupted="park", reconcile=ask_provider),
)
def charge_customer(self: ReliableTask, order_id: str, amount_cents: int, /) -> str:
    """Charge a customer for an order, once per key. Returns the provider's charge id."""
    body = {"order_id": order_id, "amount_cents": amount_cents}
    charge_id = self.step("charge").run(
        lambda key: call(self.app, "payments", "POST", "/charges", json=body, key=key)["id"]
    )
    claim = self.claim
    return book(claim.key, order_id, amount_cents, charge_id, effect_key=claim.effect_key, fence=claim.fence)


def book(
    key: str, order_id: str, amount_cents: int, charge_id: str, *, effect_key: str, fence: int | None = None
) -> str:
    """Write the row of a charge, once per key; returns the charge id that stands."""
    with (
        Session(_engine(current_app.conf.office_database_url)) as session,
        session.begin(),
        effect_once(session, effect_key, fence=fence) as effect,
    ):
        if not effect.done:
            session.add(
                Charge(
                    idempotency_key=key,
                    order_id=order_id,
                    amount_cents=amount_cents,
                    provider_charge_id=charge_id,
                    charged_at=datetime.now(UTC),
                )
            )
            effect.result = charge_id
    return str(effect.result)


def create_tables(database_url: str) -> None:
    """Make the tables of the example and of the ledger where they are missing."""
    engine = sqlalchemy.create_engine(database_url)
    Base.metadata.create_all(engine)
    ledger.metadata.create_all(engine)
    engine.dispose()


@lru_cache
def _engine(database_url: str) -> sqlalchemy.Engine:
    """One engine a process, made at its first charge: a forked connection would be shared."""
    return sqlalchemy.create_engine(database_url)
