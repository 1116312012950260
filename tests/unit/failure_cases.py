"""Each failure of the reference, raised by the real library against a real server.

A case names the row that has to decide it by the row's title, and the wrapper's row where one is opened.
"""

from __future__ import annotations

import contextlib
import http.client
import os
import smtplib
import socket
import ssl
import threading
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import kombu
import kombu.exceptions
import psycopg
import redis
import requests
import sqlalchemy
import sqlalchemy.exc
import trustme
import urllib3
from sqlalchemy import text

from sandbox.processes import eventually, free_port
from tests.unit import faulty_servers as servers

Around = Callable[[str], Any]
"""Gives a fixture of pytest by its name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One failure and the row that it proves."""

    provoke: Callable[[Around], object]
    row: str
    through: str | None = None


CASES: dict[str, Case] = {}


def case(row: str, through: str | None = None) -> Callable[[Callable[[Around], object]], Any]:
    """Register a function that has to raise."""

    def register(provoke: Callable[[Around], object]) -> Callable[[Around], object]:
        CASES[provoke.__name__.strip("_")] = Case(provoke=provoke, row=row, through=through)
        return provoke

    return register


TRANSIENT_STATUS, PERMANENT_STATUS = "HTTP transient HTTP status", "HTTP permanent HTTP status"


def _url(port: int, scheme: str = "http") -> str:
    return f"{scheme}://127.0.0.1:{port}/"


def _http(code: int) -> contextlib.AbstractContextManager[int]:
    return servers.served(servers.status(code))


def _untrusted() -> contextlib.AbstractContextManager[int]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    trustme.CA().issue_cert("127.0.0.1").configure_cert(context)
    return servers.served(servers.status(200), tls=context)


# requests


@case(TRANSIENT_STATUS)
def requests_503(_: Around) -> None:
    with _http(503) as port:
        requests.get(_url(port), timeout=5).raise_for_status()


@case(PERMANENT_STATUS)
def requests_404(_: Around) -> None:
    with _http(404) as port:
        requests.get(_url(port), timeout=5).raise_for_status()


@case("requests transient")
def requests_refused(_: Around) -> None:
    requests.get(_url(free_port()), timeout=5)


@case("requests transient")
def requests_read_timeout(_: Around) -> None:
    with servers.served(servers.says_nothing) as port:
        requests.get(_url(port), timeout=0.1)


@case("requests transient")
def requests_reset(_: Around) -> None:
    with servers.served(servers.resets) as port:
        requests.get(_url(port), timeout=5)


@case("requests transient")
def requests_broken_chunks(_: Around) -> None:
    raw = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nab"
    with servers.served(servers.answers(raw)) as port:
        requests.get(_url(port), timeout=5)


@case("TLS permanent", through="requests as its cause cause")
def requests_untrusted(_: Around) -> None:
    with _untrusted() as port:
        requests.get(_url(port, "https"), timeout=5)


@case("TLS transient", through="requests as its cause cause")
def requests_tls_cut_off(_: Around) -> None:
    with servers.served(servers.hangs_up) as port:
        requests.get(_url(port, "https"), timeout=5)


@case("requests permanent")
def requests_no_schema(_: Around) -> None:
    requests.get("example", timeout=5)


@case("requests permanent")
def requests_no_json(_: Around) -> None:
    raw = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n<>"
    with servers.served(servers.answers(raw)) as port:
        requests.get(_url(port), timeout=5).json()


@case("requests permanent")
def requests_redirect_loop(_: Around) -> None:
    with servers.served(servers.status(302, Location="/")) as port:
        requests.get(_url(port), timeout=5)


@case("requests permanent")
def requests_wrong_compression(_: Around) -> None:
    raw = b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 2\r\n\r\n<>"
    with servers.served(servers.answers(raw)) as port:
        requests.get(_url(port), timeout=5)


# httpx


@case(TRANSIENT_STATUS)
def httpx_429(_: Around) -> None:
    with _http(429) as port:
        httpx.get(_url(port)).raise_for_status()


@case(PERMANENT_STATUS)
def httpx_302(_: Around) -> None:
    with _http(302) as port:
        httpx.get(_url(port)).raise_for_status()


