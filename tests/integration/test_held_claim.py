"""What its claim offers to a running task: steps, a lease that is kept, a loss that is noticed."""

from __future__ import annotations

import os
import threading
from contextlib import suppress
from typing import Any

import pytest

from sandbox.processes import eventually
from tasks.errors import LeaseLostError, StepError
from tasks.idempotency import AlreadyDone, ComeBack, Run
from tasks.lease import Renewals
from tasks.leased_claim import LeasedClaim
from tests.integration.claim_stores import Store, execution
from tests.integration.deliveries import deliver, running


def test_a_step_that_is_done_is_skipped_with_its_result(store: Store) -> None:
    """A retry after a partial success charges nobody twice (I2, R7)."""
    effects: list[str] = []
    provider_keys: set[str] = set()

    def charge(key: str) -> dict[str, int]:
        effects.append("charge")
        provider_keys.add(key)
        return {"id": 17}

    with suppress(ConnectionError), running(store) as claim:
        assert claim.step("charge").run(charge) == {"id": 17}
        raise ConnectionError
    with running(store) as claim:
        with claim.step("charge") as step:
            assert step.done
            provider_keys.add(step.provider_key)
        assert step.result == {"id": 17}
        with claim.step("mail") as step:
            assert not step.done
            effects.append("mail")
        claim.complete("both")
    assert effects == ["charge", "mail"]
    assert len(provider_keys) == 1


def test_a_step_that_raises_is_not_done(store: Store) -> None:
    """Only a finished step is remembered (R7)."""
    with pytest.raises(ConnectionError), running(store) as claim, claim.step("charge"):
        raise ConnectionError
    assert not running(store).step("charge").done


def test_steps_are_guarded_against_their_own_misuse(store: Store) -> None:
    """A name used twice would skip the second effect; a result set twice means an effect that ran twice (R7)."""
    claim = running(store)
    claim.step("charge").run(lambda _: 17)
    with pytest.raises(StepError, match="used twice in one run"):
        claim.step("charge")
    for name in ("", " ", "a\nb", None):
        with pytest.raises(StepError, match="name cannot be used"):
            claim.step(name)  # type: ignore[arg-type]
    claim.abandon()
    step = running(store).step("charge")
    with pytest.raises(StepError, match=r"ask step\.done"):
        step.result = 18


def test_a_step_result_that_was_not_kept_is_told_when_it_is_needed(store: Store) -> None:
    """The effect is not repeated, and no placeholder passes for its result (R7)."""
    claim = running(store)
    claim.step("charge").run(lambda _: {1, 2})
    claim.abandon()
    step = running(store).step("charge")
    assert step.done
    with pytest.raises(StepError, match="result was not kept"):
        _ = step.result


def test_a_run_longer_than_its_lease_keeps_it(store: Store) -> None:
    """The lease is renewed from a thread; duplicates stay busy (I6)."""
    with running(store, lease_seconds=0.9) as claim:
        eventually(lambda: claim.lease_share > 2.5)
        assert isinstance(deliver(store), ComeBack)
        claim.ensure_held()
        assert claim.complete("slow") == "slow"
    assert deliver(store) == AlreadyDone(result="slow")


def test_a_short_run_renews_nothing(store: Store) -> None:
    """No round trip is spent on a renewal before a third of the lease is over (I6)."""
    store.on_each(lambda client: client.config_resetstat())
    with running(store) as claim:
        claim.complete(1)
    calls: list[Any] = store.on_each(lambda client: client.info("commandstats"))
    begins_and_completes = 2 if len(store.clients) == 1 else 3
    assert all(stats["cmdstat_evalsha"]["calls"] == begins_and_completes for stats in calls)


def test_asking_whether_the_claim_is_held_is_free_while_it_is_renewed(store: Store) -> None:
    """A renewal moves the run's own deadline: no round trip before each effect of a long run (I6)."""
    with running(store, lease_seconds=0.9) as claim:
        eventually(lambda: claim.lease_share > 1.5)
        store.on_each(lambda client: client.config_resetstat())
        for _ in range(100):
            claim.ensure_held()
        calls: list[Any] = store.on_each(lambda client: client.info("commandstats"))
        claim.complete(None)
    assert all(stats.get("cmdstat_evalsha", {"calls": 0})["calls"] < 10 for stats in calls)


