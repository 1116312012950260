"""Claims while the network and Redis fail: replies lost, scripts forgotten, restarts, pauses, memory limits."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest
import redis

from sandbox.processes import eventually
from sandbox.proxy import Loss, Proxy
from sandbox.servers import PrivateRedis
from tasks.claim import (
    Acquired,
    Busy,
    Claims,
    Completed,
    Conflict,
    Done,
    FinishedStep,
    Held,
    IfInterrupted,
    InDoubt,
    Late,
)
from tasks.claims import RedisClaims, connect_claims, connect_redis
from tasks.errors import LeaseLostError, RedisUnavailableError, ResultUnrecordedError
from tasks.idempotency import AlreadyDone, ComeBack, Guard, Idempotency, Run, Settlement, fingerprint
from tests.integration.claim_stores import close, execution

PARK = IfInterrupted.PARK
LOSSES = [Loss.CUT, Loss.SILENCE]


@pytest.fixture
def proxy(own_redis: PrivateRedis) -> Iterator[Proxy]:
    """A proxy before a Redis of the test's own."""
    with Proxy(own_redis.port) as proxy:
        yield proxy


@pytest.fixture
def claims(proxy: Proxy) -> Iterator[Claims]:
    """Claims through the proxy, giving up on a reply after 0.3 s."""
    claims = connect_claims(f"redis://127.0.0.1:{proxy.port}/0", socket_timeout_seconds=0.3)
    yield claims
    close(claims)


@pytest.fixture
def client(own_redis: PrivateRedis) -> Iterator[redis.Redis]:
    """A client that goes past the proxy."""
    client = redis.Redis.from_url(own_redis.url, decode_responses=True)
    yield client
    client.close()


@pytest.mark.parametrize("loss", LOSSES)
def test_a_begin_whose_reply_is_lost_runs_once(claims: Claims, proxy: Proxy, loss: Loss) -> None:
    """Redis applied it, the worker asks again with its token, and is in; a duplicate is not (I2, I5)."""
    proxy.lose_replies(1, to=b"EVALSHA", loss=loss)
    answer = claims.begin(execution(), if_interrupted=PARK)
    assert isinstance(answer, Acquired)
    assert (answer.attempt, proxy.lost) == (1, 1)
    assert isinstance(claims.begin(execution(), if_interrupted=PARK), Busy)


@pytest.mark.parametrize("loss", LOSSES)
def test_a_renewal_whose_reply_is_lost_is_held(claims: Claims, proxy: Proxy, loss: Loss) -> None:
    """A step is recorded once, and the claim stays (I6, R7)."""
    run = execution()
    acquired = claims.begin(run)
    assert isinstance(acquired, Acquired)
    proxy.lose_replies(1, to=b"EVALSHA", loss=loss)
    assert claims.renew(run, acquired, step=FinishedStep(name="charge", result_json="17")) == Held()
    assert proxy.lost == 1
    assert claims.begin(run) == Acquired(fence=acquired.fence, attempt=1, steps={"charge": "17"})


@pytest.mark.parametrize("loss", LOSSES)
def test_a_complete_whose_reply_is_lost_is_completed(claims: Claims, proxy: Proxy, loss: Loss) -> None:
    """The run is not told that somebody else had finished: it was itself (I4)."""
    run = execution()
    acquired = claims.begin(run)
    assert isinstance(acquired, Acquired)
    proxy.lose_replies(1, to=b"EVALSHA", loss=loss)
    assert claims.complete(run, '"paid"', acquired=acquired) == Completed()
    assert proxy.lost == 1
    assert claims.begin(execution()) == Done(result_json='"paid"')


@pytest.mark.parametrize("loss", LOSSES)
def test_an_abandon_whose_reply_is_lost_frees_the_claim(claims: Claims, proxy: Proxy, loss: Loss) -> None:
    """The retry begins at once: nothing is stuck until the lease ends (I5)."""
    run = execution()
    claims.begin(run)
    proxy.lose_replies(1, to=b"EVALSHA", loss=loss)
    claims.abandon(run.task_name, run.key, run.token)
    assert proxy.lost == 1
    assert isinstance(claims.begin(execution(), if_interrupted=PARK), Acquired)


