"""The content header as bytes: read leniently, republished byte for byte."""

from __future__ import annotations

import struct
from datetime import UTC, datetime
from decimal import Decimal

import pika
import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker_topology.raw_headers import MalformedHeaderError, RawHeader
from broker_topology.raw_properties import (
    Outline,
    read_properties,
)
from consumers.republishing import republished
from tests.integration.mailroom import long, raw_properties, short, table

EVERY_TYPE: list[tuple[bytes, bytes, object]] = [
    (b"bool", b"t\x01", True),
    (b"byte", b"b\xff", -1),
    (b"ubyte", b"B\xff", 255),
    (b"short", b"s\xff\xfe", -2),
    (b"ushort", b"u\xff\xff", 65535),
    (b"int", b"I" + struct.pack(">i", -7), -7),
    (b"uint", b"i" + struct.pack(">I", 2**32 - 1), 2**32 - 1),
    (b"long", b"l" + struct.pack(">q", -(2**63)), -(2**63)),
    (b"float", b"f" + struct.pack(">f", 1.5), 1.5),
    (b"double", b"d" + struct.pack(">d", 1e308), 1e308),
    (b"decimal", b"D\x02" + struct.pack(">i", 1250), Decimal("12.50")),
    (b"string", long("zoë".encode()), "zoë"),
    (b"not utf-8", long(b"\xff\xfe"), "\\xff\\xfe"),
    (b"bytes", b"x" + struct.pack(">I", 2) + b"\xff\x00", b"\xff\x00"),
    (b"time", b"T" + struct.pack(">Q", 0), datetime(1970, 1, 1, tzinfo=UTC)),
    (b"far time", b"T" + struct.pack(">Q", 2**63), 2**63),
    (b"none", b"V", None),
    (b"array", b"A" + struct.pack(">I", 4) + b"t\x01V" + b"V", [True, None, None]),
    (b"table", b"F" + table([(b"a", b"t\x00")]), {"a": False}),
]


def test_every_type_is_read() -> None:
    """Each AMQP field type becomes its Python value (D1)."""
    read = read_properties(raw_properties([(key, value) for key, value, _ in EVERY_TYPE]))
    assert read.problem is None
    assert read.headers == {key.decode(): expected for key, _, expected in EVERY_TYPE}


def test_a_republish_changes_only_what_it_must() -> None:
    """Broker history goes, retries and replay_id are set, every other byte stays (D1, D5)."""
    entries = [(key, value) for key, value, _ in EVERY_TYPE]
    history = [(b"x-death", b"V"), (b"x-first-death-queue", long(b"q")), (b"x-delivery-count", b"l" + bytes(8))]
    again = republished(raw_properties([*history, *entries, (b"retries", b"b\x05")], delivery_mode=1), replay_id="r1")
    assert _headers(again) == [*entries, (b"retries", b"b\x00"), (b"replay_id", long(b"r1"))]
    assert read_properties(again).delivery_mode == 2


def test_duplicate_keys_survive() -> None:
    """Two headers of one name stay two (D1)."""
    entries = [(b"a", b"t\x00"), (b"a", b"t\x01")]
    assert _headers(republished(raw_properties(entries), replay_id="r"))[:2] == entries


def test_expiry_is_dropped_or_kept() -> None:
    """What would end the message at once is dropped unless it is asked for (D5)."""
    raw = raw_properties([(b"expires", long(b"2020"))], tail=short(b"5"), tail_flags=1 << 8)
    assert read_properties(republished(raw, replay_id="r")).expiration is None
    assert _headers(republished(raw, replay_id="r"))[0] == (b"expires", b"V")
    kept = republished(raw, replay_id="r", keep_expiry=True)
    assert read_properties(kept).expiration == "5"
    assert _headers(kept)[0] == (b"expires", long(b"2020"))


def test_a_message_without_headers_gets_only_the_replay_id() -> None:
    """No properties at all is fine too (D5)."""
    assert read_properties(republished(b"\0\0", replay_id="r")).headers == {"replay_id": "r"}


def test_deep_nesting_is_shown_as_bytes() -> None:
    """Tables nested thousands deep neither raise nor recurse (D2)."""
    value = b"V"
    for _ in range(5000):
        value = b"F" + table([(b"a", value)])
    entries = [(b"deep", value), (b"id", long(b"x"))]
    read = read_properties(raw_properties(entries))
    assert read.headers["id"] == "x"
    assert _headers(republished(raw_properties(entries), replay_id="r"))[:2] == entries


def test_delivery_counts_are_taken_out() -> None:
    """What differs between two deliveries of one message can be left out (D1)."""
    other = raw_properties([(b"b", b"V"), (b"a", b"V"), (b"x-acquired-count", b"b\x01")])
    raw = raw_properties([(b"x-delivery-count", b"l" + bytes(8)), (b"a", b"V"), (b"b", b"V")])
    counts = frozenset({b"x-delivery-count", b"x-acquired-count"})
    parts = [Outline(one).stable_parts(without=counts) for one in (raw, other)]
    assert parts[0] == parts[1]
    assert parts[0] != Outline(raw_properties([(b"a", b"V")])).stable_parts(without=counts)


@given(st.binary(max_size=200))
def test_any_bytes_are_read_without_an_error(raw: bytes) -> None:
    """Reading never raises; a republish raises only our error (D2)."""
    read_properties(raw)
    try:
        republished(raw, replay_id="r")
    except MalformedHeaderError:
        assert read_properties(raw).problem or len(raw) < 2


@given(
    st.dictionaries(
        st.text(max_size=20),
        st.recursive(
            st.none() | st.booleans() | st.integers(-(2**62), 2**62) | st.text() | st.binary(),
            lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
            max_leaves=10,
        ),
        max_size=5,
    )
)
def test_what_pika_writes_is_read_alike(headers: dict[str, object]) -> None:
    """Our reading agrees with pika's encoding wherever that is lossless (D1)."""
    raw = b"".join(pika.BasicProperties(headers=headers, priority=3, app_id="me").encode())
    read = read_properties(raw)
    assert (read.headers, read.priority, read.app_id) == (headers, 3, "me")


def test_a_truncated_header_is_a_problem_and_not_an_error() -> None:
    """What could be read is there, and so is the reason why the rest could not (D2)."""
    read = read_properties(raw_properties([(b"a", b"V")])[:-3])
    assert read.content_type == "application/json"
    assert read.problem
    with pytest.raises(MalformedHeaderError):
        republished(raw_properties([(b"a", b"V")])[:-3], replay_id="r")


def _headers(raw: bytes) -> list[tuple[bytes, bytes]]:
    return list(RawHeader.parse(raw).headers or ())
