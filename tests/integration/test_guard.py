"""What one delivery of a guarded task may do, on one Redis server and on a quorum of three."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest
import redis
from billiard.exceptions import SoftTimeLimitExceeded

from sandbox.processes import free_port
from sandbox.servers import PrivateRedis
from tasks.claims import connect_claims
from tasks.errors import InDoubtError, PayloadMismatchError
from tasks.idempotency import AlreadyDone, ComeBack, DidNotHappen, Doubt, Happened, Refuse, Settlement, Unknown
from tasks.unguarded_claim import UnguardedClaim
from tests.integration.claim_stores import Store, close
from tests.integration.deliveries import TASK, deliver, interrupt, running


@pytest.mark.parametrize("result", [None, {"charge": 17}, 1.0, "paid", [1, [None, True]], 0, ""])
def test_a_duplicate_gets_the_result_with_its_type(store: Store, result: Any) -> None:
    """The first caller and every duplicate get the same (I4)."""
    with running(store) as claim:
        assert claim.complete(result) == result
    verdict = deliver(store)
    assert verdict == AlreadyDone(result=result)
    assert type(verdict.result) is type(result)


def test_a_result_that_cannot_be_kept_reaches_its_caller_and_not_the_duplicate(store: Store) -> None:
    """The duplicate gets a stated placeholder; the run does not fail after its effect (I4)."""
    with running(store) as claim:
        assert claim.complete({1, 2}) == {1, 2}
    placeholder = deliver(store).result
    assert (placeholder["result_not_kept"], placeholder["type"]) == ("not_json", "set")
    with running(store, key="large", max_result_bytes=100) as claim:
        assert claim.complete("x" * 200) == "x" * 200
    assert deliver(store, key="large").result == {
        "result_not_kept": "too_large",
        "bytes": 202,
        "limit_bytes": 100,
    }


def test_a_duplicate_of_a_running_task_comes_back_when_the_lease_would_end(store: Store) -> None:
    """Busy is no failure: it says how long (I5)."""
    running(store, lease_seconds=30)
    verdict = deliver(store, lease_seconds=30)
    assert isinstance(verdict, ComeBack)
    assert verdict.why == "busy"
    assert 25 < verdict.after_seconds <= 30


def test_other_arguments_under_the_same_key_are_refused_with_both_fingerprints(store: Store) -> None:
    """The error names what is on record and what came (I4)."""
    running(store)
    verdict = deliver(store, args=("order-1", 999))
    assert isinstance(verdict, Refuse)
    assert isinstance(verdict.error, PayloadMismatchError)
    assert verdict.error.stored in str(verdict.error)
    assert verdict.error.given in str(verdict.error)
    assert verdict.error.stored != verdict.error.given


def test_a_run_that_fails_gives_its_claim_up(store: Store) -> None:
    """Its retry begins at once, even where interrupted runs are parked (I2, I9)."""
    with pytest.raises(ConnectionError), running(store, if_interrupted="park"):
        raise ConnectionError
    assert running(store, if_interrupted="park").attempt == 2


@pytest.mark.parametrize("interruption", [SoftTimeLimitExceeded, SystemExit, KeyboardInterrupt])
def test_a_run_that_is_stopped_at_any_line_is_in_doubt(store: Store, interruption: type[BaseException]) -> None:
    """A soft time limit can strike between effect and marker (I9)."""
    with pytest.raises(interruption), running(store, if_interrupted="park"):
        raise interruption
    verdict = deliver(store, if_interrupted="park")
    assert isinstance(verdict, Refuse)
    assert isinstance(verdict.error, InDoubtError)
    assert verdict.error.attempt == 1


def test_an_interrupted_run_is_repeated_at_once_by_default(store: Store) -> None:
    """The redelivery does not wait for the dead run's lease (I2)."""
    interrupt(store, lease_seconds=3600, retention_seconds=3600)
    claim = running(store)
    assert claim.attempt == 2


