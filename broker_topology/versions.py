"""What which RabbitMQ version knows: policy keys, what policies apply to, queue arguments.

The tables were read off brokers 3.10.8, 4.0.5 and 4.3.6 (the capabilities of their queue types and their
registered policy validators), and a test compares them with whatever broker it runs on.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Self

from broker_topology.errors import ConfigurationError


@dataclass(frozen=True, slots=True, order=True)
class Version:
    """A RabbitMQ version, as far as features depend on it."""

    major: int
    minor: int

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read ``4.0`` or ``4.0.5``. Raises ConfigurationError."""
        match = re.match(r"(\d{1,3})\.(\d{1,3})(?![\d])", text)
        if match is None:
            raise ConfigurationError(f"{text!r} is not a RabbitMQ version such as 4.0")
        return cls(int(match[1]), int(match[2]))

    def __str__(self) -> str:
        return f"{self.major}.{self.minor}"


OLDEST, NEWEST = Version(3, 10), Version(4, 3)
SUPPORTED = (OLDEST, Version(3, 13), Version(4, 0), NEWEST)
"""What a file without a target is held against: both ends, and both sides of the break at 4.0."""

QUORUM, CLASSIC, STREAM = "quorum", "classic", "stream"
QUEUE_TYPES = frozenset({QUORUM, CLASSIC, STREAM})
_QUEUES = QUEUE_TYPES
_CLASSIC = frozenset({CLASSIC})
_QUORUM = frozenset({QUORUM})
_STREAM = frozenset({STREAM})


@dataclass(frozen=True, slots=True, kw_only=True)
class Feature:
    """A policy key or queue argument: since and until when, for which queue types, and of what kind."""

    types: frozenset[str] = _QUEUES
    """Queue types that take it; empty for exchanges."""
    earlier: tuple[Version, frozenset[str]] | None = None
    """Before this version, these queue types took it."""
    since: Version = OLDEST
    until: Version | None = None
    """The first version that refuses it."""
    kind: type = str
    values: tuple[str, ...] = ()
    """Every value that brokers take, where they are few."""
    minimum: int = 0

    def types_on(self, version: Version) -> frozenset[str]:
        """Queue types that take it on a broker of that version."""
        return self.earlier[1] if self.earlier and version < self.earlier[0] else self.types

    def known_to(self, version: Version) -> bool:
        """Whether a broker of that version knows it."""
        return self.since <= version and (self.until is None or version < self.until)


_V4_3, _V4_0, _V3_13, _V3_12 = Version(4, 3), Version(4, 0), Version(3, 13), Version(3, 12)
_NOT_STREAM = frozenset({QUORUM, CLASSIC})
_OVERFLOW = ("drop-head", "reject-publish", "reject-publish-dlx")
_STRATEGY = ("at-most-once", "at-least-once")
_DELAYED_RETRY = ("disabled", "all", "failed", "returned")

POLICY_KEYS: Mapping[str, Feature] = MappingProxyType(
    {
        "alternate-exchange": Feature(types=frozenset()),
        "consumer-disconnected-timeout": Feature(types=_QUORUM, since=_V4_3, kind=int),
        "consumer-timeout": Feature(types=_NOT_STREAM, since=_V3_12, kind=int),
        "dead-letter-exchange": Feature(types=_NOT_STREAM),
        "dead-letter-routing-key": Feature(types=_NOT_STREAM),
        "dead-letter-strategy": Feature(types=_QUORUM, values=_STRATEGY),
        "delayed-retry-max": Feature(types=_QUORUM, since=_V4_3, kind=int),
        "delayed-retry-min": Feature(types=_QUORUM, since=_V4_3, kind=int),
        "delayed-retry-type": Feature(types=_QUORUM, since=_V4_3, values=_DELAYED_RETRY),
        "delivery-limit": Feature(types=_QUORUM, kind=int),
        "expires": Feature(types=_NOT_STREAM, kind=int, minimum=1),
        "ha-mode": Feature(types=_CLASSIC, until=_V4_0),
        "ha-params": Feature(types=_CLASSIC, until=_V4_0, kind=object),
        "ha-promote-on-failure": Feature(types=_CLASSIC, until=_V4_0),
        "ha-promote-on-shutdown": Feature(types=_CLASSIC, until=_V4_0),
        "ha-sync-batch-size": Feature(types=_CLASSIC, until=_V4_0, kind=int),
        "ha-sync-mode": Feature(types=_CLASSIC, until=_V4_0),
        "initial-cluster-size": Feature(types=_STREAM, kind=int, minimum=1),
        "max-age": Feature(types=_STREAM),
        "max-in-memory-bytes": Feature(types=_QUORUM, kind=int),
        "max-in-memory-length": Feature(types=_QUORUM, kind=int),
        "max-length": Feature(types=_NOT_STREAM, kind=int),
        "max-length-bytes": Feature(kind=int),
        "message-ttl": Feature(types=_NOT_STREAM, kind=int),
        "overflow": Feature(types=_NOT_STREAM, values=_OVERFLOW),
        "queue-leader-locator": Feature(),
        "queue-master-locator": Feature(types=_CLASSIC, until=_V4_3),
        "queue-mode": Feature(types=_CLASSIC, values=("default", "lazy")),
        "queue-version": Feature(types=_CLASSIC, kind=int, minimum=1),
        "stream-filter-size-bytes": Feature(types=_STREAM, since=_V3_13, kind=int),
        "stream-max-segment-size-bytes": Feature(types=_STREAM, kind=int),
        "target-group-size": Feature(types=_QUORUM, since=_V3_13, kind=int, minimum=1),
    }
)

