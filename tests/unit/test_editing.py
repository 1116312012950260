"""Another call in the place of the first, the message the same for all else."""

from __future__ import annotations

import contextlib
import json
import zlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as some

from broker_topology.message import edited_from, read_task_message
from broker_topology.raw_properties import read_properties
from consumers.editing import Call, EditError, NotEditableError, edited, read_call
from tests.integration.mailroom import long, raw_properties, task_headers

BODY = json.dumps([[17], {"amount": -1, "order": {"lines": [1, 2]}}, {"chain": [1], "callbacks": None}]).encode()
HEADERS = [*task_headers(task_id="t-1"), (b"argsrepr", long(b"(17,)")), (b"idempotency_key", long(b"k"))]


def read(properties: bytes, body: bytes) -> Any:
    """The message as a worker reads it."""
    said = read_properties(properties)
    return read_task_message(
        said.headers, body, content_type=said.content_type, content_encoding=said.content_encoding
    )


def test_only_the_call_is_another() -> None:
    """Callbacks, id, key and every other header stay; the message says what it was before (D5)."""
    properties = raw_properties(HEADERS)
    after = read_call(properties, BODY).changed("kwargs.amount", 10).changed("args.0", "ada")
    sent = edited(properties, BODY, after)
    message, headers = read(sent.properties, sent.body), read_properties(sent.properties).headers
    assert (message.args, message.kwargs) == (["ada"], {"amount": 10, "order": {"lines": [1, 2]}})
    assert json.loads(sent.body)[2] == {"chain": [1], "callbacks": None}
    assert (headers["id"], headers["idempotency_key"], headers["argsrepr"]) == ("t-1", "k", "(edited)")
    assert edited_from(headers["edited_from"]) == ([17], {"amount": -1, "order": {"lines": [1, 2]}})
    assert sent.differences == {"args.0": (17, "ada"), "kwargs.amount": (-1, 10)}


def test_an_edited_letter_that_is_edited_again_knows_its_first_call() -> None:
    """The key was first used with the call as it was published (D5, I3)."""
    properties = raw_properties(HEADERS)
    once = edited(properties, BODY, read_call(properties, BODY).changed("args.0", 1))
    twice = edited(once.properties, once.body, read_call(once.properties, once.body).changed("args.0", 2))
    assert edited_from(read_properties(twice.properties).headers["edited_from"]) == (
        [17],
        {"amount": -1, "order": {"lines": [1, 2]}},
    )


def test_a_compressed_body_is_sent_clear() -> None:
    """What was compressed is edited as well, and the header says what the body is (D5)."""
    properties = raw_properties([*HEADERS, (b"compression", long(b"application/x-gzip"))])
    sent = edited(properties, zlib.compress(BODY), Call(args=[], kwargs={}))
    assert (read(sent.properties, sent.body).args, read(sent.properties, sent.body).problem) == ([], None)


def test_protocol_1_is_edited_too() -> None:
    """The body of protocol 1 holds everything (D5)."""
    body = json.dumps({"task": "a.b", "id": "t", "args": [1], "kwargs": {}, "retries": 0}).encode()
    sent = edited(raw_properties([]), body, Call(args=[2], kwargs={}))
    assert json.loads(sent.body) == {"task": "a.b", "id": "t", "args": [2], "kwargs": {}, "retries": 0}


@pytest.mark.parametrize(
    ("path", "problem"),
    [
        ("amount", "must begin with args. or kwargs."),
        ("kwargs", "must begin with args. or kwargs."),
        ("args.1", "no place '1' in a list of 1"),
        ("args.-1", "no place '-1'"),
        ("args." + "9" * 5000, "no place"),
        ("kwargs.nothing.below", "there is no 'nothing'"),
        ("kwargs.amount.cents", "nothing below a value of type int"),
        ("kwargs.order.lines.7", "no place '7' in a list of 2"),
    ],
)
def test_a_path_that_leads_nowhere_is_said(path: str, problem: str) -> None:
    """One sentence, and nothing is changed (D5)."""
    with pytest.raises(EditError, match=problem):
        read_call(raw_properties(HEADERS), BODY).changed(path, 1)


