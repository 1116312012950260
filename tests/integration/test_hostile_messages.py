"""Hostile input becomes rows like any other, which can be listed, shown and replayed byte for byte."""

from __future__ import annotations

import random
import uuid
from typing import Any

import pytest
import sqlalchemy as sa
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from broker_topology.errors import BrokerUnavailableError
from broker_topology.message import is_broker_history
from broker_topology.raw_headers import RawHeader
from broker_topology.raw_properties import read_properties
from consumers import showing
from consumers.letters import Delivery, read_letter
from consumers.publisher import Publisher
from consumers.replay import ReplayOptions, replay
from tests.conftest import VirtualHost
from tests.integration.hostile_messages import CATALOGUE, Hostile
from tests.integration.mailroom import (
    DEAD_LETTER_QUEUE,
    TOPOLOGY,
    WORK_QUEUE,
    depth,
    draining,
    publish,
    raw_properties,
    rows,
    stored_rows,
    take,
    task_headers,
)
from tests.integration.test_replay import ACT, now


def delivery(hostile: Hostile) -> Delivery:
    return Delivery(
        drained_queue="dead-letters",
        exchange="",
        routing_key="dead-letters",
        redelivered=False,
        properties=hostile.properties,
        body=hostile.body,
    )


def check(row: Any, expected: dict[str, Any]) -> None:
    for name, value in expected.items():
        if name == "decode_problem" and value is not None:
            assert value in row[name]
        else:
            assert row[name] == value, name


def test_the_catalogue_is_long_enough() -> None:
    """At least sixty hostile messages, each under its own name (D2)."""
    assert len({hostile.name for hostile in CATALOGUE}) == len(CATALOGUE) >= 60


@pytest.mark.parametrize("hostile", CATALOGUE, ids=lambda hostile: hostile.name)
def test_each_is_read_without_an_error(hostile: Hostile) -> None:
    """Reading never raises, and what can be read is (D1, D2)."""
    letter = read_letter(delivery(hostile), now=now(), unroutable=False)
    check(letter._asdict(), hostile.row)


def test_all_become_rows_and_are_replayed_byte_for_byte(deployed: VirtualHost, engine: sa.Engine) -> None:
    """Through the broker, into the database, out again: nothing holds up anything (D1, D2, D5)."""
    accepted = [hostile for hostile in CATALOGUE if is_accepted(deployed.url, hostile)]
    assert {hostile.name for hostile in CATALOGUE} - {hostile.name for hostile in accepted} <= REFUSED_BY_SOME
    with draining(deployed.url, engine):
        found = stored_rows(engine, len(accepted))
    # 4.x hands over by priority, so that the order is not that of the catalogue.
    accepted.sort(key=lambda hostile: looks(hostile.properties, hostile.body))
    found.sort(key=lambda row: looks(row["properties"], row["body"]))
    for hostile, row in zip(accepted, found, strict=True):
        assert bytes(row["body"]) == hostile.body, hostile.name
        check(row, hostile.row)
        assert showing.as_json(showing.described(row)), hostile.name
    with Publisher(deployed.url) as publisher:
        report = replay(
            engine,
            publisher,
            TOPOLOGY,
            ACT,
            [row["id"] for row in found],
            clock=now,
            options=ReplayOptions(to_queue=WORK_QUEUE, keep_expiry=True),
        )
    assert report.refused == {}
    replayed = sorted(take(deployed.url, WORK_QUEUE), key=lambda taken: looks(taken[0], taken[1]))
    for hostile, (raw, body, _) in zip(accepted, replayed, strict=True):
        assert body == hostile.body, hostile.name
        assert kept_headers(raw) == kept_headers(hostile.properties), hostile.name


REFUSED_BY_SOME = {"an infinite double", "a NaN", "delivery mode 255"}
"""What some brokers do not let in at all."""


def is_accepted(url: str, hostile: Hostile) -> bool:
    try:
        publish(url, [(hostile.properties, hostile.body)])
    except BrokerUnavailableError:
        return False
    return True


def looks(raw: bytes, body: bytes) -> str:
    return repr((bytes(body), sorted(kept_headers(raw).items()), read_properties(raw).content_type))


def kept_headers(raw: bytes) -> dict[bytes, bytes]:
    """What a replay may not change. Of two headers of one name 4.x itself keeps the first alone."""
    changed = {b"retries", b"replay_id"}
    return {
        key: value
        for key, value in reversed(RawHeader.parse(raw).headers or ())
        if key not in changed and not is_broker_history(key.decode("utf-8", "replace"))
    }


