"""A task's declared policy, the keys it takes, and the fingerprint of its payload."""

from __future__ import annotations

import json
import pickle
import uuid
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any, TypedDict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker_topology.claim_records import record_name
from broker_topology.message import key_problem
from tasks import errors
from tasks.claim import IfInterrupted
from tasks.errors import MissingKeyError, PayloadNotSerializableError, PolicyError
from tasks.idempotency import Guard, fingerprint
from tasks.idempotency_policy import Idempotency, RedisDown
from tasks.provider_keys import provider_key
from tasks.results import is_placeholder, keep, restore, result_problem

json_values: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=10,
)


def test_the_defaults_are_a_days_retention_and_a_minutes_lease() -> None:
    """A task that declares nothing more is repeated after a crash and waits for Redis (I9, R6)."""
    policy = Idempotency()
    assert (policy.lease_seconds, policy.retention_seconds) == (60, 86_400)
    assert (policy.if_interrupted, policy.redis_down) == (IfInterrupted.REPEAT, RedisDown.WAIT)


def test_plain_words_are_taken_for_what_they_mean() -> None:
    """``"park"`` is as good as ``IfInterrupted.PARK`` (I9)."""
    policy = Idempotency(if_interrupted="park", redis_down="ledger", ignore_arguments=["now"])  # type: ignore[arg-type]
    assert policy.if_interrupted is IfInterrupted.PARK
    assert policy.redis_down is RedisDown.LEDGER
    assert policy.ignore_arguments == ("now",)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"lease_seconds": 0}, "lease_seconds is 0; it must be a number above 0"),
        ({"lease_seconds": "60"}, "lease_seconds is '60'"),
        ({"lease_seconds": True}, "lease_seconds is True"),
        ({"retention_seconds": float("inf")}, "retention_seconds is inf"),
        ({"max_result_bytes": -1}, "max_result_bytes is -1"),
        ({"lease_seconds": 60, "retention_seconds": 30}, "would vanish under a running task"),
        ({"if_interrupted": "retry"}, "if_interrupted is 'retry'; it must be 'repeat' or 'park'"),
        ({"redis_down": "run"}, "redis_down is 'run'; it must be 'wait' or 'ledger'"),
        ({"ignore_arguments": "now"}, "must be a tuple of argument names"),
        ({"reconcile": "ask"}, "must be callable"),
    ],
)
def test_a_policy_that_cannot_be_kept_is_refused(values: dict[str, Any], words: str) -> None:
    """The error names the setting, its value and what would do (I6, I9)."""
    with pytest.raises(PolicyError, match=words):
        Idempotency(**values)


@pytest.mark.parametrize(
    ("key", "words"),
    [
        (None, "must be a string, not NoneType"),
        (17, "must be a string, not int"),
        ("", "must not be empty"),
        (" \t ", "must not be empty"),
        ("k" * 10_240, "10240 characters, more than 512"),
        ("order\x0017", "cannot be printed"),
        ("order\n17", "cannot be printed"),
        ("order\ud80017", "cannot be printed"),
    ],
)
def test_a_key_that_cannot_be_used_is_refused_with_its_reason(key: Any, words: str) -> None:
    """Before anything is asked of Redis (I3)."""
    assert words in (key_problem(key) or "")
    with pytest.raises(MissingKeyError, match=words):
        Guard(None, Idempotency(), task_name="t", key=key)  # type: ignore[arg-type]


@pytest.mark.parametrize("key", ["order-charge-17", "a", "k" * 512, "bestellung äöü 17", "{slot}:*?[]"])
def test_any_printable_key_of_reasonable_length_is_taken(key: str) -> None:
    """Spaces, umlauts and braces are the caller's business (I3)."""
    assert key_problem(key) is None


@given(args=st.lists(json_values), kwargs=st.dictionaries(st.text(), json_values))
def test_a_fingerprint_survives_the_journey_as_json(args: list[Any], kwargs: dict[str, Any]) -> None:
    """What the publisher passed and what the worker got are one payload (I4)."""
    travelled_args, travelled_kwargs = json.loads(json.dumps([args, kwargs]))
    assert fingerprint(tuple(args), kwargs) == fingerprint(travelled_args, travelled_kwargs)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ([(1, 2)], [[1, 2]]),
        ([{"a": 1, "b": 2}], [{"b": 2, "a": 1}]),
        ([1], [1.0]),
        ([-0.0], [0]),
        ([1e15], [10**15]),
        ([{1: "x", None: "y"}], [{"1": "x", "null": "y"}]),
        ([{True: "z"}], [{"true": "z"}]),
        ([Decimal("1.50")], ["1.50"]),
        ([uuid.UUID(int=5)], [str(uuid.UUID(int=5))]),
        ([datetime(2026, 1, 2, tzinfo=UTC)], ["2026-01-02T00:00:00+00:00"]),
        ([date(2026, 1, 2)], ["2026-01-02"]),
        ([IfInterrupted.PARK], ["park"]),
        ([{"b", "a"}], [["a", "b"]]),
    ],
)
def test_forms_of_one_payload_have_one_fingerprint(one: list[Any], other: list[Any]) -> None:
    """Differences that a serializer makes are no differences (I4)."""
    assert fingerprint(one, {}) == fingerprint(other, {})


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ([1], [2]),
        ([1], ["1"]),
        ([True], [1]),
        ([None], []),
        ([1, 2], [2, 1]),
        ([[1], 2], [1, [2]]),
        ([2**53], [float(2**53)]),
        ([1.5], [1.25]),
        ([{"a": 1}], [{"a": 2}]),
        ([timedelta(seconds=1)], [timedelta(seconds=2)]),
        ([b"\x01"], [b"\x02"]),
    ],
)
def test_different_payloads_have_different_fingerprints(one: list[Any], other: list[Any]) -> None:
    """What a person would call another order is another payload (I4)."""
    assert fingerprint(one, {}) != fingerprint(other, {})


