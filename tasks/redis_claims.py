"""The Redis side of claims: one Lua script for each call, run by its digest.

One round trip a call. Where Redis does not know the digest (it restarted, or ``SCRIPT FLUSH``), the source
is sent in its place. Scripts need Redis 5 or newer; a claim is one key, so Redis Cluster serves too.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Any, Final

import redis

from broker_topology.claim_records import record_name
from tasks.claim import (
    Acquired,
    Began,
    Busy,
    Completed,
    Conflict,
    Done,
    Execution,
    Finished,
    FinishedStep,
    Held,
    IfInterrupted,
    InDoubt,
    Late,
    Lost,
    PayloadMismatch,
    Renewed,
)
from tasks.errors import RedisUnavailableError
from tasks.redis_wire import RedisWire


class RedisClaims:
    """Claims on one Redis server, or one Redis Cluster."""

    def __init__(self, client: redis.Redis) -> None:
        self.client = client
        self._wire = RedisWire(client)

    def begin(
        self,
        execution: Execution,
        *,
        if_interrupted: IfInterrupted = IfInterrupted.REPEAT,
        may_be_forgotten: bool = False,
        permitted_attempt: int | None = None,
        patience_seconds: float = 5.0,
    ) -> Began:
        """Ask to run. See ``Claims.begin``."""
        reply = self._run(
            BEGIN,
            execution.record_name,
            [
                execution.token,
                execution.payload,
                _milliseconds(execution.lease_seconds),
                _milliseconds(execution.retention_seconds),
                int(if_interrupted is IfInterrupted.PARK),
                int(may_be_forgotten),
                permitted_attempt if permitted_attempt is not None else "",
            ],
            patience_seconds,
        )
        match [_text(part) for part in reply]:
            case ["acquired", fence, attempt, *steps]:
                return Acquired(fence=int(fence), attempt=int(attempt), steps=_pairs(steps))
            case ["done", result_json]:
                return Done(result_json=result_json)
            case ["busy", milliseconds]:
                return Busy(retry_after_seconds=int(milliseconds) / 1000)
            case ["mismatch", stored]:
                return PayloadMismatch(stored=stored, given=execution.payload)
            case ["in_doubt", attempt, *steps]:
                return InDoubt(attempt=int(attempt), steps=_pairs(steps))
            case other:
                raise AssertionError(f"begin.lua answered {other}")

    def renew(
        self,
        execution: Execution,
        acquired: Acquired,
        *,
        may_restore: bool = False,
        step: FinishedStep | None = None,
        patience_seconds: float = 5.0,
    ) -> Renewed:
        """Extend the lease, and record a finished step. See ``Claims.renew``."""
        reply = self._run(
            RENEW,
            execution.record_name,
            [
                execution.token,
                execution.payload,
                _milliseconds(execution.lease_seconds),
                _milliseconds(execution.retention_seconds),
                acquired.fence,
                acquired.attempt,
                int(may_restore),
                step.name if step else "",
                step.result_json if step else "",
            ],
            patience_seconds,
        )
        return Held() if _text(reply) == "held" else Lost()

    def complete(
        self,
        execution: Execution,
        result_json: str,
        *,
        acquired: Acquired | None = None,
        patience_seconds: float = 5.0,
    ) -> Finished:
        """Put the result on record, after the effect. See ``Claims.complete``."""
        reply = self._run(
            COMPLETE,
            execution.record_name,
            [
                execution.token,
                execution.payload,
                _milliseconds(execution.retention_seconds),
                acquired.fence if acquired else 0,
                acquired.attempt if acquired else 0,
                result_json,
            ],
            patience_seconds,
        )
        match [_text(part) for part in reply]:
            case ["completed"]:
                return Completed()
            case ["late"]:
                return Late()
            case ["conflict", stored]:
                return Conflict(result_json=stored)
            case other:
                raise AssertionError(f"complete.lua answered {other}")

    def abandon(
        self,
        task_name: str,
        key: str,
        token: str,
        *,
        interrupted: bool = False,
        patience_seconds: float = 5.0,
    ) -> bool:
        """Give the claim up; owner only. See ``Claims.abandon``."""
        ending = "interrupted" if interrupted else "failed"
        return bool(self._run(ABANDON, record_name(task_name, key), [token, ending], patience_seconds))

    def withdraw(self, execution: Execution, *, patience_seconds: float = 5.0) -> bool:
        """Undo a begin after which nothing ran: a quorum did not come about. Owner only."""
        return bool(self._run(ABANDON, execution.record_name, [execution.token, "withdrawn"], patience_seconds))

    def close(self) -> None:
        """Let go of idle connections; the next call opens one."""
        self._wire.close()
        self.client.close()

    def _run(self, script: Script, record: str, arguments: Sequence[str | int], patience_seconds: float) -> Any:
        return _patiently(lambda: self._call(script, record, arguments), patience_seconds)

    def _call(self, script: Script, record: str, arguments: Sequence[str | int]) -> Any:
        try:
            return self._wire.ask("EVALSHA", script.digest, 1, record, *arguments)
        except redis.exceptions.NoScriptError:
            return self._wire.ask("EVAL", script.source, 1, record, *arguments)


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """A Lua script and the digest that Redis knows it by."""

    source: str
    digest: bytes


def _load(name: str) -> Script:
    source = (files("tasks") / "claim_scripts" / f"{name}.lua").read_text(encoding="utf-8")
    return Script(source=source, digest=hashlib.sha1(source.encode()).hexdigest().encode())  # noqa: S324, Redis' own


BEGIN, RENEW, COMPLETE, ABANDON = (_load(name) for name in ("begin", "renew", "complete", "abandon"))

FIRST_PAUSE_SECONDS: Final = 0.02
LONGEST_PAUSE_SECONDS: Final = 1.0

_AWAY = (
    redis.exceptions.ConnectionError,  # wrong passwords and loading servers are kinds of it
    redis.exceptions.TimeoutError,
    redis.exceptions.ReadOnlyError,  # a failover made a replica of it
    redis.exceptions.ClusterDownError,
    redis.exceptions.RedisClusterException,
    redis.exceptions.TryAgainError,
)


def _patiently(call: Callable[[], Any], patience_seconds: float) -> Any:
    """Repeat the call while Redis is away; every script gives the same answer when it is repeated."""
    give_up_at = time.monotonic() + patience_seconds
    pause = FIRST_PAUSE_SECONDS
    while True:
        try:
            return call()
        except _AWAY as error:
            if time.monotonic() + pause >= give_up_at:
                raise RedisUnavailableError(f"Redis is away: {error}") from error
        except redis.exceptions.ResponseError as error:
            # At its memory limit, MISCONF, NOPERM, scripts switched off: Redis is there and refuses.
            raise RedisUnavailableError(f"Redis refuses: {error}") from error
        time.sleep(pause)
        pause = min(pause * 2, LONGEST_PAUSE_SECONDS)


def _milliseconds(seconds: float) -> int:
    return max(1, round(seconds * 1000))


def _text(value: bytes | str) -> str:
    return value.decode() if isinstance(value, bytes) else value


def _pairs(flat: Sequence[str]) -> Mapping[str, str]:
    return dict(zip(flat[::2], flat[1::2], strict=True))
