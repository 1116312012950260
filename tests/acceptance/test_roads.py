"""Every road out of a worker: one message each, with a worker of one slot that has to go on afterwards.

``pytest tests/acceptance/test_roads.py -rP`` prints the table: road, broker, outcome.
"""

from __future__ import annotations

import json
import pickle
import struct
import uuid
import zlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pika
import pytest
import redis

from broker_topology.deploy import deploy
from broker_topology.notes import FailureNote
from broker_topology.topology import read_topology
from sandbox import servers
from sandbox.processes import Process, eventually
from sandbox.road import Road
from sandbox.services import OutsideServices
from tests.conftest import DEFINITIONS, new_vhost

# One worker process for the whole table, so one process of pytest too.
pytestmark = pytest.mark.xdist_group("roads")

JSON = {"content_type": "application/json", "content_encoding": "utf-8"}


@dataclass(frozen=True, kw_only=True)
class Letter:
    """A dead letter as the broker holds it."""

    body: bytes
    headers: dict[str, Any]

    @property
    def reason(self) -> str:
        """The broker's word."""
        return str(self.headers["x-death"][0]["reason"])


@dataclass(frozen=True, kw_only=True)
class Roads:
    """One virtual host, one worker with one slot."""

    road: Road
    worker: Process
    counter: redis.Redis
    channel: Any
    version: str

    def publish(self, body: bytes, headers: dict[str, Any] | None, **properties: Any) -> None:
        """Put a message of any form into the queue ``crm``."""
        self.channel.basic_publish(
            "work", "crm", body, pika.BasicProperties(headers=headers, delivery_mode=2, **{**JSON, **properties})
        )

    def task(self, name: str, *args: Any, task_id: str | None = None, **headers: Any) -> tuple[str, bytes]:
        """Publish a well-formed task; returns its id and its body."""
        task_id = task_id or uuid.uuid4().hex
        body = json.dumps([args, {}, {"callbacks": None, "errbacks": None, "chain": None, "chord": None}]).encode()
        self.publish(body, task_headers(name, task_id, **headers), correlation_id=task_id)
        return task_id, body

    def letter(self, *, seconds: float = 60.0) -> Letter:
        """The next dead letter."""

        def get() -> Letter | None:
            method, properties, body = self.channel.basic_get("dead-letters", auto_ack=True)
            return Letter(body=body, headers=properties.headers or {}) if method else None

        letter = eventually(get, seconds=seconds, what="a dead letter")
        assert letter is not None
        return letter

    def raw_letter(self) -> bytes:
        """The body of the next dead letter, whose headers this client could not read either."""
        answer = eventually(self._get_over_http, seconds=20, what="a dead letter")
        return bytes(answer[0]["payload"], "utf-8")

    def _get_over_http(self) -> Any:
        vhost = urlsplit(self.road.amqp_url).path[1:]
        url = f"{self.road.management_url}/api/queues/{vhost}/dead-letters/get"
        asked = {"count": 1, "ackmode": "ack_requeue_false", "encoding": "auto"}
        return httpx.post(url, json=asked, timeout=20).json()

    def note(self, task_id: str, retries: int = 0) -> FailureNote:
        """The note that the worker left beside it."""
        text = self.counter.get(f"dead-letter-office:failure:{task_id}:{retries}:")
        assert isinstance(text, bytes), "no failure note"
        return FailureNote.from_json(text)

    def runs(self, task_id: str) -> int:
        """How often the task's body began."""
        return int(self.counter.get(f"runs:{task_id}") or 0)

    def goes_on(self) -> None:
        """The worker is alive, its one slot is free, and nothing else became a dead letter."""
        task_id, _ = self.task("crm.echo", "still here")
        eventually(lambda: self.runs(task_id) == 1, seconds=20, what="a normal task to run afterwards")
        assert self.worker.exit_code is None
        # With one message in hand at a time, a message that was left unsettled would have kept the echo out.
        assert self.road.depth("crm", "dead-letters", "unroutable") == 0


def task_headers(name: Any, task_id: Any, **more: Any) -> dict[str, Any]:
    """The headers of protocol 2."""
    return {"lang": "py", "task": name, "id": task_id, "root_id": task_id, "retries": 0, **more}


