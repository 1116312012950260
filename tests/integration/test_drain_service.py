"""The drain as a process: killed, stopped, cut off, and left without its servers."""

from __future__ import annotations

import json
import random
import signal
import time
import zlib
from pathlib import Path

import httpx
import pytest
import sqlalchemy as sa

from broker_topology.address import BrokerAddress
from broker_topology.deploy import deploy
from broker_topology.wire import RawProperties, wired
from consumers.database import open_database, require_schema
from sandbox.processes import eventually, free_port
from sandbox.servers import PrivatePostgreSQL, PrivateRabbitMQ
from tests.conftest import VirtualHost
from tests.integration.drain_processes import (
    StartDrain,
    body_count,
    letters,
    locked,
    peak_kilobytes,
    readiness,
    row_count,
    stop_when_empty,
)
from tests.integration.mailroom import DEAD_LETTER_QUEUE, TOPOLOGY, depth, long, publish, raw_properties, task_headers


def test_sigterm_finishes_the_batch_and_exits_with_zero(
    deployed: VirtualHost, engine: sa.Engine, start_drain: StartDrain
) -> None:
    """What was stored is acknowledged, what was not is still in the queue, the exit code is 0 (D1)."""
    publish(deployed.url, letters(3000))
    drain = start_drain(deployed.url, engine.url.render_as_string(hide_password=False))
    eventually(lambda: row_count(engine) > 0, every=0.01)
    assert drain.stop() == 0
    stored = row_count(engine)
    eventually(lambda: stored + depth(deployed.url, DEAD_LETTER_QUEUE) == 3000)


def test_a_stop_does_not_wait_for_a_database_that_is_away(
    deployed: VirtualHost, engine: sa.Engine, start_drain: StartDrain
) -> None:
    """With its table locked the drain ends in time and with 0; what it had in hand is in the queue again (D1)."""
    drain = start_drain(deployed.url, engine.url.render_as_string(hide_password=False), DRAIN_STOP_SECONDS="1")
    with locked(engine):
        publish(deployed.url, letters(10))
        eventually(lambda: "broker.connected" in drain.output() and depth(deployed.url, DEAD_LETTER_QUEUE) == 0)
        drain.signal(signal.SIGTERM)
        assert drain.wait(seconds=10) == 0
    assert "drain.gave_up" in drain.output()
    eventually(lambda: depth(deployed.url, DEAD_LETTER_QUEUE) == 10)
    assert row_count(engine) == 0


