"""Queues are replaced under live publishers, killed at every step, and nothing is missing afterwards."""

from __future__ import annotations

import json
import signal
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pika
import pika.exceptions
import pytest
from click.testing import CliRunner, Result
from pika.adapters.blocking_connection import BlockingChannel

from broker_topology.__main__ import main
from broker_topology.journal import Step
from broker_topology.mover import PREFETCH
from broker_topology.raw_headers import RawHeader
from broker_topology.wire import RawConnection, RawProperties
from sandbox.processes import eventually
from tests.conftest import DEFINITIONS, VirtualHost
from tests.integration.live_publisher import LivePublisher, account, take_all

CLASSIC = {"x-queue-type": "classic"}
QUORUM = {"x-queue-type": "quorum"}


class Old:
    """A virtual host as it was before: a classic queue ``payments`` behind a topic exchange, with a backlog."""

    def __init__(self, vhost: VirtualHost, folder: Path) -> None:
        self.vhost, self.folder = vhost, folder
        self.backlog: list[str] = []
        self.connection = pika.BlockingConnection(pika.URLParameters(vhost.url))
        self.channel = self.connection.channel()
        self.channel.confirm_delivery()
        self.channel.exchange_declare("unroutable", "fanout", durable=True)
        self.channel.queue_declare(
            "unroutable",
            durable=True,
            arguments={**QUORUM, "x-overflow": "reject-publish", "x-delivery-limit": 1_000_000},
        )
        self.channel.queue_bind("unroutable", "unroutable", "")
        self.channel.exchange_declare("work", "topic", durable=True, arguments={"alternate-exchange": "unroutable"})

    def queue(self, arguments: dict[str, Any], *, backlog: int = 0, bound: bool = True) -> None:
        """The queue ``payments`` with these arguments and so many messages."""
        self.channel.queue_declare("payments", durable=True, arguments=arguments)
        if bound:
            self.channel.queue_bind("payments", "work", "payments")
            self.channel.queue_bind("payments", "work", "#.payments")
        for number in range(backlog):
            self.backlog.append(f"old-{number}")
            self.publish("work", "payments", self.backlog[-1].encode())

    def publish(self, exchange: str, key: str, body: bytes, properties: Any = None) -> None:
        """Publish one message, persistent and confirmed."""
        self.channel.basic_publish(
            exchange, key, body, properties or pika.BasicProperties(delivery_mode=2, message_id=body.decode()), True
        )

    def arguments(self) -> list[str]:
        """The command line of a migration."""
        return [
            *("migrate", str(DEFINITIONS), "payments", "--url", self.vhost.url),
            *("--management-url", self.vhost.management_url, "--journal-dir", str(self.folder)),
            *("--watch-seconds", "1"),
        ]

    def migrate(self, *more: str) -> Result:
        """Run a migration to its end."""
        return CliRunner().invoke(main, [*self.arguments(), *more])

    def migrate_and_die(self, point: str) -> None:
        """Run a migration and kill it at some point."""
        done = subprocess.run(
            [sys.executable, "-m", "tests.integration.killed_migration", point, *self.arguments()],
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == -signal.SIGKILL, done.stderr

    def shown(self) -> dict[str, Any]:
        """The queue ``payments`` as the broker shows it."""
        found: dict[str, Any] = self.vhost.api("GET", "/queues/{vhost}/payments").json()
        return found

    def bindings(self) -> set[tuple[str, str]]:
        """The bindings that lead into it."""
        found = self.vhost.api("GET", "/queues/{vhost}/payments/bindings").json()
        return {(binding["source"], binding["routing_key"]) for binding in found if binding["source"]}

    def remains(self) -> list[str]:
        """What a migration left behind: objects of the detour, policies, journals."""
        names = [
            entry["name"]
            for kind in ("queues", "exchanges", "policies")
            for entry in self.vhost.api("GET", f"/{kind}/{{vhost}}").json()
        ]
        return [name for name in names if "migrate" in name] + [path.name for path in self.folder.iterdir()]

    def is_new(self) -> bool:
        """Whether the queue is what the file says, bound as it was."""
        return (
            self.shown()["arguments"].get("x-dead-letter-strategy") == "at-least-once"
            and {("work", "payments"), ("work", "#.payments")} <= self.bindings()
            and self.remains() == []
        )


@pytest.fixture
def old(vhost: VirtualHost, tmp_path: Path) -> Iterator[Old]:
    old = Old(vhost, tmp_path)
    yield old
    old.connection.close()


@pytest.mark.parametrize("arguments", [CLASSIC, {}, QUORUM], ids=["classic", "untyped", "quorum without a DLX"])
def test_a_queue_is_replaced_under_a_live_publisher(old: Old, arguments: dict[str, Any]) -> None:
    """Classic to quorum, or a DLX for a queue without one: nothing missing, nothing twice, nothing astray (D3)."""
    old.queue(arguments, backlog=500)
    with LivePublisher(old.vhost.url, "work", "payments") as publisher:
        eventually(lambda: len(publisher.sent) > 100)
        result = old.migrate()
        assert result.exit_code == 0, result.output
        published = len(publisher.sent)
        eventually(lambda: len(publisher.sent) > published + 20)
    assert old.is_new()
    found = take_all(old.vhost.url, "payments")
    missing, twice = account(publisher.sent + old.backlog, [body for _, _, body in found])
    assert (missing, twice, publisher.errors) == (set(), {}, [])
    assert {(method.exchange, method.routing_key) for method, _, _ in found} == {("work", "payments")}
    assert take_all(old.vhost.url, "unroutable") == []
    assert old.migrate().output == "nothing to migrate\n"


POINTS = [
    *(f"{step}:{when}" for step in (Step.PREPARE, Step.DIVERT, Step.HOLD) for when in ("before", "after")),
    "stash:before",
    "stash:after",
    "moved:150",
    "replace:before",
    "replace:after",
    "deleted",
    *(f"{step}:{when}" for step in (Step.OPEN, Step.UNDIVERT) for when in ("before", "after")),
    "restore:before",
    "restore:after",
    "moved:150",
    "clean:before",
    "clean:after",
]


@pytest.mark.timeout(900)
def test_a_migration_that_is_killed_at_every_step_goes_on(old: Old) -> None:
    """Killed 20 times, before and after each step: nothing is missing, twice only what was in flight (D3)."""
    old.queue(CLASSIC, backlog=400)
    with LivePublisher(old.vhost.url, "work", "payments", pause_seconds=0.02) as publisher:
        for point in POINTS:
            old.migrate_and_die(point)
        result = old.migrate()
        assert result.exit_code == 0, result.output
    assert old.is_new()
    found = take_all(old.vhost.url, "payments")
    missing, twice = account(publisher.sent + old.backlog, [body for _, _, body in found])
    assert (missing, publisher.errors) == (set(), [])
    assert sum(twice.values()) - len(twice) <= 2 * PREFETCH
    assert all(properties.message_id == body.decode() for _, properties, body in found)
    assert take_all(old.vhost.url, "unroutable") == []


@pytest.mark.soak
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("number", range(20))
def test_migrations_are_killed_again_and_again(old: Old, number: int) -> None:
    """Twenty migrations under load, each killed at every step and at odd moments of moving (D3)."""
    old.queue(CLASSIC if number % 2 else QUORUM, backlog=1_000 + 100 * number)
    with LivePublisher(old.vhost.url, "work", "payments", pause_seconds=0.002 + 0.002 * (number % 5)) as publisher:
        for point in POINTS:
            old.migrate_and_die(point.replace("150", str(37 * number + 10)))
        assert old.migrate().exit_code == 0
    found = take_all(old.vhost.url, "payments")
    missing, twice = account(publisher.sent + old.backlog, [body for _, _, body in found])
    print(
        f"soak {number}: {len(found)} messages, missing {len(missing)}, twice {len(twice)}, "
        f"{len(publisher.errors)} errors"
    )
    assert (missing, publisher.errors) == (set(), [])
    assert sum(twice.values()) - len(twice) <= 2 * PREFETCH
    assert all(properties.message_id == body.decode() for _, properties, body in found)
    assert old.is_new()


def refused(old: Old, reason: str, *more: str) -> None:
    """A migration is refused for that reason, and everything is as it was."""
    before = (old.shown()["arguments"], old.bindings())
    result = old.migrate(*more)
    assert result.exit_code == 1, result.output
    assert reason in result.stderr
    assert (old.shown()["arguments"], old.bindings()) == before
    assert old.remains() == []


def test_consumers_must_be_stopped_first(old: Old) -> None:
    """A queue with a consumer is left as it is (D3)."""
    old.queue(CLASSIC)
    old.channel.basic_consume("payments", lambda *_: None)
    refused(old, "1 consumers are attached: stop the workers that consume it")


def test_publishers_on_the_default_exchange_are_found_out(old: Old) -> None:
    """Somebody who publishes past every exchange is noticed; the queue is as it was, nothing is lost (D3)."""
    old.queue(CLASSIC, backlog=50)
    with LivePublisher(old.vhost.url, "", "payments", pause_seconds=0.05) as publisher:
        eventually(lambda: publisher.sent)
        refused(old, "messages came into it past every exchange, through the default exchange")
    found = [body for _, _, body in take_all(old.vhost.url, "payments")]
    assert account(publisher.sent + old.backlog, found) == (set(), {})


def test_messages_of_the_default_exchange_need_the_operators_word(old: Old) -> None:
    """A backlog from the default exchange is put back, unless its publishers are said to be stopped (D3)."""
    old.queue(CLASSIC)
    old.publish("", "payments", b"a")
    refused(old, "1 of the messages in it were published through the default exchange")
    assert old.migrate("--publishers-stopped").exit_code == 0
    assert old.is_new()
    assert [body for _, _, body in take_all(old.vhost.url, "payments")] == [b"a"]


def test_a_queue_that_no_exchange_leads_to_needs_the_operators_word(old: Old) -> None:
    """What only the default exchange reaches cannot be held back (D3)."""
    old.queue(CLASSIC, bound=False)
    definitions = json.loads(DEFINITIONS.read_text())
    definitions["bindings"] = [b for b in definitions["bindings"] if b["destination"] != "payments"]
    file = old.folder.parent / "unbound.json"
    file.write_text(json.dumps(definitions))
    arguments = [str(file) if part == str(DEFINITIONS) else part for part in old.arguments()]
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 1
    assert "no exchange leads to it" in result.stderr
    assert CliRunner().invoke(main, [*arguments, "--publishers-stopped"]).exit_code == 0
    assert old.shown()["arguments"]["x-delivery-limit"] == 20


def test_a_retry_queue_that_leads_back_by_the_default_exchange_is_in_the_way(old: Old) -> None:
    """Dead letters that come back through the default exchange would be lost meanwhile (D3)."""
    old.queue(CLASSIC)
    arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "payments", "x-message-ttl": 1000}
    old.channel.queue_declare("wait", durable=True, arguments=arguments)
    refused(old, "queue wait dead-letters into it through the default exchange")


