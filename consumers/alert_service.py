"""The service that empties the outbox: one thread decides what no letter brings about, one for each channel sends.

A channel that hangs or is down holds up nobody else, and never the drain: it is tried again with growing
pauses, and its alerts wait in the database meanwhile.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from queue import Empty, SimpleQueue

import sqlalchemy as sa
import structlog

from consumers import alert_chores, alerts
from consumers.alert_channels import Channel, ChannelError, LogChannel, open_channel
from consumers.alert_config import AlertConfig
from consumers.alert_rules import SEVERITIES, Kind
from consumers.alerts import Delivery
from consumers.database import DatabaseUnavailableError, transaction

log = structlog.get_logger()

POLL_SECONDS = 0.5
CHORES_SECONDS = 5.0
FORGET_SECONDS = 3600.0
BATCH = 1
"""A channel may be slow: what it has not sent yet is not claimed either."""
STOP_SECONDS = 5.0
"""How long a stop waits for what is being sent; what is cut off then is sent once more by the next drain."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Watched:
    """What the service looks at beside the database."""

    depths: Callable[[], Mapping[str, float]] = dict
    """Messages in each dead-letter queue."""
    oldest_seconds: Callable[[], float] = float
    """Age of the oldest letter that waits to be stored."""
    storing_problem: Callable[[], str | None] = lambda: None
    """Why nothing can be stored now."""


class AlertService:
    """Sends alerts while a drain runs."""

    def __init__(
        self,
        engine: sa.Engine,
        config: AlertConfig,
        *,
        clock: Callable[[], datetime],
        watched: Watched | None = None,
        channels: Sequence[Channel] | None = None,
        poll_seconds: float = POLL_SECONDS,
        chores_seconds: float = CHORES_SECONDS,
    ) -> None:
        self._engine, self._config, self._clock = engine, config, clock
        self._watched = watched or Watched()
        self._poll_seconds, self._chores_seconds = poll_seconds, chores_seconds
        if channels is None:
            channels = [open_channel(channel, clock=clock) for channel in config.channels]
        self._stopping = threading.Event()
        self._posts = {
            channel.name: _Post(engine, channel, clock, self._stopping, poll_seconds)
            for channel in (LogChannel(), *channels)
        }
        self._thread = threading.Thread(target=self._watch, name="alerts", daemon=True)
        self._digest_end: datetime | None = None
        self._forget_at = 0.0
        self._trouble = _Trouble()

    def start(self) -> None:
        """Begin to decide and to send."""
        self._thread.start()
        for post in self._posts.values():
            post.start()

    def stop(self) -> None:
        """End; what is being sent may finish."""
        self._stopping.set()
        deadline = time.monotonic() + STOP_SECONDS
        for thread in (self._thread, *self._posts.values()):
            thread.join(max(0.0, deadline - time.monotonic()))

    def _watch(self) -> None:
        while True:
            try:
                self._do_chores(self._clock())
            except DatabaseUnavailableError as error:
                log.debug("alerts.database_away", problem=str(error))
            except Exception:
                log.exception("alerts.chores_failed")
            if self._stopping.wait(self._chores_seconds):
                return

    def _do_chores(self, now: datetime) -> None:
        self._watch_storing(now)
        alert_chores.follow_up(self._engine, self._config, now=now)
        alert_chores.end_storms(self._engine, self._config, now=now)
        alert_chores.bounds(
            self._engine,
            self._config,
            depths=self._watched.depths(),
            oldest_seconds=self._watched.oldest_seconds(),
            now=now,
        )
        period = alert_chores.digest_period(self._config, now)
        if period and period[1] != self._digest_end:
            alert_chores.digest(self._engine, self._config, now=now)
            self._digest_end = period[1]
        if time.monotonic() >= self._forget_at:
            alert_chores.forget(self._engine, now=now)
            self._forget_at = time.monotonic() + FORGET_SECONDS

    def _watch_storing(self, now: datetime) -> None:
        """The outbox cannot tell that it cannot be written: this alert goes past it."""
        problem = self._watched.storing_problem()
        rules = self._config.rules
        match self._trouble.seen(problem, now, after=rules.cannot_store_after, again_after=rules.bound_window):
            case Kind.CANNOT_STORE:
                self._send_past_outbox(
                    Kind.CANNOT_STORE, f"{problem}. Nothing is lost: letters wait in the queue.", now
                )
            case Kind.STORES_AGAIN:
                self._send_past_outbox(Kind.STORES_AGAIN, "The database answers again.", now)

    def _send_past_outbox(self, kind: Kind, note: str, now: datetime) -> None:
        delivery = Delivery(
            delivery_id=0,
            uid=uuid.uuid4().hex,
            kind=kind,
            severity=SEVERITIES[kind],
            at=now,
            facts={"note": note},
            attempts=1,
        )
        for address in self._config.addresses(kind, now=now):
            self._posts[address.channel].send_now(delivery)


