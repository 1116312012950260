"""A quorum of three Redis servers while some of them die, hang, restart empty or disagree."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from broker_topology.errors import ConfigurationError
from sandbox.proxy import Proxy
from sandbox.servers import PrivateRedis
from tasks.claim import Acquired, Busy, Completed, Done, Held, IfInterrupted, InDoubt, Late, Lost, PayloadMismatch
from tasks.claims import RedisClaims, connect_claims
from tasks.errors import RedisUnavailableError
from tasks.idempotency import AlreadyDone, ComeBack
from tests.integration.claim_stores import Store, execution, store_on
from tests.integration.deliveries import deliver, running

Trio = list[PrivateRedis]
FAR_AHEAD = 4 * 10**15


@pytest.fixture
def trio(servers_folder: Path) -> Iterator[Trio]:
    """Three Redis servers to stop and to kill."""
    servers = [PrivateRedis(servers_folder / uuid.uuid4().hex[:8]) for _ in range(3)]
    yield servers
    for server in servers:
        server.stop()


@pytest.fixture
def quorum(trio: Trio) -> Iterator[Store]:
    """Claims on the three."""
    store = store_on(*(server.url for server in trio))
    yield store
    store.close()


def alone(store: Store, number: int) -> RedisClaims:
    """One server's own claims."""
    return RedisClaims(store.clients[number])


def test_one_dead_server_of_three_changes_nothing(trio: Trio, quorum: Store) -> None:
    """Neither the answers nor, noticeably, their time (I7)."""
    for number in range(3):
        trio[number].kill()
        began_at = time.monotonic()
        with running(quorum, key=f"k{number}") as claim:
            assert isinstance(deliver(quorum, key=f"k{number}"), ComeBack)
            claim.step("charge").run(lambda _: 17)
            assert claim.complete("paid") == "paid"
        assert deliver(quorum, key=f"k{number}") == AlreadyDone(result="paid")
        assert time.monotonic() - began_at < 1
        trio[number].start()


@pytest.mark.soak  # a figure: it needs a quiet machine
def test_a_server_that_hangs_slows_nothing_down(trio: Trio) -> None:
    """A hundred runs beside a server that never answers take no longer than its patience for one (I7)."""
    with Proxy(trio[2].port) as proxy:
        claims = connect_claims(f"{trio[0].url},{trio[1].url},redis://127.0.0.1:{proxy.port}/0")
        assert isinstance(claims.begin(execution("warm")), Acquired)
        proxy.partition()
        began_at = time.monotonic()
        for number in range(100):
            run = execution(f"order-{number}")
            acquired = claims.begin(run)
            assert isinstance(acquired, Acquired)
            assert claims.complete(run, "1", acquired=acquired) == Completed()
        assert time.monotonic() - began_at < 1


def test_two_dead_servers_of_three_are_redis_away(trio: Trio, quorum: Store) -> None:
    """Nobody runs on the word of a minority; what is running waits to say what happened (I7)."""
    claim = running(quorum)
    trio[0].kill()
    trio[1].kill()
    verdict = deliver(quorum, key="other", lease_seconds=3)
    assert isinstance(verdict, ComeBack)
    assert verdict.why == "redis_away"
    trio[0].start()
    assert claim.complete("paid") == "paid"
    assert deliver(quorum) == AlreadyDone(result="paid")


def test_a_begin_without_a_majority_leaves_nothing_behind(trio: Trio, quorum: Store) -> None:
    """The claim on the one server that answered is withdrawn, so that it keeps nobody out (I7)."""
    trio[0].kill()
    trio[1].kill()
    with pytest.raises(RedisUnavailableError, match="fewer than 2 of 3"):
        quorum.claims.begin(execution(), patience_seconds=0)
    quorum.settle()
    assert quorum.clients[2].exists(execution().record_name) == 0


def test_a_server_that_restarts_empty_lets_nobody_in(trio: Trio, quorum: Store) -> None:
    """What one Redis would forget, and hand to two, the majority still knows (I7)."""
    with running(quorum) as claim:
        trio[0].restart()
        verdict = deliver(quorum)
        assert isinstance(verdict, ComeBack)
        assert verdict.why == "busy"
        claim.complete("paid")
    trio[1].restart()
    assert deliver(quorum) == AlreadyDone(result="paid")
    assert alone(quorum, 1).begin(execution(payload=_payload(quorum))) == Done(result_json='"paid"')
    trio[0].restart()
    assert deliver(quorum) == AlreadyDone(result="paid")


def _payload(store: Store) -> str:
    fields = store.clients[2].hget(execution().record_name, "payload")
    assert isinstance(fields, bytes)
    return fields.decode()


def test_a_split_vote_lets_nobody_in_and_is_withdrawn(quorum: Store) -> None:
    """Two others hold one server each: the third execution takes its own vote back and comes again (I5, I7)."""
    for number in (0, 1):
        assert isinstance(alone(quorum, number).begin(execution()), Acquired)
    assert isinstance(quorum.claims.begin(execution()), Busy)
    quorum.settle()
    assert quorum.clients[2].exists(execution().record_name) == 0


