"""What must change in a content header before its message is published a second time."""

from __future__ import annotations

from collections.abc import Mapping

from broker_topology.message import REPLAY_ID_HEADER, is_broker_history
from broker_topology.raw_headers import RawHeader, long_string

_PERSISTENT = b"\x02"
_NOTHING = b"V"


def republished(
    raw: bytes, *, replay_id: str, keep_expiry: bool = False, headers: Mapping[str, bytes] | None = None
) -> bytes:
    """The content header of a replay: every byte as it was, but for what a second life needs.

    The broker's death history goes, since before 4.0 a republished one is read as a cycle. ``retries`` is 0
    again, ``replay_id`` is set, the delivery mode is persistent. The ``expiration`` (milliseconds, which the
    broker drops itself when a message expires) goes unless ``keep_expiry``; so does the ``expires`` header
    of Celery, where a worker would revoke the message at once. ``headers`` sets raw values, with their type,
    by name. Raises MalformedHeaderError.
    """
    header = RawHeader.parse(raw)
    properties = header.properties | {"delivery_mode": _PERSISTENT}
    if not keep_expiry:
        properties.pop("expiration", None)
    wanted = {name.encode(): value for name, value in (headers or {}).items()}
    wanted[REPLAY_ID_HEADER.encode()] = long_string(replay_id)
    entries: list[tuple[bytes, bytes]] = []
    for key, value in header.headers or ():
        if is_broker_history(key.decode("latin-1")):
            continue
        if key in wanted:
            entries.append((key, wanted.pop(key)))
        elif key == b"retries":
            entries.append((key, _zero_like(value)))
        elif key == b"expires" and not keep_expiry:
            entries.append((key, _NOTHING))
        else:
            entries.append((key, value))
    return RawHeader(properties=properties, headers=(*entries, *wanted.items())).encode()


def _zero_like(value: bytes) -> bytes:
    """The number 0 in the type that the sender chose, so that only the value changes."""
    if value[:1] in b"bBsuUIilL":
        return value[:1] + bytes(len(value) - 1)
    return b"I" + bytes(4)
