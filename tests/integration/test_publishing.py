"""Publishing against a broker in trouble: a clear error within a bound, and never a false confirm."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from urllib.parse import urlsplit

import pika
import pika.exceptions
import pytest
from celery import Celery, chain, group
from celery.exceptions import QueueNotFound
from kombu.exceptions import OperationalError

from broker_topology.deploy import deploy
from broker_topology.topology import read_topology
from sandbox.processes import eventually
from sandbox.proxy import Proxy
from sandbox.road import close_publisher
from sandbox.servers import PrivateRabbitMQ, management_url, vhost_url
from tasks import install
from tasks.errors import PublishRefusedError, UnroutableTaskError
from tests.conftest import DEFINITIONS, VirtualHost


def publisher(url: str) -> Iterator[Celery]:
    """An app that publishes by name, its connections closed afterwards."""
    app = Celery("shop", broker=url, set_as_current=False)
    install(app, topology=DEFINITIONS, redis_url="redis://127.0.0.1:1")

    @app.task(name="crm.echo", shared=False)  # type: ignore[untyped-decorator, unused-ignore]
    def echo(value: object = None) -> object:
        return value

    yield app
    close_publisher(app)


@pytest.fixture
def app(deployed: VirtualHost) -> Iterator[Celery]:
    """A publisher on a deployed virtual host."""
    yield from publisher(deployed.url)


@pytest.fixture
def channel(deployed: VirtualHost) -> Iterator[pika.channel.Channel]:
    """A plain channel, to look and to meddle."""
    with pika.BlockingConnection(pika.URLParameters(deployed.url)) as connection:
        yield connection.channel()


def depth(channel: pika.channel.Channel, queue: str) -> int:
    """Messages ready in a queue."""
    return int(channel.queue_declare(queue, passive=True).method.message_count)


def test_every_way_of_publishing_arrives(app: Celery, channel: pika.channel.Channel) -> None:
    """``delay``, ``apply_async``, ``send_task``, a chain's head and a group are published and confirmed. (D2)"""
    echo = app.tasks["crm.echo"]
    echo.delay(1)
    echo.apply_async((2,))
    app.send_task("crm.echo", (3,))
    chain(echo.si(4), echo.si(5)).apply_async()
    group([echo.si(6), echo.si(7)]).apply_async()
    eventually(lambda: depth(channel, "crm") == 6)


def test_missing_exchange_raises(app: Celery, deployed: VirtualHost) -> None:
    """A publish to an exchange that is gone raises at once. (D2)"""
    deployed.api("DELETE", "/exchanges/{vhost}/work")
    with pytest.raises(UnroutableTaskError, match="no exchange 'work'"):
        app.send_task("crm.echo")


def test_deleted_queue_is_kept_by_the_alternate_exchange(app: Celery, channel: pika.channel.Channel) -> None:
    """A queue that was deleted under a running system loses nothing: the message is unroutable, and kept. (D2)"""
    channel.queue_delete("crm")
    app.send_task("crm.echo")
    eventually(lambda: depth(channel, "unroutable") == 1)


def test_no_route_and_no_alternate_exchange_raises(app: Celery, channel: pika.channel.Channel) -> None:
    """Without an alternate exchange the publisher hears of it, and the next publish is not confirmed falsely. (D2)"""
    channel.exchange_declare("bare", "topic", durable=True)
    for _ in range(3):
        with pytest.raises(UnroutableTaskError, match="NO_ROUTE"):
            app.send_task("crm.echo", exchange="bare", routing_key="nowhere")
    app.send_task("crm.echo")
    eventually(lambda: depth(channel, "crm") == 1)


def test_unknown_queue_raises(app: Celery) -> None:
    """A typo in a queue's name raises for the publisher. (D2)"""
    with pytest.raises(QueueNotFound, match="paymnets"):
        app.send_task("crm.echo", queue="paymnets")


def test_full_queue_raises(app: Celery, deployed: VirtualHost, channel: pika.channel.Channel) -> None:
    """A queue at its length refuses the publish, and nothing in it is dropped. (D3)"""
    full = {"pattern": "^crm$", "apply-to": "queues", "priority": 20, "definition": {"max-length": 1}}
    deployed.api("PUT", "/policies/{vhost}/full", full).raise_for_status()
    eventually(lambda: deployed.api("GET", "/queues/{vhost}/crm").json().get("policy") == "full")
    app.send_task("crm.echo")
    with pytest.raises(PublishRefusedError, match="its queue is full"):
        publish_many(app, 20)
    assert depth(channel, "crm") >= 1