@pytest.mark.parametrize("kills", [8, pytest.param(200, marks=pytest.mark.soak)])
def test_two_drains_that_are_killed_lose_and_double_nothing(
    deployed: VirtualHost, engine: sa.Engine, start_drain: StartDrain, kills: int
) -> None:
    """SIGKILL at random moments while letters pass, two drains at once: each letter is one row (D1)."""
    total = 20_000 if kills > 100 else 3000
    url = engine.url.render_as_string(hide_password=False)
    batch = letters(total)
    rng = random.Random(kills)
    drains = [start_drain(deployed.url, url) for _ in range(2)]
    for number in range(kills):
        share = total // kills
        publish(deployed.url, batch[number * share : (number + 1) * share])
        # From "nothing of this share is stored" to "nearly all of it is".
        goal = number * share + rng.randrange(share)
        eventually(lambda goal=goal: row_count(engine) >= goal, every=0.005)  # type: ignore[misc]
        drains[number % 2].kill()
        drains[number % 2] = start_drain(deployed.url, url)
    publish(deployed.url, batch[kills * (total // kills) :])
    eventually(lambda: body_count(engine) == total, seconds=60)
    stop_when_empty(*drains, url=deployed.url)
    assert row_count(engine) == total


@pytest.mark.long
def test_25_kills_of_a_drain_that_holds_the_same_letters_drop_none(
    deployed: VirtualHost, postgresql_url: str, start_drain: StartDrain
) -> None:
    """A crash-looping drain never brings a letter to a delivery limit (D1, D3)."""
    engine = open_database(postgresql_url)
    require_schema(engine, auto_upgrade=True)
    publish(deployed.url, letters(10))
    with engine.connect() as blocker:
        # The drain holds its letters for as long as their table is locked.
        blocker.execute(sa.text("LOCK TABLE dead_letters IN ACCESS EXCLUSIVE MODE"))
        for _ in range(25):
            port = free_port()
            drain = start_drain(deployed.url, postgresql_url, HEALTH_PORT=str(port))
            eventually(lambda: depth(deployed.url, DEAD_LETTER_QUEUE) == 0, every=0.02)
            drain.kill()
            eventually(lambda: depth(deployed.url, DEAD_LETTER_QUEUE) == 10, every=0.02)
    start_drain(deployed.url, postgresql_url)
    eventually(lambda: row_count(engine) == 10)
    engine.dispose()


def test_health_follows_the_database(
    deployed: VirtualHost, own_postgresql: PrivatePostgreSQL, start_drain: StartDrain
) -> None:
    """Ready, unready with the reason while the database is away, ready again; no letter is lost (D1)."""
    engine = open_database(own_postgresql.url)
    require_schema(engine, auto_upgrade=True)
    port = free_port()
    start_drain(deployed.url, own_postgresql.url, HEALTH_PORT=str(port))
    eventually(lambda: readiness(port)["ok"])
    engine.dispose()
    own_postgresql.kill()
    publish(deployed.url, letters(10))
    eventually(lambda: "database" in "".join(readiness(port)["reasons"]))
    assert readiness(port)["ok"] is False
    assert httpx.get(f"http://127.0.0.1:{port}/livez", timeout=5).status_code == 200
    own_postgresql.start()
    eventually(lambda: readiness(port)["ok"])
    eventually(lambda: row_count(engine) == 10)
    metrics = httpx.get(f"http://127.0.0.1:{port}/metrics", timeout=5).text
    assert (
        'dead_letters_stored_total{queue="dead-letters",reason="unknown",task="payments.charge_customer"} 10.0'
        in metrics
    )
    engine.dispose()


def test_a_database_that_is_away_at_the_start_is_waited_for(
    deployed: VirtualHost, own_postgresql: PrivatePostgreSQL, start_drain: StartDrain
) -> None:
    """The drain lives and says why it is not ready, can be stopped, and begins once the database answers (D1)."""
    engine = open_database(own_postgresql.url)
    require_schema(engine, auto_upgrade=True)
    own_postgresql.kill()
    publish(deployed.url, letters(10))
    port = free_port()
    drain = start_drain(deployed.url, own_postgresql.url, HEALTH_PORT=str(port))
    eventually(lambda: "database: the database cannot be reached: " in "".join(readiness(port)["reasons"]))
    assert httpx.get(f"http://127.0.0.1:{port}/livez", timeout=5).status_code == 200
    assert drain.stop() == 0
    start_drain(deployed.url, own_postgresql.url, HEALTH_PORT=str(port))
    eventually(lambda: readiness(port)["ok"] is False)
    own_postgresql.start()
    eventually(lambda: row_count(engine) == 10)
    eventually(lambda: readiness(port)["ok"])
    engine.dispose()


def test_a_broker_that_restarts_loses_and_doubles_nothing(
    own_rabbitmq: PrivateRabbitMQ, tmp_path: Path, start_drain: StartDrain
) -> None:
    """The broker crashes again and again under a drain: each letter is one row (D1, D3)."""
    url = own_rabbitmq.url + "/%2F"
    deploy(TOPOLOGY, url, management_url=own_rabbitmq.management_url)
    database_url = f"sqlite:///{tmp_path}/letters.db"
    engine = open_database(database_url)
    require_schema(engine, auto_upgrade=True)
    port = free_port()
    start_drain(url, database_url, HEALTH_PORT=str(port))
    for number in range(1, 4):
        publish(url, letters(1000))
        eventually(lambda goal=number * 1000 - 900: row_count(engine) >= goal, every=0.01)  # type: ignore[misc]
        own_rabbitmq.restart()
    eventually(lambda: row_count(engine) == 3000, seconds=60)
    eventually(lambda: readiness(port)["ok"], seconds=60)
    publish(url, letters(1))
    eventually(lambda: row_count(engine) == 3001)
    assert depth(url, DEAD_LETTER_QUEUE) == 0
    engine.dispose()


@pytest.mark.soak
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("fault", ["broker restarted", "postgresql stopped"])
def test_two_drains_that_are_killed_while_their_servers_fail_lose_and_double_nothing(
    own_rabbitmq: PrivateRabbitMQ, own_postgresql: PrivatePostgreSQL, start_drain: StartDrain, fault: str
) -> None:
    """20,000 letters, SIGKILLs, and a broker that crashes every few seconds or 30 s without a database (D1, D3)."""
    url, rounds, share = own_rabbitmq.url + "/%2F", 20, 1000
    deploy(TOPOLOGY, url, management_url=own_rabbitmq.management_url)
    engine = open_database(own_postgresql.url)
    require_schema(engine, auto_upgrade=True)
    drains = [start_drain(url, own_postgresql.url) for _ in range(2)]

    def replace(number: int) -> None:
        drains[number % 2].kill()
        drains[number % 2] = start_drain(url, own_postgresql.url)

    rng = random.Random(rounds)
    for number in range(rounds):
        publish(url, letters(share))
        goal = number * share + rng.randrange(share)
        eventually(lambda goal=goal: row_count(engine) >= goal, every=0.005)  # type: ignore[misc]
        replace(number)
        if fault == "broker restarted":
            own_rabbitmq.restart()
        elif number == rounds // 2:
            own_postgresql.kill()
            for victim in range(10):
                time.sleep(3)  # how long it is away is the point
                replace(victim)
            own_postgresql.start()
    eventually(lambda: body_count(engine) == rounds * share, seconds=120)
    stop_when_empty(*drains, url=url)
    assert row_count(engine) == rounds * share
    engine.dispose()


@pytest.mark.soak  # a figure: it needs a quiet machine
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(("small", "large"), [(5_000, 20), (1_000_000, 1_000)])
def test_a_backlog_does_not_fill_the_memory(
    deployed: VirtualHost, engine: sa.Engine, start_drain: StartDrain, small: int, large: int
) -> None:
    """Behind a backlog of small letters come some of 10 MB each: less than 200 MB are used (D1)."""
    body = json.dumps([["x" * 10_000_000], {}, {}]).encode()
    with wired(BrokerAddress.parse(deployed.url)) as connection:
        channel = connection.channel()
        for _ in range(small):
            channel.basic_publish(
                "", DEAD_LETTER_QUEUE, b"[[], {}, {}]", RawProperties(raw_properties(task_headers()))
            )
    for _ in range(large):
        publish(deployed.url, [(raw_properties(task_headers()), body)])
    drain = start_drain(deployed.url, engine.url.render_as_string(hide_password=False))
    eventually(lambda: row_count(engine) == small + large, seconds=90 + small / 1000 + large, every=1)
    peak = peak_kilobytes(drain)
    print(f"{peak // 1000} MB at most with {small} small letters and {large} large ones")
    assert peak < 200_000, f"{peak // 1000} MB"


def test_compressed_letters_count_as_what_they_unpack_to(
    deployed: VirtualHost, engine: sa.Engine, start_drain: StartDrain
) -> None:
    """Thirty of 12 kB that hold 12 MB each are not in memory at once (D1, D2)."""
    body = zlib.compress(json.dumps([["x" * 12_000_000], {}, {}]).encode(), 9)
    compressed = [*task_headers(), (b"compression", long(b"application/x-gzip"))]
    drain = start_drain(deployed.url, engine.url.render_as_string(hide_password=False))
    eventually(lambda: "broker.connected" in drain.output())
    with locked(engine):
        publish(deployed.url, [(raw_properties(compressed), body)] * 30)
        eventually(lambda: "intake.too_much" in drain.output())
    eventually(lambda: row_count(engine) == 1 and depth(deployed.url, DEAD_LETTER_QUEUE) == 0)
    peak = peak_kilobytes(drain)
    assert peak < 300_000, f"{peak // 1000} MB"


@pytest.mark.soak  # a figure: it needs a quiet machine
def test_an_idle_drain_costs_nothing(deployed: VirtualHost, engine: sa.Engine, start_drain: StartDrain) -> None:
    """Ten seconds without letters take less than 1% of a processor (D1)."""
    port = free_port()
    drain = start_drain(deployed.url, engine.url.render_as_string(hide_password=False), HEALTH_PORT=str(port))
    eventually(lambda: readiness(port)["ok"])

    def used() -> float:
        fields = Path(f"/proc/{drain.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / 100

    def turns() -> float:
        text = httpx.get(f"http://127.0.0.1:{port}/metrics", timeout=5).text
        return float(next(line.split()[1] for line in text.splitlines() if line.startswith("dead_letters_turns")))

    before, begun = used(), turns()
    eventually(lambda: turns() >= begun + 5, seconds=30, every=1)
    assert used() - before < 0.1


def test_stopped_servers_and_wrong_settings_say_so(tmp_path: Path, start_drain: StartDrain) -> None:
    """A configuration error is one sentence and exit code 78; a broker that is away is waited for (D1)."""
    url, database = "amqp://guest:guest@127.0.0.1:1/", f"sqlite:///{tmp_path}/letters.db"
    for settings, words in (
        ({"TOPOLOGY_FILE": "missing.json"}, "cannot read missing.json"),
        ({"DRAIN_PREFETCH": "many"}, "DRAIN_PREFETCH is wrong"),
    ):
        failed = start_drain(url, database, **settings)
        assert failed.wait() == 78
        assert words in failed.output()
        assert "Traceback" not in failed.output()
    waiting = start_drain(url, database)
    eventually(lambda: waiting.output().count("broker.away") > 1)
    assert waiting.stop() == 0
    waiting.signal(signal.SIGTERM)
