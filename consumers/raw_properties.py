"""The raw content header of an AMQP message: read leniently, republished byte for byte.

A client library decodes properties for its own convenience: floats become integers, short integers long ones,
duplicate keys collapse, and one timestamp past the year 9999 raises. What is replayed must be what was
published, so the bytes as they came are the truth here, and decoding is only a view of them that never
raises. Layout: AMQP 0-9-1, sections 4.2.5 and 4.2.6, with RabbitMQ's field types
(https://www.rabbitmq.com/amqp-0-9-1-errata).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

from broker_topology.message import REPLAY_ID_HEADER, is_broker_history

MAX_DEPTH = 32
"""Tables and arrays nested deeper than this are shown as bytes; they are still republished."""

_PROPERTIES = (
    ("content_type", 15),
    ("content_encoding", 14),
    ("headers", 13),
    ("delivery_mode", 12),
    ("priority", 11),
    ("correlation_id", 10),
    ("reply_to", 9),
    ("expiration", 8),
    ("message_id", 7),
    ("timestamp", 6),
    ("type", 5),
    ("user_id", 4),
    ("app_id", 3),
    ("cluster_id", 2),
)
_BITS = dict(_PROPERTIES)
_FIXED_SIZES = {"delivery_mode": 1, "priority": 1, "timestamp": 8}
_PERSISTENT = b"\x02"


class MalformedPropertiesError(ValueError):
    """The bytes are not a content header."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Properties:
    """A lenient reading of a content header. Texts that are not UTF-8 are escaped, never refused."""

    content_type: str | None = None
    content_encoding: str | None = None
    headers: dict[str, Any] = field(default_factory=dict)
    delivery_mode: int | None = None
    priority: int | None = None
    correlation_id: str | None = None
    reply_to: str | None = None
    expiration: str | None = None
    message_id: str | None = None
    timestamp: int | None = None
    """Seconds since 1970 as the sender wrote them, up to 2**64 - 1."""
    type: str | None = None
    user_id: str | None = None
    app_id: str | None = None
    cluster_id: str | None = None
    problem: str | None = None
    """Why the bytes could not be read to their end, as a clause."""


def read_properties(raw: bytes) -> Properties:
    """Decode a content header as far as it goes. Never raises."""
    values: dict[str, Any] = {}
    try:
        for name, start, end in _spans(raw):
            match name:
                case "headers":
                    values[name] = _read_table(raw, start + 4, end, 0)
                case "delivery_mode" | "priority" | "timestamp":
                    values[name] = int.from_bytes(raw[start:end], "big")
                case _:
                    values[name] = _text(raw[start + 1 : end])
    except MalformedPropertiesError as error:
        values["problem"] = str(error)
    return Properties(**values)


class Outline:
    """Where the parts of one content header lie, so that a few can be read without decoding the rest.

    Raises MalformedPropertiesError when it is made.
    """

    __slots__ = ("_headers", "_raw", "_spans")

    _headers: dict[bytes, tuple[int, int]]

    def __init__(self, raw: bytes) -> None:
        self._raw = raw
        self._spans = {name: (start, end) for name, start, end in _spans(raw)}
        self._headers = headers = {}
        start, end = self._spans.get("headers", _NOWHERE)
        offset, sizes = start + 4, _SIZE_LIST
        while offset < end:
            value_at = offset + 1 + raw[offset]
            if value_at >= end:
                raise MalformedPropertiesError("a header ends within its name")
            kind = raw[value_at]
            if kind == 0x53 and value_at + 5 <= end:  # S, the most frequent by far
                after = value_at + 5 + int.from_bytes(raw[value_at + 1 : value_at + 5], "big")
            elif (size := sizes[kind]) >= 0:
                after = value_at + 1 + size
            else:
                after = _value_end(raw, value_at, end)
            if after > end:
                raise MalformedPropertiesError("a header ends within its value")
            headers[raw[offset + 1 : value_at]] = value_at, after
            offset = after

    def text(self, name: str) -> str | None:
        """A property that is a short string."""
        span = self._spans.get(name)
        return _text(self._raw[span[0] + 1 : span[1]]) if span else None

    def headers(self, wanted: Sequence[tuple[str, bytes]]) -> dict[str, Any]:
        """Some headers, decoded, by name; those that are missing are left out."""
        raw, found = self._raw, self._headers
        return {
            name: _read_value(raw, *found[key], 1)  # offset and end
            for name, key in wanted
            if key in found
        }

    def first_of(self, key: bytes) -> bytes | None:
        """The first element of a header that is an array, raw; None where there is none."""
        start, end = self._headers.get(key, (0, 0))
        if end - start < 6 or self._raw[start] != ord("A"):
            return None
        return self._raw[start + 5 : _value_end(self._raw, start + 5, end)]

    def stable_parts(self, *, without: frozenset[bytes]) -> list[bytes]:
        """The bytes less some headers, for a digest: a broker that adds a header sorts them all."""
        raw = self._raw
        parts = [raw[start:end] for name, (start, end) in self._spans.items() if name != "headers"]
        headers = sorted((key, raw[at:end]) for key, (at, end) in self._headers.items() if key not in without)
        return parts + [part for header in headers for part in header]


