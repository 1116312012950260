"""Workers while the world around them fails: deploys, lost connections, brokers, timeouts, result backends."""

from __future__ import annotations

import os
import signal
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pika
import pytest
import redis
from celery import Celery, chain, chord, group, signature

from broker_topology.deploy import deploy
from broker_topology.topology import read_topology
from sandbox.processes import eventually
from sandbox.road import Road
from sandbox.servers import PrivateRabbitMQ, PrivateRedis, management_url, vhost_url
from sandbox.services import OutsideServices
from tests.conftest import DEFINITIONS, VirtualHost


@pytest.fixture
def counter(redis_url: str) -> Iterator[redis.Redis]:
    """The Redis in which the tasks count their runs."""
    with redis.Redis.from_url(redis_url, decode_responses=True) as counter:
        yield counter


@pytest.fixture
def road(road: Road) -> Road:
    """The road with the tasks that end in every way."""
    road.task_modules = "sandbox.road_tasks"
    return road


@pytest.fixture
def own_road(
    own_rabbitmq: PrivateRabbitMQ, redis_url: str, services: OutsideServices, tmp_path: Path
) -> Iterator[Road]:
    """The road on a broker that the test may stop."""
    yield from broken_road(own_rabbitmq, redis_url, services, tmp_path)


def broken_road(broker: PrivateRabbitMQ, redis_url: str, services: OutsideServices, folder: Path) -> Iterator[Road]:
    """A deployed road on a broker of one's own."""
    url = vhost_url(broker, "/")
    deploy(read_topology(DEFINITIONS), url, management_url=management_url(broker))
    road = Road(
        folder=folder,
        amqp_url=url,
        management_url=management_url(broker),
        redis_url=redis_url,
        database_url=f"sqlite:///{folder}/dead-letters.db",
        services=services,
        task_modules="sandbox.road_tasks",
    )
    yield road
    road.stop()


def limit_deliveries(vhost: VirtualHost, limit: int) -> None:
    """Lower the delivery limit of the queue ``crm``, and wait until it holds."""
    policy = {"pattern": "^crm$", "apply-to": "queues", "priority": 20, "definition": {"delivery-limit": limit}}
    vhost.api("PUT", "/policies/{vhost}/low", policy).raise_for_status()
    eventually(lambda: vhost.api("GET", "/queues/{vhost}/crm").json().get("policy") == "low")


def send(road: Road, name: str, *args: Any, **options: Any) -> str:
    """Publish one task; returns its id."""
    task_id = options.pop("task_id", None) or uuid.uuid4().hex
    app = road.publisher
    app.send_task(name, args, task_id=task_id, **options)
    return task_id


def test_rolling_deploys_dead_letter_no_healthy_task(road: Road, deployed: VirtualHost, counter: redis.Redis) -> None:
    """More deploys in a row than the delivery limit: each task is finished, never dead-lettered. (I1, D2)"""
    limit_deliveries(deployed, 2)
    app = road.publisher
    ids = [uuid.uuid4().hex for _ in range(60)]
    for task_id in ids:
        app.send_task("crm.sleep", (0.3,), task_id=task_id)
    for _ in range(6):
        worker = road.worker()
        eventually(lambda: counter.keys("runs:*"))
        worker.signal(signal.SIGTERM)
        assert worker.wait() == 0
    road.worker("--concurrency=8")
    eventually(lambda: sum(counter.exists(f"ends:{task_id}") for task_id in ids) == len(ids), seconds=60)
    assert road.depth("dead-letters") == 0
    assert [counter.get(f"runs:{task_id}") for task_id in ids] == ["1"] * len(ids), (
        "a warm shutdown lets tasks finish"
    )


@pytest.mark.parametrize("how", [signal.SIGQUIT, signal.SIGINT])
def test_cold_and_interactive_shutdown_lose_nothing(road: Road, counter: redis.Redis, how: signal.Signals) -> None:
    """A worker told to stop at once gives its running task back; the next worker runs it. (I1, D2)"""
    worker = road.worker()
    task_id = send(road, "crm.sleep", 3)
    eventually(lambda: counter.get(f"runs:{task_id}") == "1")
    worker.signal(how)
    worker.wait(seconds=40)
    road.worker()
    eventually(lambda: counter.exists(f"ends:{task_id}"))
    assert road.depth("dead-letters") == 0