@case("httpx transient")
def httpx_refused(_: Around) -> None:
    httpx.get(_url(free_port()))


@case("httpx transient")
def httpx_read_timeout(_: Around) -> None:
    with servers.served(servers.says_nothing) as port:
        httpx.get(_url(port), timeout=0.1)


@case("httpx transient")
def httpx_reset(_: Around) -> None:
    with servers.served(servers.resets) as port:
        httpx.get(_url(port))


@case("httpx transient")
def httpx_server_disconnected(_: Around) -> None:
    with servers.served(servers.answers(b"")) as port:
        httpx.get(_url(port))


@case("TLS permanent", through="httpx as its cause cause")
def httpx_untrusted(_: Around) -> None:
    with _untrusted() as port:
        httpx.get(_url(port, "https"))


@case("httpx permanent")
def httpx_no_protocol(_: Around) -> None:
    httpx.get("example")


@case("httpx permanent")
def httpx_invalid_url(_: Around) -> None:
    httpx.get("http://[::1")


@case("httpx permanent")
def httpx_redirect_loop(_: Around) -> None:
    with servers.served(servers.status(302, Location="/")) as port:
        httpx.get(_url(port), follow_redirects=True)


# urllib and urllib3


def _urlopen(url: str, timeout: float = 5) -> bytes:
    with urllib.request.urlopen(url, timeout=timeout) as response:
        return bytes(response.read())


@case(TRANSIENT_STATUS)
def urllib_500(_: Around) -> None:
    with _http(500) as port:
        _urlopen(_url(port))


@case(PERMANENT_STATUS)
def urllib_403(_: Around) -> None:
    with _http(403) as port:
        _urlopen(_url(port))


@case("system transient", through="urllib as its cause cause")
def urllib_refused(_: Around) -> None:
    _urlopen(_url(free_port()))


@case("TLS permanent", through="urllib as its cause cause")
def urllib_untrusted(_: Around) -> None:
    with _untrusted() as port:
        _urlopen(_url(port, "https"))


@case("resolver transient errno", through="urllib as its cause cause")
def urllib_unknown_host(_: Around) -> None:
    _urlopen("http://nowhere.invalid/")


@case("urllib permanent")
def urllib_unknown_type(_: Around) -> None:
    _urlopen("gopher2://127.0.0.1/")


