"""What one delivery says: from the bytes that came to the values that are stored. Pure, and never raises."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import re
import uuid
from datetime import UTC, datetime
from typing import Any, NamedTuple

from broker_topology.message import (
    IDEMPOTENCY_KEY_HEADER,
    MAX_DECODED_BYTES,
    PUBLISHED_AT_HEADER,
    REPLAY_ID_HEADER,
    Death,
    TaskMessage,
    newest_death,
    read_task_message,
)
from broker_topology.notes import cut
from broker_topology.raw_headers import MalformedHeaderError
from broker_topology.raw_properties import Outline, read_value

MAX_NAME_LENGTH = 255
"""Characters kept of names and ids in columns that are searched; the original bytes keep all of them."""

UNROUTABLE = "unroutable"
UNKNOWN = "unknown"

_READ_HEADERS = [
    (name, name.encode())
    for name in (
        "task",
        "id",
        "retries",
        "compression",
        IDEMPOTENCY_KEY_HEADER,
        REPLAY_ID_HEADER,
        PUBLISHED_AT_HEADER,
    )
]
# Both change when the broker delivers the same message again.
_DELIVERY_COUNTS = frozenset({b"x-delivery-count", b"x-acquired-count"})


class Delivery(NamedTuple):
    """One message as the broker handed it over. A tuple, as all that is made for every letter: quickly made."""

    drained_queue: str
    exchange: str
    routing_key: str
    redelivered: bool
    properties: bytes
    """The content header as it came, without class and body size."""
    body: bytes


class Letter(NamedTuple):
    """A dead letter before it is stored. Texts are fit for any database's text columns."""

    identity: str
    """Equal for two deliveries of one death, and for the deaths of copies of one message; different otherwise."""
    death_identity: str | None
    """Different for the deaths of copies too; None where the message does not tell what it is a copy of."""
    content_hash: str | None
    """Set where the message has no id: then only the broker's word on redelivery can tell copies apart."""
    redelivered: bool
    body: bytes
    properties: bytes
    task_name: str | None
    task_id: str | None
    args: str | None
    """JSON text, or None where the body could not be decoded."""
    kwargs: str | None
    decode_problem: str | None
    retries: int
    idempotency_key: str | None
    replay_key: str | None
    """The ``replay_id`` header: which replay of an earlier letter published this message."""
    drained_queue: str
    queue: str
    exchange: str
    routing_key: str
    reason: str
    """``rejected``, ``expired``, ``delivery_limit``, ``maxlen``, ``unroutable`` or ``unknown``."""
    died_at: datetime
    note_task_id: str | None
    """The task id uncut, which the failure note is filed under."""

    @property
    def unpacked_bytes(self) -> int:
        """How much larger its arguments are than its body, which may be compressed."""
        return max(0, len(self.args or "") + len(self.kwargs or "") - len(self.body))


def read_letter(
    delivery: Delivery, *, now: datetime, unroutable: bool, max_body_bytes: int = MAX_DECODED_BYTES
) -> Letter:
    """Read one delivery; ``unroutable`` says that it came from a queue that keeps what no binding wanted."""
    header = _read_header(delivery.properties)
    message = _message(header, delivery.body, max_body_bytes)
    death = header.death
    args, kwargs, problem = _arguments(message)
    identity, death_identity, content_hash = _identities(delivery, header, message, now)
    return Letter(
        identity=identity,
        death_identity=death_identity,
        content_hash=content_hash,
        redelivered=delivery.redelivered,
        body=delivery.body,
        properties=delivery.properties,
        task_name=_name(message.task_name),
        task_id=_name(message.task_id),
        args=args,
        kwargs=kwargs,
        decode_problem=storable(header.problem or problem),
        retries=int(message.retries),
        idempotency_key=_name(message.idempotency_key, 512),
        replay_key=_name(message.replay_id),
        drained_queue=_name(delivery.drained_queue) or "",
        queue=_name(death.queue if death else delivery.drained_queue) or "",
        exchange=_name(death.exchange if death and not unroutable else delivery.exchange) or "",
        routing_key=_name(death.routing_key if death and not unroutable else delivery.routing_key) or "",
        reason=UNROUTABLE if unroutable else (_name(death.reason) if death else None) or UNKNOWN,
        died_at=death.died_at if death and death.died_at else now,
        note_task_id=message.task_id,
    )


class _Header(NamedTuple):
    """What is read of a content header."""

    headers: dict[str, Any]
    content_type: str | None = None
    content_encoding: str | None = None
    message_id: str | None = None
    death: Death | None = None
    death_said: str = ""
    """The death as a text, for a digest."""
    outline: Outline | None = None
    problem: str | None = None


def _read_header(raw: bytes) -> _Header:
    try:
        outline = Outline(raw)
        death, death_said = _death(outline.first_of(b"x-death"))
        return _Header(
            headers=outline.headers(_READ_HEADERS),
            content_type=outline.text("content_type"),
            content_encoding=outline.text("content_encoding"),
            message_id=outline.text("message_id"),
            death=death,
            death_said=death_said,
            outline=outline,
        )
    except MalformedHeaderError as error:
        return _Header(headers={}, problem=str(error))