@pytest.mark.parametrize(
    "text", ["", "[1]", '{"args": 1, "kwargs": {}}', '{"args": [], "kwargs": {}, "id": 1}', "NaN"]
)
def test_what_is_typed_must_be_a_call(text: str) -> None:
    """A slip in the editor is no message (D5)."""
    with pytest.raises(EditError):
        Call.from_json(text)


@pytest.mark.parametrize("body", [b"\x80\x04pickle", b"[" * 100_000, b"{}", b""])
def test_what_cannot_be_read_cannot_be_edited(body: bytes) -> None:
    """It can still be replayed as it is (D1, D5)."""
    with pytest.raises(NotEditableError, match="its arguments cannot be edited"):
        read_call(raw_properties(HEADERS), body)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), [float("-inf")]])
def test_what_is_no_number_is_not_sent(value: Any) -> None:
    """NaN passes every check of an amount (D5)."""
    properties = raw_properties(HEADERS)
    with pytest.raises(EditError, match="NaN and infinity"):
        edited(properties, BODY, read_call(properties, BODY).changed("kwargs.amount", value))


def test_a_null_that_was_not_there_is_a_difference() -> None:
    """It overrides the task's default (D5)."""
    properties = raw_properties(HEADERS)
    sent = edited(properties, BODY, read_call(properties, BODY).changed("kwargs.limit", None))
    assert sent.differences == {"kwargs.limit": ("(none)", None)}


def test_nesting_that_can_be_read_but_not_compared_is_refused() -> None:
    """One such letter does not end the replay of others with a traceback (D1, D5)."""
    deep: list[Any] = []
    for _ in range(600):
        deep = [deep]
    properties = raw_properties(HEADERS)
    body = json.dumps([[1], {"deep": deep}, {}]).encode()
    with contextlib.suppress(NotEditableError):
        edited(properties, body, read_call(properties, body).changed("args.0", 2))


def test_the_same_call_is_no_edit() -> None:
    """Whoever saved the file without a change did not mean to replay (D5)."""
    properties = raw_properties(HEADERS)
    with pytest.raises(EditError, match="nothing is changed"):
        edited(properties, BODY, read_call(properties, BODY))


def test_arguments_too_large_for_a_header_are_refused() -> None:
    """The call before travels in a header, which must fit into a frame (D5)."""
    body = json.dumps([["x" * 70_000], {}, {}]).encode()
    with pytest.raises(NotEditableError, match="more than 65536"):
        edited(raw_properties(HEADERS), body, Call(args=[], kwargs={}))


TEXT = some.text(some.characters(codec=None, exclude_categories=()))
SCALARS = some.none() | some.booleans() | some.integers() | some.floats(allow_nan=False, allow_infinity=False) | TEXT
JSON = some.recursive(
    SCALARS,
    lambda inner: some.lists(inner, max_size=3) | some.dictionaries(TEXT, inner, max_size=3),
    max_leaves=8,
)


@given(args=some.lists(JSON, max_size=3), kwargs=some.dictionaries(TEXT, JSON, max_size=3))
def test_any_call_arrives_as_it_was_typed(args: list[Any], kwargs: dict[str, Any]) -> None:
    """Numbers, texts and nesting survive the editor and the wire (D5)."""
    after = Call.from_json(Call(args=args, kwargs=kwargs).to_json(indent=2))
    properties = raw_properties(HEADERS)
    if after.to_json() != read_call(properties, BODY).to_json():
        sent = edited(properties, BODY, after)
        assert (read(sent.properties, sent.body).args, read(sent.properties, sent.body).kwargs) == (args, kwargs)
