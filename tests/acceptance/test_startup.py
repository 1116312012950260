"""A worker that cannot work as promised refuses to start: exit code 78 and one sentence."""

from __future__ import annotations

import os
import re
import socket

import httpx
import pytest
import redis
from prometheus_client.parser import text_string_to_metric_families

from sandbox.processes import NotReadyError, eventually
from sandbox.road import Road
from sandbox.servers import PrivateRedis
from tests.conftest import VirtualHost


def refusal(road: Road, **environment: str) -> str:
    """Start a worker that must not start; returns why it says so."""
    road.more_environment |= environment
    with pytest.raises(NotReadyError):
        road.worker()
    worker = road.processes[-1]
    assert worker.exit_code == os.EX_CONFIG
    assert "Traceback" not in worker.output()
    return worker.output()


def test_missing_queue(deployed: VirtualHost, road: Road) -> None:
    """A queue that is not there is named, and never made without its dead-letter exchange. (D2)"""
    deployed.api("DELETE", "/queues/{vhost}/crm")
    assert "queue crm is missing on the broker: run broker-topology deploy" in refusal(road)
    assert deployed.api("GET", "/queues/{vhost}/crm").status_code == 404


def test_missing_dead_letter_exchange(deployed: VirtualHost, road: Road) -> None:
    """Without the dead-letter exchange, dead letters would have nowhere to go. (D3)"""
    deployed.api("DELETE", "/exchanges/{vhost}/dead-letters")
    assert "exchange dead-letters is missing on the broker" in refusal(road)


def test_queue_with_other_arguments(deployed: VirtualHost, road: Road) -> None:
    """A queue without the dead-letter exchange that the topology promises is not worked on. (D3)"""
    deployed.api("DELETE", "/queues/{vhost}/crm")
    other = {"durable": True, "arguments": {"x-queue-type": "quorum"}}
    deployed.api("PUT", "/queues/{vhost}/crm", other)
    why = refusal(road)
    assert "queue crm is not what the topology says" in why
    assert "inequivalent arg" in why


def test_topology_was_never_deployed(vhost: VirtualHost, road: Road) -> None:
    """Without the delay queues a retry would be lost; the sentence says what to run. (R3)"""
    road.amqp_url = vhost.url
    vhost.api("DELETE", "/exchanges/{vhost}/dead-letters")
    vhost.api("DELETE", "/exchanges/{vhost}/celery_delayed_27")
    assert "run broker-topology deploy" in refusal(road)


def test_redis_that_may_evict_markers(road: Road, own_redis: PrivateRedis) -> None:
    """A Redis that evicts would let finished work run again. (I6)"""
    client = redis.Redis.from_url(own_redis.url)
    client.config_set("maxmemory", "100mb")
    client.config_set("maxmemory-policy", "allkeys-lru")
    client.close()
    road.redis_url = own_redis.url
    assert "set it to noeviction" in refusal(road)


def test_redis_that_is_away_only_warns(road: Road, own_redis: PrivateRedis) -> None:
    """A worker starts without Redis: guarded messages wait in the broker. (I7)"""
    own_redis.kill()
    road.redis_url = own_redis.url
    worker = road.worker()
    assert "startup.redis_away" in worker.output()
    road.publisher.send_task("crm.sync_customer_record", args=("customer-1", {}))
    road.publisher.send_task("payments.charge_customer", args=("o-1", 1), idempotency_key="k-1")
    eventually(lambda: len(road.services.calls("crm")) == 1)
    own_redis.start()
    eventually(lambda: road.services.charges("k-1") == [1], seconds=40)


@pytest.mark.parametrize("pool", ["prefork", "threads", "solo"])
def test_metrics_tell_how_near_runs_come_to_their_lease(road: Road, pool: str) -> None:
    """Each guarded run is measured against its lease, however it ends, in every pool. (I6)"""
    worker = road.worker("--metrics-port=0", f"--pool={pool}", "--concurrency=1")
    (port,) = eventually(lambda: re.findall(r"metrics.listening\W.*port=(\d+)", worker.output()))
    road.publisher.send_task("payments.charge_customer", args=("o", 1), idempotency_key=f"good-{pool}")
    road.publisher.send_task("payments.charge_customer", args=("o", "no amount"), idempotency_key=f"bad-{pool}")
    road.publisher.send_task("crm.sync_customer_record", args=("customer-1", {}))

    def measured() -> dict[str, float]:
        text = httpx.get(f"http://127.0.0.1:{port}/metrics").text
        samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
        return {s.labels["task"]: s.value for s in samples if s.name == "reliable_task_lease_share_count"}

    eventually(lambda: measured() == {"payments.charge_customer": 2.0})


def test_metrics_port_that_is_taken(road: Road) -> None:
    """A worker whose metrics nobody could read says so and does not start. (I6)"""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert f"cannot listen on 127.0.0.1:{port} for metrics" in refusal(road, METRICS_PORT=str(port))


def test_retries_that_outlast_their_keys_record(road: Road) -> None:
    """A retry schedule longer than the retention of the key would end in doubt: the worker warns. (I9, R2)"""
    (road.folder / "patient.py").write_text(
        "from celery import shared_task\n"
        "from tasks import Idempotency, RetryPolicy\n"
        "policy = RetryPolicy.for_outage('1h', transient=(ConnectionError,))\n"
        "@shared_task(name='crm.patient', retry_policy=policy, idempotency=Idempotency(retention_seconds=600))\n"
        "def patient(): ...\n"
    )
    road.task_modules = "patient"
    assert "startup.retries_outlast_retention" in road.worker().output()