@contextmanager
def started(broker: servers.Server, redis_server: servers.Server, folder: Path, *options: str) -> Iterator[Roads]:
    """A virtual host with a low delivery limit, and a worker with one slot on it."""
    vhost = new_vhost(broker)
    deploy(read_topology(DEFINITIONS), vhost.url, management_url=vhost.management_url)
    limit = {"pattern": "^crm$", "apply-to": "queues", "priority": 20, "definition": {"delivery-limit": 2}}
    vhost.api("PUT", "/policies/{vhost}/low-limit", limit).raise_for_status()
    eventually(
        lambda: vhost.api("GET", "/queues/{vhost}/crm").json().get("policy") == "low-limit", what="the low limit"
    )
    with (
        ExitStack() as stack,
        redis.Redis.from_url(redis_server.url) as counter,
        pika.BlockingConnection(pika.URLParameters(vhost.url)) as connection,
    ):
        counter.flushdb()
        services = OutsideServices(folder)
        stack.callback(services.stop)
        road = Road(
            folder=folder,
            amqp_url=vhost.url,
            management_url=vhost.management_url,
            redis_url=redis_server.url,
            database_url=f"sqlite:///{folder}/dead-letters.db",
            services=services,
            task_modules="sandbox.road_tasks",
        )
        stack.callback(road.stop)
        yield Roads(
            road=road,
            worker=road.worker("--concurrency=1", *options),
            counter=counter,
            channel=connection.channel(),
            version=vhost.api("GET", "/overview").json()["rabbitmq_version"],
        )
    vhost.api("DELETE", "/vhosts/{vhost}")


@pytest.fixture(scope="module")
def roads(
    rabbitmq_server: servers.Server, redis_server: servers.Server, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Roads]:
    """One worker for the whole table: what one message does to it, the next one meets."""
    with started(rabbitmq_server, redis_server, tmp_path_factory.mktemp("roads")) as roads:
        yield roads


@dataclass(frozen=True, kw_only=True)
class Ending:
    """How a task ends, and what has to become of its message."""

    task: str = "crm.end"
    args: tuple[Any, ...] = ()
    headers: dict[str, Any] = field(default_factory=dict)
    reason: str = "rejected"
    note: str
    runs: int = 1
    retries: int = 0


DEAD = {
    "failure": Ending(args=("value_error",), note="permanent"),
    "PermanentFailure": Ending(args=("permanent",), note="permanent"),
    "TransientFailure, retries used up": Ending(args=("transient",), note="retries_exhausted", runs=2, retries=1),
    "named transient, retries used up": Ending(task="crm.end_transient", note="retries_exhausted", runs=2, retries=1),
    "retry by hand to the limit": Ending(task="crm.retry_by_hand", note="retries_exhausted", runs=3, retries=2),
    "Celery's retry with a limit of its own": Ending(
        task="crm.celery_retry", note="retries_exhausted", runs=2, retries=1
    ),
    "hard time limit": Ending(task="crm.hard_limit", note="time_limit"),
    "soft time limit": Ending(task="crm.soft_limit", note="soft_time_limit"),
    "hard time limit of the message": Ending(args=("sleep",), headers={"timelimit": [1, None]}, note="time_limit"),
    "recursion": Ending(args=("recursion",), note="permanent"),
    "MemoryError": Ending(args=("memory_error",), note="out_of_memory"),
    "an exception that cannot be pickled": Ending(args=("unpicklable",), note="permanent"),
    "an exception whose str raises": Ending(args=("silent",), note="permanent"),
    "an exception of 5 MB": Ending(args=("huge",), note="permanent"),
    "an exception with lone surrogates": Ending(args=("surrogate",), note="permanent"),
    "sys.exit": Ending(args=("sys_exit",), note="permanent"),
    "KeyboardInterrupt": Ending(args=("keyboard_interrupt",), note="worker_lost", reason="delivery_limit", runs=3),
    "os._exit": Ending(args=("os_exit",), note="worker_lost", reason="delivery_limit", runs=3),
    "child killed": Ending(args=("sigkill",), note="worker_lost", reason="delivery_limit", runs=3),
    "segmentation fault": Ending(args=("segfault",), note="worker_lost", reason="delivery_limit", runs=3),
    "Reject": Ending(args=("reject",), note="rejected"),
    "expired": Ending(
        args=("value_error",), headers={"expires": "2020-01-01T00:00:00+00:00"}, note="expired", runs=0
    ),
    "wrong arguments": Ending(task="crm.soft_limit", args=(1, 2, 3), note="permanent", runs=0),
}