@case("urllib transient")
def urllib_incomplete(_: Around) -> None:
    with servers.served(servers.answers(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nab")) as port:
        _urlopen(_url(port))


@case("urllib transient")
def urllib_bad_status_line(_: Around) -> None:
    with servers.served(servers.answers(b"no http at all\r\n\r\n")) as port:
        _urlopen(_url(port))


@case("urllib permanent")
def http_client_invalid_url(_: Around) -> None:
    http.client.HTTPConnection("127.0.0.1", 1).request("GET", "/a b")


@case("urllib3 transient", through="urllib3 as its cause cause")
def urllib3_refused(_: Around) -> None:
    urllib3.PoolManager().request("GET", _url(free_port()), retries=1)


@case("TLS permanent", through="urllib3 as its cause cause")
def urllib3_untrusted(_: Around) -> None:
    with _untrusted() as port:
        urllib3.PoolManager().request("GET", _url(port, "https"), retries=False)


@case("urllib3 transient")
def urllib3_timeout(_: Around) -> None:
    with servers.served(servers.says_nothing) as port:
        urllib3.PoolManager().request("GET", _url(port), timeout=0.1, retries=False)


@case("urllib3 permanent")
def urllib3_no_host(_: Around) -> None:
    urllib3.PoolManager().request("GET", "http://", retries=False)


# Databases


def _on_sqlite(around: Around, statement: str) -> None:
    engine = sqlalchemy.create_engine(f"sqlite:///{around('tmp_path')}/cases.db", connect_args={"timeout": 0})
    try:
        with engine.connect() as first, engine.connect() as second:
            first.execute(text("CREATE TABLE orders (id INTEGER PRIMARY KEY)"))
            first.execute(text("INSERT INTO orders VALUES (1)"))
            first.commit()
            first.execute(text("UPDATE orders SET id = 2"))
            second.execute(text(statement))
    finally:
        engine.dispose()


@case("SQLite transient SQLite code", through="SQLAlchemy as its cause cause")
def sqlite_locked(around: Around) -> None:
    _on_sqlite(around, "UPDATE orders SET id = 3")


@case("SQLite permanent", through="SQLAlchemy as its cause cause")
def sqlite_no_such_table(around: Around) -> None:
    _on_sqlite(around, "SELECT 1 FROM customers")


@case("any driver permanent", through="SQLAlchemy as its cause cause")
def sqlite_duplicate(_: Around) -> None:
    engine = sqlalchemy.create_engine("sqlite://")
    with engine.connect() as connection:
        connection.execute(text("CREATE TABLE orders (id INTEGER PRIMARY KEY)"))
        connection.execute(text("INSERT INTO orders VALUES (1)"))
        connection.execute(text("INSERT INTO orders VALUES (1)"))


@contextlib.contextmanager
def _two_sessions(around: Around, isolation: str = "READ COMMITTED") -> Any:
    engine = sqlalchemy.create_engine(around("postgresql_url"), isolation_level=isolation)
    try:
        with engine.connect() as first, engine.connect() as second:
            first.execute(text("CREATE TABLE stock (id int PRIMARY KEY, amount int)"))
            first.execute(text("INSERT INTO stock VALUES (1, 1), (2, 1)"))
            first.commit()
            yield first, second
    finally:
        engine.dispose()


def _update(session: sqlalchemy.Connection, row: int) -> None:
    session.execute(text(f"UPDATE stock SET amount = amount + 1 WHERE id = {row}"))


@case("PostgreSQL transient SQLSTATE", through="SQLAlchemy as its cause cause")
def postgresql_deadlock(around: Around) -> None:
    failures: list[BaseException] = []

    def cross(session: sqlalchemy.Connection) -> None:
        try:
            _update(session, 1)
            session.rollback()
        except sqlalchemy.exc.OperationalError as error:
            failures.append(error)
            session.rollback()

    with _two_sessions(around) as (first, second):
        _update(first, 1)
        _update(second, 2)
        other = threading.Thread(target=cross, args=(second,))
        other.start()
        try:
            _update(first, 2)
        except sqlalchemy.exc.OperationalError as error:
            failures.append(error)
        first.rollback()
        other.join()
    raise failures[0]


@case("PostgreSQL transient SQLSTATE", through="SQLAlchemy as its cause cause")
def postgresql_serialization(around: Around) -> None:
    with _two_sessions(around, "REPEATABLE READ") as (first, second):
        first.execute(text("SELECT * FROM stock"))
        _update(second, 1)
        second.commit()
        _update(first, 1)


@case("PostgreSQL transient SQLSTATE", through="SQLAlchemy as its cause cause")
def postgresql_lock_not_available(around: Around) -> None:
    with _two_sessions(around) as (first, second):
        _update(second, 1)
        first.execute(text("SELECT * FROM stock WHERE id = 1 FOR UPDATE NOWAIT"))


@case("SQLAlchemy transient connection_invalidated")
def postgresql_terminated(around: Around) -> None:
    with _two_sessions(around) as (first, second):
        pid = first.execute(text("SELECT pg_backend_pid()")).scalar()
        second.execute(text(f"SELECT pg_terminate_backend({pid}, 5000)"))
        _update(first, 1)


@case("any driver permanent", through="SQLAlchemy as its cause cause")
def postgresql_syntax(around: Around) -> None:
    with _two_sessions(around) as (first, _):
        first.execute(text("SELEC 1"))


@case("any driver permanent", through="SQLAlchemy as its cause cause")
def postgresql_data(around: Around) -> None:
    with _two_sessions(around) as (first, _):
        first.execute(text("SELECT 1 / (amount - 1) FROM stock"))


@case("PostgreSQL permanent SQLSTATE")
def postgresql_not_supported(around: Around) -> None:
    with psycopg.connect(_dsn(around)) as connection:
        connection.execute("SELECT count(*) FROM pg_class FOR UPDATE")


@case("psycopg transient SQLSTATE")
def psycopg_refused(_: Around) -> None:
    psycopg.connect(f"host=127.0.0.1 port={free_port()} user=postgres")


@case("SQLAlchemy transient")
def sqlalchemy_pool_exhausted(around: Around) -> None:
    engine = sqlalchemy.create_engine(
        f"sqlite:///{around('tmp_path')}/pool.db",
        poolclass=sqlalchemy.QueuePool,
        pool_size=1,
        max_overflow=0,
        pool_timeout=0.1,
    )
    with engine.connect():
        engine.connect()


def _dsn(around: Around) -> str:
    return str(around("postgresql_url")).replace("postgresql+psycopg", "postgresql")


# Redis


@contextlib.contextmanager
def _redis(url: str, **options: Any) -> Any:
    client = redis.Redis.from_url(url, retry=None, **options)
    try:
        yield client
    finally:
        client.close()


@case("redis transient")
def redis_refused(_: Around) -> None:
    with _redis(f"redis://127.0.0.1:{free_port()}/0") as client:
        client.ping()


@case("redis transient")
def redis_timeout(around: Around) -> None:
    with _redis(around("own_redis").url, socket_timeout=0.1) as client:
        client.execute_command("CLIENT", "PAUSE", "3000")
        client.ping()


@case("redis transient")
def redis_read_only(around: Around) -> None:
    with _redis(around("own_redis").url) as client:
        client.replicaof("127.0.0.1", str(free_port()))
        client.set("a", 1)


@case("redis transient")
def redis_out_of_memory(around: Around) -> None:
    with _redis(around("own_redis").url) as client:
        client.config_set("maxmemory", 1)
        client.set("a", 1)


@case("redis transient")
def redis_watch(around: Around) -> None:
    with _redis(around("redis_url")) as client, client.pipeline() as pipeline:
        pipeline.watch("a")
        client.set("a", 1)
        pipeline.multi()
        pipeline.get("a")
        pipeline.execute()


@case("redis permanent")
def redis_wrong_type(around: Around) -> None:
    with _redis(around("redis_url")) as client:
        client.set("a", 1)
        client.lpush("a", 1)


@case("redis permanent")
def redis_wrong_password(around: Around) -> None:
    with _redis(around("redis_url"), username="nobody", password="wrong") as client:
        client.ping()


@case("redis permanent")
def redis_data(around: Around) -> None:
    with _redis(around("redis_url")) as client:
        client.set("a", None)


# Brokers


@case("system transient", through="kombu as its cause cause")
def kombu_refused(_: Around) -> None:
    with kombu.Connection(f"amqp://127.0.0.1:{free_port()}//") as connection:
        connection.ensure_connection(max_retries=1, interval_start=0)


@case("kombu transient")
def kombu_pool_exhausted(around: Around) -> None:
    pool = kombu.Connection(around("vhost").url).Pool(limit=1)
    with pool.acquire():
        pool.acquire(block=False)


@case("kombu permanent")
def kombu_encode(around: Around) -> None:
    with kombu.Connection(around("vhost").url) as connection:
        connection.Producer().publish(object(), serializer="json", routing_key="a")


@case("amqp permanent")
def amqp_not_found(around: Around) -> None:
    with kombu.Connection(around("vhost").url) as connection:
        connection.default_channel.queue_declare("nothing", passive=True)


@case("amqp transient")
def amqp_queue_full(around: Around) -> None:
    options = {"confirm_publish": True}
    with kombu.Connection(around("vhost").url, transport_options=options) as connection:
        full = {"x-max-length": 1, "x-overflow": "reject-publish"}
        connection.default_channel.queue_declare("full", arguments=full, auto_delete=False)
        for _ in range(3):
            connection.Producer().publish("a", routing_key="full")


@case("amqp transient")
def amqp_connection_closed(around: Around) -> None:
    vhost = around("vhost")
    with kombu.Connection(vhost.url) as connection:
        connection.connect()
        # The management API learns of a connection some seconds after it is there.
        [known] = eventually(lambda: vhost.api("GET", "/vhosts/{vhost}/connections").json())
        vhost.api("DELETE", f"/connections/{quote(known['name'], safe='')}").raise_for_status()
        connection.drain_events(timeout=20)


# The system


@case("TLS permanent")
def tls_wrong_version(_: Around) -> None:
    with _http(200) as port, socket.create_connection(("127.0.0.1", port)) as plain:
        plain.sendall(b"GET / HTTP/1.0\r\n\r\n")
        ssl.create_default_context().wrap_socket(plain, server_hostname="localhost")


@case("TLS transient")
def tls_cut_off(_: Around) -> None:
    with servers.served(servers.hangs_up) as port:  # noqa: SIM117, the server stays
        with socket.create_connection(("127.0.0.1", port)) as plain:
            ssl.create_default_context().wrap_socket(plain, server_hostname="localhost")


@case("resolver transient errno")
def unknown_host(_: Around) -> None:
    socket.getaddrinfo("nowhere.invalid", 80)


@case("system transient")
def connection_refused(_: Around) -> None:
    socket.create_connection(("127.0.0.1", free_port()))


@case("system transient")
def socket_timeout(_: Around) -> None:
    with servers.served(servers.says_nothing) as port, socket.create_connection(("127.0.0.1", port)) as own:
        own.settimeout(0.05)
        own.recv(1)


@case("system transient errno")
def would_block(_: Around) -> None:
    own, other = socket.socketpair()
    with own, other:
        own.setblocking(False)
        own.recv(1)


@case("system permanent errno")
def file_not_found(around: Around) -> None:
    Path(around("tmp_path"), "missing").read_text()


@case("system permanent errno")
def directory_not_empty(around: Around) -> None:
    Path(around("tmp_path"), "a", "b").mkdir(parents=True)
    os.rmdir(Path(around("tmp_path"), "a"))  # noqa: PTH106, the call whose error is meant


# Mail


def _smtp(*lines: str) -> None:
    with servers.served(servers.says_lines(*lines)) as port:
        session = smtplib.SMTP("127.0.0.1", port, local_hostname="here", timeout=5)
        try:
            session.sendmail("shop@example.org", ["one@example.org"], "text")
        finally:
            session.close()


@case("SMTP transient SMTP code")
def smtp_busy(_: Around) -> None:
    _smtp("220 hello", "250 hello", "451 come back")


@case("SMTP permanent SMTP code")
def smtp_refused(_: Around) -> None:
    _smtp("220 hello", "250 hello", "550 never")


@case("SMTP transient")
def smtp_disconnected(_: Around) -> None:
    _smtp("220 hello")


# By attribute: these libraries are no dependency of ours


def _foreign(name: str, *bases: type[BaseException]) -> type[BaseException]:
    module, _, last = name.rpartition(".")
    return type(last, bases or (Exception,), {"__module__": module, "__qualname__": last})


@case("AWS transient AWS code")
def aws_throttled(_: Around) -> None:
    error = _foreign("botocore.exceptions.ClientError")("Throttling")
    details = {"Error": {"Code": "Throttling"}, "ResponseMetadata": {"HTTPStatusCode": 400}}
    error.response = details  # type: ignore[attr-defined]
    raise error


@case(PERMANENT_STATUS)
def aws_denied(_: Around) -> None:
    error = _foreign("botocore.exceptions.ClientError")("AccessDenied")
    details = {"Error": {"Code": "AccessDenied"}, "ResponseMetadata": {"HTTPStatusCode": 403}}
    error.response = details  # type: ignore[attr-defined]
    raise error


@case("MySQL transient MySQL number")
def mysql_deadlock(_: Around) -> None:
    root = _foreign("pymysql.err.Error")
    database = _foreign("pymysql.err.DatabaseError", root)
    raise _foreign("pymysql.err.OperationalError", database)(1213, "Deadlock found")


@case("PostgreSQL transient SQLSTATE", through="Django as its cause cause")
def django_deadlock(_: Around) -> None:
    root = _foreign("django.db.utils.DatabaseError", _foreign("django.db.utils.Error"))
    error = _foreign("django.db.utils.OperationalError", root)("deadlock detected")
    raise error from psycopg.errors.DeadlockDetected("deadlock detected")
