"""The story of the product in under a minute: ``make demo``.

Exits with 1 where the sums do not add up at the end.
"""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pika
from rich.console import Console

from broker_topology.topology import read_topology
from sandbox import servers
from sandbox.processes import NotReadyError, eventually
from sandbox.road import Road, private_road

ORDERS = 10

console = Console(highlight=False, width=118)


def main() -> None:
    """Play the story; exit with 1 where it does not end as it must."""
    started = time.monotonic()
    try:
        with build_road() as road:
            ended_well = play(road)
    except servers.ServerMissingError as error:
        console.print(f"[red]{error}[/]")
        sys.exit(1)
    except NotReadyError as error:
        console.print(f"[red]The story came to a halt: {error}[/]")
        sys.exit(1)
    console.print(f"\n{time.monotonic() - started:.0f} seconds.")
    sys.exit(0 if ended_well else 1)


@contextmanager
def build_road() -> Iterator[Road]:
    """Private servers, the topology, a worker and a drain; all ended afterwards."""
    title("Setting the stage: RabbitMQ, Redis, and doubles of a payment, a mail and a CRM service")
    with private_road(deployed=False) as road:
        title("Deploying the topology: RabbitMQ itself will route whatever is rejected")
        show(road, "broker-topology", "deploy", str(road.definitions))
        road.worker()
        road.drain()
        yield road


def play(road: Road) -> bool:
    """The story itself. Returns whether every sum added up."""
    keys = [f"order-charge-{number}" for number in range(1, ORDERS + 1)]
    publish(road, keys)
    title("Waiting: retries back off in the broker, what cannot succeed becomes a dead letter")
    eventually(lambda: len(road.services.calls("mail", accepted=False)) >= ORDERS, seconds=60, what="mails to fail")
    road.services.answer("mail", status=None)
    console.print("The mail service is up again: the waiting retries will find it.")
    eventually(lambda: len(road.services.calls("mail")) >= ORDERS, seconds=60, what="all mails to be sent")
    eventually(lambda: len(road.letters()) >= 3, seconds=60, what="three dead letters", every=0.5)
    eventually(lambda: all(road.services.charges(*keys)), seconds=60, what="all charges")

    title("What an operator sees")
    show(road, "dead-letters", "list")
    letter = next(letter for letter in road.letters() if letter["task_name"] == "crm.sync_customer_record")
    show(road, "dead-letters", "show", str(letter["id"]))

    title("The customer is added to the CRM; the letter is replayed, deliberately and with a reason")
    road.services.answer("crm", status=200)
    show(
        road,
        "dead-letters",
        "replay",
        str(letter["id"]),
        "--reason",
        "customer 7 was missing in the CRM, added",
    )
    eventually(lambda: len(road.services.calls("crm")) >= ORDERS, seconds=30, what="the replayed letter to succeed")
    show(road, "dead-letters", "list")
    return count(road, keys)


def publish(road: Road, keys: list[str]) -> None:
    """Everything that enters: what succeeds, what fails for ever, what fails for a while, what is no task."""
    title(f"Publishing {ORDERS} orders: each is a charge, a mail and a CRM record")
    road.services.answer("mail", status=503)
    send = road.publisher.send_task
    for number, key in enumerate(keys, start=1):
        customer = "unknown-7" if number == 7 else f"customer-{number}"
        send("payments.charge_customer", args=(f"order-{number}", 1000 * number), idempotency_key=key)
        send(
            "notifications.send_order_confirmation",
            args=(f"order-{number}", f"buyer-{number}@shop.example"),
            idempotency_key=f"order-mail-{number}",
        )
        send("crm.sync_customer_record", args=(customer, {"orders": number}))
    console.print("· the mail service answers 503 for now: transient, retried with backoff")
    console.print("· customer 7 is unknown to the CRM: permanent")
    twice = [
        threading.Thread(
            target=send,
            args=("payments.charge_customer",),
            kwargs={"args": ("order-1", 1000), "idempotency_key": keys[0]},
        )
        for _ in range(2)
    ]
    for thread in twice:
        thread.start()
    for thread in twice:
        thread.join()
    console.print("· the charge of order 1 was published twice more, at once")
    send("notifications.kill_own_worker")
    console.print("· a task that kills its own worker process")
    with pika.BlockingConnection(pika.URLParameters(road.amqp_url)) as connection:
        connection.channel().basic_publish("work", "crm", b"\x00 no task at all", pika.BasicProperties())
    console.print("· a message that is no task at all")


def count(road: Road, keys: list[str]) -> bool:
    """The final count: every message accounted for, every order charged exactly once."""
    title("The final count")
    rows = road.letters()
    queues = [queue.name for queue in read_topology(road.definitions).queues]
    sums = {
        "orders charged exactly once, by the payment service's own ledger": (
            road.services.charges(*keys).count(1),
            ORDERS,
        ),
        "charges in all": (len(road.services.calls("payments")), ORDERS),
        "mails sent": (len(road.services.calls("mail")), ORDERS),
        "CRM records": (len(road.services.calls("crm")), ORDERS),
        "dead letters, each one row": (len(rows), 3),
        "of them replayed": (sum(1 for row in rows if row["state"] != "open"), 1),
        "messages left in a queue": (road.depth(*queues), 0),
    }
    for what, (is_now, must_be) in sums.items():
        mark = "[green]✓[/]" if is_now == must_be else "[red]✗[/]"
        console.print(f"  {mark} {what}: {is_now}" + ("" if is_now == must_be else f", must be {must_be}"))
    return all(is_now == must_be for is_now, must_be in sums.values())


def show(road: Road, *command: str) -> None:
    """Run a command of the product as a person would, and show what it prints."""
    console.print(f"[bold]$ {subprocess.list2cmdline(command)}[/]", soft_wrap=True)
    done = road.command(*command)
    console.print((done.stdout + done.stderr).rstrip(), markup=False, soft_wrap=True)
    if done.returncode != 0:
        raise NotReadyError(f"{command[0]} exited with {done.returncode}")


def title(text: str) -> None:
    """One step of the story."""
    console.print(f"\n[bold cyan]{text}[/]")


if __name__ == "__main__":
    main()