def test_streams_are_not_migrated(old: Old) -> None:
    """A stream is left as it is (D3)."""
    old.queue({"x-queue-type": "stream"})
    refused(old, "a stream keeps what was consumed")


def test_wide_policies_do_not_reach_the_detour(old: Old) -> None:
    """A policy for every queue, with a short length and time to live, takes no message on its way (D3)."""
    old.queue({**CLASSIC, "x-overflow": "reject-publish"}, backlog=200)
    body = {"pattern": ".*migrate.*", "definition": {"max-length": 3, "message-ttl": 100}, "priority": 7}
    old.vhost.api("PUT", "/policies/{vhost}/wide-migrate", body).raise_for_status()
    assert old.migrate().exit_code == 0
    old.vhost.api("DELETE", "/policies/{vhost}/wide-migrate")
    assert old.is_new()
    assert account(old.backlog, [body for _, _, body in take_all(old.vhost.url, "payments")]) == (set(), {})


def test_an_operator_policy_on_the_detour_is_in_the_way(old: Old) -> None:
    """An operator policy cannot be kept off, so the queue is left as it is (D3)."""
    old.queue(CLASSIC)
    body = {"pattern": ".*", "definition": {"max-length": 3}, "apply-to": "queues"}
    old.vhost.api("PUT", "/operator-policies/{vhost}/all", body).raise_for_status()
    refused(old, "operator policy all would apply to the queues of the detour")


