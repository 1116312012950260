"""Commands past redis-py's pool: replies are never mixed up, and broken connections are replaced."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from sandbox.processes import eventually, free_port
from sandbox.servers import PrivateRedis
from tasks.claim import Busy, Completed, Done
from tasks.claims import RedisClaims, connect_redis
from tasks.redis_wire import RedisWire
from tests.integration.claim_stores import Store, execution


@pytest.fixture
def wire(own_redis: PrivateRedis) -> Iterator[RedisWire]:
    """A wire to a Redis of the test's own."""
    client = connect_redis(own_redis.url)
    wire = RedisWire(client)
    yield wire
    wire.close()
    client.close()


class StrikeError(BaseException):
    """What a soft time limit's signal raises, at any line."""


def test_values_arrive_byte_for_byte(wire: RedisWire) -> None:
    """Texts, bytes and numbers, empty and long ones (I4)."""
    for value in (b"\r\n$5\r\n", "", "äöü", 17, b"\x00\xff", "x" * 200_000):
        wire.ask("SET", "key", value)
        expected = value if isinstance(value, bytes) else str(value).encode()
        assert wire.ask("GET", "key") == expected


def test_a_signal_between_question_and_answer_does_not_mix_up_replies(
    wire: RedisWire, own_redis: PrivateRedis
) -> None:
    """The late answer to one command must not be taken for the next one's (I4, I6)."""

    def strike(*_: object) -> None:
        raise StrikeError

    wire.ask("SET", "mine", "right")
    wire.ask("SET", "other", "wrong")
    with redis.Redis.from_url(own_redis.url) as other:
        before = signal.signal(signal.SIGALRM, strike)
        other.client_pause(600)
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        try:
            with pytest.raises(StrikeError):
                wire.ask("GET", "other")
        finally:
            signal.signal(signal.SIGALRM, before)
        assert wire.ask("GET", "mine") == b"right"


def test_an_error_reply_leaves_the_connection_in_use(wire: RedisWire) -> None:
    """Redis answered: there is nothing to replace (I4)."""
    number = wire.ask("CLIENT", "ID")
    with pytest.raises(redis.exceptions.ResponseError):
        wire.ask("NONSENSE")
    assert wire.ask("CLIENT", "ID") == number


def test_a_connection_that_was_closed_while_idle_is_replaced_at_once(
    wire: RedisWire, own_redis: PrivateRedis
) -> None:
    """A restart, or the server's own time limit, fails no command (I5)."""
    wire.ask("PING")
    own_redis.restart()
    assert wire.ask("PING") == b"PONG"
    own_redis.kill()
    with pytest.raises(redis.exceptions.ConnectionError):
        wire.ask("PING")


def test_threads_have_connections_of_their_own(wire: RedisWire) -> None:
    """Answers go to whoever asked (I5)."""
    wrong: list[object] = []

    def ask(number: int) -> None:
        answers = {wire.ask("ECHO", number) for _ in range(200)}
        wrong.extend(answers - {str(number).encode()})

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")  # Python 3.12 warns; Celery forks all the same
def test_a_fork_shares_no_connection(wire: RedisWire) -> None:
    """Parent and child would read each other's replies (I5)."""
    number = wire.ask("CLIENT", "ID")
    child = os.fork()
    if child == 0:
        os._exit(0 if wire.ask("CLIENT", "ID") != number else 1)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    assert wire.ask("CLIENT", "ID") == number


def test_claims_work_on_a_redis_cluster(servers_folder: Path) -> None:
    """A claim is one key, so any node that has it can decide; a name in braces is only a name (I5)."""
    options = ("--cluster-enabled", "yes", "--cluster-config-file", "nodes", "--cluster-port", str(free_port()))
    server = PrivateRedis(servers_folder / "cluster", *options)
    with redis.Redis.from_url(server.url) as node:
        node.execute_command("CLUSTER", "ADDSLOTSRANGE", 0, 16383)
        eventually(lambda: b"cluster_state:ok" in node.execute_command("CLUSTER", "INFO", NEVER_DECODE=True))
    with redis.RedisCluster.from_url(server.url) as cluster:
        store = Store(claims=RedisClaims(cluster), clients=[])
        for key in ("order-1", "{order}-1"):
            run = execution(key)
            acquired = store.acquire(run)
            assert isinstance(store.claims.begin(execution(key)), Busy)
            assert store.claims.complete(run, "1", acquired=acquired) == Completed()
            assert store.claims.begin(execution(key)) == Done(result_json="1")
    server.stop()
