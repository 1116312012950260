"""The audit log: who did what to which letter, when and why. Rows are only ever added."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any

import sqlalchemy as sa

from broker_topology.errors import DeadLetterOfficeError
from consumers.database import BigId, UtcDateTime, metadata
from consumers.letters import storable

audit_log = sa.Table(
    "audit_log",
    metadata,
    sa.Column("id", BigId, primary_key=True),
    sa.Column("at", UtcDateTime, nullable=False),
    sa.Column("actor", sa.Text, nullable=False),
    sa.Column("action", sa.String(40), nullable=False),
    sa.Column("reason", sa.Text, nullable=False),
    sa.Column("letter_id", sa.BigInteger, index=True),
    sa.Column("replay_id", sa.BigInteger, index=True),
    sa.Column("group_id", sa.BigInteger, index=True),
    sa.Column("details", sa.Text, nullable=False, server_default="{}"),
    sqlite_autoincrement=True,
)


class Action(StrEnum):
    """What a person did."""

    REPLAY = "replay"
    RESUME = "replay_resumed"
    PAUSE = "replay_paused"
    CANCEL = "replay_cancelled"
    STOP = "replay_stopped"
    DISCARD = "discard"
    SETTLE = "settle"
    EDIT = "edit"
    PURGE = "purge"
    SETTLE_GROUP = "settle_group"
    IGNORE_GROUP = "ignore_group"
    REOPEN_GROUP = "reopen_group"
    MUTE_GROUP = "mute_group"
    REGROUP = "regroup"
    ROTATE_KEYS = "rotate_keys"


class ReasonMissingError(DeadLetterOfficeError):
    """Say why: a reason is required."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Act:
    """Who acts and why; both stand in the audit log."""

    actor: str
    reason: str

    def __post_init__(self) -> None:
        if not self.reason.strip():
            raise ReasonMissingError


def record(
    connection: sa.Connection,
    act: Act,
    action: Action,
    *,
    now: datetime,
    letter_ids: Iterable[int | None] = (None,),
    replay_id: int | None = None,
    group_id: int | None = None,
    details: dict[str, Any] | None = None,
) -> None:
    """Add one row for each letter, or one for the act as such, in the caller's transaction."""
    rows = [
        {
            "at": now,
            "actor": storable(act.actor),
            "action": action.value,
            "reason": storable(act.reason),
            "letter_id": letter_id,
            "replay_id": replay_id,
            "group_id": group_id,
            "details": storable(json.dumps(details or {}, default=str)),
        }
        for letter_id in letter_ids
    ]
    if rows:
        connection.execute(audit_log.insert(), rows)


def audit_of(
    connection: sa.Connection, *, letter_id: int | None = None, group_id: int | None = None
) -> list[dict[str, Any]]:
    """What was done to one letter or one group, oldest first."""
    about = audit_log.c.letter_id == letter_id if group_id is None else audit_log.c.group_id == group_id
    query = sa.select(audit_log).where(about).order_by(audit_log.c.id)
    return [dict(row._mapping) for row in connection.execute(query)]
