"""Alerts that no letter brings about: follow-ups, the end of a storm, digests, queues over a bound.

Every drain runs these; the outbox keeps what two of them decide from being said twice.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

import sqlalchemy as sa

from consumers.alert_config import AlertConfig
from consumers.alert_rules import Kind
from consumers.alerts import GIVE_UP_AFTER, Alert, DeliveryState, alert_deliveries, alert_windows, write
from consumers.database import reading, transaction
from consumers.filing import group_facts
from consumers.group_state import GroupState
from consumers.groups import failure_groups, group_hours
from consumers.sealing import keyring_of, shown

LISTED = 10
KEEP_HOURS = timedelta(days=60)
MAX_FOLLOW_UPS = 200

c = failure_groups.c


def follow_up(engine: sa.Engine, config: AlertConfig, *, now: datetime) -> None:
    """Say how much came of groups that spoke a while ago. Raises DatabaseUnavailableError."""
    due = sa.select(c.id).where(c.follow_up_at <= now).order_by(c.follow_up_at).limit(MAX_FOLLOW_UPS)
    with reading(engine) as connection:
        if connection.execute(due.limit(1)).first() is None:
            return
    with transaction(engine) as connection:
        rows = connection.execute(
            sa.select(failure_groups)
            .where(c.id.in_(connection.execute(due).scalars().all()), c.follow_up_at <= now)
            .order_by(c.id)
            .with_for_update()
        ).all()
        for row in rows:
            group = shown(keyring_of(connection), "failure_groups", row._mapping)
            since = group["letters"] - group["spoke_letters"]
            quiet = group["state"] != GroupState.OPEN or (group["muted_until"] and group["muted_until"] > now)
            if since >= config.rules.follow_up_at_least and not quiet:
                alert = Alert(
                    kind=Kind.FOLLOW_UP,
                    about=f"follow_up:group:{group['id']}:{group['spoke_letters']}",
                    group_id=group["id"],
                    facts={
                        "group": group_facts(group),
                        "since_then": since,
                        "spoke_at": group["spoke_at"],
                        "command": f"dead-letters groups show {group['id']}",
                    },
                )
                to = config.addresses(Kind.FOLLOW_UP, now=now, task=group["task_name"], queues=_queues(group))
                write(connection, alert, to, now=now)
        connection.execute(
            failure_groups.update().where(c.id.in_([row.id for row in rows])).values(follow_up_at=None)
        )


def end_storms(engine: sa.Engine, config: AlertConfig, *, now: datetime) -> None:
    """Summarise windows in which groups were held back. Raises DatabaseUnavailableError."""
    w = alert_windows.c
    over = w.summarised_at.is_(None) & (w.held_back > 0) & (w.window_at <= now - config.rules.storm_window)
    with reading(engine) as connection:
        windows = connection.execute(sa.select(alert_windows).where(over).order_by(w.window_at)).all()
    for window in windows:
        end = window.window_at + config.rules.storm_window
        with transaction(engine) as connection:
            new = sa.select(failure_groups).where(c.first_seen_at >= window.window_at, c.first_seen_at < end)
            rows = connection.execute(new.order_by(c.letters.desc(), c.id).limit(LISTED)).all()
            alert = Alert(
                kind=Kind.STORM,
                about=f"storm:{window.window_at.isoformat()}",
                facts={
                    "held_back": window.held_back,
                    "from": window.window_at,
                    "until": end,
                    "groups": [
                        _listed(shown(keyring_of(connection), "failure_groups", row._mapping), row.letters)
                        for row in rows
                    ],
                    "command": "dead-letters groups list",
                },
            )
            write(connection, alert, config.addresses(Kind.STORM, now=now), now=now)
            connection.execute(
                alert_windows.update().where(w.window_at == window.window_at).values(summarised_at=now)
            )


def digest(engine: sa.Engine, config: AlertConfig, *, now: datetime) -> None:
    """Write the digest of the period that ended last, once, if anything died. Raises DatabaseUnavailableError."""
    period = digest_period(config, now)
    if period is None:
        return
    begin, end = period
    h = group_hours.c
    inside = (h.hour >= begin) & (h.hour < end)
    about = f"digest:{end.isoformat()}"
    with transaction(engine) as connection:
        total = connection.execute(sa.select(sa.func.sum(h.letters)).where(inside)).scalar()
        if not total:
            return
        number = sa.func.sum(h.letters)
        top = connection.execute(
            sa.select(failure_groups, number.label("number"))
            .join(group_hours, h.group_id == c.id)
            .where(inside)
            .group_by(c.id)
            .order_by(number.desc(), c.id)
            .limit(LISTED)
        ).all()
        new = sa.select(sa.func.count()).where(c.first_seen_at >= begin, c.first_seen_at < end)
        still_open = sa.select(sa.func.count()).where(c.state == GroupState.OPEN.value)
        alert = Alert(
            kind=Kind.DIGEST,
            about=about,
            facts={
                "letters": int(total),
                "period": f"from {begin:%Y-%m-%d %H:%M} to {end:%Y-%m-%d %H:%M} UTC",
                "new_groups": connection.execute(new).scalar_one(),
                "open_groups": connection.execute(still_open).scalar_one(),
                "groups": [
                    _listed(shown(keyring_of(connection), "failure_groups", row._mapping), int(row.number))
                    for row in top
                ],
                "command": "dead-letters groups list",
            },
        )
        write(connection, alert, config.addresses(Kind.DIGEST, now=now), now=now)


def digest_period(config: AlertConfig, now: datetime) -> tuple[datetime, datetime] | None:
    """Begin and end of the digest's last whole period; None where there are no digests."""
    match config.digest:
        case "hourly":
            end = now.replace(minute=0, second=0, microsecond=0)
            return end - timedelta(hours=1), end
        case "daily":
            local = now.astimezone(config.zone)
            at = datetime.combine(local.date(), config.digest_at, tzinfo=config.zone)
            if at > local:
                at = datetime.combine(local.date() - timedelta(days=1), config.digest_at, tzinfo=config.zone)
            end = at.astimezone(now.tzinfo)
            return end - timedelta(days=1), end
        case _:
            return None


