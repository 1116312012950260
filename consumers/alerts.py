"""The outbox of alerts: written in the transaction that has something to say, emptied by the alert service.

An alert has one delivery for each channel that is to hear it, so that a channel which answered is left alone
while another is tried again. A delivery in hand is claimed for a while; one whose sender was killed between
sending and recording is sent once more, with the same alert id.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any

import sqlalchemy as sa

from consumers.alert_rules import SEVERITIES, Kind, Severity
from consumers.database import BigId, UtcDateTime, insert_of, metadata, reading
from consumers.sealing import keyring_of, sealed, shown

CLAIM_SECONDS = 60
"""How long a delivery belongs to whoever took it: longer than any channel may take."""
FIRST_RETRY_SECONDS = 5.0
LAST_RETRY_SECONDS = 900.0
GIVE_UP_AFTER = timedelta(days=2)

alerts = sa.Table(
    "alerts",
    metadata,
    sa.Column("id", BigId, primary_key=True),
    # What receivers know it by, over every channel and every attempt.
    sa.Column("uid", sa.String(32), nullable=False, unique=True),
    # Two drains that decide the same say it once.
    sa.Column("about", sa.String(200), nullable=False, unique=True),
    sa.Column("kind", sa.String(40), nullable=False),
    sa.Column("severity", sa.String(20), nullable=False),
    sa.Column("group_id", sa.BigInteger, index=True),
    sa.Column("at", UtcDateTime, nullable=False, index=True),
    sa.Column("payload", sa.Text, nullable=False),
    # Which key the content of the row is encrypted with: see consumers.sealing.
    sa.Column("key_id", sa.String(12)),
    sqlite_autoincrement=True,
)


class DeliveryState(StrEnum):
    """Where one alert stands on its way to one channel."""

    WAITING = "waiting"
    SENT = "sent"
    FAILED = "failed"
    """Given up."""


alert_deliveries = sa.Table(
    "alert_deliveries",
    metadata,
    sa.Column("id", BigId, primary_key=True),
    sa.Column("alert_id", sa.BigInteger, sa.ForeignKey("alerts.id", ondelete="CASCADE"), nullable=False),
    sa.Column("channel", sa.String(100), nullable=False),
    sa.Column("state", sa.String(20), nullable=False),
    sa.Column("attempts", sa.Integer, nullable=False, server_default="0"),
    sa.Column("due_at", UtcDateTime, nullable=False),
    sa.Column("sent_at", UtcDateTime),
    sa.Column("error", sa.Text),
    sa.UniqueConstraint("alert_id", "channel"),
    sa.Index("ix_alert_deliveries_state_channel_due_at", "state", "channel", "due_at"),
    sqlite_autoincrement=True,
)

alert_windows = sa.Table(
    "alert_windows",
    metadata,
    sa.Column("window_at", UtcDateTime, primary_key=True),
    sa.Column("spoken", sa.Integer, nullable=False),
    sa.Column("held_back", sa.Integer, nullable=False),
    # Set once its end was summarised.
    sa.Column("summarised_at", UtcDateTime),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Alert:
    """Something to say."""

    kind: Kind
    about: str
    """What it is about and which time: an alert with the same is the same."""
    facts: dict[str, Any]
    """JSON values for the message; see docs/reference/groups-and-alerts.md."""
    group_id: int | None = None

    @property
    def severity(self) -> Severity:
        """How much it matters."""
        return SEVERITIES[self.kind]


@dataclass(frozen=True, slots=True, kw_only=True)
class Addressed:
    """A channel that is to hear an alert, and from when on."""

    channel: str
    due_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivery:
    """One alert on its way to one channel."""

    delivery_id: int
    uid: str
    kind: Kind
    severity: Severity
    at: datetime
    facts: dict[str, Any]
    attempts: int
    """This one included."""


def write(connection: sa.Connection, alert: Alert, to: Sequence[Addressed], *, now: datetime) -> str | None:
    """Put an alert into the outbox, in the caller's transaction. Returns its uid; None when it is there already."""
    uid = uuid.uuid4().hex
    row = {
        "uid": uid,
        "about": alert.about[:200],
        "kind": alert.kind.value,
        "severity": alert.severity.value,
        "group_id": alert.group_id,
        "at": now,
        "payload": json.dumps(alert.facts, default=_jsonable),
    }
    statement = (
        insert_of(connection, alerts)
        .values(sealed(keyring_of(connection), "alerts", row))
        .on_conflict_do_nothing(index_elements=["about"])
    )
    alert_id = connection.execute(statement.returning(alerts.c.id)).scalar_one_or_none()
    if alert_id is None:
        return None
    connection.execute(
        alert_deliveries.insert(),
        [
            {
                "alert_id": alert_id,
                "channel": address.channel,
                "state": DeliveryState.WAITING.value,
                "due_at": address.due_at,
            }
            for address in to
        ],
    )
    return uid