def test_a_provider_that_knows_of_the_effect_settles_the_doubt(store: Store) -> None:
    """No person is needed, nothing is repeated, and the answer is on record (I9)."""
    asked: list[Doubt] = []

    def reconcile(doubt: Doubt) -> Happened:
        asked.append(doubt)
        return Happened(result={"charge": 17})

    claim = running(store, if_interrupted="park")
    provider_key = claim.step("charge").provider_key
    claim.step("reserve").run(lambda key: key[:4])
    claim.abandon(interrupted=True)
    assert deliver(store, if_interrupted="park", reconcile=reconcile) == AlreadyDone(result={"charge": 17})
    (doubt,) = asked
    assert (doubt.task_name, doubt.key, doubt.args, doubt.attempt) == (TASK, "order-1", ("order-1", 1250), 1)
    assert doubt.steps == {"reserve": "dlo-"}
    assert doubt.provider_key("charge") == provider_key
    assert deliver(store, if_interrupted="park") == AlreadyDone(result={"charge": 17})


def test_a_provider_that_knows_of_no_effect_lets_the_run_begin(store: Store) -> None:
    """And a second interruption is asked about anew (I9)."""
    interrupt(store, if_interrupted="park")
    claim = running(store, if_interrupted="park", reconcile=lambda _: DidNotHappen())
    assert claim.attempt == 2
    claim.abandon(interrupted=True)
    assert isinstance(deliver(store, if_interrupted="park"), Refuse)
    assert running(store, if_interrupted="park", reconcile=lambda _: DidNotHappen()).attempt == 3


def test_two_answers_of_a_provider_let_one_run_begin(store: Store) -> None:
    """An answer that has become stale by another run opens nothing (I9)."""
    interrupt(store, if_interrupted="park")

    def overtaken(_: Doubt) -> DidNotHappen:
        interrupt_again = running(store, if_interrupted="park", reconcile=lambda _: DidNotHappen())
        interrupt_again.abandon(interrupted=True)
        return DidNotHappen()

    verdict = deliver(store, if_interrupted="park", reconcile=overtaken)
    assert isinstance(verdict, Refuse)
    assert isinstance(verdict.error, InDoubtError)
    assert verdict.error.attempt == 2


def test_a_provider_that_cannot_tell_leaves_the_doubt_to_a_person(store: Store) -> None:
    """Unknown is not no (I9)."""
    interrupt(store, if_interrupted="park")
    verdict = deliver(store, if_interrupted="park", reconcile=lambda _: Unknown())
    assert isinstance(verdict, Refuse)


def test_a_person_settles_a_doubt_as_done(store: Store) -> None:
    """The replayed message records the result and runs nothing (I9, D5)."""
    interrupt(store, if_interrupted="park")
    deliver(store, if_interrupted="park")
    settled = Settlement(result_json='{"charge": 17}')
    assert deliver(store, if_interrupted="park", settlement=settled) == AlreadyDone(result={"charge": 17})
    assert deliver(store, if_interrupted="park") == AlreadyDone(result={"charge": 17})


def test_a_person_settles_a_doubt_by_repeating_it_once(store: Store) -> None:
    """The replay runs; its own interruption is a new doubt, which the old word does not settle (I9, D5)."""
    interrupt(store, if_interrupted="park")
    settled = Settlement(attempt=1)
    claim = running(store, if_interrupted="park", settlement=settled)
    claim.abandon(interrupted=True)
    verdict = deliver(store, if_interrupted="park", settlement=settled)
    assert isinstance(verdict, Refuse)


def test_a_result_that_stands_wins_over_a_settlement(store: Store) -> None:
    """A person who is too late gets what really happened (I9)."""
    with running(store) as claim:
        claim.complete("real")
    assert deliver(store, settlement=Settlement(result_json='"assumed"')) == AlreadyDone(result="real")