def test_a_run_is_two_round_trips_and_a_duplicate_is_one(claims: Claims, proxy: Proxy) -> None:
    """Counted on the wire, with the guard around it (I4, I5)."""
    warm = guard(claims, key="warm").begin()  # opens the connection and makes the scripts known
    assert isinstance(warm, Run)
    warm.claim.complete(None)
    before = proxy.round_trips
    verdict = guard(claims).begin()
    assert isinstance(verdict, Run)
    with verdict.claim as claim:
        assert claim.complete({"charge": 17}) == {"charge": 17}
    assert proxy.round_trips - before == 2
    assert guard(claims).begin() == AlreadyDone(result={"charge": 17})
    assert proxy.round_trips - before == 3


def test_a_redis_that_forgot_the_scripts_learns_them_again(claims: Claims, client: redis.Redis) -> None:
    """SCRIPT FLUSH between any two calls changes nothing (I4)."""
    run = execution()
    client.script_flush()
    acquired = claims.begin(run)
    assert isinstance(acquired, Acquired)
    client.script_flush()
    assert claims.renew(run, acquired) == Held()
    client.script_flush()
    assert claims.complete(run, "1", acquired=acquired) == Completed()
    client.script_flush()
    assert claims.abandon(run.task_name, run.key, run.token) is False


def test_a_restart_that_lost_everything_is_mended_by_the_next_renewal(
    claims: Claims, own_redis: PrivateRedis, client: redis.Redis
) -> None:
    """Redis without persistence restarts under a run: the renewal puts the claim back, duplicates wait (I7)."""
    verdict = guard(claims, lease_seconds=3).begin()
    assert isinstance(verdict, Run)
    with verdict.claim as claim:
        own_redis.restart()
        eventually(lambda: client.exists(execution().record_name))
        assert isinstance(guard(claims).begin(), ComeBack)
        claim.ensure_held()
        assert claim.complete("paid") == "paid"
    assert guard(claims).begin() == AlreadyDone(result="paid")


def test_a_duplicate_between_restart_and_renewal_runs_under_a_higher_fence(
    claims: Claims, own_redis: PrivateRedis
) -> None:
    """The named window of a lost record: two run, the fence tells them apart, the first result stands (I7)."""
    first, second = execution(), execution()
    older = claims.begin(first)
    own_redis.restart()
    newer = claims.begin(second)
    assert isinstance(older, Acquired)
    assert isinstance(newer, Acquired)
    assert newer.fence > older.fence
    assert claims.complete(first, '"first"', acquired=older) == Late()
    assert claims.complete(second, '"second"', acquired=newer) == Conflict(result_json='"first"')


def test_a_pause_shorter_than_the_patience_only_delays(claims: Claims, client: redis.Redis) -> None:
    """Redis stands still for longer than a try: the call repeats itself until it goes on (I4)."""
    run = execution(lease_seconds=0.5)
    acquired = claims.begin(run)
    assert isinstance(acquired, Acquired)
    client.client_pause(900)
    assert claims.complete(run, "1", acquired=acquired) in (Late(), Completed())
    assert claims.begin(execution()) == Done(result_json="1")


def test_a_pause_beyond_the_lease_sends_the_result_with_the_message(claims: Claims, client: redis.Redis) -> None:
    """Redis stands still until after the lease: the result travels with the message and is recorded (I4)."""
    verdict = guard(claims, lease_seconds=0.5).begin()
    assert isinstance(verdict, Run)
    with verdict.claim as claim:
        client.client_pause(3000)
        with pytest.raises(ResultUnrecordedError) as unrecorded:
            claim.complete({"charge": 17})
    settlement = Settlement(result_json=unrecorded.value.result_json)
    eventually(lambda: guard(claims, settlement=settlement).begin() == AlreadyDone(result={"charge": 17}), seconds=15)
    assert guard(claims).begin() == AlreadyDone(result={"charge": 17})


def test_redis_at_its_memory_limit_takes_results_but_no_new_claims(
    own_redis: PrivateRedis, client: redis.Redis
) -> None:
    """What has happened is recorded even then; what has not waits in the broker (I4)."""
    claims = RedisClaims(connect_redis(own_redis.url))
    run, other = execution("order-1"), execution("order-2")
    acquired, also = claims.begin(run), claims.begin(other)
    assert isinstance(acquired, Acquired)
    assert isinstance(also, Acquired)
    client.config_set("maxmemory", "1")
    with pytest.raises(redis.exceptions.OutOfMemoryError):
        client.set("anything", "x")
    with pytest.raises(RedisUnavailableError, match="used memory"):
        claims.begin(execution("order-3"), patience_seconds=0)
    assert isinstance(guard(claims, key="order-3").begin(), ComeBack)
    assert claims.renew(run, acquired, step=FinishedStep(name="charge", result_json="17")) == Held()
    assert claims.complete(run, '"paid"', acquired=acquired) == Completed()
    assert claims.begin(execution("order-1")) == Done(result_json='"paid"')
    assert claims.abandon(other.task_name, other.key, other.token) is True
    # A settlement writes a record where there was none: that, too, has happened.
    assert claims.complete(execution("order-4"), '"settled"') == Late()
    close(claims)