def test_naming_an_argument_changes_nothing() -> None:
    """``charge(17, 1250)`` and ``charge(17, cents=1250)`` are one call (I4)."""
    names = ("order_id", "cents")
    assert fingerprint([17, 1250], {}, parameters=names) == fingerprint([17], {"cents": 1250}, parameters=names)
    assert fingerprint([17, 1250], {}, parameters=names) != fingerprint([1250, 17], {}, parameters=names)
    assert fingerprint([17, 1250, "more"], {}, parameters=names) != fingerprint([17, 1250], {}, parameters=names)


def test_ignored_arguments_do_not_count() -> None:
    """A publisher's timestamp makes no other payload, however it is passed (I4)."""
    ignoring = {"ignore": ("now",), "parameters": ("order_id", "now")}
    assert fingerprint([17, "noon"], {}, **ignoring) == fingerprint([17], {"now": "midnight"}, **ignoring)
    assert fingerprint([17, "noon"], {}, **ignoring) != fingerprint([18, "noon"], {}, **ignoring)


def test_an_argument_without_a_stable_form_is_refused() -> None:
    """An object's address would make every delivery another payload (I4)."""
    with pytest.raises(PayloadNotSerializableError, match="type object has no stable form"):
        fingerprint([object()], {})
    deep: list[Any] = []
    for _ in range(10_000):
        deep = [deep]
    with pytest.raises(PayloadNotSerializableError, match="nested too deeply"):
        fingerprint(deep, {})


@given(json_values)
def test_what_json_holds_is_kept_with_its_type(value: Any) -> None:
    """The duplicate gets what the first caller got (I4)."""
    text = keep(value, 10**9).json
    assert restore(text) == value
    assert type(restore(text)) is type(value)


@pytest.mark.parametrize(
    "value", [object(), {1, 2}, float("nan"), float("inf"), {1: "a"}, [{"a": {2: 3}}], Decimal(1), b"x", print]
)
def test_what_json_cannot_hold_is_replaced_by_a_placeholder(value: Any) -> None:
    """After the effect nothing may fail, and nothing may come back as something else (I4)."""
    placeholder = restore(keep(value, 10**9).json)
    assert is_placeholder(placeholder)
    assert placeholder["result_not_kept"] == "not_json"


def test_deep_results_do_not_fail_either() -> None:
    """A result nested beyond Python's recursion becomes a placeholder (I4)."""
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    assert is_placeholder(restore(keep(deep, 10**9).json))


def test_a_result_over_the_limit_is_replaced_by_a_stated_placeholder() -> None:
    """Its size and the limit are told (I4)."""
    assert keep("x" * 98, 100).json == '"' + "x" * 98 + '"'
    assert restore(keep("x" * 99, 100).json) == {"result_not_kept": "too_large", "bytes": 101, "limit_bytes": 100}


class Charge(TypedDict):
    """A result that is plain JSON."""

    id: str


@pytest.mark.parametrize(
    ("annotation", "words"),
    [
        (Decimal, "cannot hold a Decimal"),
        (datetime, "cannot hold a datetime"),
        (list[Decimal], "cannot hold a Decimal"),
        (int | bytes, "cannot hold a bytes"),
        (dict[int, str], "keys of type int"),
        (set[int], "cannot hold a set"),
    ],
)
def test_a_declared_result_that_json_cannot_hold_is_a_problem(annotation: Any, words: str) -> None:
    """Told where the task is declared, long before an effect (I4)."""
    assert words in (result_problem(annotation) or "")


@pytest.mark.parametrize(
    "annotation", [None, type(None), str, int | None, dict[str, list[float]], Charge, Any, list[Any], tuple[int, ...]]
)
def test_a_declared_result_that_json_holds_is_none(annotation: Any) -> None:
    """Plain types, their unions and typed dicts are fine (I4)."""
    assert result_problem(annotation) is None


def test_provider_keys_differ_by_task_key_and_step_and_nothing_else() -> None:
    """Stable across attempts, short enough for every provider, without the caller's words (R7)."""
    keys = {provider_key(task, key, step) for task in ("a", "aa") for key in ("b", "ab") for step in ("", "c", "bc")}
    assert len(keys) == 12
    assert provider_key("a", "b") == provider_key("a", "b")
    assert all(len(key) <= 64 and key.isascii() for key in keys)


def test_no_two_claims_share_a_record() -> None:
    """Task names and keys with colons do not run together (I3)."""
    assert record_name("a:b", "c") != record_name("a", "b:c")


def test_errors_survive_the_way_from_a_child_to_its_parent() -> None:
    """A prefork child hands its exception over pickled, with its fields (R2)."""
    for error in (
        errors.TransientFailure("busy", retry_after=3.0),
        errors.PayloadMismatchError("other", stored="a", given="b"),
        errors.InDoubtError("doubt", attempt=2),
        errors.ResultUnrecordedError("away", result_json="1"),
    ):
        copy = pickle.loads(pickle.dumps(error))
        assert (str(copy), vars(copy)) == (str(error), vars(error))
