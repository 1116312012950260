"""Replays from the command line while they are killed, raced for, refused, and cut off from their broker."""

from __future__ import annotations

import json
import signal
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from broker_topology.deploy import deploy
from broker_topology.message import REPLAY_ID_HEADER
from broker_topology.raw_properties import read_properties
from consumers.audit import Act, Action, audit_log
from consumers.database import open_database, reading, require_schema
from consumers.publisher import Publisher
from consumers.replay import ReplayOptions, replay
from consumers.replays import replay_items
from consumers.shell import now
from sandbox.processes import Process, eventually
from sandbox.road import Road
from sandbox.servers import PrivateRabbitMQ, management_url, vhost_url
from sandbox.services import OutsideServices
from tests.conftest import VirtualHost
from tests.integration.mailroom import (
    TOPOLOGY,
    WORK_QUEUE,
    depth,
    draining,
    let_die,
    publish,
    raw_properties,
    rows,
    stored_rows,
    take,
    task_headers,
)

BODY = b"[[1], {}, {}]"
EXIT_REFUSED, EXIT_UNAVAILABLE = 1, 75
BECAUSE = ("--reason", "the provider is back", "--by", "ann")


@dataclass(frozen=True, kw_only=True)
class Office:
    """A road without workers: letters die by hand, and what a replay publishes stays in its queue."""

    road: Road
    engine: sa.Engine

    @property
    def url(self) -> str:
        """The broker's address."""
        return self.road.amqp_url

    def dead(self, count: int) -> list[str]:
        """Let that many messages die and be stored; returns the ids of all letters."""
        messages = [(raw_properties(task_headers()), BODY) for _ in range(count)]
        publish(self.url, messages, exchange="work", routing_key=WORK_QUEUE)
        let_die(self.url, count)
        with draining(self.url, self.engine):
            return [str(row["id"]) for row in stored_rows(self.engine, count, seconds=120)]

    def start(self, *arguments: str) -> Process:
        """Start a command of the office."""
        number = len(self.road.processes)
        return self.road.start(f"office-{number}", ["dead-letters", *arguments])

    def run(self, *arguments: str) -> tuple[int, str]:
        """Run a command of the office; returns its exit code and all that it says."""
        ended = self.road.command("dead-letters", *arguments)
        return ended.returncode, ended.stdout + ended.stderr

    def depth(self) -> int:
        """How many messages are in the queue that letters are replayed to."""
        return depth(self.url, WORK_QUEUE)

    def ledger(self) -> Counter[str]:
        """What the receiving side got: how often each ``replay_id`` came."""
        return Counter(read_properties(raw).headers[REPLAY_ID_HEADER] for raw, _, _ in take(self.url, WORK_QUEUE))

    def items(self) -> list[Any]:
        """Every letter of every replay, as the database knows it."""
        with reading(self.engine) as connection:
            return list(connection.execute(sa.select(replay_items).order_by(replay_items.c.id)))

    def audited(self, action: Action) -> list[Any]:
        """The audit's rows of one action."""
        with reading(self.engine) as connection:
            return list(connection.execute(sa.select(audit_log).where(audit_log.c.action == action.value)))

    def states(self) -> Counter[str]:
        """How many letters are in each state."""
        return Counter(row["state"] for row in rows(self.engine))


def office_on(road: Road) -> Iterator[Office]:
    """An office whose database has its schema."""
    engine = open_database(road.database_url)
    require_schema(engine, auto_upgrade=True)
    yield Office(road=road, engine=engine)
    engine.dispose()


@pytest.fixture
def office(road: Road) -> Iterator[Office]:
    """An office on SQLite."""
    yield from office_on(road)


@pytest.fixture
def each_office(road: Road, database_url: str) -> Iterator[Office]:
    """An office once on SQLite and once on PostgreSQL."""
    road.database_url = database_url
    yield from office_on(road)


@pytest.fixture
def broken_office(
    own_rabbitmq: PrivateRabbitMQ, redis_url: str, services: OutsideServices, tmp_path: Path
) -> Iterator[Office]:
    """An office on a broker of its own, to kill."""
    url = vhost_url(own_rabbitmq, "/")
    deploy(TOPOLOGY, url, management_url=management_url(own_rabbitmq))
    road = Road(
        folder=tmp_path,
        amqp_url=url,
        management_url=management_url(own_rabbitmq),
        redis_url=redis_url,
        database_url=f"sqlite:///{tmp_path}/dead-letters.db",
        services=services,
    )
    yield from office_on(road)
    road.stop()