def test_a_message_older_than_its_retention_is_in_doubt_not_new(store: Store) -> None:
    """A dead letter replayed after a month: its record may have existed (I9)."""
    policy: dict[str, Any] = {"retention_seconds": 7 * 86_400}
    verdict = deliver(store, age_seconds=7 * 86_400 + 1, **policy)
    assert isinstance(verdict, Refuse)
    assert isinstance(verdict.error, InDoubtError)
    assert "older than its key's record is kept" in str(verdict.error)
    assert running(store, age_seconds=7 * 86_400 - 1, **policy).attempt == 1
    assert running(store, key="old", age_seconds=10**7, settlement=Settlement(attempt=0), **policy).attempt == 1


def test_an_old_message_whose_record_lives_is_judged_by_the_record(store: Store) -> None:
    """A failed attempt keeps the record alive, so its retry is no doubt (I9)."""
    running(store).abandon()
    assert running(store, age_seconds=10**9).attempt == 2


@pytest.fixture
def nowhere() -> Iterator[Store]:
    """A store whose Redis is away."""
    claims = connect_claims(f"redis://127.0.0.1:{free_port()}/0")
    yield Store(claims=claims, clients=[])
    close(claims)


def test_with_redis_away_the_message_waits(nowhere: Store) -> None:
    """Nothing runs unguarded, and nothing fails (I5)."""
    began_at = time.monotonic()
    verdict = deliver(nowhere, lease_seconds=3)
    assert isinstance(verdict, ComeBack)
    assert verdict.why == "redis_away"
    assert time.monotonic() - began_at < 3


def test_with_redis_away_a_task_with_a_ledger_may_run(nowhere: Store) -> None:
    """It says so itself; it has no fence, and everything else of a claim (I8)."""
    with running(nowhere, lease_seconds=3, redis_down="ledger") as claim:
        assert isinstance(claim, UnguardedClaim)
        claim.ensure_held()
        assert (claim.fence, claim.attempt, claim.effect_key) == (None, 1, f"{TASK}:order-1")
        assert claim.step("charge").run(lambda key: key[:4]) == "dlo-"
        assert claim.complete("paid") == "paid"


def test_with_redis_away_nothing_runs_that_is_known_to_be_done(nowhere: Store) -> None:
    """A message that carries its result waits until it can be recorded, ledger or not (I4, I8)."""
    verdict = deliver(nowhere, lease_seconds=3, redis_down="ledger", settlement=Settlement(result_json='"paid"'))
    assert isinstance(verdict, ComeBack)


@pytest.mark.parametrize("outcome", [Happened(result="paid"), DidNotHappen()])
def test_redis_that_goes_away_while_the_provider_is_asked_lets_nothing_run(
    own_redis: PrivateRedis, outcome: Happened | DidNotHappen
) -> None:
    """What was in doubt a moment ago is no case for the ledger (I8, I9)."""
    store = Store(claims=connect_claims(own_redis.url), clients=[])
    interrupt(store, lease_seconds=3, if_interrupted="park")

    def reconcile(_: Doubt) -> Happened | DidNotHappen:
        own_redis.kill()
        return outcome

    verdict = deliver(store, lease_seconds=3, if_interrupted="park", redis_down="ledger", reconcile=reconcile)
    assert isinstance(verdict, ComeBack)
    assert verdict.why == "redis_away"
    store.close()


def test_an_abandon_with_redis_away_is_left_to_the_lease(own_redis: PrivateRedis) -> None:
    """A failing run fails with its own error, not with Redis' (I5)."""
    store = Store(claims=connect_claims(own_redis.url), clients=[redis.Redis.from_url(own_redis.url)])
    with pytest.raises(ZeroDivisionError), running(store):
        fail_without(own_redis)
    store.close()


def fail_without(server: PrivateRedis) -> None:
    """A task's body that loses its Redis and then fails."""
    server.kill()
    raise ZeroDivisionError