def test_a_migration_is_taken_back(old: Old) -> None:
    """Aborted after a kill, the queue is as it was, with everything in it; after REPLACE it is too late (D3)."""
    old.queue(CLASSIC, backlog=300)
    before = old.bindings()
    old.migrate_and_die("moved:100")
    with LivePublisher(old.vhost.url, "work", "payments") as publisher:
        eventually(lambda: len(publisher.sent) > 50)
        assert old.migrate("--abort").exit_code == 0
    assert old.shown()["arguments"] in ({}, CLASSIC)
    assert (old.bindings(), old.remains()) == (before, [])
    missing, _ = account(publisher.sent + old.backlog, [body for _, _, body in take_all(old.vhost.url, "payments")])
    assert missing == set()
    nothing = old.migrate("--abort")
    assert nothing.exit_code == 1
    assert "no migration of queue 'payments' was begun" in nothing.stderr
    old.migrate_and_die("replace:after")
    late = old.migrate("--abort")
    assert late.exit_code == 1
    assert "may be replaced already" in late.stderr
    assert old.migrate().exit_code == 0
    assert old.is_new()


def test_a_journal_belongs_to_one_broker_and_one_process(old: Old) -> None:
    """A migration begun elsewhere, or under way in another process, is not touched (D3)."""
    import fcntl  # noqa: PLC0415

    old.queue(CLASSIC)
    old.migrate_and_die("hold:after")
    [path] = old.folder.glob("*.json")
    journal = path.read_text()
    with path.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        held = old.migrate()
    assert held.exit_code == 2
    assert "another process is at this migration" in held.stderr
    path.write_text(journal.replace("amqp://guest@", "amqp://guest@elsewhere"))
    other = old.migrate()
    assert other.exit_code == 1
    assert "is of a migration on amqp://guest@elsewhere" in other.stderr
    for text, sentence in [
        ("nonsense", "is not a journal"),
        (journal.replace('"format": 1', '"format": 9'), "another version"),
    ]:
        path.write_text(text)
        bad = old.migrate()
        assert bad.exit_code == 2
        assert sentence in bad.stderr
    path.unlink()
    lost = old.migrate()
    assert lost.exit_code == 1
    assert "queue payments: a migration of it was begun: finish it where its journal is" in lost.output
    path.write_text(journal)
    assert old.migrate().exit_code == 0
    assert old.is_new()


