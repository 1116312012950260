"""A catalogue of messages that nobody should send, each with the row that it must become."""

from __future__ import annotations

import bz2
import json
import lzma
import pickle
import struct
import zlib
from dataclasses import dataclass, field
from typing import Any

import brotli
from backports import zstd

from tests.integration.mailroom import array, long, raw_properties, short, table, task_headers, x_death

GOOD_BODY = b"[[1], {}, {}]"


@dataclass(frozen=True, slots=True, kw_only=True)
class Hostile:
    """One message and what must stand in its row."""

    name: str
    properties: bytes
    body: bytes = GOOD_BODY
    row: dict[str, Any] = field(default_factory=dict)


def bad_body(name: str, body: bytes, problem: str, **properties: Any) -> Hostile:
    """A task whose body cannot be decoded: named all the same, and the problem said."""
    return Hostile(
        name=name,
        properties=raw_properties(task_headers(task_id=name), **properties),
        body=body,
        row={"task_name": "payments.charge_customer", "args": None, "kwargs": None, "decode_problem": problem},
    )


def good_body(name: str, body: bytes, args: str, kwargs: str = "{}", **properties: Any) -> Hostile:
    """A task whose body is odd, but can be decoded."""
    return Hostile(
        name=name,
        properties=raw_properties(task_headers(task_id=name), **properties),
        body=body,
        row={"args": args, "kwargs": kwargs, "decode_problem": None},
    )


def odd_header(name: str, *headers: tuple[bytes, bytes], **row: Any) -> Hostile:
    """A good task with headers that are not."""
    return Hostile(
        name=name,
        properties=raw_properties(list((dict(task_headers(task_id=name)) | dict(headers)).items())),
        row={"args": "[1]", "decode_problem": None} | row,
    )


def compressed(name: str, compression: bytes, body: bytes, **row: Any) -> Hostile:
    """A task with a compression header."""
    headers = [*task_headers(task_id=name), (b"compression", long(compression))]
    return Hostile(name=name, properties=raw_properties(headers), body=body, row=row)


def _nested(depth: int, kind: bytes = b"F") -> bytes:
    value = b"V"
    for _ in range(depth):
        value = b"F" + table([(b"a", value)]) if kind == b"F" else b"A" + struct.pack(">I", len(value)) + value
    return value


def _without(name: bytes) -> list[tuple[bytes, bytes]]:
    return [(key, value) for key, value in task_headers(task_id="without") if key != name]


BLANKS = b"[" + b" " * 40_000_000 + b"]"
BOMB = zlib.compress(BLANKS, 9)
PROTOCOL_1 = {"task": "old.task", "id": "protocol 1", "args": [1], "kwargs": {"a": 2}, "retries": 4}
UNKNOWN: dict[str, Any] = {"reason": "unknown", "queue": "dead-letters"}

