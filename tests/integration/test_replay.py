"""Replay on a real broker: the original message, to where it came from, marked and audited."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pytest
import sqlalchemy as sa

from broker_topology.raw_headers import RawHeader
from broker_topology.raw_properties import read_properties
from consumers.audit import Act, audit_log
from consumers.database import reading
from consumers.publisher import Publisher
from consumers.replay import NothingToReplayError, ReplayOptions, ReplayReport, replay
from tests.conftest import VirtualHost
from tests.integration.mailroom import (
    DEAD_LETTER_QUEUE,
    TOPOLOGY,
    WORK_QUEUE,
    draining,
    let_die,
    long,
    publish,
    raw_properties,
    rows,
    short,
    stored_rows,
    take,
    task_headers,
)
from tests.unit.test_raw_properties import EVERY_TYPE

BODY = json.dumps([[1], {}, {"callbacks": None, "errbacks": None, "chain": None, "chord": None}]).encode()
ACT = Act(actor="ann", reason="the provider is back")


def now() -> datetime:
    return datetime.now(UTC)


def replay_all(url: str, engine: sa.Engine, **options: Any) -> ReplayReport:
    with Publisher(url) as publisher:
        return replay(
            engine,
            publisher,
            TOPOLOGY,
            ACT,
            [row["id"] for row in rows(engine)],
            clock=now,
            options=ReplayOptions(**options),
        )


def test_a_replay_is_what_was_published_byte_for_byte(deployed: VirtualHost, engine: sa.Engine) -> None:
    """Every AMQP type survives death, storage and replay; only history, retries and replay_id differ (D5)."""
    entries = sorted([*task_headers(retries=3), *((key, value) for key, value, _ in EVERY_TYPE)])
    tail = b"\x05" + short(b"corr") + short(b"reply") + short(b"msg") + bytes(8) + short(b"type") + short(b"app")
    flags = sum(1 << bit for bit in (11, 10, 9, 7, 6, 5, 3))
    body = b"\x00\xff not JSON at all"
    raw = raw_properties(entries, delivery_mode=1, tail=tail, tail_flags=flags)
    publish(deployed.url, [(raw, body)], exchange="work", routing_key=WORK_QUEUE)
    let_die(deployed.url, 1)
    with draining(deployed.url, engine):
        (row,) = stored_rows(engine, 1)
    report = replay_all(deployed.url, engine)
    assert report.published == [row["id"]]
    ((replayed, replayed_body, method),) = take(deployed.url, WORK_QUEUE)
    headers = RawHeader.parse(replayed).headers or ()
    assert replayed_body == body
    assert method.exchange == ""
    expected = {key: value for key, value in entries if key != b"retries"}
    ours = {b"retries", b"replay_id", b"x-delivery-count", b"x-acquired-count"}
    assert {key: value for key, value in headers if key not in ours} == expected
    assert dict(headers)[b"retries"] == b"I" + bytes(4)
    properties = read_properties(replayed)
    assert properties.delivery_mode == 2
    assert (properties.priority, properties.correlation_id, properties.reply_to) == (5, "corr", "reply")
    assert (properties.message_id, properties.timestamp, properties.app_id) == ("msg", 0, "app")


def test_a_replayed_letter_is_marked_with_who_when_and_why(deployed: VirtualHost, engine: sa.Engine) -> None:
    """State and audit row are written together; a second replay finds nothing open (D5)."""
    publish(deployed.url, [(raw_properties(task_headers()), BODY)], exchange="work", routing_key=WORK_QUEUE)
    let_die(deployed.url, 1)
    with draining(deployed.url, engine):
        stored_rows(engine, 1)
    replay_all(deployed.url, engine)
    assert [row["state"] for row in rows(engine)] == ["replayed"]
    with reading(engine) as connection:
        (act,) = connection.execute(sa.select(audit_log)).all()
    assert (act.actor, act.reason, act.action, act.letter_id) == (ACT.actor, ACT.reason, "replay", 1)
    with pytest.raises(NothingToReplayError, match="1 is replayed"):
        replay_all(deployed.url, engine)


def test_a_task_that_fails_again_is_a_new_letter_linked_to_its_replay(
    deployed: VirtualHost, engine: sa.Engine
) -> None:
    """Fail and replay three times: each death is its own row, and no message is lost to cycles (D6)."""
    raw = raw_properties(task_headers(task_id="t-1"))
    publish(deployed.url, [(raw, BODY)], exchange="work", routing_key=WORK_QUEUE)
    for count in range(1, 5):
        let_die(deployed.url, 1)
        with draining(deployed.url, engine):
            found = stored_rows(engine, count)
        assert [row["state"] for row in found] == ["failed_again"] * (count - 1) + ["open"]
        if count < 4:
            replay_all(deployed.url, engine)
    assert {row["task_id"] for row in rows(engine)} == {"t-1"}
    assert len({row["replay_key"] for row in rows(engine)}) == 4


def test_what_cannot_be_sent_stays_open_with_its_error(deployed: VirtualHost, engine: sa.Engine) -> None:
    """A letter without a way back holds up no other, and can be sent elsewhere (D5)."""
    publish(deployed.url, [(raw_properties(task_headers()), BODY)], exchange="work", routing_key="nowhere")
    publish(deployed.url, [(raw_properties(task_headers()), BODY)], routing_key=DEAD_LETTER_QUEUE)
    publish(deployed.url, [(raw_properties(task_headers()), BODY)], exchange="work", routing_key=WORK_QUEUE)
    let_die(deployed.url, 1)
    with draining(deployed.url, engine):
        stored_rows(engine, 3)
    report = replay_all(deployed.url, engine)
    assert len(report.refused) == 1
    assert "--to-queue" in next(iter(report.refused.values()))
    assert sorted(row["state"] for row in rows(engine)) == ["open", "replayed", "replayed"]
    report = replay_all(deployed.url, engine, to_queue="no such queue")
    assert "there is no queue 'no such queue'" in next(iter(report.refused.values()))
    assert len(replay_all(deployed.url, engine, to_queue=WORK_QUEUE).published) == 1


def test_a_far_timestamp_is_a_letter_like_any_other(deployed: VirtualHost, engine: sa.Engine) -> None:
    """What pika cannot decode is stored, replayed, and does not hold up its neighbours (D2)."""
    bad = [*task_headers(), (b"when", b"T" + (2**63).to_bytes(8, "big")), (b"bytes", long(b"\xff"))]
    good = raw_properties(task_headers())
    messages = [(good, BODY), (raw_properties(bad), BODY), (good, BODY + b" ")]
    publish(deployed.url, messages, exchange="work", routing_key=WORK_QUEUE)
    let_die(deployed.url, 3)
    with draining(deployed.url, engine):
        stored_rows(engine, 3)
    assert len(replay_all(deployed.url, engine).published) == 3
    assert (b"when", b"T" + (2**63).to_bytes(8, "big")) in [
        header for raw, _, _ in take(deployed.url, WORK_QUEUE) for header in RawHeader.parse(raw).headers or ()
    ]