@pytest.mark.parametrize("road", DEAD)
def test_task_that_fails_is_one_dead_letter(roads: Roads, road: str) -> None:
    """The message is in the DLQ byte for byte, with its reason beside it, and the worker goes on. (R1, D1, D2, D3)"""
    ending = DEAD[road]
    task_id, body = roads.task(ending.task, *ending.args, **ending.headers)

    letter = roads.letter()
    assert letter.headers["id"] == task_id
    if ending.retries == 0:
        assert letter.body == body
    else:
        assert json.loads(letter.body)[:2] == json.loads(body)[:2], "a retry is Celery's message of the same task"
    assert (letter.reason, roads.runs(task_id)) == (ending.reason, ending.runs)
    note = roads.note(task_id, ending.retries)
    assert note.reason == ending.note
    assert note.error_type
    assert note.hostname
    roads.goes_on()
    print(f"{road} | {roads.version} | dead letter: {letter.reason}, {note.reason}")


PICKLE = {"content_type": "application/x-python-serialize", "content_encoding": "binary"}

MESSAGES: dict[str, tuple[bytes, dict[str, Any] | None, dict[str, Any]]] = {
    "no headers": (b"[[], {}, {}]", None, {}),
    "no headers, no content type": (b"\x00\xff", None, {"content_type": None, "content_encoding": None}),
    "empty body": (b"", {}, {}),
    "a number": (b"123", task_headers("crm.echo", "m-1"), {}),
    "null": (b"null", task_headers("crm.echo", "m-2"), {}),
    "an object for a body": (b'{"a": 1}', task_headers("crm.echo", "m-3"), {}),
    "args missing": (b"[]", task_headers("crm.echo", "m-4"), {}),
    "args no list": (b'["x", {}, {}]', task_headers("crm.echo", "m-5"), {}),
    "kwargs no object": (b"[[], [], {}]", task_headers("crm.echo", "m-6"), {}),
    "embed no object": (b"[[], {}, 5]", task_headers("crm.echo", "m-7"), {}),
    "not JSON": (b"[[], {}, {}", task_headers("crm.echo", "m-8"), {}),
    "bad UTF-8": (b"\xff\xfe", task_headers("crm.echo", "m-9"), {}),
    "unknown content type": (b"[[], {}, {}]", task_headers("crm.echo", "m-11"), {"content_type": "text/klingon"}),
    "pickle": (pickle.dumps(([], {}, {})), task_headers("crm.echo", "m-12"), PICKLE),
    "bad compression": (b"not zlib", task_headers("crm.echo", "m-13", compression="application/x-gzip"), {}),
    "unknown compression": (b"[[], {}, {}]", task_headers("crm.echo", "m-14", compression="klingon"), {}),
    "nested deeply": (b"[" * 100_000, task_headers("crm.echo", "m-15"), {}),
    "no id": (b"[[], {}, {}]", {"task": "crm.echo", "lang": "py"}, {}),
    "id is a number": (b"[[], {}, {}]", task_headers("crm.echo", 17), {}),
    "id is a table": (b"[[], {}, {}]", task_headers("crm.echo", {"a": 1}), {}),
    "task is a number": (b"[[], {}, {}]", task_headers(17, "m-16"), {}),
    "task is a list": (b"[[], {}, {}]", task_headers(["crm.echo"], "m-17"), {}),
    "unknown task": (b"[[], {}, {}]", task_headers("crm.nobody_has_it", "m-18"), {}),
    "unknown task, protocol 1": (b'{"task": "crm.nobody", "id": "m-19", "args": [], "kwargs": {}}', {}, {}),
    "protocol 1 without an id": (b'{"task": "crm.echo", "args": [], "kwargs": {}}', {}, {}),
    "protocol 1 with odd args": (b'{"task": "crm.echo", "id": "m-20", "args": 5, "kwargs": 6}', {}, {}),
    "timelimit is a text": (b"[[], {}, {}]", task_headers("crm.echo", "m-21", timelimit="soon"), {}),
    "timelimit is too short": (b"[[], {}, {}]", task_headers("crm.echo", "m-22", timelimit=[1]), {}),
    "timelimit of texts": (b"[[], {}, {}]", task_headers("crm.echo", "m-23", timelimit=["a", "b"]), {}),
    "timelimit is negative": (b"[[], {}, {}]", task_headers("crm.echo", "m-24", timelimit=[-5, None]), {}),
    "expires is no date": (b"[[], {}, {}]", task_headers("crm.echo", "m-25", expires="soon"), {}),
    "expires is a table": (b"[[], {}, {}]", task_headers("crm.echo", "m-26", expires={"a": 1}), {}),
    "eta is no date": (b"[[], {}, {}]", task_headers("crm.echo", "m-27", eta="soon"), {}),
    "retries is a text": (b"[[], {}, {}]", task_headers("crm.echo", "m-28", retries="many"), {}),
    "retries is negative": (b"[[], {}, {}]", task_headers("crm.echo", "m-29", retries=-1), {}),
}  # fmt: skip


