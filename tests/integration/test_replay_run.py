"""Replays that are gentle, interrupted, raced for, and followed to their outcome."""

from __future__ import annotations

import json
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import redis
import sqlalchemy as sa

from broker_topology.message import REPLAY_ID_HEADER
from broker_topology.notes import OUTCOME_LIST_KEY, OutcomeNote, outcome_note_key
from broker_topology.raw_properties import read_properties
from broker_topology.settlement import SETTLEMENT_HEADER, Settlement
from consumers import replay as replaying
from consumers.audit import Act, Action
from consumers.database import reading, transaction
from consumers.dead_letters import Filter, dead_letters
from consumers.outcomes import Outcomes
from consumers.publisher import Publisher
from consumers.replay import InDoubtError, ReplayOptions, ReplayReport
from consumers.replays import ReplayState, get_replay, move_replay, progress
from consumers.retention import purge, purgeable
from sandbox.processes import Process, eventually
from tests.conftest import DEFINITIONS, VirtualHost
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

ACT = Act(actor="ann", reason="the provider is back")
BODY = b"[[1], {}, {}]"


def now() -> datetime:
    return datetime.now(UTC)


def dead(vhost: VirtualHost, engine: sa.Engine, count: int) -> list[int]:
    """Let that many tasks die and be stored; returns their ids."""
    messages = [(raw_properties(task_headers()), BODY) for _ in range(count)]
    publish(vhost.url, messages, exchange="work", routing_key=WORK_QUEUE)
    let_die(vhost.url, count)
    with draining(vhost.url, engine):
        return [row["id"] for row in stored_rows(engine, count)]


StartWorker = Callable[..., None]


@pytest.fixture
def start_worker(deployed: VirtualHost, redis_url: str) -> Iterator[StartWorker]:
    """Starts a worker's double: each replayed message succeeds, with its outcome note, or is rejected."""
    over = threading.Event()
    threads: list[threading.Thread] = []

    def succeed(client: redis.Redis) -> None:
        for raw, _, _ in take(deployed.url, WORK_QUEUE):
            headers = read_properties(raw).headers
            key = headers[REPLAY_ID_HEADER]
            note = OutcomeNote(replay_id=key, task_id=headers["id"], succeeded_at=now(), hostname="w1")
            client.set(outcome_note_key(key), note.to_json())
            client.rpush(OUTCOME_LIST_KEY, key)

    def work(*, fails: bool) -> None:
        with redis.Redis.from_url(redis_url) as client:
            while not over.wait(0.02):
                if fails:
                    let_die(deployed.url, depth(deployed.url, WORK_QUEUE))
                else:
                    succeed(client)

    def start(*, fails: bool = False) -> None:
        threads.append(threading.Thread(target=work, kwargs={"fails": fails}))
        threads[-1].start()

    yield start
    over.set()
    for thread in threads:
        thread.join(40)


def run_replay(url: str, engine: sa.Engine, report: ReplayReport, redis_url: str | None = None) -> ReplayReport:
    outcomes = Outcomes(redis_url, engine, clock=now)
    try:
        with Publisher(url) as publisher:
            return replaying.run(engine, publisher, TOPOLOGY, report, clock=now, outcomes=outcomes)
    finally:
        outcomes.close()


def test_a_fixed_fault_lets_all_through_after_the_canary(
    deployed: VirtualHost, engine: sa.Engine, redis_url: str, start_worker: StartWorker
) -> None:
    """Two go first, then twenty, then the rest; every letter is settled by its outcome (D5)."""
    letters = dead(deployed, engine, 30)
    start_worker()
    report = replaying.begin(engine, ACT, letters, now=now(), options=ReplayOptions(canary=2))
    report = run_replay(deployed.url, engine, report, redis_url)
    assert report.state is ReplayState.PUBLISHED
    assert {row["state"] for row in rows(engine)} == {"settled"}
    with reading(engine) as connection:
        assert progress(connection, report.replay_id).succeeded == 30


def test_a_fault_that_is_not_fixed_stops_after_the_canary(
    deployed: VirtualHost, engine: sa.Engine, redis_url: str, start_worker: StartWorker
) -> None:
    """Three fail again and no other is sent; resumed and cancelled, the rest is open again (D5, D6, D7)."""
    letters = dead(deployed, engine, 12)
    start_worker(fails=True)
    report = replaying.begin(engine, ACT, letters, now=now(), options=ReplayOptions(canary=3))
    with draining(deployed.url, engine):
        report = run_replay(deployed.url, engine, report, redis_url)
    assert report.state is ReplayState.STOPPED
    assert len(report.published) == 3
    with reading(engine) as connection:
        assert "failed again" in get_replay(connection, report.replay_id)["state_note"]
    with transaction(engine) as connection:
        move_replay(
            connection,
            report.replay_id,
            ACT,
            Action.CANCEL,
            ReplayState.CANCELLED,
            now=now(),
            from_states=[ReplayState.STOPPED],
        )
    states = [row["state"] for row in rows(engine)]
    assert states.count("failed_again") == 3
    assert states.count("open") == 12