def bounds(
    engine: sa.Engine,
    config: AlertConfig,
    *,
    depths: Mapping[str, float],
    oldest_seconds: float,
    now: datetime,
) -> None:
    """Speak of queues that are too deep and of letters that wait too long. Raises DatabaseUnavailableError."""
    rules = config.rules
    window = int(now.timestamp() // rules.bound_window.total_seconds())
    found: list[Alert] = []
    for queue, depth in depths.items():
        if rules.depth_over is not None and depth > rules.depth_over:
            note = f"{queue} has {depth:.0f} messages, more than {rules.depth_over}: is the drain fast enough?"
            facts: dict[str, Any] = {"about": queue, "queue": queue, "depth": int(depth), "note": note}
            found.append(Alert(kind=Kind.QUEUE_DEPTH, about=f"queue_depth:{queue}:{window}", facts=facts))
    if rules.age_over is not None and oldest_seconds > rules.age_over.total_seconds():
        note = f"The oldest letter that is not stored died {oldest_seconds / 60:.0f} minutes ago."
        facts = {"oldest_seconds": oldest_seconds, "note": note}
        found.append(Alert(kind=Kind.QUEUE_AGE, about=f"queue_age:{window}", facts=facts))
    if found:
        with transaction(engine) as connection:
            for alert in found:
                queues = (alert.facts["queue"],) if "queue" in alert.facts else ()
                write(connection, alert, config.addresses(alert.kind, now=now, queues=queues), now=now)


def forget(engine: sa.Engine, *, now: datetime) -> None:
    """Drop hours that no picture shows any more. Raises DatabaseUnavailableError."""
    with transaction(engine) as connection:
        connection.execute(group_hours.delete().where(group_hours.c.hour < now - KEEP_HOURS))
        # Alerts of channels that are configured no longer.
        connection.execute(
            alert_deliveries.update()
            .where(
                alert_deliveries.c.state == DeliveryState.WAITING.value,
                alert_deliveries.c.due_at < now - GIVE_UP_AFTER,
            )
            .values(state=DeliveryState.FAILED.value, error="nobody sends to this channel")
        )
        connection.execute(alert_windows.delete().where(alert_windows.c.window_at < now - KEEP_HOURS))


def _listed(group: dict[str, Any], letters: int) -> dict[str, Any]:
    return {"id": group["id"], "title": group["title"], "task": group["task_name"], "letters": letters}


def _queues(group: dict[str, Any]) -> tuple[str, ...]:
    return tuple(group_facts(group)["queues"])