def short(value: bytes) -> bytes:
    return bytes([len(value)]) + value


def raw_publish(url: str, publish: Callable[[BlockingChannel], None]) -> None:
    connection = pika.adapters.blocking_connection.BlockingConnection(
        pika.URLParameters(url), _impl_class=RawConnection
    )
    channel = connection.channel()
    channel.confirm_delivery()
    publish(channel)
    connection.close()


def test_properties_survive_byte_for_byte(old: Old) -> None:
    """Floats, odd integers, bad text, twin keys, far timestamps: as published, less death records and CC (D3)."""
    old.queue(CLASSIC)
    table = b"".join(
        [
            short(b"float") + b"f" + struct.pack(">f", 1.5),
            short(b"short") + b"s" + struct.pack(">h", -7),
            short(b"not \xff text") + b"S" + struct.pack(">I", 2) + b"\xff\xfe",
            short(b"far") + b"T" + struct.pack(">Q", 253_402_300_800_000),
            short(b"decimal") + b"D" + bytes([2]) + struct.pack(">i", 199),
            short(b"nothing") + b"V",
        ]
    )
    removed = short(b"x-first-death-queue") + b"S" + struct.pack(">I", 3) + b"old"
    kept = struct.pack(">I", len(table)) + table
    with_history = struct.pack(">I", len(table + removed)) + table + removed
    # content type, headers, delivery mode, priority, expiration, message id, timestamp
    flags = 1 << 15 | 1 << 13 | 1 << 12 | 1 << 11 | 1 << 8 | 1 << 7 | 1 << 6

    def header(headers: bytes) -> bytes:
        return (
            struct.pack(">H", flags)
            + short(b"application/json")
            + headers
            + bytes([2, 5])
            + short(b"86400000")
            + short(b"id-1")
            + struct.pack(">Q", 253_402_300_800_000)
        )

    raw_publish(
        old.vhost.url,
        lambda channel: channel.basic_publish("work", "payments", b"x", RawProperties(header(with_history)), True),
    )
    assert old.migrate().exit_code == 0
    found: list[bytes] = []
    raw_publish(old.vhost.url, lambda channel: found.append(channel.basic_get("payments")[1].raw))
    before, after = RawHeader.parse(header(kept)), RawHeader.parse(found[0])
    assert after.properties == before.properties
    # Brokers sort headers, and some write a count of deliveries into the last one.
    own = [entry for entry in after.headers or () if entry[0] != b"x-delivery-count"]
    assert sorted(own) == sorted(before.headers or ())