def test_whole_worker_killed(road: Road, counter: redis.Redis) -> None:
    """A worker that is killed with its children leaves its task to the next one. (I2)"""
    worker = road.worker()
    task_id = send(road, "crm.sleep", 2)
    eventually(lambda: counter.get(f"runs:{task_id}") == "1")
    worker.kill()
    road.worker()
    eventually(lambda: counter.get(f"ends:{task_id}") == "1")
    assert counter.get(f"runs:{task_id}") == "2"


def test_connection_closed_by_an_operator(road: Road, deployed: VirtualHost) -> None:
    """A connection that is closed in the middle of a charge: the redelivery meets the claim, charged once. (I2)"""
    road.worker()
    road.services.answer("payments", delay_seconds=3)
    send(road, "payments.charge_customer", "o-1", 1, idempotency_key="k-1")
    eventually(lambda: road.services.in_progress("payments"), what="the charge to be running")
    for connection in eventually(lambda: deployed.api("GET", "/vhosts/{vhost}/connections").json(), seconds=20):
        deployed.api("DELETE", f"/connections/{connection['name']}")
    eventually(lambda: road.services.charges("k-1") == [1])
    road.services.answer("payments")
    send(road, "payments.charge_customer", "o-2", 1, idempotency_key="k-2")
    eventually(lambda: road.services.charges("k-2") == [1])
    road.until_settled(seconds=60)
    assert road.services.charges("k-1") == [1]
    assert road.depth("dead-letters") == 0


def test_broker_restarted_in_the_middle(own_road: Road, own_rabbitmq: PrivateRabbitMQ) -> None:
    """A broker that crashes under a running charge: worker and message survive, charged once. (I2)"""
    own_road.worker()
    own_road.services.answer("payments", delay_seconds=3)
    send(own_road, "payments.charge_customer", "o-1", 1, idempotency_key="k-1")
    eventually(lambda: own_road.services.in_progress("payments"), what="the charge to be running")
    own_rabbitmq.restart()
    own_road.services.answer("payments")
    send(own_road, "payments.charge_customer", "o-2", 1, idempotency_key="k-2")
    eventually(lambda: own_road.services.charges("k-1", "k-2") == [1, 1], seconds=60)
    own_road.until_settled(seconds=60)
    assert own_road.services.charges("k-1", "k-2") == [1, 1]


@pytest.mark.timeout(900)
def test_consumer_timeout(servers_folder: Path, redis_url: str, services: OutsideServices, tmp_path: Path) -> None:
    """A charge that outlasts the broker's patience is taken back and charged once; the worker goes on. (I2)"""
    broker = PrivateRabbitMQ(servers_folder / uuid.uuid4().hex[:8], extra_config="consumer_timeout = 3000")
    try:
        for road in broken_road(broker, redis_url, services, tmp_path):
            worker = road.worker()
            services.answer("payments", delay_seconds=9)
            send(road, "payments.charge_customer", "o-1", 1, idempotency_key="k-1")
            eventually(lambda: services.charges("k-1") == [1])
            services.answer("payments")
            send(road, "payments.charge_customer", "o-2", 1, idempotency_key="k-2")
            eventually(lambda: services.charges("k-2") == [1], seconds=90)
            road.until_settled(seconds=90)
            assert services.charges("k-1") == [1]
            assert worker.exit_code is None
    finally:
        broker.stop()


