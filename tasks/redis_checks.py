"""What a Redis must be like to keep claims: asked at startup, before the first message."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

import redis

from tasks.claim import Claims
from tasks.errors import RedisUnavailableError
from tasks.quorum import QuorumClaims
from tasks.redis_claims import RedisClaims

OLDEST_VERSION: Final = (5, 0)
"""Older servers refuse scripts that read the clock."""


class Severity(StrEnum):
    """What a finding means for a worker that wants to start."""

    REFUSE = "refuse"
    """A marker could vanish and an effect happen twice: do not start."""
    WARN = "warn"
    """A crash of Redis could lose markers: say so and start."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that is wrong with a Redis."""

    severity: Severity
    code: str
    """``evicts``, ``replica``, ``too_old``, ``no_persistence``, ``loses_a_second``, ``unknown_persistence``."""
    message: str


def check_claims(claims: Claims) -> list[Finding]:
    """Check the Redis of a store of claims, or each of a quorum. Raises RedisUnavailableError.

    Of a quorum, servers that are away are left out: it is made to do without some.
    """
    match claims:
        case QuorumClaims():
            answers = [_check_or_error(store) for store in claims.stores]
            findings = [answer for answer in answers if not isinstance(answer, RedisUnavailableError)]
            if len(findings) <= len(answers) // 2:
                raise RedisUnavailableError(
                    f"{len(answers) - len(findings)} of {len(answers)} Redis servers are away"
                )
            return [finding for some in findings for finding in some]
        case RedisClaims():
            return check_redis(claims.client)
        case _:
            return []


def check_redis(client: redis.Redis) -> list[Finding]:
    """Check one Redis: eviction, persistence, role, version. Raises RedisUnavailableError."""
    try:
        info: Any = client.info()
        appendfsync = _setting(client, "appendfsync")
        save = _setting(client, "save")
    except redis.RedisError as error:
        raise RedisUnavailableError(f"Redis is away: {error}") from error
    name = _name(client)
    findings = [
        _version(name, info),
        _role(name, info),
        _eviction(name, info),
        _persistence(name, info, save=save, appendfsync=appendfsync),
    ]
    return [finding for finding in findings if finding]


def _version(name: str, info: Mapping[str, Any]) -> Finding | None:
    version = str(info.get("redis_version", ""))
    numbers = tuple(int(part) for part in version.split(".")[:2] if part.isdecimal())
    if numbers >= OLDEST_VERSION:
        return None
    return Finding(
        severity=Severity.REFUSE, code="too_old", message=f"{name} is Redis {version}; claims need 5.0 or newer"
    )


def _role(name: str, info: Mapping[str, Any]) -> Finding | None:
    if info.get("role") != "slave":
        return None
    return Finding(
        severity=Severity.REFUSE, code="replica", message=f"{name} is a replica: it refuses writes; name its master"
    )


def _eviction(name: str, info: Mapping[str, Any]) -> Finding | None:
    policy = info.get("maxmemory_policy", "noeviction")
    if policy == "noeviction":
        return None
    if not info.get("maxmemory"):
        return Finding(
            severity=Severity.WARN,
            code="evicts",
            message=f"{name} has maxmemory-policy {policy}: once it has a memory limit it will evict markers; "
            "set it to noeviction",
        )
    return Finding(
        severity=Severity.REFUSE,
        code="evicts",
        message=f"{name} has maxmemory-policy {policy} and may evict the marker of a finished task, which would "
        "run again: set it to noeviction",
    )


def _persistence(name: str, info: Mapping[str, Any], *, save: str | None, appendfsync: str | None) -> Finding | None:
    if info.get("aof_enabled"):
        if appendfsync in ("always", None):
            return None
        return Finding(
            severity=Severity.WARN,
            code="loses_a_second",
            message=f"{name} has appendfsync {appendfsync}: a crash of its machine loses the last markers, up to "
            "a second of them; always loses none",
        )
    if save is None:
        return Finding(
            severity=Severity.WARN,
            code="unknown_persistence",
            message=f"{name} does not tell its configuration: see that it persists, or a restart forgets markers",
        )
    how = f"saves only now and then (save {save!r})" if save else "has no persistence"
    return Finding(
        severity=Severity.WARN,
        code="no_persistence",
        message=f"{name} {how}: a restart forgets markers, and their tasks run again if delivered again; "
        "set appendonly yes",
    )


def _check_or_error(store: RedisClaims) -> list[Finding] | RedisUnavailableError:
    try:
        return check_redis(store.client)
    except RedisUnavailableError as error:
        return error


def _setting(client: redis.Redis, name: str) -> str | None:
    """One setting; None where a managed Redis keeps its configuration to itself."""
    try:
        answer: Any = client.config_get(name)
    except redis.exceptions.ResponseError:
        return None
    return next((_text(value) for value in answer.values()), None)


def _text(value: bytes | str) -> str:
    return value.decode() if isinstance(value, bytes) else value


def _name(client: redis.Redis) -> str:
    """Where the server is, without its password."""
    options = client.connection_pool.connection_kwargs
    return f"Redis at {options.get('path') or '{host}:{port}'.format_map({'host': '?', 'port': '?', **options})}"