def test_redis_away_is_said_within_the_patience(claims: Claims, own_redis: PrivateRedis) -> None:
    """No call waits longer than it was told to (I5)."""
    own_redis.kill()
    began_at = time.monotonic()
    with pytest.raises(RedisUnavailableError, match="Redis is away"):
        claims.begin(execution(), patience_seconds=0.5)
    assert time.monotonic() - began_at < 2


def test_redis_that_comes_back_in_time_is_not_noticed(claims: Claims, own_redis: PrivateRedis) -> None:
    """A short outage costs waiting, nothing else (I5)."""
    run = execution()
    acquired = claims.begin(run)
    assert isinstance(acquired, Acquired)
    own_redis.restart()
    assert claims.complete(run, "1", acquired=acquired) == Late()
    assert claims.begin(execution()) == Done(result_json="1")


def test_a_replica_is_a_redis_that_is_away(claims: Claims, client: redis.Redis) -> None:
    """After a failover the old master refuses writes: nobody runs on its word (I7)."""
    client.replicaof("127.0.0.1", "1")
    with pytest.raises(RedisUnavailableError):
        claims.begin(execution(), patience_seconds=0)
    client.replicaof("NO", "ONE")


def test_a_password_stays_out_of_errors(own_redis: PrivateRedis, client: redis.Redis) -> None:
    """What cannot connect says why without saying the secret (I7)."""
    client.config_set("requirepass", "right")
    claims = connect_claims(f"redis://:hunter2@127.0.0.1:{own_redis.port}/0")
    with pytest.raises(RedisUnavailableError) as refused:
        claims.begin(execution(), patience_seconds=0)
    assert "hunter2" not in str(refused.value)
    close(claims)


def test_a_run_cut_off_beyond_its_lease_does_not_act(claims: Claims, proxy: Proxy, client: redis.Redis) -> None:
    """Its successor runs, and it learns that before its effect (I6)."""
    verdict = guard(claims, lease_seconds=0.6).begin()
    assert isinstance(verdict, Run)
    past = RedisClaims(client)
    with verdict.claim as claim:
        proxy.partition()
        duplicate = execution(payload=fingerprint(ARGUMENTS, {}))
        eventually(lambda: isinstance(past.begin(duplicate, if_interrupted=PARK), InDoubt))
        assert isinstance(past.begin(duplicate, permitted_attempt=1), Acquired)
        proxy.heal()
        with pytest.raises(LeaseLostError):
            eventually(claim.ensure_held)


def test_a_run_that_was_called_in_doubt_while_it_was_cut_off_may_go_on(
    claims: Claims, proxy: Proxy, client: redis.Redis
) -> None:
    """It alone knows what happened: its result settles the doubt without a person (I9)."""
    verdict = guard(claims, lease_seconds=0.6, if_interrupted="park").begin()
    assert isinstance(verdict, Run)
    past = RedisClaims(client)
    with verdict.claim as claim:
        proxy.partition()
        duplicate = execution(payload=fingerprint(ARGUMENTS, {}))
        eventually(lambda: isinstance(past.begin(duplicate, if_interrupted=PARK), InDoubt))
        proxy.heal()
        claim.ensure_held()
        assert isinstance(past.begin(duplicate, permitted_attempt=1), Busy)
        assert claim.complete("paid") == "paid"
    assert past.begin(duplicate) == Done(result_json='"paid"')


ARGUMENTS = ("order-1", 1250)


def guard(claims: Claims, *, key: str = "order-1", settlement: Settlement | None = None, **policy: Any) -> Guard:
    """A delivery of one call."""
    return Guard(
        claims,
        Idempotency(**policy),
        task_name="payments.charge_customer",
        key=key,
        args=ARGUMENTS,
        settlement=settlement,
    )