def _bomb() -> bytes:
    return zlib.compress(b"[" + b" " * 100_000_000 + b"]")


MESSAGES |= {
    "a bomb": (_bomb(), task_headers("crm.echo", "m-30", compression="application/x-gzip"), {}),
}


@pytest.mark.parametrize("road", MESSAGES)
def test_message_of_a_wrong_form_is_one_dead_letter(roads: Roads, road: str) -> None:
    """What is no task is in the DLQ byte for byte, and the worker goes on. (D2)"""
    body, headers, properties = MESSAGES[road]
    roads.publish(body, headers, **properties)

    letter = roads.letter(seconds=20)
    assert letter.body == body
    assert letter.reason == "rejected"
    roads.goes_on()
    print(f"{road} | {roads.version} | dead letter: rejected")


def _success(roads: Roads) -> str:
    return roads.task("crm.echo", 1)[0]


def _protocol_1(roads: Roads) -> str:
    task_id = uuid.uuid4().hex
    body = {"task": "crm.echo", "id": task_id, "args": ["one"], "kwargs": {}, "retries": 0}
    roads.publish(json.dumps(body).encode(), {})
    return task_id


def _compressed(roads: Roads) -> str:
    task_id = uuid.uuid4().hex
    headers = task_headers("crm.echo", task_id, compression="application/x-gzip")
    roads.publish(zlib.compress(b"[[], {}, {}]"), headers)
    return task_id


def _odd_encoding(roads: Roads) -> str:
    task_id = uuid.uuid4().hex
    roads.publish(b"[[], {}, {}]", task_headers("crm.echo", task_id), content_encoding="klingon")
    return task_id


def _ignored(roads: Roads) -> str:
    return roads.task("crm.end", "ignore")[0]


def _not_expired(roads: Roads) -> str:
    return roads.task("crm.echo", expires=(datetime.now(UTC) + timedelta(minutes=5)).isoformat())[0]


def _left_out(roads: Roads) -> str:
    return roads.task("crm.low_risk", "value_error")[0]


def _left_out_killed(roads: Roads) -> str:
    return roads.task("crm.low_risk", "sigkill")[0]


def _left_out_of_memory(roads: Roads) -> str:
    return roads.task("crm.low_risk", "memory_error")[0]


def _left_out_over_its_limit(roads: Roads) -> str:
    return roads.task("crm.low_risk", "sleep")[0]


def _unserialisable(roads: Roads) -> str:
    return roads.task("crm.end", "unserialisable")[0]


SETTLED: dict[str, Callable[[Roads], str]] = {
    "success": _success,
    "success, protocol 1": _protocol_1,
    "success, compressed": _compressed,
    "success, of an encoding that JSON does not need": _odd_encoding,
    "success before it expires": _not_expired,
    "Ignore": _ignored,
    "low-risk task fails": _left_out,
    "low-risk task kills its worker": _left_out_killed,
    "low-risk task out of memory": _left_out_of_memory,
    "low-risk task over its limit": _left_out_over_its_limit,
    "a result that cannot be serialised, and is not kept": _unserialisable,
}


@pytest.mark.parametrize("road", SETTLED)
def test_message_that_is_settled_leaves_no_letter(roads: Roads, road: str) -> None:
    """What succeeds, or was left out by name, runs once and leaves nothing. (D2)"""
    task_id = SETTLED[road](roads)

    eventually(lambda: roads.runs(task_id) == 1, seconds=20)
    roads.goes_on()
    assert roads.runs(task_id) == 1
    print(f"{road} | {roads.version} | settled")


def test_late_message_of_a_task_that_drops_them_is_gone(roads: Roads) -> None:
    """``drop_expired`` drops a message past its time. (D2)"""
    task_id, _ = roads.task("crm.drop_expired", expires="2020-01-01T00:00:00+00:00")
    roads.goes_on()
    assert roads.runs(task_id) == 0


def test_reject_with_requeue_comes_again_and_ends_at_the_delivery_limit(roads: Roads) -> None:
    """``Reject(requeue=True)`` runs again until the broker's limit, then it is a letter. (D3)"""
    task_id, _ = roads.task("crm.end", "requeue")
    letter = roads.letter()
    assert (letter.headers["id"], letter.reason, roads.runs(task_id)) == (task_id, "delivery_limit", 3)
    roads.goes_on()