def killed_every_second(office: Office, letters: int, rate: str) -> int:
    """Replay all, killed with SIGKILL a second after it has begun to publish; returns how often it was resumed."""
    resumed = before = 0
    process = office.start("replay", "--queue", WORK_QUEUE, "--yes", "--rate", rate, *BECAUSE)
    while True:

        def at_work(process: Process = process, before: int = before) -> bool:
            return process.exit_code is not None or office.depth() > before

        eventually(at_work, seconds=60, every=0.02, what="something to be published")
        deadline = time.monotonic() + 1.0
        eventually(lambda until=deadline, one=process: one.exit_code is not None or time.monotonic() > until)  # type: ignore[misc]
        if process.exit_code is not None:
            assert process.exit_code == 0, process.output()
            return resumed
        process.signal(signal.SIGKILL)
        process.kill()
        if office.states() == {"replayed": letters}:  # the kill came between the last letter and the end
            return resumed
        resumed += 1
        before = office.depth()
        process = office.start("replays", "resume", "1", *BECAUSE)


def assert_nothing_lost(office: Office, letters: int, resumed: int) -> Counter[str]:
    """Each letter was published, none more than twice, and the audit says what the receiving side has."""
    ledger = office.ledger()
    items = office.items()
    assert sorted(ledger) == sorted(item.key for item in items)
    assert len(ledger) == letters
    assert max(ledger.values()) <= 2
    assert {item.state for item in items} == {"published"}
    replayed = office.audited(Action.REPLAY)
    assert sorted(act.letter_id for act in replayed) == sorted(item.letter_id for item in items)
    assert len(replayed) == len(ledger)
    assert len(office.audited(Action.RESUME)) == resumed
    assert office.states() == {"replayed": letters}
    return ledger


def test_replay_that_is_killed_every_second_publishes_every_letter(each_office: Office) -> None:
    """300 letters at 100/s, a kill each second, resumed: all published, none more than twice. (D5)"""
    each_office.dead(300)
    resumed = killed_every_second(each_office, 300, "100/s")
    assert resumed >= 2
    assert_nothing_lost(each_office, 300, resumed)


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_ten_thousand_letters_with_a_kill_every_second(each_office: Office) -> None:
    """10,000 letters, a kill each second: every letter published, none more than twice; the audit agrees. (D5)"""
    each_office.dead(10_000)
    resumed = killed_every_second(each_office, 10_000, "500/s")
    assert resumed >= 10
    ledger = assert_nothing_lost(each_office, 10_000, resumed)
    print(f"{resumed} kills, {ledger.total()} publishes of {len(ledger)} letters")


def test_two_operators_at_once_share_no_letter(each_office: Office) -> None:
    """Two commands for the same letters at once: each is published once, and the loser is told. (D5)"""
    letters = each_office.dead(60)
    ann = each_office.start("replay", *letters, "--reason", "mine", "--by", "ann")
    bob = each_office.start("replay", *letters, "--reason", "no, mine", "--by", "bob")
    codes = {process: process.wait(seconds=60) for process in (ann, bob)}
    assert sorted(codes.values()) == [0, EXIT_REFUSED], ann.output() + bob.output()
    loser = next(process for process, code in codes.items() if code)
    assert "nothing to replay" in loser.output()
    ledger = each_office.ledger()
    assert len(ledger) == ledger.total() == 60
    assert {act.actor for act in each_office.audited(Action.REPLAY)} == {"bob" if loser is ann else "ann"}


def test_broker_that_goes_away_in_the_middle_loses_nothing(
    broken_office: Office, own_rabbitmq: PrivateRabbitMQ
) -> None:
    """The broker is killed under a replay: said in one sentence with a code of its own, resumed later. (D5)"""
    office = broken_office
    office.dead(200)
    process = office.start("replay", "--queue", WORK_QUEUE, "--yes", "--rate", "100/s", *BECAUSE)
    eventually(lambda: office.depth() >= 40, every=0.02)
    own_rabbitmq.kill()
    assert process.wait(seconds=90) == EXIT_UNAVAILABLE, process.output()
    assert "the connection to the broker at 127.0.0.1" in process.output()
    assert "Traceback" not in process.output()
    states = office.states()
    assert states.keys() == {"replayed", "replaying"}
    own_rabbitmq.start()
    code, said = office.run("replays", "resume", "1", *BECAUSE)
    assert code == 0, said
    assert_nothing_lost(office, 200, resumed=1)


