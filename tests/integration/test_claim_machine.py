"""Real Redis against the model: whatever the order of calls and faults, both give the same answers."""

from __future__ import annotations

from typing import Any, cast

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule, run_state_machine_as_test

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
from tests import claim_model
from tests.integration.claim_stores import Store, execution, new_key

tokens = st.sampled_from(["t1", "t1", "t1", "t2", "t2", "t3", "t4"])  # calls of one token meet more often
PAYLOADS = {"t1": "p", "t2": "p", "t3": "p", "t4": "q"}
"""An execution has one payload, whatever it asks."""
steps = st.none() | st.tuples(st.sampled_from(["charge", "mail"]), st.sampled_from(["1", "2"]))


class ClaimMachine(RuleBasedStateMachine):
    """One key, four executions, and every call and fault in any order."""

    def __init__(self, store: Store) -> None:
        super().__init__()
        self.store = store
        self.key = new_key()
        self.record: claim_model.Record | None = None
        self.acquired: dict[str, Acquired] = {}
        self.highest_fence = 0

    @rule(
        token=tokens,
        park=st.booleans(),
        forgotten=st.booleans(),
        permitted=st.none() | st.integers(0, 3),
    )
    def begin(self, token: str, park: bool, forgotten: bool, permitted: int | None) -> None:
        """Ask to run."""
        self.store.settle()
        answer = self.store.claims.begin(
            execution(self.key, token=token, payload=PAYLOADS[token]),
            if_interrupted=IfInterrupted.PARK if park else IfInterrupted.REPEAT,
            may_be_forgotten=forgotten,
            permitted_attempt=permitted,
        )
        again = self.record and (self.record.state, self.record.token) == ("running", token)
        known_fence = self.record.fence if self.record else 0
        expected, self.record = claim_model.begin(
            self.record,
            token=token,
            payload=PAYLOADS[token],
            clock=self.highest_fence + 1,
            park=park,
            may_be_forgotten=forgotten,
            permitted_attempt=permitted,
        )
        match answer, expected:
            case Acquired(fence=fence, attempt=attempt, steps=steps), ("acquired", _, expected_attempt, known):
                assert (attempt, dict(steps)) == (expected_attempt, dict(known))
                assert fence >= known_fence if again else fence > self.highest_fence
                self.highest_fence, self.acquired[token] = max(fence, self.highest_fence), answer
                assert self.record is not None
                self.record = self.record._replace(fence=fence)
            case Done(result_json=result), ("done", stored):
                assert result == stored
            case Busy(), ("busy",):
                pass
            case PayloadMismatch(stored=stored), ("mismatch", expected_payload):
                assert stored == expected_payload
            case InDoubt(attempt=attempt, steps=steps), ("in_doubt", expected_attempt, known):
                assert (attempt, dict(steps)) == (expected_attempt, dict(known))
            case _:
                raise AssertionError(f"{answer} is not {expected}")

    @rule(token=tokens, restore=st.booleans(), step=steps)
    def renew(self, token: str, restore: bool, step: tuple[str, str] | None) -> None:
        """Renew, perhaps with a step, perhaps long after the claim was lost."""
        acquired = self.acquired.get(token)
        if acquired is None:
            return
        self.store.settle()
        answer = self.store.claims.renew(
            execution(self.key, token=token, payload=PAYLOADS[token]),
            acquired,
            may_restore=restore,
            step=FinishedStep(name=step[0], result_json=step[1]) if step else None,
        )
        expected, self.record = claim_model.renew(
            self.record,
            token=token,
            payload=PAYLOADS[token],
            fence=acquired.fence,
            attempt=acquired.attempt,
            may_restore=restore,
            step=step,
        )
        assert answer == (Held() if expected == ("held",) else Lost())

    @rule(token=tokens, result=st.sampled_from(['"a"', '"b"']), ran=st.booleans())
    def complete(self, token: str, result: str, ran: bool) -> None:
        """Complete, perhaps without ever having begun: a settlement."""
        self.store.settle()
        acquired = self.acquired.get(token) if ran else None
        run = execution(self.key, token=token, payload=PAYLOADS[token])
        answer = self.store.claims.complete(run, result, acquired=acquired)
        expected, self.record = claim_model.complete(
            self.record,
            token=token,
            payload=PAYLOADS[token],
            result=result,
            fence=acquired.fence if acquired else 0,
            attempt=acquired.attempt if acquired else 0,
        )
        match expected:
            case ("completed",):
                assert answer == Completed()
            case ("late",):
                assert answer == Late()
            case ("conflict", stored):
                assert answer == Conflict(result_json=stored)

    @rule(token=tokens, interrupted=st.booleans())
    def abandon(self, token: str, interrupted: bool) -> None:
        """Give up, perhaps somebody else's claim."""
        self.store.settle()
        run = execution(self.key, token=token)
        answer = self.store.claims.abandon(run.task_name, run.key, token, interrupted=interrupted)
        ending = "interrupted" if interrupted else "failed"
        expected, self.record = claim_model.abandon(self.record, token=token, ending=ending)
        assert answer is expected

    @rule()
    def lapse(self) -> None:
        """The lease ends."""
        if self.record and self.record.state == "running":
            self.store.lapse(execution(self.key))
            self.record = self.record._replace(lapsed=True)

    @rule(record=st.booleans(), scripts=st.booleans())
    def lose(self, record: bool, scripts: bool) -> None:
        """Redis forgets the record, the scripts, both or nothing."""
        if scripts:
            self.store.on_each(lambda client: client.script_flush())
        if record:
            self.store.forget(execution(self.key))
            self.record = None

    def teardown(self) -> None:
        """Every server agrees with the model on what is on record."""
        for stored in self.store.records(execution(self.key)):
            if self.record is None:
                assert stored == {}
                continue
            assert (stored["state"], stored["token"]) == (self.record.state, self.record.token)
            assert (stored["payload"], int(stored["attempt"])) == (self.record.payload, self.record.attempt)
            assert stored.get("result") == self.record.result
            known = {name[5:]: value for name, value in stored.items() if name.startswith("step:")}
            assert known == dict(self.record.steps)


@pytest.mark.timeout(900)
def test_redis_and_the_model_give_the_same_answers(store: Store) -> None:
    """Scripts and model agree in every order that hypothesis finds, on one server and on three (I4, I5, I7)."""
    examples = settings(
        max_examples=400 if len(store.clients) == 1 else 60,
        stateful_step_count=40,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        database=None,
        phases=(Phase.generate,),
    )

    run_state_machine_as_test(cast(Any, lambda: ClaimMachine(store)), settings=examples)
