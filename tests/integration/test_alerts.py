"""Alerts on their way from the transaction that decides them to real receivers."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import hmac
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from consumers import alert_chores, groups
from consumers.alert_channels import TIMEOUT_SECONDS
from consumers.alert_config import AlertConfig, ChannelConfig, Route
from consumers.alert_rules import AlertRules, Kind, Severity
from consumers.alert_service import AlertService, Watched
from consumers.alerts import DeliveryState, alert_deliveries, alerts
from consumers.audit import Act
from consumers.database import open_database, reading, transaction
from consumers.filing import Filing
from consumers.storing import store
from sandbox.processes import Process, eventually, free_port
from tests.conftest import DEFINITIONS, VirtualHost
from tests.integration.alert_receivers import http_receiver, mail_receiver
from tests.integration.letters import NOW, arrival, groups_in, later
from tests.integration.mailroom import publish, raw_properties, task_headers
from tests.unit import faulty_servers as faults

# Apprise loads every service that it knows, and one of them still uses imghdr.
pytestmark = pytest.mark.filterwarnings("ignore:'imghdr' is deprecated:DeprecationWarning")

KEY = b"a secret of some length"
SECRET = "whsec_" + base64.b64encode(KEY).decode()


class Clock:
    """Real time that a test can set forward."""

    def __init__(self) -> None:
        self.ahead = timedelta()

    def __call__(self) -> datetime:
        """Now, as the test has it."""
        return datetime.now(UTC) + self.ahead


def _hook(name: str, port: int) -> ChannelConfig:
    return ChannelConfig(name=name, url=f"http://127.0.0.1:{port}/hook", secret=SECRET)


@contextlib.contextmanager
def _speaking(
    engine: sa.Engine, config: AlertConfig, clock: Callable[[], datetime], **options: Any
) -> Iterator[AlertService]:
    service = AlertService(engine, config, clock=clock, poll_seconds=0.05, chores_seconds=0.1, **options)
    service.start()
    try:
        yield service
    finally:
        service.stop()


def _states(engine: sa.Engine) -> dict[str, str]:
    with reading(engine) as connection:
        rows = connection.execute(sa.select(alert_deliveries.c.channel, alert_deliveries.c.state))
        return {row.channel: row.state for row in rows}


def _spoken(engine: sa.Engine) -> list[tuple[str, dict[str, Any]]]:
    with reading(engine) as connection:
        rows = connection.execute(sa.select(alerts.c.kind, alerts.c.payload).order_by(alerts.c.id))
        return [(row.kind, json.loads(row.payload)) for row in rows]


def test_an_alert_reaches_every_kind_of_channel(engine: sa.Engine) -> None:
    """A signed webhook, an Apprise service and mail get it, with everything that a person needs (D4)."""
    clock = Clock()
    with http_receiver() as hook, http_receiver() as service, mail_receiver(free_port()) as mail:
        channels = (
            _hook("hook", hook.port),
            ChannelConfig(name="service", url=f"json://127.0.0.1:{service.port}/"),
            ChannelConfig(name="mail", url=f"mailto://127.0.0.1:{mail.port}?from=a@example.org&to=b@example.org"),
        )
        config = AlertConfig(channels=channels)
        store(engine, [arrival("order 17 was declined")], now=clock(), filing=Filing(config))
        with _speaking(engine, config, clock):
            eventually(lambda: hook.requests and service.requests and mail.mails)
            eventually(lambda: set(_states(engine).values()) == {DeliveryState.SENT})
    headers, body = hook.requests[0]
    signed = f"{headers['webhook-id']}.{headers['webhook-timestamp']}.".encode() + body
    expected = base64.b64encode(hmac.new(KEY, signed, hashlib.sha256).digest()).decode()
    assert headers["webhook-signature"] == f"v1,{expected}"
    told = json.loads(body)
    assert told["id"] == headers["webhook-id"]
    assert (told["version"], told["kind"], told["severity"]) == (1, "first_occurrence", "warning")
    assert told["group"]["letters"] == 1
    assert told["letter"]["kwargs"] == '{"card_number": "***"}'
    assert told["command"] == "dead-letters groups show 1"
    assert "GatewayError: order <n> was declined" in told["title"]
    text = service.bodies()[0]["message"]
    for words in (
        "1 letters",
        "Since: 2026-05-04",
        "dead-letters groups show 1",
        told["id"],
        "payments.charge_customer",
    ):
        assert words in text
    assert "4111" not in text
    assert "new failure" in str(mail.mails[0]["Subject"])


def test_channels_that_hang_fail_or_are_down_delay_nothing_and_lose_nothing(engine: sa.Engine) -> None:
    """The good channel and the drain do not notice; the others get every alert once they answer (D4)."""
    clock, down = Clock(), free_port()
    with http_receiver() as good, http_receiver(status=500) as failing, faults.served(faults.says_nothing) as hanging:
        channels = (
            _hook("good", good.port),
            _hook("failing", failing.port),
            _hook("hanging", hanging),
            ChannelConfig(name="down", url=f"mailto://127.0.0.1:{down}?from=a@example.org&to=b@example.org"),
        )
        config = AlertConfig(channels=channels)
        filing = Filing(config)
        with _speaking(engine, config, clock):
            for word in ("one", "two", "three"):
                started, before = time.monotonic(), len(good.requests)
                store(engine, [arrival(f"failure {word}")], now=clock(), filing=filing)
                eventually(lambda before=before: len(good.requests) > before)  # type: ignore[misc]
                assert time.monotonic() - started < TIMEOUT_SECONDS * 0.8
            eventually(lambda: failing.requests)
            failing.status = 200
            with mail_receiver(down) as mail:
                clock.ahead += timedelta(hours=1)
                eventually(lambda: len(mail.mails) == 3 and len({b["id"] for b in failing.bodies()}) == 3)
                eventually(
                    lambda: list(_by_channel(engine, DeliveryState.SENT)) == ["down", "failing", "good", "log"]
                )
    assert _by_channel(engine, DeliveryState.SENT) == {"down": 3, "failing": 3, "good": 3, "log": 3}
    assert _by_channel(engine, DeliveryState.WAITING) == {"hanging": 3}
    assert len(good.requests) == 3
    assert len(mail.mails) == 3


def _by_channel(engine: sa.Engine, state: DeliveryState) -> dict[str, int]:
    d = alert_deliveries.c
    with reading(engine) as connection:
        rows = connection.execute(
            sa.select(d.channel, sa.func.count().label("number"))
            .where(d.state == state.value)
            .group_by(d.channel)
            .order_by(d.channel)
        )
        return {row.channel: row.number for row in rows}


def test_two_services_send_each_alert_once(engine: sa.Engine) -> None:
    """Several drains share one outbox (D4)."""
    clock = Clock()
    with http_receiver() as hook:
        config = AlertConfig(channels=(_hook("hook", hook.port),), rules=AlertRules(storm_cap=1_000))
        other = open_database(engine.url.render_as_string(hide_password=False))
        with _speaking(engine, config, clock), _speaking(other, config, clock):
            words = [f"failure {'abcdefghij'[n // 5]}{'abcde'[n % 5]}x" for n in range(40)]
            store(engine, [arrival(word) for word in words], now=clock(), filing=Filing(config))
            eventually(lambda: _by_channel(engine, DeliveryState.SENT).get("hook") == 40)
        other.dispose()
    ids = [body["id"] for body in hook.bodies()]
    assert len(ids) == len(set(ids)) == 40


SERVICE = """
import signal, sys, threading
from datetime import UTC, datetime, timedelta
from consumers.alert_channels import TIMEOUT_SECONDS
from consumers.alert_config import AlertConfig, ChannelConfig
from consumers.alert_service import AlertService
from consumers.database import open_database