CATALOGUE: list[Hostile] = [
    # Bodies that are no JSON, or not that of a task.
    bad_body("empty body", b"", "the body is not JSON"),
    bad_body("broken JSON", b'[[1], {"a": ', "the body is not JSON"),
    bad_body("trailing garbage", b"[[1], {}, {}] and more", "the body is not JSON"),
    bad_body("a number", b"123", "the body is not that of a task"),
    bad_body("null", b"null", "the body is not that of a task"),
    bad_body("a string", b'"text"', "the body is not that of a task"),
    bad_body("an empty list", b"[]", "the body is not that of a task"),
    bad_body("a list of one", b"[1]", "the body is not that of a task"),
    bad_body("an object without task", b'{"a": 1}', "the body is not that of a task"),
    bad_body("a task that is no text", b'{"task": 5}', "the body is not that of a task"),
    bad_body("NUL bytes", b"\0\0\0\0", "the body is not JSON"),
    bad_body("not UTF-8", b'["\xff\xfe"]', "the body is not JSON"),
    bad_body("random bytes", bytes(range(256)), "the body is not JSON"),
    bad_body("a pickle", pickle.dumps(([1], {}, {})), "content type", content_type=b"application/x-python-serialize"),
    bad_body("a pickle called JSON", pickle.dumps(([1], {}, {})), "the body is not JSON"),
    bad_body("YAML", b"- [1]\n- {}\n", "content type", content_type=b"application/x-yaml"),
    bad_body("no content type", GOOD_BODY, "content type None", content_type=None),
    bad_body("a content type that is not UTF-8", GOOD_BODY, "content type", content_type=b"\xff"),
    bad_body("an unknown encoding", GOOD_BODY, "'klingon' is not decoded", content_encoding=b"klingon"),
    bad_body("an encoding that is no text encoding", GOOD_BODY, "'zlib' is not", content_encoding=b"zlib"),
    bad_body("an encoding that takes hours", b"a" * 4_000_000, "'punycode' is", content_encoding=b"punycode"),
    bad_body("nested lists", b"[" * 100_000, "the body is nested too deeply"),
    bad_body("nested objects", b'{"a":' * 100_000, "the body is nested too deeply"),
    bad_body("an integer of 5,000 digits", b"[[" + b"9" * 5000 + b"], {}, {}]", "the body is not JSON"),
    # Bodies that are odd but can be read.
    good_body("NUL in a text", rb'[["a\u0000b"], {}, {}]', r'["a\u0000b"]'),
    good_body("a lone surrogate", rb'[["\ud800"], {}, {}]', r'["\ud800"]'),
    good_body("a surrogate as a key", rb'[[], {"\udfff": 1}, {}]', "[]", r'{"\udfff": 1}'),
    good_body("NaN and infinities", b"[[NaN, Infinity, -Infinity], {}, {}]", '["NaN", "Infinity", "-Infinity"]'),
    good_body("beyond 64 bit", b"[[123456789012345678901234567890], {}, {}]", "[123456789012345678901234567890]"),
    good_body("beyond a double", b"[[1e999], {}, {}]", '["Infinity"]'),
    good_body("kwargs that are a list", b"[[1], [2], {}]", "[1]", "[2]"),
    good_body("args that are an object", b'[{"a": 1}, {}, {}]', '{"a": 1}'),
    good_body("args and kwargs null", b"[null, null, null]", "null", "null"),
    good_body("no embed", b"[[1], {}]", "[1]"),
    good_body("duplicate keys in JSON", b'[[], {"a": 1, "a": 2}, {}]', "[]", '{"a": 2}'),
    good_body("UTF-16", json.dumps([[1], {}, {}]).encode("utf-16"), "[1]", content_encoding=b"utf-16"),
    good_body("emoji", '[["💥"], {}, {}]'.encode(), '["💥"]'),
    good_body("markup for terminals", b'[["[red]\\u001b[2J"], {}, {}]', '["[red]\\u001b[2J"]'),
    good_body("SQL", b'[["\'; DROP TABLE dead_letters; --"], {}, {}]', '["\'; DROP TABLE dead_letters; --"]'),
    Hostile(
        name="protocol 1",
        properties=raw_properties([]),
        body=json.dumps(PROTOCOL_1).encode(),
        row={"task_name": "old.task", "task_id": "protocol 1", "args": "[1]", "kwargs": '{"a": 2}', "retries": 4},
    ),
    # Compression.
    compressed("zlib", b"application/x-gzip", zlib.compress(GOOD_BODY), args="[1]"),
    compressed("bzip2", b"application/x-bz2", bz2.compress(GOOD_BODY), args="[1]"),
    compressed("lzma", b"application/x-lzma", lzma.compress(GOOD_BODY), args="[1]"),
    compressed("zstd", b"application/zstd", zstd.compress(GOOD_BODY), args="[1]"),
    compressed("brotli", b"application/x-brotli", brotli.compress(GOOD_BODY), args="[1]"),
    compressed("a zstd bomb", b"application/zstd", zstd.compress(BLANKS), args=None, decode_problem="more than"),
    compressed(
        "a brotli bomb",
        b"application/x-brotli",
        brotli.compress(BLANKS, quality=5),
        args=None,
        decode_problem="more than",
    ),
    compressed("not brotli", b"application/x-brotli", GOOD_BODY, args=None, decode_problem="cannot be decompressed"),
    compressed("a bomb", b"application/x-gzip", BOMB, args=None, decode_problem="it becomes more than"),
    compressed(
        "cut short", b"application/x-gzip", zlib.compress(GOOD_BODY)[:-3], args=None, decode_problem="cannot be"
    ),
    compressed(
        "not compressed", b"application/x-gzip", GOOD_BODY, args=None, decode_problem="cannot be decompressed"
    ),
    compressed("unknown compression", b"application/x-magic", GOOD_BODY, args=None, decode_problem="is not known"),
    # Headers.
    Hostile(name="no headers", properties=raw_properties(None), row={"task_name": None, "task_id": None} | UNKNOWN),
    Hostile(name="no properties", properties=b"\0\0", row={"task_name": None, "args": None} | UNKNOWN),
    Hostile(name="empty headers", properties=raw_properties([]), row={"task_name": None} | UNKNOWN),
    Hostile(name="no task", properties=raw_properties(_without(b"task")), row={"task_name": None, "args": "[1]"}),
    Hostile(name="no id", properties=raw_properties(_without(b"id")), row={"task_id": None, "args": "[1]"}),
    Hostile(
        name="a task name of 10 kB",
        properties=raw_properties(task_headers(task="t" * 10_000, task_id="long name")),
        row={"task_name": "t" * 125 + " ... " + "t" * 125},
    ),
    Hostile(
        name="an id with any characters",
        properties=raw_properties(task_headers(task_id="\0\n\x1b[31m'\";--%s\u202e" * 20)),
        row={"args": "[1]"},
    ),
    odd_header("task is a number", (b"task", b"I" + bytes(4)), task_name=None),
    odd_header("task is a table", (b"task", b"F" + table([])), task_name=None),
    odd_header("task is not UTF-8", (b"task", long(b"\xff\xfe")), task_name="\\xff\\xfe"),
    odd_header("retries is text", (b"retries", long(b"many")), retries=0),
    odd_header("retries is negative", (b"retries", b"I" + struct.pack(">i", -5)), retries=0),
    odd_header("retries beyond 32 bit", (b"retries", b"l" + struct.pack(">q", 2**40)), retries=0),
    odd_header("retries is a float", (b"retries", b"d" + struct.pack(">d", 1.5)), retries=0),
    odd_header("retries is true", (b"retries", b"t\x01"), retries=1),
    odd_header("a key that is a table", (b"idempotency_key", b"F" + table([])), idempotency_key=None),
    odd_header("a key of 1 kB", (b"idempotency_key", long(b"k" * 1000))),
    odd_header("a replay id of others", (b"replay_id", long(b"forged")), replay_key="forged"),
    odd_header("a time in milliseconds", (b"t", b"T" + struct.pack(">Q", 1_700_000_000_000))),
    odd_header("a time of 2**63", (b"t", b"T" + struct.pack(">Q", 2**63))),
    odd_header("the last time there is", (b"t", b"T" + b"\xff" * 8)),
    odd_header("tables 2,500 deep", (b"deep", _nested(2500))),
    odd_header("arrays 2,500 deep", (b"deep", _nested(2500, b"A"))),
    odd_header("an infinite double", (b"d", b"d" + struct.pack(">d", float("inf")))),
    odd_header("a NaN", (b"d", b"d" + struct.pack(">d", float("nan")))),
    odd_header("a decimal with a large scale", (b"d", b"D\xff" + struct.pack(">i", 1))),
    odd_header("an empty key", (b"", long(b"x"))),
    odd_header("a key that is not UTF-8", (b"\xff\xfe", long(b"x"))),
    odd_header("a key of 255 bytes", (b"k" * 255, long(b"x"))),
    odd_header("1,000 headers", *((b"h%d" % n, b"I" + struct.pack(">i", n)) for n in range(1000))),
    Hostile(
        name="the same header twice",
        properties=raw_properties([*task_headers(task_id="twice"), (b"a", long(b"1")), (b"a", b"V")]),
        row={"task_id": "twice", "args": "[1]"},
    ),
    # Deaths that the broker never wrote.
    odd_header("a death", (b"x-death", x_death()), queue="payments", reason="rejected", exchange="work"),
    odd_header("x-death is text", (b"x-death", long(b"yes")), **UNKNOWN),
    odd_header("x-death is empty", (b"x-death", array()), **UNKNOWN),
    odd_header("x-death of numbers", (b"x-death", array(b"t\x01")), **UNKNOWN),
    odd_header("x-death is a table", (b"x-death", b"F" + table([])), **UNKNOWN),
    odd_header("a death without anything", (b"x-death", array(b"F" + table([]))), reason="unknown"),
    odd_header("a death whose reason is a number", (b"x-death", x_death(reason=b"I" + bytes(4))), queue="payments"),
    odd_header("a death in milliseconds", (b"x-death", x_death(time=b"T" + struct.pack(">Q", 1_700_000_000_000)))),
    odd_header("a death whose keys are text", (b"x-death", x_death(routing_keys=long(b"a"))), routing_key=""),
    odd_header("a death in a queue of 300 letters", (b"x-death", x_death(queue=long(b"q" * 300)))),
    odd_header("a death with NUL", (b"x-death", x_death(queue=long(b"a\0b"))), queue="a\\x00b"),
    # Properties.
    Hostile(
        name="every property",
        properties=raw_properties(
            task_headers(task_id="all"),
            tail=b"\xff" + short(b"\xff") * 3 + b"\xff" * 8 + short(b"\x00") + short(b"app"),
            tail_flags=sum(1 << bit for bit in (11, 10, 9, 7, 6, 5, 3)),
        ),
        row={"task_id": "all", "args": "[1]"},
    ),
    Hostile(
        name="delivery mode 255",
        properties=raw_properties(task_headers(task_id="mode"), delivery_mode=255),
        row={"task_id": "mode"},
    ),
]
