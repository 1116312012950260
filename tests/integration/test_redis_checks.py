"""What a worker finds out about its Redis before it starts."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from sandbox.servers import PrivateRedis
from tasks.claims import connect_claims, connect_redis
from tasks.errors import RedisUnavailableError
from tasks.redis_checks import Severity, check_claims, check_redis
from tests.integration.claim_stores import close


@pytest.fixture
def client(own_redis: PrivateRedis) -> Iterator[redis.Redis]:
    """A client of a Redis that the test may configure."""
    client = connect_redis(own_redis.url)
    yield client
    client.close()


def codes(client: redis.Redis) -> dict[str, Severity]:
    """The findings by their codes."""
    return {finding.code: finding.severity for finding in check_redis(client)}


def test_a_redis_that_evicts_is_refused(client: redis.Redis) -> None:
    """Every policy but noeviction can drop a marker once there is a memory limit (I7)."""
    for policy in ("allkeys-lru", "volatile-lru", "volatile-ttl", "allkeys-random"):
        client.config_set("maxmemory-policy", policy)
        client.config_set("maxmemory", "0")
        assert codes(client)["evicts"] is Severity.WARN
        client.config_set("maxmemory", "100mb")
        assert codes(client)["evicts"] is Severity.REFUSE
    client.config_set("maxmemory-policy", "noeviction")
    assert "evicts" not in codes(client)


def test_a_redis_without_persistence_is_warned_of(client: redis.Redis) -> None:
    """Nothing, a dump now and then, a second, nothing lost (I7)."""
    client.config_set("save", "")
    assert codes(client) == {"no_persistence": Severity.WARN}
    client.config_set("save", "3600 1")
    assert codes(client) == {"no_persistence": Severity.WARN}
    client.config_set("appendonly", "yes")
    assert codes(client) == {"loses_a_second": Severity.WARN}
    client.config_set("appendfsync", "always")
    assert codes(client) == {}


def test_a_replica_is_refused(client: redis.Redis) -> None:
    """A replica refuses every claim (I7)."""
    client.replicaof("127.0.0.1", "1")
    assert codes(client)["replica"] is Severity.REFUSE
    client.replicaof("NO", "ONE")


def test_a_redis_that_keeps_its_configuration_to_itself_is_told(client: redis.Redis, own_redis: PrivateRedis) -> None:
    """A managed Redis forbids CONFIG: eviction is still seen, persistence is said to be unknown (I7)."""
    client.config_set("maxmemory-policy", "allkeys-lru")
    client.config_set("maxmemory", "100mb")
    client.execute_command("ACL", "SETUSER", "app", "on", ">secret", "~*", "+@all", "-config")  # type: ignore[no-untyped-call]
    with connect_redis(f"redis://app:secret@127.0.0.1:{own_redis.port}/0") as limited:
        assert codes(limited) == {"evicts": Severity.REFUSE, "unknown_persistence": Severity.WARN}
        assert all("secret" not in finding.message for finding in check_redis(limited))


def test_a_redis_that_is_away_says_so(own_redis: PrivateRedis, client: redis.Redis) -> None:
    """Away is not fine (I7)."""
    own_redis.kill()
    with pytest.raises(RedisUnavailableError):
        check_redis(client)


def test_each_server_of_a_quorum_is_checked(servers_folder: Path, own_redis: PrivateRedis) -> None:
    """One that is away is left out, two of three are Redis away (I7)."""
    second, third = (PrivateRedis(servers_folder / f"check-{number}") for number in (2, 3))
    claims = connect_claims(",".join(server.url for server in (own_redis, second, third)))
    assert len(check_claims(claims)) == 3
    second.kill()
    assert len(check_claims(claims)) == 2
    third.kill()
    with pytest.raises(RedisUnavailableError, match="2 of 3"):
        check_claims(claims)
    close(claims)
    second.stop()
    third.stop()