def test_second_worker_of_the_same_name(road: Road, deployed: VirtualHost, counter: redis.Redis) -> None:
    """Two workers of one node name: on 4.3 the second refuses to start, and the first goes on working."""
    first = road.worker("--hostname=twin@localhost")
    second = road.start("twin", ["celery", "-A", "tasks", "worker", "--hostname=twin@localhost", "--loglevel=INFO"])
    eventually(lambda: second.exit_code is not None or " ready." in second.output(), seconds=40)
    version = deployed.api("GET", "/overview").json()["rabbitmq_version"]
    if version.startswith("4.3"):
        assert second.exit_code == os.EX_CONFIG
        assert "another worker is named twin@localhost" in second.output()
    task_id = send(road, "crm.echo")
    eventually(lambda: counter.get(f"runs:{task_id}") == "1")
    assert first.exit_code is None
    second.stop()


@pytest.fixture
def app_with_results(road: Road, redis_url: str) -> Iterator[Celery]:
    """A publisher that waits for results, and a worker that keeps them."""
    road.more_environment["RESULT_BACKEND"] = redis_url
    road.more_environment["TASK_IGNORE_RESULT"] = "false"
    road.worker("--concurrency=4")
    app = road.publisher
    app.conf.result_backend = redis_url
    app.conf.task_ignore_result = False
    yield app
    app.backend.result_consumer.stop()
    app.backend.client.close()


def step(app: Celery, name: str, *args: Any, **options: Any) -> Any:
    """A signature by name that ignores the result before it."""
    return signature(name, args=args, app=app, immutable=True, **options)


def test_chord_whose_member_dies_calls_its_errback(app_with_results: Celery, counter: redis.Redis) -> None:
    """A dead-lettered member fails the chord at once: the caller hears of it, and so does the errback. (D2)"""
    app = app_with_results
    errback = step(app, "crm.echo").set(task_id="errback")
    body = step(app, "crm.echo").set(task_id="body").on_error(errback)
    for way in ("value_error", "sigkill"):
        counter.delete("runs:errback", "runs:body")
        result = chord([step(app, "crm.echo", 1), step(app, "crm.end", way)])(body)
        with pytest.raises(Exception, match=r"wrong|[Ww]orker exited"):
            result.get(timeout=60, disable_sync_subtasks=False)
        eventually(lambda: counter.get("runs:errback") == "1")
        assert counter.get("runs:body") is None


def test_chain_whose_step_dies_fails_its_caller(app_with_results: Celery) -> None:
    """The caller of a chain is told when a step in the middle becomes a dead letter. (D2)"""
    app = app_with_results
    result = chain(
        step(app, "crm.echo", 1), step(app, "crm.end", "value_error"), step(app, "crm.echo", 2)
    ).apply_async()
    with pytest.raises(Exception, match="wrong"):
        result.get(timeout=30, disable_sync_subtasks=False)
    members = group([step(app, "crm.echo", number) for number in range(5)]).apply_async()
    assert members.get(timeout=30, disable_sync_subtasks=False) == [0, 1, 2, 3, 4]


def test_result_backend_away(road: Road, own_redis: PrivateRedis, counter: redis.Redis) -> None:
    """With the backend down: a success is no dead letter, a failure is one, a retry is not also one. (D1, D2)"""
    road.more_environment |= {"RESULT_BACKEND": own_redis.url, "TASK_IGNORE_RESULT": "false"}
    worker = road.worker("--concurrency=1")
    own_redis.kill()
    succeeded = send(road, "crm.echo")
    eventually(lambda: counter.get(f"runs:{succeeded}") == "1")
    failed = send(road, "crm.end", "value_error")
    retried = send(road, "crm.end_transient")
    rejected = send(road, "crm.end", "reject")
    unknown = send(road, "crm.nobody_has_it")
    eventually(lambda: road.depth("dead-letters") == 4, seconds=90)
    last = send(road, "crm.echo")
    eventually(lambda: counter.get(f"runs:{last}") == "1", seconds=60)
    with pika.BlockingConnection(pika.URLParameters(road.amqp_url)) as connection:
        channel = connection.channel()
        letters = [channel.basic_get("dead-letters", auto_ack=True)[1].headers["id"] for _ in range(4)]
    assert sorted(letters) == sorted([failed, retried, rejected, unknown])
    assert counter.get(f"runs:{retried}") == "2"
    assert worker.exit_code is None