def test_two_operators_cannot_have_the_same_letter(deployed: VirtualHost, engine: sa.Engine) -> None:
    """Both select the same letters at once: each letter is published exactly once (D5)."""
    letters = dead(deployed, engine, 40)
    barrier = threading.Barrier(2)
    published: list[int] = []

    def operate(name: str) -> None:
        barrier.wait()
        try:
            report = replaying.begin(engine, Act(actor=name, reason="mine"), letters, now=now())
        except replaying.NothingToReplayError:
            return
        published.extend(run_replay(deployed.url, engine, report).published)

    threads = [threading.Thread(target=operate, args=(name,)) for name in ("ann", "bob")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(published) == letters
    assert depth(deployed.url, WORK_QUEUE) == 40


def test_a_killed_replay_is_resumed_and_repeats_at_most_what_was_on_its_way(
    deployed: VirtualHost, engine: sa.Engine, tmp_path: Path
) -> None:
    """SIGKILL in the middle, then resume: every letter is published, none more than twice (D5)."""
    letters = dead(deployed, engine, 300)
    environment = {
        "AMQP_URL": deployed.url,
        "DATABASE_URL": engine.url.render_as_string(hide_password=False),
        "TOPOLOGY_FILE": str(DEFINITIONS),
        "REDIS_URL": "",
    }
    command = [sys.executable, "-m", "consumers"]
    replay = [*command, "replay", *map(str, letters), "--reason", "back", "--rate", "100/s", "--by", "ann"]
    process = Process(replay, log=tmp_path / "replay.log", env=environment, cwd=tmp_path)
    eventually(lambda: depth(deployed.url, WORK_QUEUE) >= 60, every=0.01)
    process.signal(signal.SIGKILL)
    process.kill()
    assert any(row["state"] == "replaying" for row in rows(engine))
    resume = [*command, "replays", "resume", "1", "--reason", "again", "--by", "ann"]
    again = Process(resume, log=tmp_path / "resume.log", env=environment, cwd=tmp_path)
    assert again.wait(seconds=60) == 0, again.output()
    assert {row["state"] for row in rows(engine)} == {"replayed"}
    keys = [read_properties(raw).headers[REPLAY_ID_HEADER] for raw, _, _ in take(deployed.url, WORK_QUEUE)]
    assert len(set(keys)) == 300
    assert len(keys) <= 300 + 20


def test_a_letter_in_doubt_needs_a_decision(deployed: VirtualHost, engine: sa.Engine) -> None:
    """Without ``--as`` it is refused; with it the message says what the person found out (D5, I9)."""
    (letter,) = dead(deployed, engine, 1)
    with engine.begin() as connection:
        connection.execute(dead_letters.update().values(note_reason="in_doubt", claim_state="in_doubt 2"))
    with pytest.raises(InDoubtError, match="--as repeat"):
        replaying.begin(engine, ACT, [letter], now=now())
    options = ReplayOptions(settle_as="done", result_json='{"id": "ch_1"}')
    run_replay(deployed.url, engine, replaying.begin(engine, ACT, [letter], now=now(), options=options))
    ((raw, _, _),) = take(deployed.url, WORK_QUEUE)
    settlement = Settlement.from_header(read_properties(raw).headers[SETTLEMENT_HEADER])
    assert settlement == Settlement(result_json='{"id": "ch_1"}', attempt=2)


def test_discarded_letters_can_be_purged_and_open_ones_never(deployed: VirtualHost, engine: sa.Engine) -> None:
    """Retention takes only what was settled long enough ago, and says so in the audit log (D5)."""
    first, second = dead(deployed, engine, 2)
    assert replaying.discard(engine, ACT, [first], now=now()) == [first]
    assert replaying.select(engine, Filter()) == [second]
    assert purgeable(engine, older_than=now() - timedelta(days=1)) == 0
    later = now() + timedelta(days=1)
    assert purge(engine, ACT, older_than=later, now=later) == 1
    assert [row["id"] for row in rows(engine)] == [second]


def test_a_full_queue_slows_a_replay_down(deployed: VirtualHost, engine: sa.Engine) -> None:
    """reject-publish is not a failure: the replay goes on when there is room (D5)."""
    letters = dead(deployed, engine, 20)
    policy = {"pattern": f"^{WORK_QUEUE}$", "definition": {"max-length": 5}, "apply-to": "queues", "priority": 99}
    deployed.api("PUT", "/policies/{vhost}/tight", policy).raise_for_status()
    eventually(
        lambda: deployed.api("GET", f"/queues/{{vhost}}/{WORK_QUEUE}").json().get("policy") == "tight", seconds=30
    )
    report = replaying.begin(engine, ACT, letters, now=now())
    done: list[ReplayReport] = []
    thread = threading.Thread(target=lambda: done.append(run_replay(deployed.url, engine, report)))
    thread.start()
    seen = 0
    while thread.is_alive() or seen < 20:
        seen += len(take(deployed.url, WORK_QUEUE))
        thread.join(0.2)
    assert sorted(done[0].published) == letters
    assert seen == 20
    assert json.dumps(done[0].refused) == "{}"