def test_revoked_task_is_a_dead_letter(roads: Roads) -> None:
    """A task that was revoked while it waited is a letter with that reason. (D2)"""
    task_id = uuid.uuid4().hex
    app = roads.road.publisher
    app.control.revoke(task_id)
    eventually(
        lambda: any(task_id in ids for ids in (app.control.inspect(timeout=1).revoked() or {}).values()),
        what="the worker to know",
    )
    roads.task("crm.echo", task_id=task_id)
    assert roads.letter().headers["id"] == task_id
    assert roads.note(task_id).reason == "revoked"
    roads.goes_on()


def test_history_travels_with_the_message(roads: Roads) -> None:
    """A letter says what became of each earlier attempt. (D1)"""
    task_id, _ = roads.task("crm.end_transient")
    headers = roads.letter().headers
    assert headers["id"] == task_id
    [attempt] = json.loads(headers["attempt_history"])
    assert (attempt["error_type"], attempt["error_text"]) == ("builtins.ConnectionError", "still down")
    assert datetime.fromisoformat(attempt["failed_at"]).tzinfo
    assert sum(len(str(value)) for value in headers.values()) < 32_000
    roads.goes_on()


def assert_all_are_letters(roads: Roads) -> None:
    """Each of the malformed messages is in the DLQ, byte for byte."""
    bodies = sorted(roads.letter(seconds=30).body for _ in MESSAGES)
    assert bodies == sorted(body for body, _, _ in MESSAGES.values())


class FarTimestamp(pika.BasicProperties):  # type: ignore[misc]
    """Properties with a header that no client writes by accident but once: milliseconds where seconds belong."""

    def encode(self) -> list[bytes]:
        """Content type, encoding and headers, with one raw timestamp among them."""
        pieces: list[bytes] = []
        pika.data.encode_table(pieces, self.headers)
        table = b"".join(pieces)[4:] + b"\x03dueT" + struct.pack(">Q", 1_700_000_000_000_000)
        texts = [text.encode() for text in (self.content_type, self.content_encoding)]
        shorts = b"".join(bytes([len(text)]) + text for text in texts)
        return [struct.pack(">H", 0xE000), shorts, struct.pack(">I", len(table)), table]


def test_header_that_ends_the_frame_reader_is_one_dead_letter(roads: Roads) -> None:
    """A timestamp beyond the year 9999 ends neither the worker nor its connection. (D2)"""
    headers = task_headers("crm.echo", "m-far")
    roads.channel.basic_publish("work", "crm", b"[[], {}, {}]", FarTimestamp(headers=headers, **JSON))

    assert roads.raw_letter() == b"[[], {}, {}]"
    roads.goes_on()


def test_messages_that_wait_before_the_worker_starts(
    rabbitmq_server: servers.Server, redis_server: servers.Server, tmp_path: Path
) -> None:
    """The first drain of a new worker swallows exceptions: nothing may be stuck or lost in it. (D2)"""
    with started(rabbitmq_server, redis_server, tmp_path) as roads:
        roads.worker.stop()
        for body, headers, properties in MESSAGES.values():
            roads.publish(body, headers, **properties)
        worker = roads.road.worker("--concurrency=1")
        assert_all_are_letters(roads)
        task_id, _ = roads.task("crm.echo")
        eventually(lambda: roads.runs(task_id) == 1)
        assert worker.exit_code is None


def test_messages_that_arrive_while_the_worker_shuts_down(
    rabbitmq_server: servers.Server, redis_server: servers.Server, tmp_path: Path
) -> None:
    """A worker that is told to stop finishes what runs; what arrives meanwhile is not lost. (D2)"""
    with started(rabbitmq_server, redis_server, tmp_path) as roads:
        running, _ = roads.task("crm.sleep", 2)
        eventually(lambda: roads.runs(running) == 1)
        roads.worker.signal(15)
        for body, headers, properties in MESSAGES.values():
            roads.publish(body, headers, **properties)
        waiting, _ = roads.task("crm.echo")
        roads.worker.wait()
        assert roads.counter.get(f"ends:{running}") == b"1", "a healthy task was not finished"
        roads.road.worker("--concurrency=1")
        assert_all_are_letters(roads)
        eventually(lambda: roads.runs(waiting) == 1)
        assert roads.runs(running) == 1
