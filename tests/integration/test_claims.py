"""The four calls on a claim, on one Redis server and on a quorum of three."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor

import pytest

from tasks.claim import (
    Acquired,
    Busy,
    Completed,
    Conflict,
    Done,
    FinishedStep,
    Held,
    IfInterrupted,
    InDoubt,
    Late,
    Lost,
    PayloadMismatch,
)
from tests.integration.claim_stores import Store, execution

PARK = IfInterrupted.PARK


def test_a_duplicate_is_busy_while_the_first_runs(store: Store) -> None:
    """A second delivery does not run beside the first, and learns when to come back (I5)."""
    first = store.acquire(execution(lease_seconds=30))
    assert first.attempt == 1
    answer = store.claims.begin(execution())
    assert isinstance(answer, Busy)
    assert 28 < answer.retry_after_seconds <= 30


def test_a_duplicate_of_a_finished_run_gets_its_result(store: Store) -> None:
    """The result answers every later delivery (I4)."""
    run = execution()
    acquired = store.acquire(run)
    assert store.claims.complete(run, '{"charge":17}', acquired=acquired) == Completed()
    assert store.claims.begin(execution()) == Done(result_json='{"charge":17}')


def test_a_begin_whose_reply_was_lost_is_acquired_again(store: Store) -> None:
    """The same token asks again: the claim is its own, not somebody else's (I5)."""
    run = execution()
    first = store.acquire(run)
    again = store.acquire(run)
    assert again.attempt == first.attempt
    assert again.fence >= first.fence


def test_a_begin_that_arrives_after_its_run_gave_up_takes_nothing(store: Store) -> None:
    """A copy that the network delayed must not hold a claim for nobody (I5)."""
    run = execution()
    store.acquire(run)
    store.claims.abandon(run.task_name, run.key, run.token)
    store.settle()
    assert isinstance(store.claims.begin(run), Busy)
    store.settle()
    assert store.acquire(execution(), if_interrupted=PARK).attempt == 2


def test_another_task_with_the_same_key_is_another_claim(store: Store) -> None:
    """The caller's key is good for every task it is used with, and no two names run together (I3)."""
    store.acquire(execution("17", task_name="a"))
    store.acquire(execution("17", task_name="b"))
    store.acquire(execution("b:17", task_name="a"))
    store.acquire(execution("17", task_name="a:b"))


@pytest.mark.parametrize("finished", [False, True])
def test_the_same_key_with_other_arguments_is_a_mismatch(store: Store, finished: bool) -> None:
    """Another payload is refused, whatever became of the first (I4)."""
    run = execution(payload="p")
    acquired = store.acquire(run)
    if finished:
        store.claims.complete(run, "1", acquired=acquired)
    assert store.claims.begin(execution(payload="q")) == PayloadMismatch(stored="p", given="q")


def test_a_lapsed_lease_is_taken_over(store: Store) -> None:
    """After a crash the next delivery runs, under a higher fence (I2, I7)."""
    first = store.acquire(execution())
    store.lapse(execution())
    second = store.acquire(execution())
    assert second.attempt == 2
    assert second.fence > first.fence


def test_a_lapsed_lease_is_in_doubt_where_it_is_parked(store: Store) -> None:
    """Where money is at stake nobody repeats blindly, not even after the policy was changed (I9)."""
    store.acquire(execution())
    store.lapse(execution())
    assert store.claims.begin(execution(), if_interrupted=PARK) == InDoubt(attempt=1)
    store.settle()
    assert store.claims.begin(execution()) == InDoubt(attempt=1)


def test_leave_to_repeat_holds_for_one_attempt(store: Store) -> None:
    """A person's word on one interruption says nothing of the next (I9, D5)."""
    store.acquire(execution())
    store.lapse(execution())
    assert store.claims.begin(execution(), if_interrupted=PARK, permitted_attempt=2) == InDoubt(attempt=1)
    assert store.acquire(execution(), if_interrupted=PARK, permitted_attempt=1).attempt == 2
    store.lapse(execution())
    assert store.claims.begin(execution(), if_interrupted=PARK, permitted_attempt=1) == InDoubt(attempt=2)


def test_a_failed_run_leaves_no_doubt(store: Store) -> None:
    """An exception says that the run failed: its retry begins at once, even under park (I2, R7)."""
    run = execution()
    store.acquire(run)
    assert store.claims.abandon(run.task_name, run.key, run.token) is True
    store.settle()
    assert store.acquire(execution(), if_interrupted=PARK).attempt == 2