def test_callback_published_again_leaves_no_confirm_behind(
    deployed: VirtualHost, channel: pika.channel.Channel
) -> None:
    """A callback whose confirm came late is tried again by Celery; the next publish reads its own answer. (D2)"""
    with Proxy(urlsplit(deployed.url).port or 0) as proxy:
        url = deployed.url.replace(f":{urlsplit(deployed.url).port}", f":{proxy.port}", 1)
        for app in publisher(url):
            app.send_task("notifications.any")
            proxy.hold_replies()
            late = threading.Timer(3.1, proxy.heal)
            late.start()
            # py-amqp reads one left-over confirm before each publish, so one alone would do no harm.
            patient = {"max_retries": 3, "interval_start": 0.2, "interval_step": 0.2}
            app.amqp._retry_publish(app.send_task, "notifications.any", confirm_timeout=1, retry_policy=patient)
            late.join()
            full = {"pattern": "^crm$", "apply-to": "queues", "priority": 20, "definition": {"max-length": 1}}
            deployed.api("PUT", "/policies/{vhost}/full", full).raise_for_status()
            eventually(lambda: deployed.api("GET", "/queues/{vhost}/crm").json().get("policy") == "full")
            channel.confirm_delivery()
            with pytest.raises(pika.exceptions.NackError):
                fill(channel, "crm")
            with pytest.raises(PublishRefusedError, match="its queue is full"):
                app.send_task("crm.echo")


def fill(channel: pika.channel.Channel, queue: str) -> None:
    """Publish until the queue refuses."""
    while True:
        channel.basic_publish("", queue, b"")


def publish_many(app: Celery, number: int) -> None:
    """Publish until refused: a quorum queue takes a few more than its length."""
    for _ in range(number):
        app.send_task("crm.echo")


def test_delay_below_a_second_is_a_second(app: Celery, channel: pika.channel.Channel) -> None:
    """The delay queues count whole seconds; a shorter delay is one second, and not an error. (R3)"""
    app.send_task("crm.echo", countdown=0.3)
    app.tasks["crm.echo"].apply_async(countdown=0.3)
    assert depth(channel, "crm") == 0
    eventually(lambda: depth(channel, "crm") == 2, seconds=10)


def test_expiry_does_not_cut_a_delay_short(app: Celery, channel: pika.channel.Channel) -> None:
    """A delayed message with ``expires`` waits its delay out inside of the delay queues. (R3)"""
    started = time.monotonic()
    app.send_task("crm.echo", countdown=3, expires=60)
    eventually(lambda: depth(channel, "crm") == 1, seconds=10)
    assert time.monotonic() - started > 2.5


def test_broker_that_is_away_raises_within_a_bound(own_rabbitmq: PrivateRabbitMQ) -> None:
    """Without a broker the publisher gets an error in seconds, not a hang. (D2)"""
    url, management = vhost_url(own_rabbitmq, "/"), management_url(own_rabbitmq)
    deploy(read_topology(DEFINITIONS), url, management_url=management)
    for app in publisher(url):
        app.send_task("crm.echo")
        own_rabbitmq.kill()
        started = time.monotonic()
        with pytest.raises(OperationalError):
            app.send_task("crm.echo")
        assert time.monotonic() - started < 30


@pytest.mark.timeout(900)
def test_memory_alarm_raises_within_a_bound(own_rabbitmq: PrivateRabbitMQ) -> None:
    """A broker that takes no messages does not hold its publisher for ever; afterwards all is well. (D2)"""
    url, management = vhost_url(own_rabbitmq, "/"), management_url(own_rabbitmq)
    deploy(read_topology(DEFINITIONS), url, management_url=management)
    for app in publisher(url):
        app.send_task("crm.echo")
        own_rabbitmq.rabbitmqctl("set_vm_memory_high_watermark", "absolute", "1MB")
        started = time.monotonic()
        with pytest.raises(PublishRefusedError, match="did not confirm"):
            app.send_task("crm.echo", confirm_timeout=3)
        assert time.monotonic() - started < 20
        own_rabbitmq.rabbitmqctl("set_vm_memory_high_watermark", "0.6")
        app.send_task("crm.echo", confirm_timeout=20)