def test_a_lost_lease_is_visible_before_the_next_effect(store: Store) -> None:
    """Another run took the claim: this one stops at its next check and at its next step (I6)."""
    with running(store, lease_seconds=0.9) as claim:
        eventually(lambda: overtaken(store))
        eventually(lambda: isinstance(claim, LeasedClaim) and claim.lost)
        with pytest.raises(LeaseLostError), claim.step("charge"):
            raise AssertionError("the step's effect must not begin")
        with pytest.raises(LeaseLostError, match="was lost"):
            claim.ensure_held()


def test_a_run_that_outlived_its_record_does_not_act(store: Store) -> None:
    """Stopped for longer than records are kept: others may have run and been forgotten since (I6, I9)."""
    claim = running(store, lease_seconds=0.3, retention_seconds=0.3)  # not entered: nothing renews it
    eventually(lambda: not any(store.records(execution())))
    with pytest.raises(LeaseLostError):
        claim.ensure_held()


def overtaken(store: Store) -> bool:
    """Let the lease lapse, and another delivery in, unless a renewal comes between the two."""
    store.lapse(execution())
    return isinstance(deliver(store), Run)


def test_a_run_that_lost_its_lease_can_still_say_what_happened(store: Store) -> None:
    """Its effect was first: its result stands, and the other run hears of it (I4, I6)."""
    with running(store) as stale:
        store.lapse(execution())
        with running(store) as owner:
            assert stale.complete("first") == "first"
            store.settle()
            assert owner.complete("second") == "first"


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")  # Python 3.12 warns; Celery forks all the same
def test_a_renewal_survives_a_fork(store: Store) -> None:
    """A prefork child has a thread of its own, whatever its parent had (I6)."""
    with running(store, key="parent", lease_seconds=0.6) as parent:
        eventually(lambda: parent.lease_share > 1.0)
        child = os.fork()
        if child == 0:
            _keep_a_claim_and_exit(store)
        _, status = os.waitpid(child, 0)
        assert os.waitstatus_to_exitcode(status) == 0
        parent.ensure_held()


def _keep_a_claim_and_exit(store: Store) -> None:
    try:
        with running(store, key="child", lease_seconds=0.6) as claim:
            eventually(lambda: claim.lease_share > 2.0)
            assert isinstance(deliver(store, key="child"), ComeBack)
            claim.complete(1)
        os._exit(0)
    finally:
        os._exit(1)


def test_many_claims_share_one_thread(store: Store) -> None:
    """Claims of a thread pool are renewed side by side by the same thread (I6)."""
    claims = [running(store, key=f"k{number}", lease_seconds=0.9) for number in range(10)]
    for claim in claims:
        claim.__enter__()
    eventually(lambda: claims[0].lease_share > 2.0)
    for number, claim in enumerate(claims):
        assert isinstance(deliver(store, key=f"k{number}"), ComeBack)
        claim.complete(number)
    assert [thread.name for thread in threading.enumerate()].count("lease-renewals") == 1


def test_one_lease_that_cannot_be_renewed_does_not_stop_the_others() -> None:
    """A defect in one renewal is logged and costs that lease alone (I6)."""
    renewals, calls = Renewals(), list[int]()

    def crash() -> float:
        raise ZeroDivisionError

    def renew() -> float:
        calls.append(1)
        return 0.01

    renewals.start("bad", crash, after_seconds=0.01)
    renewals.start("good", renew, after_seconds=0.02)
    eventually(lambda: len(calls) > 2)
    renewals.stop("good")


def test_a_lease_that_starts_later_and_is_due_earlier_is_not_kept_waiting() -> None:
    """The thread sleeps until the first is due, and is woken for one that comes sooner (I6)."""
    renewals, called = Renewals(), threading.Event()
    renewals.start("long", lambda: None, after_seconds=3600)
    renewals.start("short", called.set, after_seconds=0.05)
    assert called.wait(10)
    renewals.stop("long")