def read_value(raw: bytes) -> Any:
    """Decode one raw header value. Raises MalformedPropertiesError."""
    return _read_value(raw, 0, len(raw), 1)


def republished(
    raw: bytes,
    *,
    replay_id: str,
    expiration: bytes | None = None,
    keep_expiry: bool = False,
    content: dict[str, bytes] | None = None,
) -> bytes:
    """The content header of a replay: every byte as it was, but for what a second life needs.

    The broker's death history goes, since before 4.0 a republished one is read as a cycle. ``retries`` is 0
    again, ``replay_id`` is set, the delivery mode is persistent. The ``expiration`` (milliseconds, which the
    broker drops itself when a message expires) goes unless ``keep_expiry``; so does the ``expires`` header
    of Celery, where a worker would revoke the message at once. ``content`` overrides raw header values by
    name. Raises MalformedPropertiesError.
    """
    parts = {name: raw[start:end] for name, start, end in _spans(raw)}
    parts["delivery_mode"] = _PERSISTENT
    if expiration is not None:
        parts["expiration"] = bytes([len(expiration)]) + expiration
    elif not keep_expiry:
        parts.pop("expiration", None)
    overrides = {name.encode(): value for name, value in (content or {}).items()}
    overrides[REPLAY_ID_HEADER.encode()] = long_string(replay_id)
    entries: list[bytes] = []
    for key, entry in _entries(parts.get("headers", _table([]))):
        if is_broker_history(_text(key)):
            continue
        if key in overrides:
            if (value := overrides.pop(key)) != b"":
                entries.append(_entry(key, value))
        elif key == b"retries":
            entries.append(_entry(key, _zero_like(entry[len(key) + 1 :])))
        elif key == b"expires" and not keep_expiry:
            entries.append(_entry(key, b"V"))
        else:
            entries.append(entry)
    entries += [_entry(key, value) for key, value in overrides.items() if value != b""]
    return _join(parts | {"headers": _table(entries)})


def long_string(text: str) -> bytes:
    """A header value of type ``S``."""
    data = text.encode("utf-8", "surrogatepass")
    return b"S" + struct.pack(">I", len(data)) + data


def raw_headers(raw: bytes) -> list[tuple[bytes, bytes]]:
    """The headers as (key, raw value with its type) in their order. Raises MalformedPropertiesError."""
    for name, start, end in _spans(raw):
        if name == "headers":
            return [(key, entry[len(key) + 1 :]) for key, entry in _entries(raw[start:end])]
    return []


def _entry(key: bytes, value: bytes) -> bytes:
    return bytes([len(key)]) + key + value


def _zero_like(value: bytes) -> bytes:
    """The number 0 in the type that the sender chose, so that only the value changes."""
    if value[:1] in b"bBsuUIilL":
        return value[:1] + bytes(len(value) - 1)
    return b"I" + bytes(4)


def _table(entries: list[bytes]) -> bytes:
    data = b"".join(entries)
    return struct.pack(">I", len(data)) + data


def _join(parts: dict[str, bytes]) -> bytes:
    flags = 0
    for name in parts:
        flags |= 1 << _BITS[name]
    return struct.pack(">H", flags) + b"".join(parts[name] for name, _ in _PROPERTIES if name in parts)


