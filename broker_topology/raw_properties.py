"""A lenient reading of a content header: whatever a sender wrote, what can be read of it is read.

Decoding is only a view of the bytes, and never raises.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

from broker_topology.raw_headers import VALUE_SIZES, MalformedHeaderError, spans, value_end

MAX_DEPTH = 32
"""Tables and arrays nested deeper than this are shown as bytes; they are still republished."""

_NOWHERE = (0, 0)
_KIND_AND_SIZE = struct.Struct(">BI")
_PADDING = bytes(4)


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
        for name, start, end in spans(raw):
            match name:
                case "headers":
                    values[name] = _read_table(raw, start + 4, end, 0)
                case "delivery_mode" | "priority" | "timestamp":
                    values[name] = int.from_bytes(raw[start:end], "big")
                case _:
                    values[name] = _text(raw[start + 1 : end])
    except MalformedHeaderError as error:
        values["problem"] = str(error)
    return Properties(**values)


class Outline:
    """Where the parts of one content header lie, so that a few can be read without decoding the rest.

    Raises MalformedHeaderError when it is made.
    """

    __slots__ = ("_headers", "_raw", "_spans")

    _headers: dict[bytes, tuple[int, int]]

    def __init__(self, raw: bytes) -> None:
        self._raw = raw
        self._spans = {name: (start, end) for name, start, end in spans(raw)}
        self._headers = headers = {}
        start, end = self._spans.get("headers", _NOWHERE)
        offset, sizes, read = start + 4, VALUE_SIZES, _KIND_AND_SIZE.unpack_from
        padded = raw + _PADDING
        while offset < end:
            value_at = offset + 1 + raw[offset]
            if value_at >= end:
                raise MalformedHeaderError("a header ends within its name")
            kind, size = read(padded, value_at)
            if kind == 0x53:  # S, the most frequent by far
                after = value_at + 5 + size
            elif (size := sizes[kind]) >= 0:
                after = value_at + 1 + size
            else:
                after = value_end(raw, value_at, end)
            headers[raw[offset + 1 : value_at]] = value_at, after
            offset = after
        if offset > end > 0:
            raise MalformedHeaderError("a header ends within its value")

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
        return self._raw[start + 5 : value_end(self._raw, start + 5, end)]

    def stable_parts(self, *, without: frozenset[bytes]) -> list[bytes]:
        """The bytes less some headers, for a digest: a broker that adds a header sorts them all."""
        raw = self._raw
        parts = [raw[start:end] for name, (start, end) in self._spans.items() if name != "headers"]
        headers = sorted((key, raw[at:end]) for key, (at, end) in self._headers.items() if key not in without)
        return parts + [part for header in headers for part in header]


def read_value(raw: bytes) -> Any:
    """Decode one raw header value. Raises MalformedHeaderError."""
    return _read_value(raw, 0, len(raw), 1)


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
                after = value_end(data, offset, end)
                values.append(_read_value(data, offset, after, depth + 1))
                offset = after
            return values
        case _:
            return _read_table(data, offset + 5, end, depth)


def _read_table(data: bytes, offset: int, end: int, depth: int) -> dict[str, Any]:
    table: dict[str, Any] = {}
    while offset < end:
        value_at = offset + 1 + data[offset]
        after = value_end(data, value_at, end)
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
