"""Messages that a stopping worker holds and never started: published again, so that they lose no delivery.

Returned the usual way each would count toward its delivery limit, and some deploys later a task that never ran
would be dead-lettered. A crash in between leaves the message twice, which its claim absorbs.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import structlog
from celery import Celery
from kombu import Connection, Producer

from broker_topology.message import is_broker_history

log = structlog.get_logger(__name__)


def hand_back(app: Celery, connection: Connection, requests: Iterable[Any]) -> None:
    """Publish these requests' messages again, confirmed, to the queues that they came from, and ack them."""
    waiting = [request for request in requests if request.time_start is None and not request.acknowledged]
    if not waiting:
        return
    with connection.channel() as channel:
        producer = Producer(channel, auto_declare=False)
        for request in waiting:
            _publish_again(app, producer, request)
            request.message.ack()
            request.acknowledged = True
    log.info("worker.handed_back", messages=len(waiting))


def _publish_again(app: Celery, producer: Producer, request: Any) -> None:
    message, queue = request.message, app.amqp.queues[request.delivery_info["queue"]]
    properties = {
        name: value
        for name, value in message.properties.items()
        if name not in ("application_headers", "content_type", "content_encoding", "delivery_mode")
    }
    headers = {name: value for name, value in message.headers.items() if not is_broker_history(name)}
    headers.pop("compression", None)  # kombu has decompressed the body
    producer.publish(
        message.body,
        exchange=queue.exchange.name,
        routing_key=queue.routing_key,
        content_type=message.content_type,
        content_encoding=message.content_encoding,
        headers=headers,
        mandatory=True,
        delivery_mode="persistent",
        confirm_timeout=5,
        **properties,
    )