def test_queue_that_was_deleted_leaves_its_letters_open(office: Office, deployed: VirtualHost) -> None:
    """The queue is gone: each letter is open with the reason, holds up no other, and goes once it is back. (D5)"""
    letters = office.dead(30)
    deployed.api("DELETE", f"/queues/{{vhost}}/{WORK_QUEUE}").raise_for_status()
    code, said = office.run("replay", *letters, *BECAUSE, "--json")
    assert code == EXIT_REFUSED
    assert json.loads(said)["refused"] == dict.fromkeys(letters, f"there is no queue '{WORK_QUEUE}'")
    assert office.states() == {"open": 30}
    deploy(TOPOLOGY, office.url, management_url=deployed.management_url)
    code, said = office.run("replay", *letters, *BECAUSE)
    assert code == 0, said
    assert len(office.ledger()) == 30


def test_operator_without_permission_to_publish_leaves_letters_open(office: Office, deployed: VirtualHost) -> None:
    """A user who may not write is told so for each letter, which stay open for one who may. (D5)"""
    letters = office.dead(30)
    deployed.api("PUT", "/users/reader", {"password": "reader", "tags": ""}).raise_for_status()
    permissions = {"configure": "", "write": "^$", "read": ".*"}
    deployed.api("PUT", "/permissions/{vhost}/reader", permissions).raise_for_status()
    allowed = office.road.amqp_url
    office.road.amqp_url = allowed.replace("guest:guest", "reader:reader")
    code, said = office.run("replay", *letters, *BECAUSE)
    office.road.amqp_url = allowed
    assert code == EXIT_REFUSED, said
    assert "ACCESS_REFUSED" in said
    assert "reader:reader" not in said
    assert office.states() == {"open": 30}
    code, said = office.run("replay", *letters, *BECAUSE)
    assert code == 0, said
    assert len(office.ledger()) == 30


def test_letter_that_outgrows_a_frame_stays_open(office: Office) -> None:
    """A result too large for a header is refused here: the broker would close the connection over it. (D5)"""
    letters = [int(letter) for letter in office.dead(3)]
    options = ReplayOptions(settle_as="done", result_json=json.dumps("x" * 200_000))
    act = Act(actor="ann", reason="it was done")
    with Publisher(office.url) as publisher:
        report = replay(office.engine, publisher, TOPOLOGY, act, letters[:1], clock=now, options=options)
        assert "its headers take" in report.refused[letters[0]]
        assert replay(office.engine, publisher, TOPOLOGY, act, letters, clock=now).published == letters
    assert office.states() == {"replayed": 3}


def test_full_queue_slows_the_replay_down_and_a_kill_there_loses_nothing(
    office: Office, deployed: VirtualHost
) -> None:
    """A queue that takes ten of 40 at a time: waited for, killed while it waits, resumed; none lost. (D5)"""
    letters = office.dead(40)
    policy = {"pattern": f"^{WORK_QUEUE}$", "definition": {"max-length": 10}, "apply-to": "queues", "priority": 99}
    deployed.api("PUT", "/policies/{vhost}/small", policy).raise_for_status()
    eventually(lambda: deployed.api("GET", f"/queues/{{vhost}}/{WORK_QUEUE}").json().get("policy") == "small")
    # A few at a time: a quorum queue takes what is on its way already when it fills up.
    process = office.start("replay", *letters, "--rate", "20/s", *BECAUSE)
    eventually(lambda: office.states()["replayed"] >= 10)
    assert process.exit_code is None
    process.signal(signal.SIGKILL)
    process.kill()
    ledger = office.ledger()
    process = office.start("replays", "resume", "1", *BECAUSE)

    def received() -> bool:
        ledger.update(office.ledger())
        return process.exit_code is not None

    eventually(received, seconds=60, every=0.2, what="the replay to get through")
    ledger.update(office.ledger())
    assert process.exit_code == 0, process.output()
    assert len(ledger) == 40
    assert max(ledger.values()) <= 2
    assert office.states() == {"replayed": 40}