def test_a_vote_that_arrives_after_the_decision_is_withdrawn_too(trio: Trio) -> None:
    """Two refuse while the third is slow: its late grant must not keep anybody out (I5, I7)."""
    with Proxy(trio[2].port) as proxy:
        quorum = store_on(trio[0].url, trio[1].url, f"redis://127.0.0.1:{proxy.port}/0")
        quorum.acquire(execution("warm"))
        for number in (0, 1):
            alone(quorum, number).begin(execution())
        proxy.partition()
        assert isinstance(quorum.claims.begin(execution(), patience_seconds=0), Busy)
        proxy.heal()
        quorum.settle()
        assert quorum.clients[2].exists(execution().record_name) == 0
        quorum.close()


def test_a_withdrawal_leaves_a_record_as_it_was(quorum: Store) -> None:
    """The attempts that did run stay counted, and those that did not do not count (I7)."""
    first = execution()
    quorum.acquire(first)
    quorum.claims.abandon(first.task_name, first.key, first.token)
    quorum.settle()
    for number in (0, 1):
        alone(quorum, number).begin(execution())
    assert isinstance(quorum.claims.begin(execution()), Busy)
    quorum.settle()
    assert quorum.clients[2].hmget(first.record_name, "state", "attempt") == [b"free", b"1"]


def test_a_claim_that_a_minority_gave_keeps_nobody_out(quorum: Store) -> None:
    """A begin that reached one server alone is outvoted, whether it runs, failed or is in doubt (I7)."""
    for ending in ("running", "failed", "lapsed", "other payload"):
        key = f"order-{ending}"
        run = execution(key, payload="q" if ending == "other payload" else "p")
        alone(quorum, 0).begin(run)
        if ending == "failed":
            alone(quorum, 0).abandon(run.task_name, key, run.token)
        if ending == "lapsed":
            alone(quorum, 0).abandon(run.task_name, key, run.token, interrupted=True)
        second = execution(key)
        acquired = quorum.claims.begin(second, if_interrupted=IfInterrupted.PARK)
        quorum.settle()
        assert isinstance(acquired, Acquired), ending
        assert quorum.claims.renew(second, acquired) == Held()
        assert quorum.claims.complete(second, "1", acquired=acquired) == Completed()


@pytest.mark.parametrize("reason", ["doubt", "payload"])
def test_a_doubt_that_a_majority_shares_is_one(quorum: Store, reason: str) -> None:
    """With one server away, the other that knows is enough to refuse (I7, I9)."""
    stale = execution(payload="p" if reason == "doubt" else "q")
    for number in (0, 1):
        alone(quorum, number).begin(stale)
        alone(quorum, number).abandon(stale.task_name, stale.key, stale.token, interrupted=True)
    answer = quorum.claims.begin(execution(), if_interrupted=IfInterrupted.PARK)
    assert answer == (InDoubt(attempt=1) if reason == "doubt" else PayloadMismatch(stored="q", given="p"))


def test_the_fence_grows_although_clocks_differ(trio: Trio, quorum: Store) -> None:
    """A server whose clock is far ahead passes its fence on before it dies (I7)."""
    ahead = execution()
    alone(quorum, 0).begin(ahead)
    quorum.clients[0].hset(ahead.record_name, "fence", str(FAR_AHEAD))
    alone(quorum, 0).abandon(ahead.task_name, ahead.key, ahead.token)
    trio[2].kill()
    first = quorum.acquire(execution())
    assert first.fence > FAR_AHEAD
    trio[2].start()
    trio[0].kill()
    quorum.clients[1].hset(ahead.record_name, "lease_until", "1")
    second = quorum.claims.begin(execution())
    assert isinstance(second, Acquired)
    assert second.fence > first.fence


def test_a_result_that_reached_a_minority_is_spread(quorum: Store) -> None:
    """Whoever finds it tells the servers that missed it (I4, I7)."""
    run = execution()
    quorum.acquire(run)
    for number in (0, 1):
        alone(quorum, number).complete(run, '"paid"')
    assert quorum.claims.begin(execution()) == Done(result_json='"paid"')
    quorum.settle()
    assert [record["state"] for record in quorum.records(run)] == ["done", "done", "done"]


def test_a_late_result_does_not_outvote_the_one_that_stands(quorum: Store) -> None:
    """A stale run reached one server before its successor finished on two: the two decide (I4, I7)."""
    stale, owner = execution(), execution()
    first = quorum.acquire(stale)
    quorum.lapse(stale)
    second = quorum.acquire(owner)
    assert alone(quorum, 0).complete(stale, '"stale"', acquired=first) == Late()
    assert quorum.claims.complete(owner, '"owner"', acquired=second) == Completed()
    quorum.settle()
    assert quorum.claims.begin(execution()) == Done(result_json='"owner"')
    assert quorum.claims.renew(stale, first) == Lost()


@pytest.mark.parametrize("count", [2, 4])
def test_an_even_number_of_servers_is_refused(count: int) -> None:
    """Two of two, three of four: one more server that can fail, and no more that may (I7)."""
    with pytest.raises(ConfigurationError, match=f"{count} Redis servers make no quorum"):
        connect_claims(",".join(f"redis://127.0.0.1:{6379 + number}" for number in range(count)))


@pytest.mark.parametrize("url", ["", "localhost:6379", "http://localhost", "redis://a,,redis://c"])
def test_an_address_that_is_none_is_refused(url: str) -> None:
    """At startup, not at the first message (I7)."""
    with pytest.raises(ConfigurationError):
        connect_claims(url)