def _spans(raw: bytes) -> Iterator[tuple[str, int, int]]:
    """Where each property lies that the header has, in order."""
    if len(raw) < 2:
        raise MalformedPropertiesError("the content header is shorter than its flags")
    flags = (raw[0] << 8) | raw[1]
    if flags & 1:
        raise MalformedPropertiesError("the content header has more flags than AMQP 0-9-1 knows")
    offset, size = 2, len(raw)
    for name, mask, width in _LAYOUT:
        if not flags & mask:
            continue
        if width > 0:
            end = offset + width
        elif width < 0:
            end = offset + 4 + int.from_bytes(raw[offset : offset + 4], "big")
        else:
            end = offset + 1 + (raw[offset] if offset < size else 0)
        if end > size:
            raise MalformedPropertiesError(f"the content header ends within {name}")
        yield name, offset, end
        offset = end


# Name, flag, and width: 0 for a short string, -1 for a table.
_LAYOUT = [(name, 1 << bit, -1 if name == "headers" else _FIXED_SIZES.get(name, 0)) for name, bit in _PROPERTIES]


def _entries(table: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Each entry of a table as (key, the bytes of key and value), duplicates included."""
    offset, end = 4, len(table)
    while offset < end:
        value_at = offset + 1 + table[offset]
        after = _value_end(table, value_at, end)
        yield table[offset + 1 : value_at], table[offset:after]
        offset = after


_SIZES = {
    kind: size
    for kinds, size in ((b"tbB", 1), (b"suU", 2), (b"Iif", 4), (b"D", 5), (b"lLTd", 8), (b"V", 0))
    for kind in kinds
}
_PREFIXED = frozenset(b"SxAF")
# Indexed by type; negative where the size stands in the data, or the type is unknown.
_NOWHERE = (0, 0)
_SIZE_LIST = [_SIZES.get(kind, -1) for kind in range(256)]


def _value_end(data: bytes, offset: int, end: int) -> int:
    """Where the value ends that starts with its type at ``offset``."""
    kind = data[offset] if offset < end else -1
    if kind in _PREFIXED and offset + 5 <= end:
        after = offset + 5 + int.from_bytes(data[offset + 1 : offset + 5], "big")
    elif (size := _SIZES.get(kind)) is not None:
        after = offset + 1 + size
    else:
        raise MalformedPropertiesError(f"a header has the unknown type {kind}")
    if after > end:
        raise MalformedPropertiesError("a header ends within its value")
    return after


_INTEGERS = {
    ord("b"): True,
    ord("B"): False,
    ord("s"): True,
    ord("u"): False,
    ord("U"): True,
    ord("I"): True,
    ord("i"): False,
    ord("l"): True,
    ord("L"): True,
}


def _read_value(data: bytes, offset: int, end: int, depth: int) -> Any:  # noqa: PLR0911, PLR0912, one line a type
    kind = data[offset]
    if kind == 0x53:  # S, the most frequent by far
        return _text(data[offset + 5 : end])
    if (signed := _INTEGERS.get(kind)) is not None:
        return int.from_bytes(data[offset + 1 : end], "big", signed=signed)
    match chr(kind):
        case "t":
            return data[offset + 1] != 0
        case "T":
            return _timestamp(int.from_bytes(data[offset + 1 : end], "big"))
        case "f":
            return struct.unpack(">f", data[offset + 1 : end])[0]
        case "d":
            return struct.unpack(">d", data[offset + 1 : end])[0]
        case "D":
            return Decimal(int.from_bytes(data[offset + 2 : end], "big", signed=True)).scaleb(-data[offset + 1])
        case "x":
            return data[offset + 5 : end]
        case "V":
            return None
        case _ if depth >= MAX_DEPTH:
            return data[offset:end]
        case "A":
            values: list[Any] = []
            offset += 5
            while offset < end:
                after = _value_end(data, offset, end)
                values.append(_read_value(data, offset, after, depth + 1))
                offset = after
            return values
        case _:
            return _read_table(data, offset + 5, end, depth)


def _read_table(data: bytes, offset: int, end: int, depth: int) -> dict[str, Any]:
    table: dict[str, Any] = {}
    while offset < end:
        value_at = offset + 1 + data[offset]
        after = _value_end(data, value_at, end)
        table[_text(data[offset + 1 : value_at])] = _read_value(data, value_at, after, depth + 1)
        offset = after
    return table


_LAST_SECOND = int(datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC).timestamp())


def _timestamp(seconds: int) -> datetime | int:
    """Aware UTC, or the bare number where no calendar reaches."""
    return datetime.fromtimestamp(seconds, UTC) if seconds <= _LAST_SECOND else seconds


def _text(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return data.decode("utf-8", "backslashreplace")