def test_an_interrupted_run_does_not_keep_the_next_waiting(store: Store) -> None:
    """The parent of a killed child ends its lease: repeated at once, or in doubt at once (I2)."""
    run = execution()
    store.acquire(run)
    assert store.claims.abandon(run.task_name, run.key, run.token, interrupted=True) is True
    store.settle()
    assert store.claims.begin(execution(), if_interrupted=PARK) == InDoubt(attempt=1)
    other = execution("order-2")
    store.acquire(other)
    store.claims.abandon(other.task_name, other.key, other.token, interrupted=True)
    store.settle()
    assert store.acquire(execution("order-2")).attempt == 2


@pytest.mark.parametrize("interrupted", [False, True])
def test_a_stale_abandon_changes_nothing(store: Store, interrupted: bool) -> None:
    """Whoever lost the claim cannot free the one who has it (I5)."""
    stale, owner = execution(), execution()
    store.acquire(stale)
    store.lapse(stale)
    store.acquire(owner)
    before = store.records(owner)
    assert store.claims.abandon(stale.task_name, stale.key, stale.token, interrupted=interrupted) is False
    assert store.records(owner) == before
    assert isinstance(store.claims.begin(execution()), Busy)


def test_a_renewal_extends_the_lease(store: Store) -> None:
    """A run may take longer than its lease (I6)."""
    run = execution(lease_seconds=30)
    acquired = store.acquire(run)
    store.lapse(run)
    assert store.claims.renew(run, acquired) == Held()
    store.settle()
    answer = store.claims.begin(execution())
    assert isinstance(answer, Busy)
    assert answer.retry_after_seconds > 28


def test_a_renewal_after_a_takeover_is_lost(store: Store) -> None:
    """A run that was taken over learns of it (I6)."""
    stale = execution()
    acquired = store.acquire(stale)
    store.lapse(stale)
    store.acquire(execution())
    assert store.claims.renew(stale, acquired, may_restore=True) == Lost()


def test_a_renewal_restores_a_record_that_redis_lost(store: Store) -> None:
    """A Redis that forgot a running claim learns of it again, while the lease runs (I7)."""
    run = execution()
    acquired = store.acquire(run)
    store.forget(run)
    assert store.claims.renew(run, acquired, may_restore=False) == Lost()
    assert store.claims.renew(run, acquired, may_restore=True) == Held()
    store.settle()
    assert isinstance(store.claims.begin(execution()), Busy)
    assert store.claims.complete(run, "1", acquired=acquired) == Completed()


def test_the_fence_grows_even_when_the_record_was_lost(store: Store) -> None:
    """The database can tell the older claim from the newer one, whatever Redis forgot (I7)."""
    fences = []
    for _ in range(5):
        fences.append(store.acquire(execution()).fence)
        store.forget(execution())
    assert fences == sorted(set(fences))


def test_a_late_result_is_recorded_when_nobody_else_finished(store: Store) -> None:
    """The effect has happened: duplicates get its result, although the lease had lapsed (I4)."""
    run = execution()
    acquired = store.acquire(run)
    store.lapse(run)
    assert store.claims.complete(run, '"late"', acquired=acquired) == Late()
    store.settle()
    assert store.claims.begin(execution(), if_interrupted=PARK) == Done(result_json='"late"')


def test_a_late_result_wins_over_a_run_that_has_not_finished(store: Store) -> None:
    """The first to finish stands, and the other learns of it (I4)."""
    stale, owner = execution(), execution()
    first = store.acquire(stale)
    store.lapse(stale)
    second = store.acquire(owner)
    assert store.claims.complete(stale, '"first"', acquired=first) == Late()
    store.settle()
    assert store.claims.complete(owner, '"second"', acquired=second) == Conflict(result_json='"first"')
    assert store.claims.renew(owner, second) == Lost()
    assert store.claims.begin(execution()) == Done(result_json='"first"')


def test_a_complete_whose_reply_was_lost_is_completed_again(store: Store) -> None:
    """The same token completes twice: once (I4)."""
    run = execution()
    acquired = store.acquire(run)
    assert store.claims.complete(run, "1", acquired=acquired) == Completed()
    store.settle()
    assert store.claims.complete(run, "1", acquired=acquired) == Completed()


def test_steps_survive_a_failure_and_a_takeover(store: Store) -> None:
    """The next attempt knows which steps are done (R7)."""
    run = execution()
    acquired = store.acquire(run)
    assert store.claims.renew(run, acquired, step=FinishedStep(name="charge", result_json="17")) == Held()
    store.settle()
    store.claims.abandon(run.task_name, run.key, run.token)
    store.settle()
    second = store.acquire(execution())
    assert second.steps == {"charge": "17"}


