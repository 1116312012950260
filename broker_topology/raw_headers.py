"""The content header of an AMQP message as bytes: single parts changed, the rest left as it is.

A client library decodes properties for its own convenience: floats become integers, short integers long ones,
duplicate keys collapse, and one timestamp past the year 9999 raises. What is published again must be what was
published, so the bytes as they came are the truth. Layout: AMQP 0-9-1, sections 4.2.5 and 4.2.6, with
RabbitMQ's field types (https://www.rabbitmq.com/amqp-0-9-1-errata).
"""

from __future__ import annotations

import functools
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Self

_PROPERTIES = (
    "content_type",
    "content_encoding",
    "headers",
    "delivery_mode",
    "priority",
    "correlation_id",
    "reply_to",
    "expiration",
    "message_id",
    "timestamp",
    "type",
    "user_id",
    "app_id",
    "cluster_id",
)
_BITS = {name: 1 << (15 - index) for index, name in enumerate(_PROPERTIES)}
_WIDTHS = {"headers": -1, "delivery_mode": 1, "priority": 1, "timestamp": 8}

_SIZES = {
    kind: size
    for kinds, size in ((b"tbB", 1), (b"suU", 2), (b"Iif", 4), (b"D", 5), (b"lLTd", 8), (b"V", 0))
    for kind in kinds
}
VALUE_SIZES = [_SIZES.get(kind, -1) for kind in range(256)]
"""Bytes of a value by its type; negative where the size stands in the data, or the type is unknown."""
_PREFIXED = frozenset(b"SxAF")


class MalformedHeaderError(ValueError):
    """The bytes are not a content header."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RawHeader:
    """A content header in its parts, each the bytes that came."""

    properties: dict[str, bytes]
    """Without the headers; short strings with their length."""
    headers: tuple[tuple[bytes, bytes], ...] | None
    """Key and value with its type, in their order, duplicates included; None where the message has no headers."""

    @classmethod
    def parse(cls, raw: bytes) -> Self:
        """Take a content header apart. Raises MalformedHeaderError."""
        parts = {name: raw[start:end] for name, start, end in spans(raw)}
        table = parts.pop("headers", None)
        return cls(properties=parts, headers=None if table is None else tuple(_entries(table)))

    def encode(self) -> bytes:
        """The bytes again."""
        parts = dict(self.properties)
        if self.headers is not None:
            data = b"".join(bytes([len(key)]) + key + value for key, value in self.headers)
            parts["headers"] = struct.pack(">I", len(data)) + data
        flags = sum(_BITS[name] for name in parts)
        return struct.pack(">H", flags) + b"".join(parts[name] for name in _PROPERTIES if name in parts)

    def text(self, header: str) -> str | None:
        """A header of type long string; None where it is missing or of another type."""
        for key, value in self.headers or ():
            if key == header.encode() and value[:1] == b"S":
                return value[5:].decode("utf-8", "surrogateescape")
        return None

    def property(self, name: str) -> bytes | None:
        """A short string property without its length."""
        value = self.properties.get(name)
        return None if value is None else value[1:]

    def with_property(self, name: str, value: bytes | None) -> Self:
        """The same with a short string property set, or taken away."""
        properties = {key: old for key, old in self.properties.items() if key != name}
        if value is not None:
            properties[name] = bytes([len(value)]) + value
        return type(self)(properties=properties, headers=self.headers)

    def with_header(self, name: str, value: str) -> Self:
        """The same with one more header, a long string."""
        entry = (name.encode(), long_string(value))
        return type(self)(properties=self.properties, headers=(*(self.headers or ()), entry))

    def without_headers(self, names: frozenset[str], prefixes: tuple[str, ...] = ()) -> Self:
        """The same less some headers; an emptied table goes too."""
        if self.headers is None:
            return self
        kept = tuple(
            (key, value)
            for key, value in self.headers
            if key.decode("latin-1") not in names and not key.decode("latin-1").startswith(prefixes or ("\0",))
        )
        if len(kept) == len(self.headers):
            return self
        return type(self)(properties=self.properties, headers=kept or None)


def long_string(text: str) -> bytes:
    """A header value of type ``S``; what was escaped when it was read becomes its byte again."""
    data = text.encode("utf-8", "surrogateescape")
    return b"S" + struct.pack(">I", len(data)) + data


def spans(raw: bytes) -> Iterator[tuple[str, int, int]]:
    """Where each property lies that the header has: name, start and end. Raises MalformedHeaderError."""
    if len(raw) < 2:
        raise MalformedHeaderError("the content header is shorter than its flags")
    flags = (raw[0] << 8) | raw[1]
    if flags & 1:
        raise MalformedHeaderError("the content header has more flags than AMQP 0-9-1 knows")
    offset, size = 2, len(raw)
    for name, width in _layout(flags):
        if width > 0:
            end = offset + width
        elif width < 0:
            end = offset + 4 + int.from_bytes(raw[offset : offset + 4], "big")
        else:
            end = offset + 1 + (raw[offset] if offset < size else 0)
        if end > size:
            raise MalformedHeaderError(f"the content header ends within {name}")
        yield name, offset, end
        offset = end


@functools.lru_cache(maxsize=64)
def _layout(flags: int) -> list[tuple[str, int]]:
    """The properties that flags announce, in their order, and their width: 0 for a short string, -1 for a table."""
    return [(name, _WIDTHS.get(name, 0)) for name, bit in _BITS.items() if flags & bit]


def value_end(data: bytes, offset: int, end: int) -> int:
    """Where the value ends that starts with its type at ``offset``. Raises MalformedHeaderError."""
    kind = data[offset] if offset < end else -1
    if kind in _PREFIXED and offset + 5 <= end:
        after = offset + 5 + int.from_bytes(data[offset + 1 : offset + 5], "big")
    elif (size := _SIZES.get(kind)) is not None:
        after = offset + 1 + size
    else:
        raise MalformedHeaderError(f"a header has the unknown type {kind}")
    if after > end:
        raise MalformedHeaderError("a header ends within its value")
    return after


def _entries(table: bytes) -> Iterator[tuple[bytes, bytes]]:
    offset, end = 4, len(table)
    while offset < end:
        value_at = offset + 1 + table[offset]
        after = value_end(table, value_at, end)
        yield table[offset + 1 : value_at], table[value_at:after]
        offset = after
