"""Reading messages that would end a worker: py-amqp and kombu are made to give up on one message, not on all.

A header with a timestamp in milliseconds, tables nested two thousand deep, or bytes that are no UTF-8 raise inside of
py-amqp's frame reader, which ends the connection or the worker; the broker then delivers the same message again, and
returns its neighbours. A compressed bomb fills the memory of the worker's main process.
"""

from __future__ import annotations

from functools import partial
from typing import Any, Final

import structlog
from amqp import serialization
from amqp.spec import Basic
from kombu import compression

from broker_topology.compression import DECOMPRESSIONS, decompress

log = structlog.get_logger(__name__)

MAX_DECOMPRESSED_BYTES: Final = 64 * 1024 * 1024
"""A larger body becomes a dead letter."""


def read_hostile_messages() -> None:
    """Take the place of what raises. Whoever needs it twice may call it twice."""
    serialization.PROPERTY_CLASSES[Basic.CLASS_ID] = _properties_or_none
    known = set(compression.encoders())
    for kind in DECOMPRESSIONS:
        if kind in known:
            bounded = partial(decompress, compression=kind, limit=MAX_DECOMPRESSED_BYTES)
            compression.register(compression.get_encoder(kind)[0], bounded, kind)


def _properties_or_none(buffer: Any, offset: int) -> tuple[dict[str, Any], int]:
    """A message's properties; none where they cannot be read, so that the message is taken for no task."""
    try:
        properties: tuple[dict[str, Any], int] = serialization.decode_properties_basic(buffer, offset)
    except Exception as error:  # the frame reader's edge: a hostile header raises whatever it likes
        log.warning("message.properties_unreadable", error=repr(error))
        return {}, len(buffer)
    return properties
