"""The Redis side of idempotency: connecting to one server, or to a quorum of several."""

from __future__ import annotations

from typing import Final

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from broker_topology.errors import ConfigurationError
from tasks.claim import (
    Acquired,
    Busy,
    Claims,
    Completed,
    Conflict,
    Done,
    Execution,
    Held,
    InDoubt,
    Late,
    Lost,
    PayloadMismatch,
)
from tasks.errors import RedisUnavailableError
from tasks.quorum import QuorumClaims
from tasks.redis_claims import RedisClaims

SOCKET_TIMEOUT_SECONDS: Final = 1.0
"""How long one try waits for Redis; short, because the patience of a call has to fit inside a lease."""


def connect_claims(redis_url: str, *, socket_timeout_seconds: float = SOCKET_TIMEOUT_SECONDS) -> Claims:
    """Claims on the Redis of that address, or on a quorum of several, comma-separated. Connects lazily.

    Raises ConfigurationError for an address that is none.
    """
    urls = [url.strip() for url in redis_url.split(",")]
    stores = [RedisClaims(connect_redis(url, socket_timeout_seconds=socket_timeout_seconds)) for url in urls]
    return stores[0] if len(stores) == 1 else QuorumClaims(stores)


def connect_redis(url: str, *, socket_timeout_seconds: float = SOCKET_TIMEOUT_SECONDS) -> redis.Redis:
    """A client that gives up quickly and never retries by itself: the patience of each call decides.

    Left to itself redis-py 8 retries 10 times with 5 s timeouts, longer than most leases.
    """
    try:
        return redis.Redis.from_url(
            url,
            socket_timeout=socket_timeout_seconds,
            socket_connect_timeout=socket_timeout_seconds,
            retry=Retry(NoBackoff(), 0),
            health_check_interval=0,
        )
    except ValueError as error:
        # The address may hold a password, so it is not repeated.
        raise ConfigurationError(f"not the address of a Redis server: {error}") from error


__all__ = [
    "Acquired",
    "Busy",
    "Claims",
    "Completed",
    "Conflict",
    "Done",
    "Execution",
    "Held",
    "InDoubt",
    "Late",
    "Lost",
    "PayloadMismatch",
    "QuorumClaims",
    "RedisClaims",
    "RedisUnavailableError",
    "connect_claims",
    "connect_redis",
]