@functools.lru_cache(maxsize=256)
def _death(raw: bytes | None) -> tuple[Death | None, str]:
    """The newest death, also as a text. In a storm thousands of letters share one, to the byte."""
    death = None
    if raw is not None:
        with contextlib.suppress(ValueError, TypeError, OverflowError):
            death = newest_death({"x-death": [read_value(raw)]})
    return death, repr(death)


def _identities(
    delivery: Delivery, header: _Header, message: TaskMessage, now: datetime
) -> tuple[str, str | None, str | None]:
    """Identity, death identity and content hash of a letter.

    There are copies of one message where a retry was published and the ack of the message before it was lost, or
    where a broker that crashed dead-letters once more what it had dead-lettered. When they die and by which delay
    queue they came differs; that their publisher spoke once does not.
    """
    known, death = message.task_id or header.message_id, header.death
    if not known:
        return f"{_seconds(now)}{uuid.uuid4().hex}", None, _content_digest(delivery, header)
    said = (delivery.drained_queue, known, message.retries, message.replay_id)
    published_at = header.headers.get(PUBLISHED_AT_HEADER)
    died_at = death.died_at if death else None
    if not (death and published_at):
        # What no queue wanted has no death: when it was published tells it from another of the same id.
        moment = died_at or _moment(published_at)
        return (
            _digest(moment, delivery.body, *said, delivery.routing_key, header.death_said, published_at),
            None,
            None,
        )
    copies = _digest(
        _moment(published_at), delivery.body, *said, published_at, death.queue, death.reason, death.count
    )
    return copies, _digest(died_at, b"", copies, header.death_said), None


def _digest(moment: datetime | None, body: bytes, *said: object) -> str:
    """Made of what is said, not of the bytes of the header: a broker that delivers a message again adds headers,
    and 4.x then puts all of them into another order.
    """
    digest = hashlib.blake2b(digest_size=16)
    digest.update(repr(said).encode("utf-8", "backslashreplace"))
    digest.update(body)
    return _seconds(moment) + digest.hexdigest()


def _seconds(moment: datetime | None) -> str:
    """How an identity begins: letters of one time lie side by side in the index, whose other pages stay untouched."""
    return f"{int((moment - _EPOCH).total_seconds()) & 0xFFFFFFFF:08x}" if moment else "00000000"


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def _moment(text: object) -> datetime | None:
    """The moment in a header; None where it has none, or one without a zone."""
    try:
        moment = datetime.fromisoformat(str(text))
    except ValueError:
        return None
    return moment if moment.tzinfo else None


def _content_digest(delivery: Delivery, header: _Header) -> str:
    """Equal for two deliveries of one message without an id, and for another message just like it."""
    digest = hashlib.blake2b(digest_size=16)
    digest.update(delivery.drained_queue.encode("utf-8", "backslashreplace"))
    outline = header.outline
    parts = outline.stable_parts(without=_DELIVERY_COUNTS) if outline else [delivery.properties]
    for part in [*parts, delivery.body]:
        digest.update(b"%d:" % len(part))
        digest.update(part)
    return digest.hexdigest()


def storable(text: str | None) -> str | None:
    """The text with what PostgreSQL refuses in a text column shown as an escape: NUL, lone surrogates."""
    if text is None:
        return None
    if "\0" in text:
        text = text.replace("\0", "\\x00")
    try:
        text.encode()
    except UnicodeEncodeError:
        text = text.encode("utf-8", "backslashreplace").decode()
    return text


def json_text(value: Any) -> str:
    """JSON that every database and every JSON reader takes: NaN and infinities become strings."""
    try:
        text = _JSON.encode(value) if value else _EMPTY.get(repr(value)) or _JSON.encode(value)
    except ValueError:
        text = _JSON.encode(_finite(value))
    if text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError:  # a lone surrogate
        return _SURROGATE.sub(lambda match: f"\\u{ord(match[0]):04x}", text)
    return text


_JSON = json.JSONEncoder(ensure_ascii=False, allow_nan=False)
_EMPTY = {"{}": "{}", "[]": "[]", "None": "null"}
_SURROGATE = re.compile("[\ud800-\udfff]")


def _finite(value: Any) -> Any:
    match value:
        case float() if value != value or value in (float("inf"), float("-inf")):  # noqa: PLR0124, NaN
            return {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}[str(value)]
        case list():
            return [_finite(item) for item in value]
        case dict():
            return {key: _finite(item) for key, item in value.items()}
        case _:
            return value


def _message(header: _Header, body: bytes, max_body_bytes: int) -> TaskMessage:
    try:
        return read_task_message(
            header.headers,
            body,
            content_type=header.content_type,
            content_encoding=header.content_encoding,
            max_body_bytes=max_body_bytes,
        )
    except Exception as error:  # hostile input becomes a row whatever it does
        return TaskMessage(problem=f"the message cannot be read: {type(error).__name__}")


def _arguments(message: TaskMessage) -> tuple[str | None, str | None, str | None]:
    if message.problem is not None:
        return None, None, message.problem
    try:
        return json_text(message.args), json_text(message.kwargs), None
    except RecursionError:
        return None, None, "the arguments are nested too deeply"
    except (ValueError, TypeError) as error:
        return None, None, f"the arguments cannot be shown: {error}"


def _name(text: str | None, length: int = MAX_NAME_LENGTH) -> str | None:
    if text is None:
        return None
    if text.isascii() and len(text) <= length and "\0" not in text:
        return text
    return cut(storable(text) or "", length)
