"""What the tests of claims share: executions, and the two kinds of store, on real servers."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import redis

from sandbox.processes import eventually
from tasks.claim import Acquired, Claims, Execution, new_token
from tasks.claims import connect_claims, connect_redis
from tasks.quorum import QuorumClaims
from tasks.redis_claims import RedisClaims

T = TypeVar("T")
_numbers = itertools.count(1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Store:
    """A store of claims, and a way to reach behind it on every server."""

    claims: Claims
    clients: Sequence[redis.Redis]

    def acquire(self, execution: Execution, **options: Any) -> Acquired:
        """Begin, and expect to be let in."""
        answer = self.claims.begin(execution, **options)
        assert isinstance(answer, Acquired), answer
        self.settle()
        return answer

    def settle(self) -> None:
        """Wait until no server has a question left: a quorum answers before its slowest server does."""
        if isinstance(self.claims, QuorumClaims):
            eventually(self.claims.idle, every=0.001)

    def on_each(self, act: Callable[[redis.Redis], T]) -> list[T]:
        """Do something on every server, behind the store's back."""
        self.settle()
        return [act(client) for client in self.clients]

    def lapse(self, execution: Execution) -> None:
        """Let the lease end now."""
        self.on_each(lambda client: client.hset(execution.record_name, "lease_until", "1"))

    def forget(self, execution: Execution) -> None:
        """Let Redis lose the record."""
        self.on_each(lambda client: client.delete(execution.record_name))

    def records(self, execution: Execution) -> list[dict[str, str]]:
        """The record as every server has it."""

        def read(client: redis.Redis) -> dict[str, str]:
            fields: Any = client.hgetall(execution.record_name)
            return {name.decode(): value.decode() for name, value in fields.items()}

        return self.on_each(read)

    def clear(self) -> None:
        """Empty every server."""
        self.on_each(lambda client: client.flushdb())

    def close(self) -> None:
        """Let go of the servers."""
        self.settle()
        for client in self.clients:
            client.close()
        close(self.claims)


def store_on(*urls: str) -> Store:
    """A store on one server, or on a quorum of several."""
    clients = [connect_redis(url, socket_timeout_seconds=5) for url in urls]
    return Store(claims=connect_claims(",".join(urls)), clients=clients)


def close(claims: Claims) -> None:
    """Close the connections of a store of claims."""
    assert isinstance(claims, RedisClaims | QuorumClaims)
    claims.close()


def execution(
    key: str = "order-1",
    *,
    task_name: str = "payments.charge_customer",
    token: str | None = None,
    payload: str = "p",
    lease_seconds: float = 60.0,
    retention_seconds: float = 3600.0,
) -> Execution:
    """One delivery that wants to run."""
    return Execution(
        task_name=task_name,
        key=key,
        token=token or new_token(),
        payload=payload,
        lease_seconds=lease_seconds,
        retention_seconds=retention_seconds,
    )


def new_key() -> str:
    """A key that no test has used."""
    return f"order-{next(_numbers)}"