url, hook, secret, ahead = sys.argv[1:]
config = AlertConfig(channels=(ChannelConfig(name="hook", url=hook, secret=secret),))
AlertService(
    open_database(url), config, clock=lambda: datetime.now(UTC) + timedelta(seconds=float(ahead)), poll_seconds=0.05
).start()
threading.Event().wait()
"""


def _service(engine: sa.Engine, hook: str, folder: Path, *, ahead: int) -> Process:
    url = engine.url.render_as_string(hide_password=False)
    command: Sequence[str | Path] = [sys.executable, "-c", SERVICE, url, hook, SECRET, str(ahead)]
    return Process(command, log=folder / f"service-{ahead}.log", cwd=Path.cwd())


def test_a_service_that_is_killed_before_it_sends_loses_nothing(engine: sa.Engine, tmp_path: Path) -> None:
    """The alert is committed with its letter, so the next service sends it, once (D4)."""
    config = AlertConfig(channels=(ChannelConfig(name="hook", url="http://unused", secret=SECRET),))
    store(engine, [arrival("declined")], now=datetime.now(UTC), filing=Filing(config))
    with http_receiver() as hook:
        service = _service(engine, hook.url, tmp_path, ahead=0)
        try:
            eventually(lambda: _by_channel(engine, DeliveryState.SENT) == {"hook": 1, "log": 1})
        finally:
            service.kill()
        assert len(hook.requests) == 1


def test_a_service_that_is_killed_before_it_records_sends_the_same_alert_again(
    engine: sa.Engine, tmp_path: Path
) -> None:
    """At least once, at most once repeated, and by the same id (D4)."""
    config = AlertConfig(channels=(ChannelConfig(name="hook", url="http://unused", secret=SECRET),))
    store(engine, [arrival("declined")], now=datetime.now(UTC), filing=Filing(config))
    with http_receiver() as hook:
        running: list[Process] = []
        hook.before_answer = lambda: os.kill(running[-1].pid, signal.SIGKILL) if len(running) == 1 else None
        running.append(_service(engine, hook.url, tmp_path, ahead=0))
        eventually(lambda: running[0].exit_code is not None)
        assert len(hook.requests) == 1
        running.append(_service(engine, hook.url, tmp_path, ahead=600))
        try:
            eventually(lambda: _by_channel(engine, DeliveryState.SENT).get("hook") == 1)
        finally:
            for service in running:
                service.kill()
        assert len(hook.requests) == 2
        assert len({headers["webhook-id"] for headers, _ in hook.requests}) == 1


def test_a_channel_that_is_gone_for_good_is_given_up(engine: sa.Engine) -> None:
    """410 ends it at once, two days of silence end it too (D4)."""
    clock = Clock()
    with http_receiver(status=410) as gone, http_receiver(status=500) as silent:
        config = AlertConfig(channels=(_hook("gone", gone.port), _hook("silent", silent.port)))
        store(engine, [arrival("declined")], now=clock(), filing=Filing(config))
        with _speaking(engine, config, clock):
            eventually(lambda: _states(engine)["gone"] == DeliveryState.FAILED)
            eventually(lambda: silent.requests)
            clock.ahead += timedelta(days=3)
            eventually(lambda: _states(engine)["silent"] == DeliveryState.FAILED)


@pytest.mark.parametrize("letters", [10_000, pytest.param(100_000, marks=pytest.mark.soak)])
def test_a_storm_of_one_group_is_one_alert_and_one_follow_up(engine: sa.Engine, letters: int) -> None:
    """However many letters come, two messages say it, the second with the count (D4)."""
    config = AlertConfig(rules=AlertRules(follow_up_after=timedelta(minutes=5)))
    filing = Filing(config)
    for batch in range(letters // 1_000):
        arrivals = [arrival(f"order {number} was declined") for number in range(1_000)]
        store(engine, arrivals, now=later(seconds=batch), filing=filing)
        alert_chores.follow_up(engine, config, now=later(seconds=batch))
    for minutes in (6, 7, 20, 40):
        store(engine, [arrival("order 1 was declined")], now=later(minutes=minutes), filing=filing)
        alert_chores.follow_up(engine, config, now=later(minutes=minutes))
    spoken = _spoken(engine)
    assert [kind for kind, _ in spoken] == ["first_occurrence", "follow_up"]
    assert spoken[1][1]["since_then"] == letters - 1_000 + 1


def test_a_storm_of_groups_is_summarised_when_it_ends(engine: sa.Engine) -> None:
    """Ten speak, and one summary says how many more there were (D4)."""
    config = AlertConfig()
    words = [f"failure {a}{b}{c}x" for a in "abcde" for b in "abcdefghij" for c in "abcdefghij"]
    store(engine, [arrival(word) for word in words], now=NOW, filing=Filing(config))
    alert_chores.end_storms(engine, config, now=later(seconds=10))
    assert len(_spoken(engine)) == 10
    assert len([group for group in groups_in(engine) if group["follow_up_at"]]) == 10
    for _ in range(2):
        alert_chores.end_storms(engine, config, now=later(minutes=11))
    kind, facts = _spoken(engine)[-1]
    assert (kind, facts["held_back"], len(facts["groups"])) == (Kind.STORM, 490, 10)
    assert len(_spoken(engine)) == 11


def test_the_digest_tells_the_volume_of_its_period_once(engine: sa.Engine) -> None:
    """What died between two boundaries, the largest groups first; nothing where nothing died (D4)."""
    config = AlertConfig(digest="hourly")
    letters = [arrival("declined") for _ in range(3)] + [arrival("too late", died_at=later(hours=1))]
    store(engine, letters, now=later(hours=1), filing=Filing(config))
    for _ in range(2):
        alert_chores.digest(engine, config, now=later(minutes=40))
        alert_chores.digest(engine, config, now=later(hours=9))
    digests = [facts for kind, facts in _spoken(engine) if kind == Kind.DIGEST]
    assert [(facts["letters"], facts["new_groups"]) for facts in digests] == [(3, 1)]
    assert digests[0]["groups"][0]["letters"] == 3


def test_queues_over_a_bound_are_told_once_an_hour(engine: sa.Engine) -> None:
    """Depth and age each have a bound (D4)."""
    config = AlertConfig(rules=AlertRules(depth_over=100, age_over=timedelta(minutes=5)))
    for minutes in (0, 10, 70):
        alert_chores.bounds(
            engine,
            config,
            depths={"dead-letters": 500, "unroutable": 3},
            oldest_seconds=600,
            now=later(minutes=minutes),
        )
    assert [kind for kind, _ in _spoken(engine)] == ["queue_depth", "queue_age"] * 2


def test_a_drain_that_cannot_store_says_so_past_its_database(tmp_path: Path) -> None:
    """The outbox is in the database that is away; the alert goes out all the same, and its end as well (D4)."""
    away = open_database(f"sqlite:///{tmp_path}/missing/folder.db")
    clock = Clock()
    problem: list[str | None] = ["the disk is full"]
    asked: list[str | None] = []

    def storing_problem() -> str | None:
        asked.append(problem[0])
        return problem[0]

    with http_receiver() as hook:
        config = AlertConfig(channels=(_hook("hook", hook.port),))
        with _speaking(away, config, clock, watched=Watched(storing_problem=storing_problem)):
            eventually(lambda: len(asked) > 2)
            assert not hook.requests
            clock.ahead += timedelta(minutes=2)
            eventually(lambda: [body["kind"] for body in hook.bodies()] == ["cannot_store"])
            assert "the disk is full" in hook.bodies()[0]["text"]
            problem[0] = None
            eventually(lambda: [body["kind"] for body in hook.bodies()] == ["cannot_store", "stores_again"])
    away.dispose()


def test_quiet_hours_and_routes_hold_for_what_is_written(engine: sa.Engine) -> None:
    """A route by severity keeps a first occurrence from the pager, and lets a regression through (D4)."""
    channels = (ChannelConfig(name="pager", url="json://unused"), ChannelConfig(name="chat", url="json://unused"))
    routes = (Route(channels=("pager",), severities=(Severity.CRITICAL,)), Route(channels=("chat",)))
    filing = Filing(AlertConfig(channels=channels, routes=routes))
    store(engine, [arrival("declined")], now=NOW, filing=filing)
    assert set(_states(engine)) == {"log", "chat"}
    with transaction(engine) as connection:
        groups.settle(connection, 1, Act(actor="alice", reason="fixed"), now=NOW)
    store(engine, [arrival("declined", died_at=later(hours=1))], now=later(hours=1), filing=filing)
    assert _by_channel(engine, DeliveryState.WAITING) == {"chat": 2, "log": 2, "pager": 1}


@pytest.mark.parametrize("secret", ["whsec_!!", "whsec_YQ=="])
def test_a_weak_secret_is_refused(tmp_path: Path, secret: str) -> None:
    """A webhook whose signature proves nothing is refused before the drain starts (D4)."""
    engine = open_database(f"sqlite:///{tmp_path}/x.db")
    config = AlertConfig(channels=(ChannelConfig(name="hook", url="http://127.0.0.1/", secret=secret),))
    with pytest.raises(Exception, match="secret"):
        AlertService(engine, config, clock=Clock())
    engine.dispose()


def test_the_drain_service_speaks(deployed: VirtualHost, engine: sa.Engine, tmp_path: Path) -> None:
    """A letter that comes from the broker is stored, grouped and told, by one process (D4)."""
    with http_receiver() as hook:
        drain = Process(
            [sys.executable, "-m", "consumers", "drain"],
            log=tmp_path / "drain.log",
            env={
                "AMQP_URL": deployed.url,
                "DATABASE_URL": engine.url.render_as_string(hide_password=False),
                "TOPOLOGY_FILE": str(DEFINITIONS),
                "REDIS_URL": "",
                "HEALTH_PORT": "0",
                "LOG_FORMAT": "json",
                "ALERT_URLS": f"json://127.0.0.1:{hook.port}/",
            },
            cwd=tmp_path,
        )
        try:
            message = (raw_properties(task_headers(task="payments.charge_customer")), b"[[17], {}, {}]")
            publish(deployed.url, [message] * 3)
            eventually(lambda: hook.requests, seconds=60)
            eventually(lambda: '"event": "alert.first_occurrence"' in drain.output())
            assert drain.stop() == 0
        finally:
            drain.kill()
    assert [body["title"] for body in hook.bodies()] == [
        "[warning] new failure: unknown: payments.charge_customer from dead-letters"
    ]