def test_what_would_expire_does_not_get_lost_on_the_way(old: Old) -> None:
    """A message with a time to live outlives the detour and expires in its queue, into the DLQ (D3)."""
    old.queue(CLASSIC)
    properties = pika.BasicProperties(delivery_mode=2, expiration="3000", message_id="short-lived")
    old.publish("work", "payments", b"short-lived", properties)
    result = old.migrate()
    assert result.exit_code == 0, result.output
    found: list[bytes] = []

    def arrived() -> bool:
        _, _, body = old.channel.basic_get("dead-letters", auto_ack=True)
        found.extend([body] if body else [])
        return bool(found)

    eventually(arrived, seconds=15)
    assert found == [b"short-lived"]


def test_copies_are_not_sent_again(old: Old) -> None:
    """A message with CC went to its other queues when it was published, and does not go there twice (D3)."""
    old.queue(CLASSIC)
    old.channel.queue_declare("copies", durable=True)
    old.publish(
        "work", "payments", b"x", pika.BasicProperties(delivery_mode=2, headers={"CC": ["copies"]}, message_id="x")
    )
    old.channel.queue_bind("copies", "work", "copies")
    old.publish(
        "work", "payments", b"y", pika.BasicProperties(delivery_mode=2, headers={"CC": ["copies"]}, message_id="y")
    )
    assert old.migrate().exit_code == 0
    assert len(take_all(old.vhost.url, "copies")) == 1
    assert len(take_all(old.vhost.url, "payments")) == 2


def test_a_message_that_also_went_elsewhere_comes_home_alone(old: Old) -> None:
    """Where an exchange and key lead to several queues, a moved message goes to its own queue only (D3)."""
    old.queue(CLASSIC, backlog=3)
    old.channel.queue_declare("audit", durable=True)
    old.channel.queue_bind("audit", "work", "#")
    assert old.migrate().exit_code == 0
    found = take_all(old.vhost.url, "payments")
    assert [(method.exchange, method.routing_key) for method, _, _ in found] == [("", "payments")] * 3
    assert take_all(old.vhost.url, "audit") == []


def test_bindings_with_arguments_come_back(old: Old) -> None:
    """Bindings of headers exchanges, with their arguments, are laid over the detour and back (D3)."""
    old.queue(CLASSIC)
    old.channel.exchange_declare("by-header", "headers", durable=True)
    match = {"x-match": "all", "kind": "payment"}
    old.channel.queue_bind("payments", "by-header", "", arguments=match)
    properties = pika.BasicProperties(delivery_mode=2, headers={"kind": "payment"}, message_id="h")
    old.publish("by-header", "", b"h", properties)
    result = old.migrate("--publishers-stopped")
    assert result.exit_code == 0, result.output
    shown = old.vhost.api("GET", "/queues/{vhost}/payments/bindings").json()
    assert match in [binding["arguments"] for binding in shown]
    old.publish("by-header", "", b"i", properties)
    assert sorted(body for _, _, body in take_all(old.vhost.url, "payments")) == [b"h", b"i"]