PLUGIN_POLICY_KEYS = frozenset(
    {
        "federation-upstream",
        "federation-upstream-pattern",
        "federation-upstream-set",
        "hash-header",
        "routing-key",
        "shards-per-node",
    }
)
"""Keys that exist where the federation or the sharding plugin runs."""

APPLY_TO: Mapping[str, Version] = MappingProxyType(
    {
        "all": OLDEST,
        "queues": OLDEST,
        "exchanges": OLDEST,
        "classic_queues": _V3_12,
        "quorum_queues": _V3_12,
        "streams": _V3_12,
    }
)
"""What a policy may apply to, and since which version."""

APPLY_TO_TYPES: Mapping[str, frozenset[str]] = MappingProxyType(
    {
        "all": QUEUE_TYPES,
        "queues": QUEUE_TYPES,
        "exchanges": frozenset(),
        "classic_queues": _CLASSIC,
        "quorum_queues": _QUORUM,
        "streams": _STREAM,
    }
)
"""Which queue types each of them takes in."""

QUEUE_ARGUMENTS: Mapping[str, Feature] = MappingProxyType(
    {
        "x-consumer-disconnected-timeout": Feature(types=_QUORUM, since=_V4_3, kind=int),
        "x-consumer-timeout": Feature(types=_QUORUM, earlier=(_V4_3, _QUEUES), since=_V3_12, kind=int),
        "x-dead-letter-exchange": Feature(types=_NOT_STREAM),
        "x-dead-letter-routing-key": Feature(types=_NOT_STREAM),
        "x-dead-letter-strategy": Feature(types=_QUORUM, values=_STRATEGY),
        "x-delayed-retry-max": Feature(types=_QUORUM, since=_V4_3, kind=int),
        "x-delayed-retry-min": Feature(types=_QUORUM, since=_V4_3, kind=int),
        "x-delayed-retry-type": Feature(types=_QUORUM, since=_V4_3, values=_DELAYED_RETRY),
        "x-delivery-limit": Feature(types=_QUORUM, kind=int, minimum=-1),
        "x-expires": Feature(types=_NOT_STREAM, kind=int, minimum=1),
        "x-initial-cluster-size": Feature(types=_STREAM, kind=int, minimum=1),
        "x-max-age": Feature(types=_STREAM),
        "x-max-in-memory-bytes": Feature(types=_QUORUM, kind=int),
        "x-max-in-memory-length": Feature(types=_QUORUM, kind=int),
        "x-max-length": Feature(types=_NOT_STREAM, kind=int),
        "x-max-length-bytes": Feature(kind=int),
        "x-max-priority": Feature(types=_CLASSIC, kind=int),
        "x-message-ttl": Feature(types=_NOT_STREAM, kind=int),
        "x-overflow": Feature(types=_NOT_STREAM, values=_OVERFLOW),
        "x-queue-leader-locator": Feature(earlier=(_V4_0, frozenset({QUORUM, STREAM}))),
        "x-queue-master-locator": Feature(types=_CLASSIC, until=_V4_3),
        "x-queue-mode": Feature(types=_CLASSIC, values=("default", "lazy")),
        "x-queue-type": Feature(values=(CLASSIC, QUORUM, STREAM)),
        "x-queue-version": Feature(types=_CLASSIC, kind=int, minimum=1),
        "x-quorum-initial-group-size": Feature(types=_QUORUM, kind=int, minimum=1),
        "x-quorum-target-group-size": Feature(since=_V3_13, kind=int, minimum=1),
        "x-single-active-consumer": Feature(types=_NOT_STREAM, kind=bool),
        "x-stream-filter-size-bytes": Feature(types=_STREAM, earlier=(_V4_3, _QUEUES), since=_V3_13, kind=int),
        "x-stream-max-segment-size-bytes": Feature(types=_STREAM, kind=int),
    }
)
"""What brokers read of a queue's arguments; any other name is taken and has no effect."""

DEFAULT_DELIVERY_LIMIT = 20
"""What a quorum queue has from 4.0 on where nothing is said; before, it had none."""


def default_delivery_limit(version: Version) -> int | None:
    """The delivery limit of a quorum queue where nothing is said; None is unlimited."""
    return DEFAULT_DELIVERY_LIMIT if version >= _V4_0 else None