def any_due(engine: sa.Engine, channel: str, *, now: datetime) -> bool:
    """Whether a channel has something to send: asked often, so it takes no lock."""
    d = alert_deliveries.c
    due = sa.select(d.id).where(d.state == DeliveryState.WAITING.value, d.channel == channel, d.due_at <= now)
    with reading(engine) as connection:
        return connection.execute(due.limit(1)).first() is not None


def claim(connection: sa.Connection, channel: str, *, now: datetime, limit: int) -> list[Delivery]:
    """Take due deliveries of one channel, oldest first; they are this caller's for CLAIM_SECONDS."""
    d = alert_deliveries.c
    due = (
        sa.select(d.id)
        .where(d.state == DeliveryState.WAITING.value, d.channel == channel, d.due_at <= now)
        .order_by(d.due_at, d.id)
        .limit(limit)
        .with_for_update(skip_locked=True)
    )
    taken = connection.execute(
        alert_deliveries.update()
        .where(d.id.in_(due.scalar_subquery() if connection.dialect.name == "sqlite" else due))
        .values(attempts=d.attempts + 1, due_at=now + timedelta(seconds=CLAIM_SECONDS))
        .returning(d.id, d.alert_id, d.attempts)
    ).all()
    if not taken:
        return []
    rows = connection.execute(sa.select(alerts).where(alerts.c.id.in_({row.alert_id for row in taken}))).all()
    keyring = keyring_of(connection)
    known = {row.id: shown(keyring, "alerts", row._mapping) for row in rows}
    return [
        Delivery(
            delivery_id=row.id,
            uid=known[row.alert_id]["uid"],
            kind=Kind(known[row.alert_id]["kind"]),
            severity=Severity(known[row.alert_id]["severity"]),
            at=known[row.alert_id]["at"],
            facts=json.loads(known[row.alert_id]["payload"]),
            attempts=row.attempts,
        )
        for row in sorted(taken, key=lambda row: row.id)
    ]


def recent(connection: sa.Connection, *, limit: int) -> list[dict[str, Any]]:
    """What became of the newest alerts on each channel."""
    d = alert_deliveries.c
    query = (
        sa.select(
            alerts.c.uid, alerts.c.at, alerts.c.kind, alerts.c.severity, alerts.c.group_id,
            d.channel, d.state, d.attempts, d.sent_at, d.error,
        )
        .join(alert_deliveries, d.alert_id == alerts.c.id)
        .order_by(alerts.c.id.desc(), d.id)
        .limit(limit)
    )  # fmt: skip
    return [dict(row._mapping) for row in connection.execute(query)]


def record_sent(connection: sa.Connection, delivery_id: int, *, now: datetime) -> None:
    """The channel answered."""
    connection.execute(
        alert_deliveries.update()
        .where(alert_deliveries.c.id == delivery_id)
        .values(state=DeliveryState.SENT.value, sent_at=now, error=None)
    )


def record_failure(
    connection: sa.Connection, delivery: Delivery, problem: str, *, now: datetime, final: bool = False
) -> bool:
    """The channel did not answer: try again later, for two days. Returns whether it is tried again."""
    again = not final and now - delivery.at < GIVE_UP_AFTER
    wait = min(LAST_RETRY_SECONDS, FIRST_RETRY_SECONDS * 2.0 ** min(delivery.attempts - 1, 20))
    connection.execute(
        alert_deliveries.update()
        .where(alert_deliveries.c.id == delivery.delivery_id)
        .values(
            state=(DeliveryState.WAITING if again else DeliveryState.FAILED).value,
            due_at=now + timedelta(seconds=wait),
            error=problem[:1000],
        )
    )
    return again


def let_through(connection: sa.Connection, wanted: int, *, window_at: datetime, cap: int) -> int:
    """How many of ``wanted`` groups may speak within a window; the rest is counted as held back."""
    insert = insert_of(connection, alert_windows).values(window_at=window_at, spoken=wanted, held_back=0)
    spoken: int = connection.execute(
        insert.on_conflict_do_update(
            index_elements=["window_at"], set_={"spoken": alert_windows.c.spoken + insert.excluded.spoken}
        ).returning(alert_windows.c.spoken)
    ).scalar_one()
    held_back = min(wanted, max(0, spoken - cap))
    if held_back:
        connection.execute(
            alert_windows.update()
            .where(alert_windows.c.window_at == window_at)
            .values(held_back=alert_windows.c.held_back + held_back)
        )
    return wanted - held_back


def _jsonable(value: object) -> str:
    return value.isoformat() if isinstance(value, datetime) else str(value)
