"""The content header of an AMQP message as bytes: single properties and headers changed, the rest left as it is.

Layout: AMQP 0-9-1, sections 4.2.5 and 4.2.6, with RabbitMQ's field types
(https://www.rabbitmq.com/amqp-0-9-1-errata).
"""

from __future__ import annotations

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
_FIRST_BIT = 15
_FIXED = {"delivery_mode": 1, "priority": 1, "timestamp": 8}
_VALUE_SIZES = {
    kind: size
    for kinds, size in ((b"tbB", 1), (b"suU", 2), (b"Iif", 4), (b"D", 5), (b"lLTd", 8), (b"V", 0))
    for kind in kinds
}
_PREFIXED = frozenset(b"SxAF")


class MalformedHeaderError(ValueError):
    """The bytes are not a content header."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RawHeader:
    """A content header in its parts, each the bytes that came."""

    properties: dict[str, bytes]
    """Without the headers; short strings with their length."""
    headers: tuple[tuple[bytes, bytes], ...] | None
    """Key and value with its type, in their order; None where the message has no headers."""

    @classmethod
    def parse(cls, raw: bytes) -> Self:
        """Take a content header apart. Raises MalformedHeaderError."""
        try:
            parts = dict(_parts(raw))
            table = parts.pop("headers", None)
            return cls(properties=parts, headers=None if table is None else tuple(_entries(table)))
        except (IndexError, struct.error) as error:
            raise MalformedHeaderError("the content header ends too early") from error

    def encode(self) -> bytes:
        """The bytes again."""
        parts = dict(self.properties)
        if self.headers is not None:
            data = b"".join(bytes([len(key)]) + key + value for key, value in self.headers)
            parts["headers"] = struct.pack(">I", len(data)) + data
        flags = sum(1 << (_FIRST_BIT - index) for index, name in enumerate(_PROPERTIES) if name in parts)
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
        data = value.encode("utf-8", "surrogateescape")
        entry = (name.encode(), b"S" + struct.pack(">I", len(data)) + data)
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


def _parts(raw: bytes) -> Iterator[tuple[str, bytes]]:
    (flags,) = struct.unpack_from(">H", raw)
    if flags & 3:
        raise MalformedHeaderError("the content header has flags that AMQP 0-9-1 does not know")
    at = 2
    for index, name in enumerate(_PROPERTIES):
        if flags >> (_FIRST_BIT - index) & 1:
            if name in _FIXED:
                end = at + _FIXED[name]
            elif name == "headers":
                end = at + 4 + struct.unpack_from(">I", raw, at)[0]
            else:
                end = at + 1 + raw[at]
            if end > len(raw):
                raise MalformedHeaderError(f"the content header ends within {name}")
            yield name, raw[at:end]
            at = end


def _entries(table: bytes) -> Iterator[tuple[bytes, bytes]]:
    at = 4
    while at < len(table):
        value_at = at + 1 + table[at]
        end = value_at + 1 + _value_size(table, value_at)
        if end > len(table):
            raise MalformedHeaderError("a header ends within its value")
        yield table[at + 1 : value_at], table[value_at:end]
        at = end


def _value_size(table: bytes, at: int) -> int:
    kind = table[at]
    if kind in _PREFIXED:
        return 4 + int(struct.unpack_from(">I", table, at + 1)[0])
    if kind not in _VALUE_SIZES:
        raise MalformedHeaderError(f"a header has the unknown type {kind}")
    return _VALUE_SIZES[kind]
