"""A duplicate that waits for another run: it costs no retry, and it never becomes a dead letter."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from sandbox.processes import eventually
from sandbox.road import Road
from tasks.claim import Acquired, Execution, Held, new_token
from tasks.claims import RedisClaims, connect_claims
from tasks.idempotency import fingerprint


@pytest.fixture
def claims(road: Road) -> Iterator[RedisClaims]:
    """The claims that the road's workers use."""
    claims = connect_claims(road.redis_url)
    assert isinstance(claims, RedisClaims)
    yield claims
    claims.close()


@pytest.mark.parametrize("times", [4, pytest.param(50, marks=[pytest.mark.soak, pytest.mark.timeout(900)])])
def test_busy_deliveries_cost_no_retry(road: Road, claims: RedisClaims, times: int) -> None:
    """Busy again and again, then one transient error: the retry count is 1, and no letter. (I5)"""
    road.task_modules = "sandbox.kill_tasks"
    worker = road.worker()
    holder = Execution(
        task_name="payments.second_try",
        key="order-1",
        token=new_token(),
        payload=fingerprint((), {}),
        lease_seconds=1,
        retention_seconds=3600,
    )
    acquired = claims.begin(holder)
    assert isinstance(acquired, Acquired)
    road.publisher.send_task("payments.second_try", idempotency_key="order-1")

    def busy() -> bool:
        assert claims.renew(holder, acquired) == Held()
        return worker.output().count(" ignored") >= times

    eventually(busy, seconds=20 + 4 * times, every=0.2, what=f"{times} busy deliveries")
    claims.abandon(holder.task_name, holder.key, holder.token)
    eventually(lambda: claims.client.hget(holder.record_name, "result") == b"1")
    eventually(lambda: road.depth("payments") == 0)
    assert road.depth("dead-letters") == 0
