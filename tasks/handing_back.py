"""Messages that a stopping worker holds and never started: published again, so that they lose no delivery.

Returned the usual way each would count toward its delivery limit, and some deploys later a task that never ran
would be dead-lettered. A crash in between leaves the message twice, which the claim on its key absorbs.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import structlog
from amqp.exceptions import AMQPError
from celery import Celery
from kombu import Connection, Producer
from kombu.exceptions import OperationalError

from broker_topology.message import is_broker_history

log = structlog.get_logger(__name__)

SET_BELOW = frozenset(
    {
        "application_headers",
        "content_type",
        "content_encoding",
        "delivery_mode",
        "user_id",
    }  # a foreign user's is refused
)


def hand_back(app: Celery, connection: Connection, requests: Iterable[Any]) -> None:
    """Publish these requests' messages again, confirmed, to the queues that they came from, and ack them.

    One that cannot be published stays with the broker, which returns it.
    """
    waiting = [request for request in requests if request.time_start is None and not request.acknowledged]
    for request in waiting:
        try:
            with connection.channel() as channel:  # one each: a refused message closes its channel
                _publish_again(app, Producer(channel, auto_declare=False), request)
        except (OSError, AMQPError, OperationalError, ValueError) as error:
            log.warning("worker.not_handed_back", task_id=request.id, error=repr(error))
            continue
        request.message.ack()
        request.acknowledged = True
    if waiting:
        log.info("worker.handed_back", messages=sum(request.acknowledged for request in waiting))


def _publish_again(app: Celery, producer: Producer, request: Any) -> None:
    message, queue = request.message, app.amqp.queues[request.delivery_info["queue"]]
    properties = {name: value for name, value in message.properties.items() if name not in SET_BELOW}
    if "expiration" in properties:
        properties["expiration"] = int(properties["expiration"]) / 1000  # kombu wants seconds
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