class _Trouble:
    """How long something has not worked, and when that was last said."""

    def __init__(self) -> None:
        self._since: datetime | None = None
        self._said_at: datetime | None = None

    def seen(self, problem: str | None, now: datetime, *, after: timedelta, again_after: timedelta) -> Kind | None:
        """What there is to say now."""
        if problem is None:
            said, self._since, self._said_at = self._said_at, None, None
            return Kind.STORES_AGAIN if said else None
        self._since = self._since or now
        if now - self._since < after or (self._said_at and now - self._said_at < again_after):
            return None
        self._said_at = now
        return Kind.CANNOT_STORE


class _Post(threading.Thread):
    """Sends the deliveries of one channel, one after the other."""

    def __init__(
        self,
        engine: sa.Engine,
        channel: Channel,
        clock: Callable[[], datetime],
        stopping: threading.Event,
        poll_seconds: float,
    ) -> None:
        super().__init__(name=f"alerts to {channel.name}", daemon=True)
        self._engine, self._channel, self._clock = engine, channel, clock
        self._stopping, self._poll_seconds = stopping, poll_seconds
        self._direct: SimpleQueue[Delivery] = SimpleQueue()

    def send_now(self, delivery: Delivery) -> None:
        """Send something that is not in the outbox, once."""
        self._direct.put(delivery)

    def run(self) -> None:
        """Send until stopped."""
        while not self._stopping.is_set():
            try:
                busy = self._send_direct() or self._send_due()
            except DatabaseUnavailableError:
                busy = False
            except Exception:
                log.exception("alert.sending_failed", channel=self._channel.name)
                busy = False
            if not busy:
                self._stopping.wait(self._poll_seconds)

    def _send_direct(self) -> bool:
        try:
            delivery = self._direct.get_nowait()
        except Empty:
            return False
        try:
            self._channel.send(delivery)
        except ChannelError as error:
            log.warning("alert.not_sent", channel=self._channel.name, kind=delivery.kind.value, problem=str(error))
        return True

    def _send_due(self) -> bool:
        if not alerts.any_due(self._engine, self._channel.name, now=self._clock()):
            return False
        with transaction(self._engine) as connection:
            taken = alerts.claim(connection, self._channel.name, now=self._clock(), limit=BATCH)
        for delivery in taken:
            self._send(delivery)
        return bool(taken)

    def _send(self, delivery: Delivery) -> None:
        try:
            self._channel.send(delivery)
        except ChannelError as error:
            with transaction(self._engine) as connection:
                again = alerts.record_failure(connection, delivery, str(error), now=self._clock(), final=error.final)
            log.warning(
                "alert.not_sent",
                channel=self._channel.name,
                alert=delivery.uid,
                attempts=delivery.attempts,
                problem=str(error),
                gives_up=not again,
            )
            return
        with transaction(self._engine) as connection:
            alerts.record_sent(connection, delivery.delivery_id, now=self._clock())


def send_test(
    config: AlertConfig, *, clock: Callable[[], datetime], only: str | None = None
) -> dict[str, str | None]:
    """Send one test through each channel, at once; channel to problem, None where it answered."""
    delivery = Delivery(
        delivery_id=0,
        uid=uuid.uuid4().hex,
        kind=Kind.TEST,
        severity=SEVERITIES[Kind.TEST],
        at=clock(),
        facts={"note": "This is a test: alerts of dead letters arrive here.", "command": "dead-letters alerts test"},
        attempts=1,
    )
    outcome: dict[str, str | None] = {}
    for channel in config.channels:
        if only is not None and channel.name != only:
            continue
        try:
            open_channel(channel, clock=clock).send(delivery)
            outcome[channel.name] = None
        except ChannelError as error:
            outcome[channel.name] = str(error)
    return outcome
