"""The task message on the wire: header names, decoding, what must be stripped before a republish.

Celery's message protocol 2 puts the task's name and id into headers and ``[args, kwargs, embed]`` into the
body; protocol 1 puts everything into the body. Both are read here, as JSON only: nothing from a message is
ever unpickled. Source: https://docs.celeryq.dev/en/stable/internals/protocol.html
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, NamedTuple

from broker_topology.compression import CompressionError, decompress

IDEMPOTENCY_KEY_HEADER = "idempotency_key"
"""The caller's key for one business decision; survives retries and replays."""

ATTEMPT_HISTORY_HEADER = "attempt_history"
"""What became of earlier attempts: a list of JSON objects, newest last."""

REPLAY_ID_HEADER = "replay_id"
"""Which replay of which dead letter published this message; absent on a message that never was one."""

EDITED_FROM_HEADER = "edited_from"
"""JSON of the ``args`` and ``kwargs`` that a person changed before a replay; absent on a message as published."""

BROKER_HISTORY_HEADERS = frozenset({"x-death", "x-delivery-count", "x-acquired-count"})
BROKER_HISTORY_PREFIXES = ("x-first-death-", "x-last-death-")

PUBLISHED_AT_HEADER = "published_at"
"""When the caller published the task, as ISO 8601 in UTC; retries and replays keep it."""

MAX_KEY_LENGTH = 512
"""Characters that an idempotency key may have."""

MAX_DECODED_BYTES = 16 * 1024 * 1024
"""A body larger than this, before or after decompression, is kept but not decoded."""

TEXT_ENCODINGS = frozenset(
    {"utf-8", "utf8", "ascii", "us-ascii", "latin-1", "latin1", "iso-8859-1"}
    | {f"{name}{order}" for name in ("utf-16", "utf-32") for order in ("", "-le", "-be")}
)
"""Others that Python knows take quadratic time (punycode), or are no text at all."""


def is_broker_history(header: str) -> bool:
    """Whether a header is the broker's record of earlier deaths and deliveries.

    Before 4.0 a broker reads a republished ``x-death`` as history and may drop the message as a cycle; on
    3.10 a malformed one stops the node's dead-lettering. Whoever republishes strips these.
    """
    return header in BROKER_HISTORY_HEADERS or header.startswith(BROKER_HISTORY_PREFIXES)


def key_problem(key: object) -> str | None:
    """Why ``key`` cannot be an idempotency key, as a clause; None when it can."""
    if not isinstance(key, str):
        return f"it must be a string, not {type(key).__name__}"
    if not key.strip():
        return "it must not be empty"
    if len(key) > MAX_KEY_LENGTH:
        return f"it has {len(key)} characters, more than {MAX_KEY_LENGTH}"
    if not key.isprintable():
        return "it has characters that cannot be printed"
    return None


def edited_from(header: object) -> tuple[list[Any], dict[str, Any]] | None:
    """The call in an ``edited_from`` header; None where there is none or it is malformed."""
    try:
        value = json.loads(header) if isinstance(header, str | bytes) else None
    except (ValueError, RecursionError):
        return None
    match value:
        case {"args": list(args), "kwargs": dict(kwargs)}:
            return args, kwargs
        case _:
            return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Death:
    """The newest entry of ``x-death``: how the broker says that a message died."""

    queue: str
    reason: str
    """``rejected``, ``expired``, ``maxlen`` or ``delivery_limit``."""
    exchange: str
    routing_key: str
    died_at: datetime | None
    """Aware UTC, to the second; None where the entry has no time."""
    count: int


def newest_death(headers: Mapping[str, Any]) -> Death | None:
    """Read the newest death from decoded headers; None where there is none or it is malformed."""
    deaths = headers.get("x-death")
    if not isinstance(deaths, list) or not deaths or not isinstance(deaths[0], Mapping):
        return None
    entry = deaths[0]
    keys = entry.get("routing-keys")
    died_at = entry.get("time")
    if isinstance(died_at, datetime):
        # pika gives naive UTC, py-amqp too.
        died_at = died_at.replace(tzinfo=UTC) if died_at.tzinfo is None else died_at.astimezone(UTC)
    count = entry.get("count")
    return Death(
        queue=_text(entry.get("queue")),
        reason=_text(entry.get("reason")),
        exchange=_text(entry.get("exchange")),
        routing_key=_text(keys[0]) if isinstance(keys, list) and keys else "",
        died_at=died_at if isinstance(died_at, datetime) else None,
        count=count if isinstance(count, int) else 1,
    )


class TaskMessage(NamedTuple):
    """What a message says of the task that it asks for. Every field may be missing: senders err."""

    task_name: str | None = None
    task_id: str | None = None
    args: Any = None
    """JSON value, usually a list; None where the body could not be decoded."""
    kwargs: Any = None
    """JSON value, usually an object; None where the body could not be decoded."""
    retries: int = 0
    idempotency_key: str | None = None
    replay_id: str | None = None
    problem: str | None = None
    """Why the body could not be decoded, as a clause; None when it was."""


def read_task_message(
    headers: Mapping[str, Any],
    body: bytes,
    *,
    content_type: str | None = None,
    content_encoding: str | None = None,
    max_body_bytes: int = MAX_DECODED_BYTES,
) -> TaskMessage:
    """Decode a message of protocol 1 or 2. Never raises: what cannot be read is said in ``problem``."""
    payload, problem = _decode_body(headers, body, content_type, content_encoding, max_body_bytes)
    fields: Mapping[str, Any] = headers
    args = kwargs = None
    match payload:
        case [args, kwargs, *_]:
            pass
        case {"task": str(), **rest}:  # protocol 1
            fields = {**payload, **headers}
            args, kwargs = rest.get("args", []), rest.get("kwargs", {})
        case _ if problem is None:
            problem = "the body is not that of a task"
    retries = fields.get("retries")
    return TaskMessage(
        task_name=_text_or_none(fields.get("task")),
        task_id=_text_or_none(fields.get("id")),
        args=args,
        kwargs=kwargs,
        retries=retries if isinstance(retries, int) and 0 <= retries < 2**31 else 0,
        idempotency_key=_text_or_none(headers.get(IDEMPOTENCY_KEY_HEADER)),
        replay_id=_text_or_none(headers.get(REPLAY_ID_HEADER)),
        problem=problem,
    )


def _decode_body(
    headers: Mapping[str, Any],
    body: bytes,
    content_type: str | None,
    content_encoding: str | None,
    limit: int,
) -> tuple[Any, str | None]:
    encoding = (content_encoding or "utf-8").lower().replace("_", "-")
    if content_type != "application/json":
        return None, f"content type {content_type!r} is not decoded"
    if encoding not in TEXT_ENCODINGS:
        return None, f"content encoding {content_encoding!r} is not decoded"
    if len(body) > limit:
        return None, f"the body has {len(body)} bytes, more than {limit}"
    compression = headers.get("compression")
    if compression:
        try:
            body = decompress(body, str(compression), limit)
        except CompressionError as error:
            return None, f"the body cannot be decompressed: {error}"
    return _parsed(body, encoding)


def _parsed(body: bytes, encoding: str) -> tuple[Any, str | None]:
    try:
        return json.loads(body.decode(encoding)), None
    except ValueError as error:
        return None, f"the body is not JSON: {error}"
    except RecursionError:
        return None, "the body is nested too deeply"


def _text(value: object) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value or "")


def _text_or_none(value: object) -> str | None:
    return _text(value) if isinstance(value, str | bytes) else None
