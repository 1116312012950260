"""Chords that a replay completes: a member's success takes the place of its earlier failure.

Celery's Redis backend takes one part of each member. A member that failed has returned its part, so a later success
of the same message is ignored; and a chord that has failed forgets its size, so nothing ever completes it. Here the
size stays known while the parts are kept, a success replaces the failed part, and once no failed part is left, the
chord goes on as Celery's own.
"""

from __future__ import annotations

import time
from datetime import timedelta
from functools import cached_property
from typing import Any

import structlog
from celery import Celery, states
from celery.backends.redis import RedisBackend, SentinelBackend
from kombu.utils.encoding import bytes_to_str

from broker_topology.notes import NOTE_TTL_SECONDS

log = structlog.get_logger(__name__)

JOIN_PATIENCE_SECONDS = 20.0
"""How long another worker's attempt at the chord is waited for: longer than its claim lasts when it dies."""

POLL_SECONDS = 0.1

# The size is kept among the members that have returned: that set lives as long as the parts and ends with them.
RETURNED_LUA = """
local skey, dkey = KEYS[1], KEYS[2]
local size = redis.call('GET', skey)
if size then
    redis.call('SADD', dkey, 'size:' .. size)
end
return redis.call('SISMEMBER', dkey, ARGV[1])
"""

REPLACE_LUA = """
local jkey = KEYS[1]
local ordered, failed, renewed, score = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
if ordered == '1' then
    if redis.call('ZREM', jkey, failed) == 1 then
        redis.call('ZADD', jkey, score, renewed)
    end
elseif redis.call('LREM', jkey, 1, failed) == 1 then
    redis.call('RPUSH', jkey, renewed)
end
"""

# A worker that joins a chord holds the claim. One that fails it deletes the size last and leaves the claim to expire.
REOPEN_LUA = """
local ckey, skey = KEYS[1], KEYS[2]
local size, expires = ARGV[1], tonumber(ARGV[2])
local claim = redis.call('GET', ckey)
if claim == 'done' then
    return 1
end
if redis.call('EXISTS', skey) == 1 then
    return claim and 0 or 1
end
redis.call('DEL', ckey)
redis.call('SET', skey, size)
if expires > 0 then
    redis.call('EXPIRE', skey, expires)
end
return 1
"""


def keep_chords(app: Celery) -> None:
    """Let replays complete the chords of an app that keeps its results in Redis.

    What an unfinished chord has so far is kept for as long as a note waits for its drain, unless the app says
    ``result_chord_expires`` or keeps all results for longer.
    """
    backends = {"redis": f"{__name__}:RedisResults", "rediss": f"{__name__}:RedisResults"}
    backends["sentinel"] = f"{__name__}:SentinelResults"
    app.loader.override_backends = {**app.loader.override_backends, **backends}
    kept = app.conf.result_expires
    seconds = kept.total_seconds() if isinstance(kept, timedelta) else kept
    if app.conf.result_chord_expires is None and seconds and seconds < NOTE_TTL_SECONDS:
        app.conf.result_chord_expires = NOTE_TTL_SECONDS


class RenewableParts:
    """What is different in a result backend on Redis."""

    app: Any
    client: Any
    chord_expires: int | None
    decode: Any
    encode: Any
    encode_result: Any
    get_key_for_group: Any
    _chord_zset: bool

    def on_chord_part_return(self, request: Any, state: str, result: Any, *args: Any, **options: Any) -> Any:
        """Take one member's part; its success after a failure replaces that failure."""
        if request.id and request.group and self._has_returned(request) and state == states.SUCCESS:
            self._renew(request, self.encode([1, request.id, state, self.encode_result(result, state)]))
        return super().on_chord_part_return(request, state, result, *args, **options)  # type: ignore[misc]

    def _handle_group_chord_error(self, group_callback: Any, *args: Any, **options: Any) -> Any:
        """Fail the tasks of a group that waited for the chord, but do not revoke what was never published.

        Every worker would remember the ids, and refuse those tasks once a replay has completed the chord.
        """
        frozen = group_callback.freeze()
        frozen.revoke = lambda *_, **__: None
        group_callback.freeze = lambda *_, **__: frozen
        return super()._handle_group_chord_error(group_callback, *args, **options)  # type: ignore[misc]

    def _has_returned(self, request: Any) -> bool:
        keys = [self.get_key_for_group(request.group, part) for part in (".s", ".d")]
        return bool(self._returned_script(keys=keys, args=[f"{request.id}:{_score(request)}"]))

    def _renew(self, request: Any, renewed: Any) -> None:
        key = self.get_key_for_group(request.group, ".j")
        for part in self._failed_parts(key):
            if self.decode(part)[1] == request.id:
                ordered = 1 if self._chord_zset else 0
                self._replace_script(keys=[key], args=[ordered, part, renewed, _score(request)])
                log.info("chord.part_renewed", task_id=request.id, group=request.group)
        # A chord that would only fail again stays failed: its errbacks have been called.
        if not self._failed_parts(key):
            self._reopen(request.group)

    def _failed_parts(self, key: Any) -> list[Any]:
        parts = self.client.zrange(key, 0, -1) if self._chord_zset else self.client.lrange(key, 0, -1)
        return [part for part in parts if self.decode(part)[2] in states.PROPAGATE_STATES]

    def _reopen(self, group: str) -> None:
        size = self._kept_size(group)
        if size is None:  # its publisher has not finished it
            return
        keys = [self.get_key_for_group(group, part) for part in (".c", ".s")]
        deadline = time.monotonic() + JOIN_PATIENCE_SECONDS
        while not self._reopen_script(keys=keys, args=[size, self.chord_expires or 0]):
            if time.monotonic() > deadline:
                log.warning("chord.not_reopened", group=group)
                return
            time.sleep(POLL_SECONDS)

    def _kept_size(self, group: str) -> int | None:
        entries = self.client.sscan_iter(self.get_key_for_group(group, ".d"), match="size:*")
        return next((int(bytes_to_str(entry).partition(":")[2]) for entry in entries), None)

    @cached_property
    def _returned_script(self) -> Any:
        return self.client.register_script(RETURNED_LUA)

    @cached_property
    def _replace_script(self) -> Any:
        return self.client.register_script(REPLACE_LUA)

    @cached_property
    def _reopen_script(self) -> Any:
        return self.client.register_script(REOPEN_LUA)


def _score(request: Any) -> Any:
    """A member's place in its chord, as Celery counts it."""
    return "+inf" if request.group_index is None else request.group_index


class RedisResults(RenewableParts, RedisBackend):  # type: ignore[misc]
    """Celery's result backend on one Redis."""


class SentinelResults(RenewableParts, SentinelBackend):  # type: ignore[misc]
    """Celery's result backend on a Redis behind sentinels."""
