"""Dead letters made without a broker: what a test of groups and alerts stores."""

from __future__ import annotations

import itertools
from datetime import UTC, datetime, timedelta
from typing import Any

import sqlalchemy as sa

from broker_topology.notes import FailureNote
from consumers.database import reading
from consumers.groups import failure_groups
from consumers.inserting import Arrival
from consumers.letters import Letter

NOW = datetime(2026, 5, 4, 12, 30, tzinfo=UTC)

_numbers = itertools.count(1)


def letter(**fields: Any) -> Letter:
    """A letter of its own identity."""
    number = next(_numbers)
    values: dict[str, Any] = {
        "identity": f"identity-{number}",
        "death_identity": None,
        "content_hash": None,
        "redelivered": False,
        "body": b"[[], {}, {}]",
        "properties": b"\x00\x00",
        "task_name": "payments.charge_customer",
        "task_id": f"task-{number}",
        "args": "[17]",
        "kwargs": '{"card_number": "4111111111111111"}',
        "decode_problem": None,
        "retries": 0,
        "idempotency_key": None,
        "replay_key": None,
        "drained_queue": "dead-letters",
        "queue": "payments",
        "exchange": "work",
        "routing_key": "payments",
        "reason": "rejected",
        "died_at": NOW,
        "note_task_id": f"task-{number}",
    }
    return Letter(**(values | fields))


def arrival(message: str | None = None, *, note: dict[str, Any] | None = None, **fields: Any) -> Arrival:
    """A letter with a failure note where there is a message."""
    if message is None:
        return Arrival(letter=letter(**fields))
    values: dict[str, Any] = {
        "reason": "failed",
        "error_type": "shop.GatewayError",
        "error_message": message,
        "failed_at": NOW,
        "release": "1.4.0",
    }
    return Arrival(letter=letter(**fields), note=FailureNote(**(values | (note or {}))))


def groups_in(engine: sa.Engine) -> list[dict[str, Any]]:
    """Every group, oldest first."""
    with reading(engine) as connection:
        rows = connection.execute(sa.select(failure_groups).order_by(failure_groups.c.id))
        return [dict(row._mapping) for row in rows]


def later(**units: float) -> datetime:
    """A moment after NOW."""
    return NOW + timedelta(**units)