def test_a_step_is_recorded_even_where_the_claim_is_lost(store: Store) -> None:
    """Its effect has happened: the next attempt must not repeat it, and the first result stands (R7)."""
    stale, owner = execution(), execution()
    acquired = store.acquire(stale)
    store.lapse(stale)
    store.acquire(owner)
    step = FinishedStep(name="charge", result_json="17")
    assert store.claims.renew(stale, acquired, step=step) == Lost()
    store.settle()
    assert store.claims.renew(stale, acquired, step=FinishedStep(name="charge", result_json="18")) == Lost()
    store.settle()
    store.lapse(owner)
    assert store.claims.begin(execution(), if_interrupted=PARK) == InDoubt(attempt=2, steps={"charge": "17"})


def test_a_record_lives_as_long_as_its_retention(store: Store) -> None:
    """The lease ends, the evidence stays; a result's time starts anew (I9)."""
    run = execution(lease_seconds=1, retention_seconds=7 * 86_400)
    acquired = store.acquire(run)
    week_ms = 7 * 86_400_000
    assert all(week_ms - 60_000 < left <= week_ms for left in store.on_each(lambda c: c.pttl(run.record_name)))
    store.on_each(lambda client: client.pexpire(run.record_name, 60_000))
    store.claims.renew(run, acquired)
    assert all(week_ms - 60_000 < left <= week_ms for left in store.on_each(lambda c: c.pttl(run.record_name)))
    store.on_each(lambda client: client.pexpire(run.record_name, 60_000))
    store.claims.complete(run, "1", acquired=acquired)
    assert all(week_ms - 60_000 < left <= week_ms for left in store.on_each(lambda c: c.pttl(run.record_name)))


def test_a_fence_on_record_never_falls(store: Store) -> None:
    """Neither a renewal under an older fence nor a settlement without one lowers it (I7)."""
    run = execution()
    acquired = store.acquire(run)
    higher = acquired.fence + 1000
    store.on_each(lambda client: client.hset(run.record_name, "fence", str(higher)))
    store.claims.renew(run, acquired)
    assert {record["fence"] for record in store.records(run)} == {str(higher)}
    store.claims.complete(execution(), '"settled"')
    assert {record["fence"] for record in store.records(run)} == {str(higher)}


def test_a_message_older_than_records_is_in_doubt_without_one(store: Store) -> None:
    """No record of an old message proves nothing; a person's leave lets it run, once (I9)."""
    assert store.claims.begin(execution(), may_be_forgotten=True) == InDoubt(attempt=0)
    assert store.acquire(execution(), may_be_forgotten=True, permitted_attempt=0).attempt == 1
    store.lapse(execution())
    answer = store.claims.begin(execution(), if_interrupted=PARK, may_be_forgotten=True, permitted_attempt=0)
    assert answer == InDoubt(attempt=1)


def test_one_of_many_at_once_is_let_in(store: Store) -> None:
    """However many deliveries ask at the same moment, one runs (I5, I10)."""
    for number in range(10):
        runs = [execution(f"race-{number}") for _ in range(8)]
        with ThreadPoolExecutor(len(runs)) as threads:
            answers = list(threads.map(store.claims.begin, runs))
        acquired = [answer for answer in answers if isinstance(answer, Acquired)]
        assert len(acquired) <= 1
        assert len(acquired) == 1 or len(store.clients) > 1, "on one server nobody can split the vote"


@pytest.mark.parametrize("result", ["null", '"' + "é\\u0000" * 100 + '"', "[1,2.0,true]", "x" * 100_000])
def test_results_come_back_byte_for_byte(store: Store, result: str) -> None:
    """Whatever text a result has, and however long, it comes back (I4)."""
    run = execution()
    store.claims.complete(run, result, acquired=store.acquire(run))
    assert store.claims.begin(execution()) == Done(result_json=result)


def test_a_record_holds_no_more_than_it_says(store: Store) -> None:
    """A finished claim keeps its result and forgets its steps (I4)."""
    run = execution()
    acquired = store.acquire(run)
    store.claims.renew(run, acquired, step=FinishedStep(name="charge", result_json="17"))
    store.settle()
    store.claims.complete(run, json.dumps("ok"), acquired=acquired)
    for record in store.records(run):
        assert set(record) == {"state", "token", "payload", "fence", "attempt", "result"}