_values = st.recursive(
    st.sampled_from([b"V", b"t\x01", b"b\xff", b"d\x7f\xf0\0\0\0\0\0\0", b"T" + b"\xff" * 8])
    | st.binary(max_size=20).map(lambda data: b"S" + len(data).to_bytes(4, "big") + data)
    | st.binary(max_size=20).map(lambda data: b"x" + len(data).to_bytes(4, "big") + data),
    lambda inner: st.lists(inner, max_size=3).map(
        lambda items: b"A" + len(b"".join(items)).to_bytes(4, "big") + b"".join(items)
    ),
    max_leaves=5,
)
_keys = st.binary(max_size=30) | st.sampled_from([b"task", b"id", b"retries", b"x-death", b"replay_id"])


@settings(max_examples=300, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.tuples(_keys, _values), max_size=8), st.binary(max_size=200))
def test_arbitrary_headers_and_bodies_are_read(entries: list[tuple[bytes, bytes]], body: bytes) -> None:
    """Whatever the header table and the body are, there is a letter, with texts that a database takes (D2)."""
    hostile = Hostile(name="", properties=raw_properties(entries), body=body)
    letter = read_letter(delivery(hostile), now=now(), unroutable=False)
    for name in ("task_name", "task_id", "args", "kwargs", "queue", "reason", "replay_key", "decode_problem"):
        text = getattr(letter, name)
        assert text is None or ("\0" not in text and text.encode() is not None)


def test_a_fuzzed_batch_goes_through_the_broker(deployed: VirtualHost, engine: sa.Engine) -> None:
    """500 messages of random bodies and header tables are 500 rows (D2)."""
    rng = random.Random(17)

    def headers() -> list[tuple[bytes, bytes]]:
        values = (rng.randbytes(rng.randrange(20)) for _ in range(rng.randrange(6)))
        return [
            (rng.choice([b"task", b"id", b"retries", rng.randbytes(5)]), b"S" + len(v).to_bytes(4, "big") + v)
            for v in values
        ]

    publish(deployed.url, [(raw_properties(headers()), rng.randbytes(rng.randrange(300))) for _ in range(500)])
    with draining(deployed.url, engine):
        stored_rows(engine, 500)


def let_refuse(engine: sa.Engine, column: str, condition: str) -> None:
    """Make the database refuse each letter that has this in a column."""
    if engine.dialect.name == "sqlite":
        statement = (
            f"CREATE TRIGGER refusal BEFORE INSERT ON dead_letters WHEN NEW.{column} {condition} "
            "BEGIN SELECT RAISE(ABORT, 'refused by the test'); END"
        )
    else:
        statement = f"ALTER TABLE dead_letters ADD CHECK (NOT {column} {condition})"
    with engine.begin() as connection:
        connection.execute(sa.text(statement))


def test_one_poisonous_row_does_not_hold_up_its_batch(deployed: VirtualHost, engine: sa.Engine) -> None:
    """A row that the database refuses is found by splitting, and stored in its raw form (D2)."""
    let_refuse(engine, "task_name", "= 'poison'")
    names = ["good"] * 20 + ["poison"] + ["good"] * 20
    publish(deployed.url, [(raw_properties(task_headers(task=name)), b"[[1], {}, {}]") for name in names])
    with draining(deployed.url, engine):
        stored_rows(engine, 41)
    (poisonous,) = [row for row in rows(engine) if row["task_name"] is None]
    assert "refused" in poisonous["decode_problem"]
    assert read_properties(poisonous["properties"]).headers["task"] == "poison"


def test_what_the_database_takes_in_no_form_holds_nothing_up(deployed: VirtualHost, engine: sa.Engine) -> None:
    """It stays with the broker, also where letters are so large that they come one at a time (D2)."""
    let_refuse(engine, "body_bytes", "> 5000000")
    refused, large = b"x" * 6_000_000, b"x" * 4_900_000
    for body in (refused, refused, refused, b"[[1], {}, {}]", large, large, refused, large, large, b"[[2], {}, {}]"):
        publish(deployed.url, [(raw_properties(task_headers(task_id=str(uuid.uuid4()))), body)])
    with draining(deployed.url, engine):
        stored_rows(engine, 6)
    assert depth(deployed.url, DEAD_LETTER_QUEUE) == 4
