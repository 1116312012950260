"""The rival of ``benchmarks.throughput``: plain Celery with late acks, on the same queue."""

from __future__ import annotations

import os

from celery import Celery

from broker_topology.declare import kombu_queues
from broker_topology.topology import read_topology

app = Celery("plain", broker=os.environ["AMQP_URL"])
app.conf.update(
    task_queues=kombu_queues(read_topology(os.environ["TOPOLOGY_FILE"]), no_declare=True),
    task_acks_late=True,
    task_reject_on_worker_lost=True,
    worker_prefetch_multiplier=1,
    task_ignore_result=True,
    task_default_queue="crm",
    broker_connection_retry_on_startup=True,
)


@app.task(name="crm.nothing")
def nothing() -> None:
    """Do nothing."""
