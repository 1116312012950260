"""The task message on the wire, well-formed and hostile."""

from __future__ import annotations

import json
import pickle
import zlib
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker_topology.message import is_broker_history, key_problem, newest_death, read_task_message

JSON = "application/json"
V2 = {"task": "payments.charge", "id": "id-1", "retries": 2, "idempotency_key": "k-1", "replay_id": "r-1"}


def read(headers: dict[str, Any], body: bytes, **options: Any) -> Any:
    """Read with the usual content type."""
    return read_task_message(headers, body, **{"content_type": JSON, "content_encoding": "utf-8", **options})


def test_protocol_2_is_read() -> None:
    """Name, id, arguments, retries and our own headers of a task as Celery sends it. (D1)"""
    message = read(V2, b'[["order-1", 5], {"gift": true}, {"chord": null}]')
    assert (message.task_name, message.task_id, message.retries) == ("payments.charge", "id-1", 2)
    assert (message.args, message.kwargs) == (["order-1", 5], {"gift": True})
    assert (message.idempotency_key, message.replay_id, message.problem) == ("k-1", "r-1", None)


def test_protocol_1_is_read() -> None:
    """The old protocol has everything in its body. (D1)"""
    message = read({}, b'{"task": "t", "id": "i", "args": [1], "kwargs": {"a": 2}, "retries": 1}')
    assert (message.task_name, message.task_id, message.args, message.kwargs, message.retries) == (
        "t", "i", [1], {"a": 2}, 1,
    )  # fmt: skip


def test_compressed_body_is_read_and_a_bomb_is_not() -> None:
    """Compression is undone, up to a size. (D1)"""
    headers = {**V2, "compression": "application/x-gzip"}
    assert read(headers, zlib.compress(b"[[1], {}, {}]")).args == [1]
    bomb = read(headers, zlib.compress(b"[" + b" " * 50_000_000 + b"]"), max_body_bytes=1_000_000)
    assert "more than 1000000 bytes" in bomb.problem


def test_pickle_is_never_loaded() -> None:
    """A pickle is named as what it is and left alone. (D1)"""

    class Bomb:
        def __reduce__(self) -> Any:
            return (pytest.fail, ("the pickle was loaded",))

    message = read(V2, pickle.dumps(Bomb()), content_type="application/x-python-serialize")
    assert "x-python-serialize" in message.problem
    assert message.task_name == "payments.charge"


@given(
    headers=st.dictionaries(
        st.sampled_from(["task", "id", "retries", "compression", "idempotency_key", "x-death"]),
        st.none() | st.integers() | st.text() | st.binary() | st.lists(st.integers()) | st.floats(),
    ),
    body=st.binary() | st.recursive(st.none() | st.integers(), st.lists).map(lambda v: json.dumps(v).encode()),
    content_encoding=st.none() | st.text(max_size=10),
)
def test_nothing_raises(headers: dict[str, Any], body: bytes, content_encoding: str | None) -> None:
    """Whatever arrives, reading it gives a message with a problem rather than an exception. (D2)"""
    message = read(headers, body, content_encoding=content_encoding)
    assert isinstance(message.retries, int)
    newest_death(headers)


def test_deeply_nested_body_has_a_problem() -> None:
    """A body nested a hundred thousand deep is kept, not decoded. (D2)"""
    assert "deep" in read(V2, b"[" * 100_000).problem


def test_newest_death_is_the_first_entry() -> None:
    """The broker puts the newest death first; its time is aware UTC. (D3)"""
    died_at = datetime(2026, 11, 30, 12, 0)  # noqa: DTZ001, as drivers give it
    entry = {
        "queue": "crm",
        "reason": "rejected",
        "exchange": "work",
        "routing-keys": ["crm"],
        "time": died_at,
        "count": 2,
    }
    death = newest_death({"x-death": [entry, {"queue": "older"}]})
    assert death is not None
    assert (death.queue, death.reason, death.exchange, death.routing_key, death.count) == (
        "crm",
        "rejected",
        "work",
        "crm",
        2,
    )
    assert death.died_at == datetime(2026, 11, 30, 12, 0, tzinfo=UTC)


@pytest.mark.parametrize("forged", [None, [], "x", [1], [[]], {"queue": "q"}, 7])
def test_forged_death_is_none(forged: Any) -> None:
    """What is not the broker's own form of a death is no death. (D2)"""
    assert newest_death({"x-death": forged}) is None


@pytest.mark.parametrize(
    ("header", "stripped"),
    [("x-death", True), ("x-first-death-queue", True), ("x-last-death-reason", True), ("x-delivery-count", True),
     ("x-acquired-count", True), ("x-death-wish", False), ("idempotency_key", False), ("x-custom", False)],
)  # fmt: skip
def test_only_the_brokers_history_is_stripped(header: str, stripped: bool) -> None:
    """A republished message loses the broker's history and nothing else. (D5)"""
    assert is_broker_history(header) is stripped


def test_keys_that_can_be_used() -> None:
    """Ordinary keys, in any script, are fine. (I3)"""
    for key in ("order-charge-17", "a" * 512, "заказ 17", "🧾-1"):
        assert key_problem(key) is None
