"""Failures as they happen, raised for real: each family is one failure, its values are what differs from run to run.

Two failures of one family are the same failure; two families are different ones, and those of one topic are the
pairs that are hard to tell apart. ``value`` is all that changes within a family.
"""

from __future__ import annotations

import base64
import configparser
import contextlib
import csv
import datetime as dt
import decimal
import enum
import http.client
import importlib
import ipaddress
import json
import locale
import os
import pickle
import socket
import ssl
import struct
import subprocess
import sys
import urllib.request
import uuid
import xml.etree.ElementTree as ET
import zlib
import zoneinfo
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import kombu
import psycopg
import pydantic
import redis
import requests
import sqlalchemy
from sqlalchemy import text

from sandbox.processes import free_port
from tests.unit import faulty_servers as servers

Around = Callable[[str], Any]
"""Gives a fixture of pytest by its name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """One failure, provoked with different values."""

    name: str
    topic: str
    provoke: Callable[[Around, Any], object]
    values: tuple[Any, ...]


FAMILIES: list[Family] = []


def family(topic: str, *values: Any) -> Callable[[Callable[[Around, Any], object]], Any]:
    """Register a function that has to raise with each of the values."""

    def register(provoke: Callable[[Around, Any], object]) -> Callable[[Around, Any], object]:
        FAMILIES.append(Family(name=provoke.__name__, topic=topic, provoke=provoke, values=values))
        return provoke

    return register


# Numbers and dates out of texts


@family("number", "abc", "12,5", "", "0x1f", "Ann Lee", "it's")
def int_of_text(_: Around, value: Any) -> None:
    int(value)


@family("number", "abc", "1.234,56", "12 kg", "1/2")
def float_of_text(_: Around, value: Any) -> None:
    float(value)


@family("number", "abc", "1.234,56")
def decimal_of_text(_: Around, value: Any) -> None:
    decimal.Decimal(value)


@family("number", 0, 17)
def division_by_zero(_: Around, value: Any) -> None:
    value / 0


@family("number", 10**400, 7**900)
def too_large_for_float(_: Around, value: Any) -> None:
    float(value)


@family("number", "9" * 5000, "1" * 7000)
def too_many_digits(_: Around, value: Any) -> None:
    int(value)


@family("number", 300, -1)
def byte_out_of_range(_: Around, value: Any) -> None:
    bytes([value])


@family("date", "2024-5-1", "yesterday", "01.05.2024")
def isoformat(_: Around, value: Any) -> None:
    dt.date.fromisoformat(value)


@family("date", "2024-05-01", "May 1st", "01.05.24")
def strptime(_: Around, value: Any) -> None:
    dt.datetime.strptime(value, "%d/%m/%Y")  # noqa: DTZ007, only its error is meant


@family("date", "01/05/2024 10:00", "02/06/2024 late")
def strptime_remains(_: Around, value: Any) -> None:
    dt.datetime.strptime(value, "%d/%m/%Y")  # noqa: DTZ007


@family("date", 32, 99)
def day_out_of_range(_: Around, value: Any) -> None:
    dt.date(2024, 5, value)


@family("date", 13, 0)
def month_out_of_range(_: Around, value: Any) -> None:
    dt.date(2024, value, 5)


@family("date", "Mars/Olympus", "Europe/Atlantis")
def unknown_timezone(_: Around, value: Any) -> None:
    zoneinfo.ZoneInfo(value)


@family("date", dt.datetime(2024, 5, 1, 10), dt.datetime(2025, 1, 2))  # noqa: DTZ001
def naive_and_aware(_: Around, value: Any) -> None:
    value < dt.datetime.now(dt.UTC)  # noqa: B015


# Keys, indexes, attributes


@family("lookup", "order-17", "order-4711", "cust_0042", "9f8b7c6d")
def key_of_data(_: Around, value: Any) -> None:
    prices: dict[str, int] = {}
    prices[value]


@family("lookup", 17, 4711)
def key_of_number(_: Around, value: Any) -> None:
    prices: dict[int, int] = {}
    prices[value]


@family("lookup", ("EUR", 17), ("USD", 18))
def key_of_tuple(_: Around, value: Any) -> None:
    prices: dict[Any, int] = {}
    prices[value]


@family("lookup", {}, {"amount": 17})
def key_customer_id(_: Around, value: Any) -> None:
    value["customer_id"]


@family("lookup", {}, {"customer_id": 17})
def key_amount(_: Around, value: Any) -> None:
    value["amount"]


@family("lookup", [1, 2, 3], [])
def list_index(_: Around, value: Any) -> None:
    value[10]


@family("lookup", [1, 2], [3])
def pop_index(_: Around, value: Any) -> None:
    value.pop(10)


@family("lookup", (1,), ())
def tuple_index(_: Around, value: Any) -> None:
    value[10]


@family("lookup", "ann", "order 17")
def not_in_list(_: Around, value: Any) -> None:
    ["bob"].index(value)


class _Status(enum.Enum):
    OPEN = "open"
    PAID = "paid"


@family("lookup", "PAID ", "refunded-2")
def not_a_member(_: Around, value: Any) -> None:
    _Status(value)


@family("attribute", None, None)
def none_has_no_split(_: Around, value: Any) -> None:
    value.split(",")


@family("attribute", None, None)
def none_has_no_get(_: Around, value: Any) -> None:
    value.get("a")


@family("attribute", 17, 42)
def int_has_no_get(_: Around, value: Any) -> None:
    value.get("a")


@family("attribute", "17", "{}")
def str_has_no_get(_: Around, value: Any) -> None:
    value.get("a")


@family("attribute", "no_such_name", "no_such_name")
def module_has_no_attribute(_: Around, value: Any) -> None:
    getattr(json, value)


# Types


@family("type", "17", "abc")
def int_plus_str(_: Around, value: Any) -> None:
    17 + value


@family("type", None, None)
def int_plus_none(_: Around, value: Any) -> None:
    17 + value


@family("type", 17, 4711)
def str_plus_int(_: Around, value: Any) -> None:
    "total: " + value


@family("type", 17, 42)
def int_less_than_str(_: Around, value: Any) -> None:
    value < "a"  # noqa: B015


@family("type", None, None)
def none_is_not_iterable(_: Around, value: Any) -> None:
    list(value)


@family("type", 17, 18)
def int_is_not_iterable(_: Around, value: Any) -> None:
    list(value)


@family("type", None, None)
def none_is_not_subscriptable(_: Around, value: Any) -> None:
    value["a"]


@family("type", [1], [])
def list_is_not_callable(_: Around, value: Any) -> None:
    value()


@family("type", [1], [2, 3])
def unhashable_list(_: Around, value: Any) -> None:
    hash(value)


@family("type", {1: 2}, {})
def unhashable_dict(_: Around, value: Any) -> None:
    hash(value)


def _charge(order: str, amount: int) -> None: ...


def _refund(order: str, amount: int) -> None: ...


@family("call", ("o-1",), ("o-2",))
def charge_missing_amount(_: Around, value: Any) -> None:
    _charge(*value)


@family("call", ("o-1",), ("o-2",))
def refund_missing_amount(_: Around, value: Any) -> None:
    _refund(*value)


@family("call", {"amount": 1}, {"amount": 2})
def charge_missing_order(_: Around, value: Any) -> None:
    _charge(**value)


@family("call", {"currency": "EUR"}, {"currency": "USD"})
def charge_unexpected_currency(_: Around, value: Any) -> None:
    _charge("o-1", 1, **value)


@family("call", {"user": 17}, {"user": 18})
def charge_unexpected_user(_: Around, value: Any) -> None:
    _charge("o-1", 1, **value)


@family("call", (1, 2, 3), (1, 2, 9))
def too_many_to_unpack(_: Around, value: Any) -> None:
    _first, _second = value


@family("call", (1,), (7,))
def not_enough_to_unpack(_: Around, value: Any) -> None:
    _first, _second = value


@family("import", "no_such_module", "no_such_module")
def no_module(_: Around, value: Any) -> None:
    importlib.import_module(value)


@family("import", "another_missing", "another_missing")
def no_other_module(_: Around, value: Any) -> None:
    importlib.import_module(value)


@family("import", "a", "b")
def cannot_import_name(_: Around, value: Any) -> None:
    exec("from json import no_such_name", {"value": value})


@family("import", "a", "b")
def name_is_not_defined(_: Around, value: Any) -> None:
    eval("ordr", {"value": value})


@family("import", "a", "b")
def other_name_is_not_defined(_: Around, value: Any) -> None:
    eval("custmer", {"value": value})


# JSON and other formats


@family("json", "", "<html>", "\n\n  oops")
def json_no_value(_: Around, value: Any) -> None:
    json.loads(value)


@family("json", '{"a": 1} x', "[1, 2]]")
def json_extra_data(_: Around, value: Any) -> None:
    json.loads(value)


@family("json", '{"a" 1}', '{"amount":1,\n "order" 17}')
def json_no_colon(_: Around, value: Any) -> None:
    json.loads(value)


@family("json", '{"a": "b', '["x", "open]')
def json_unterminated(_: Around, value: Any) -> None:
    json.loads(value)


@family("json", "{'a': 1}", "{amount: 2}")
def json_property_name(_: Around, value: Any) -> None:
    json.loads(value)


@family("json", decimal.Decimal("1.5"), decimal.Decimal(17))
def json_decimal(_: Around, value: Any) -> None:
    json.dumps(value)


@family("json", dt.date(2024, 5, 1), dt.date(2025, 6, 2))
def json_date(_: Around, value: Any) -> None:
    json.dumps({"a": value})


@family("format", b"\xff\xfe", b"caf\xe9 au lait")
def utf8(_: Around, value: Any) -> None:
    value.decode("utf-8")


@family("format", b"caf\xe9", b"\xff")
def ascii_bytes(_: Around, value: Any) -> None:
    value.decode("ascii")


@family("format", "caf\xe9", "na\xefve \u20ac")
def ascii_text(_: Around, value: Any) -> None:
    value.encode("ascii")


@family("format", "caf\u20ac", "\u4f60\u597d")
def latin1_text(_: Around, value: Any) -> None:
    value.encode("latin-1")


@family("format", "abc", "YWJjZA")
def base64_padding(_: Around, value: Any) -> None:
    base64.b64decode(value)


@family("format", "17", "not-a-uuid")
def bad_uuid(_: Around, value: Any) -> None:
    uuid.UUID(value)


@family("format", "10.0.0", "300.1.1.1")
def bad_ip(_: Around, value: Any) -> None:
    ipaddress.ip_address(value)


@family("format", "<a><b></a>", "<order>\n <id>17</ed></order>")
def xml_mismatch(_: Around, value: Any) -> None:
    ET.fromstring(value)


@family("format", "<a>", "<order><id>17</id>")
def xml_no_element(_: Around, value: Any) -> None:
    ET.fromstring(value)


@family("format", b"abc", b"\x00\x01\x02")
def zlib_header(_: Around, value: Any) -> None:
    zlib.decompress(value)


@family("format", b"abc", b"ab")
def struct_size(_: Around, value: Any) -> None:
    struct.unpack(">I", value)


@family("format", b"", b"")
def pickle_ran_out(_: Around, value: Any) -> None:
    pickle.loads(value)


@family("format", "a = 1", "b = 2")
def config_no_section(_: Around, value: Any) -> None:
    configparser.ConfigParser().read_string(value)


@family("format", "[mail]\nhost = a", "[mail]\nport = 25")
def config_no_option(_: Around, value: Any) -> None:
    parser = configparser.ConfigParser()
    parser.read_string(value)
    parser.get("mail", "user")


@family("format", "a\x00b", "17\x00")
def csv_null(_: Around, value: Any) -> None:
    csv.field_size_limit(1)
    try:
        list(csv.reader([value * 10]))
    finally:
        csv.field_size_limit(131072)


@family("format", "de_XX", "tlh_QO")
def locale_unsupported(_: Around, value: Any) -> None:
    locale.setlocale(locale.LC_ALL, value)


class _Order(pydantic.BaseModel):
    id: int
    email: str = ""


@family("pydantic", {"id": "abc"}, {"id": "x-17"})
def pydantic_int(_: Around, value: Any) -> None:
    _Order(**value)


@family("pydantic", {}, {"email": "a@example.org"})
def pydantic_missing(_: Around, value: Any) -> None:
    _Order(**value)


@family("pydantic", {"id": 1, "email": 17}, {"id": 2, "email": 99})
def pydantic_string(_: Around, value: Any) -> None:
    _Order(**value)


# The system


@family("os", "orders.csv", "2024/05/report-17.pdf", "it's here")
def no_such_file(around: Around, value: Any) -> None:
    Path(around("tmp_path"), value).read_text()


@family("os", "a", "b.d")
def is_a_directory(around: Around, value: Any) -> None:
    Path(around("tmp_path"), value).mkdir(exist_ok=True)
    Path(around("tmp_path"), value).read_text()


@family("os", "c", "d")
def file_exists(around: Around, value: Any) -> None:
    Path(around("tmp_path"), value).mkdir(exist_ok=True)
    Path(around("tmp_path"), value).mkdir()


@family("os", "e", "f")
def not_a_directory(around: Around, value: Any) -> None:
    Path(around("tmp_path"), value).write_text("")
    Path(around("tmp_path"), value, "x").read_text()


@family("os", "g", "h")
def directory_not_empty(around: Around, value: Any) -> None:
    Path(around("tmp_path"), value, "x").mkdir(parents=True, exist_ok=True)
    Path(around("tmp_path"), value).rmdir()


@family(
    "os-language",
    "No such file or directory",
    "Datei oder Verzeichnis nicht gefunden",
    "Aucun fichier ou dossier de ce type",
)
def no_such_file_in_any_language(_: Around, value: Any) -> None:
    raise FileNotFoundError(2, value, "/srv/orders.csv")


@family("os-language", "Permission denied", "Keine Berechtigung")
def permission_in_any_language(_: Around, value: Any) -> None:
    raise PermissionError(13, value, "/srv/orders.csv")


@family("os", "a" * 300, "b" * 400)
def name_too_long(around: Around, value: Any) -> None:
    Path(around("tmp_path"), value).read_text()


@family("os", 100_000, 99_999)
def bad_descriptor(_: Around, value: Any) -> None:
    os.write(value, b"a")


@family("os", "no-such-command", "another-command-17")
def command_not_found(_: Around, value: Any) -> None:
    subprocess.run([value], check=True)


@family("os", ["ls", "-x"], ["report", "--day", "2024-05-01"])
def exit_status_1(_: Around, value: Any) -> None:
    subprocess.run([sys.executable, "-c", "raise SystemExit(1)", *value], check=True)


@family("os", ["ls", "-x"], ["report", "--day", "2024-05-01"])
def exit_status_3(_: Around, value: Any) -> None:
    subprocess.run([sys.executable, "-c", "raise SystemExit(3)", *value], check=True)


@family("os", 0.01, 0.02)
def command_timed_out(_: Around, value: Any) -> None:
    subprocess.run([sys.executable, "-c", "import signal; signal.pause()"], check=True, timeout=value)


@family("net", 1, 2)
def connection_refused(_: Around, value: Any) -> None:
    with socket.create_connection(("127.0.0.1", free_port()), timeout=value):
        pass


@family("net", "nowhere.invalid", "db-17.invalid")
def unknown_host(_: Around, value: Any) -> None:
    socket.getaddrinfo(value, 80)


@family("net", 0.02, 0.03)
def socket_timed_out(_: Around, value: Any) -> None:
    one, other = socket.socketpair()
    with one, other:
        one.settimeout(value)
        one.recv(1)


@family("net", b"GET / HTTP/1.0\r\n\r\n", b"HEAD /orders/17 HTTP/1.0\r\n\r\n")
def tls_wrong_version(_: Around, value: Any) -> None:
    with (
        servers.served(servers.status(200)) as port,
        socket.create_connection(("127.0.0.1", port)) as plain,
    ):
        plain.sendall(value)
        ssl.create_default_context().wrap_socket(plain, server_hostname="localhost")


# HTTP

_PATHS = ("orders/17", "customers/4711?expand=all", "")


@contextlib.contextmanager
def _answering(code: int) -> Iterator[str]:
    with servers.served(servers.status(code)) as port:
        yield f"http://127.0.0.1:{port}/"


@family("requests", *_PATHS)
def requests_404(_: Around, value: Any) -> None:
    with _answering(404) as url:
        requests.get(url + value, timeout=5).raise_for_status()


@family("requests", *_PATHS)
def requests_500(_: Around, value: Any) -> None:
    with _answering(500) as url:
        requests.get(url + value, timeout=5).raise_for_status()


@family("requests", *_PATHS)
def requests_503(_: Around, value: Any) -> None:
    with _answering(503) as url:
        requests.get(url + value, timeout=5).raise_for_status()


@family("requests", *_PATHS)
def requests_refused(_: Around, value: Any) -> None:
    requests.get(f"http://127.0.0.1:{free_port()}/{value}", timeout=5)


@family("requests", 0.05, 0.07)
def requests_read_timeout(_: Around, value: Any) -> None:
    with servers.served(servers.says_nothing) as port:
        requests.get(f"http://127.0.0.1:{port}/", timeout=value)


@family("requests", "a.invalid", "b-17.invalid")
def requests_unknown_host(_: Around, value: Any) -> None:
    requests.get(f"http://{value}/", timeout=5)


@family("requests", *_PATHS)
def requests_reset(_: Around, value: Any) -> None:
    with servers.served(servers.resets) as port:
        requests.get(f"http://127.0.0.1:{port}/{value}", timeout=5)


@family("httpx", *_PATHS)
def httpx_404(_: Around, value: Any) -> None:
    with _answering(404) as url:
        httpx.get(url + value).raise_for_status()


@family("httpx", *_PATHS)
def httpx_503(_: Around, value: Any) -> None:
    with _answering(503) as url:
        httpx.get(url + value).raise_for_status()


@family("httpx", *_PATHS)
def httpx_refused(_: Around, value: Any) -> None:
    httpx.get(f"http://127.0.0.1:{free_port()}/{value}")


@family("urllib", *_PATHS)
def urllib_404(_: Around, value: Any) -> None:
    with _answering(404) as url:
        urllib.request.urlopen(url + value)


@family("urllib", *_PATHS)
def urllib_502(_: Around, value: Any) -> None:
    with _answering(502) as url:
        urllib.request.urlopen(url + value)


@family("urllib", b"garbage 17\r\n\r\n", b"nonsense\r\n\r\n")
def bad_status_line(_: Around, value: Any) -> None:
    with servers.served(servers.answers(value)) as port:
        connection = http.client.HTTPConnection("127.0.0.1", port)
        connection.request("GET", "/")
        connection.getresponse()


@family("urllib", b"ab", b"abcdef")
def incomplete_read(_: Around, value: Any) -> None:
    answer = b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n" + value
    with servers.served(servers.answers(answer)) as port:
        urllib.request.urlopen(f"http://127.0.0.1:{port}/").read()


# Databases


def _sqlite(statement: str, *values: Any) -> None:
    engine = sqlalchemy.create_engine("sqlite://")
    try:
        with engine.connect() as connection:
            connection.execute(text("CREATE TABLE orders (id INTEGER PRIMARY KEY, email TEXT UNIQUE NOT NULL)"))
            connection.execute(text("INSERT INTO orders VALUES (1, 'a@example.org')"))
            connection.execute(text(statement), *values)
    finally:
        engine.dispose()


@family("sqlite", "x@example.org", "y@example.org")
def sqlite_duplicate_id(_: Around, value: Any) -> None:
    _sqlite("INSERT INTO orders VALUES (1, :email)", {"email": value})


@family("sqlite", 2, 3)
def sqlite_duplicate_email(_: Around, value: Any) -> None:
    _sqlite("INSERT INTO orders VALUES (:id, 'a@example.org')", {"id": value})


@family("sqlite", 2, 3)
def sqlite_not_null(_: Around, value: Any) -> None:
    _sqlite("INSERT INTO orders VALUES (:id, NULL)", {"id": value})


@family("sqlite", 2, 3)
def sqlite_no_table(_: Around, value: Any) -> None:
    _sqlite("SELECT * FROM customers WHERE id = :id", {"id": value})


@family("sqlite", 2, 3)
def sqlite_no_other_table(_: Around, value: Any) -> None:
    _sqlite("SELECT * FROM invoices WHERE id = :id", {"id": value})


@family("sqlite", 2, 3)
def sqlite_no_column(_: Around, value: Any) -> None:
    _sqlite("SELECT nme FROM orders WHERE id = :id", {"id": value})


@family("sqlite", 2, 3)
def sqlite_syntax(_: Around, value: Any) -> None:
    _sqlite("SELEC * FROM orders WHERE id = :id", {"id": value})


@family("sqlite", 2, "abc")
def sqlite_wrong_count(_: Around, value: Any) -> None:
    _sqlite("INSERT INTO orders VALUES (:id)", {"id": value})


def _postgresql(around: Around, statement: str, values: Any = None) -> None:
    address = around("postgresql_url").replace("postgresql+psycopg", "postgresql")
    with psycopg.connect(address) as connection:
        connection.execute("CREATE TABLE customers (id int PRIMARY KEY)")
        connection.execute(
            "CREATE TABLE orders (id int PRIMARY KEY, email varchar(20) UNIQUE NOT NULL, amount int"
            " CHECK (amount > 0), customer int REFERENCES customers)"
        )
        connection.execute("INSERT INTO orders VALUES (1, 'a@example.org', 1, NULL)")
        connection.execute(statement, values)
        connection.commit()


@family("postgresql", "x@example.org", "y@example.org")
def postgresql_duplicate_id(around: Around, value: Any) -> None:
    _postgresql(around, "INSERT INTO orders VALUES (1, %s, 1, NULL)", [value])


@family("postgresql", 17, 18)
def postgresql_duplicate_email(around: Around, value: Any) -> None:
    _postgresql(around, "INSERT INTO orders VALUES (%s, 'a@example.org', 1, NULL)", [value])


@family("postgresql", 17, 18)
def postgresql_not_null(around: Around, value: Any) -> None:
    _postgresql(around, "INSERT INTO orders VALUES (%s, NULL, 1, NULL)", [value])


@family("postgresql", -17, 0)
def postgresql_check(around: Around, value: Any) -> None:
    _postgresql(around, "INSERT INTO orders VALUES (2, 'b', %s, NULL)", [value])


@family("postgresql", 17, 18)
def postgresql_foreign_key(around: Around, value: Any) -> None:
    _postgresql(around, "INSERT INTO orders VALUES (2, 'b', 1, %s)", [value])


@family("postgresql", "b" * 30, "c@example.org" * 4)
def postgresql_too_long(around: Around, value: Any) -> None:
    _postgresql(around, "INSERT INTO orders VALUES (2, %s, 1, NULL)", [value])


@family("postgresql", 17, 18)
def postgresql_no_table(around: Around, value: Any) -> None:
    _postgresql(around, "SELECT * FROM invoices WHERE id = %s", [value])


@family("postgresql", 17, 18)
def postgresql_no_column(around: Around, value: Any) -> None:
    _postgresql(around, "SELECT nme FROM orders WHERE id = %s", [value])


@family("postgresql", 17, 18)
def postgresql_no_other_column(around: Around, value: Any) -> None:
    _postgresql(around, "SELECT totl FROM orders WHERE id = %s", [value])


@family("postgresql", "abc", "12,5")
def postgresql_input_syntax(around: Around, value: Any) -> None:
    _postgresql(around, f"SELECT '{value}'::int")


@family("postgresql", "abc", "on monday")
def postgresql_date_syntax(around: Around, value: Any) -> None:
    _postgresql(around, f"SELECT '{value}'::date")


@family("postgresql", 17, 18)
def postgresql_division(around: Around, value: Any) -> None:
    _postgresql(around, "SELECT %s / 0", [value])


@family("postgresql", 1, 2)
def postgresql_refused(_: Around, value: Any) -> None:
    psycopg.connect(f"host=127.0.0.1 port={free_port()} user=app{value}")


@family("postgresql", 1, 2)
def postgresql_no_database(around: Around, value: Any) -> None:
    address = around("postgresql_url").replace("postgresql+psycopg", "postgresql")
    psycopg.connect(f"{address.rpartition('/')[0]}/shop", connect_timeout=value * 10)


@family("postgresql", "doppelter Schl\xfcsselwert verletzt Unique-Constraint \xbborders_pkey\xab", None)
def postgresql_german(_: Around, value: Any) -> None:
    detail = "\nDETAIL:  Schl\xfcssel \xbb(id)=(%s)\xab existiert bereits."
    said = "doppelter Schl\xfcsselwert verletzt Unique-Constraint \xbborders_pkey\xab"
    raise psycopg.errors.UniqueViolation((value or said) + detail % (17 if value else 4711))


@family("postgresql", 17, 18)
def postgresql_german_other(_: Around, value: Any) -> None:
    said = "doppelter Schl\xfcsselwert verletzt Unique-Constraint \xbborders_email_key\xab"
    raise psycopg.errors.UniqueViolation(f"{said}\nDETAIL:  Schl\xfcssel \xbb(id)=({value})\xab existiert bereits.")


# Redis and RabbitMQ


@contextlib.contextmanager
def _redis(around: Around, **options: Any) -> Iterator[redis.Redis]:
    client = redis.Redis.from_url(around("redis_url"), retry=None, **options)
    try:
        yield client
    finally:
        client.close()


@family("redis", "a", "lock:17")
def redis_wrong_type(around: Around, value: Any) -> None:
    with _redis(around) as client:
        client.set(value, 1)
        client.lpush(value, 1)


@family("redis", "abc", "12,5")
def redis_no_integer(around: Around, value: Any) -> None:
    with _redis(around) as client:
        client.set("a", value)
        client.incr("a")


@family("redis", "NOSUCH", "NOSUCH")
def redis_unknown_command(around: Around, value: Any) -> None:
    with _redis(around) as client:
        client.execute_command(value, "a", "b")  # type: ignore[no-untyped-call]


@family("redis", 1, 2)
def redis_refused(_: Around, value: Any) -> None:
    redis.Redis.from_url(f"redis://127.0.0.1:{free_port()}/{value}", retry=None).ping()


@family("redis", "a", "b")
def redis_script(around: Around, value: Any) -> None:
    with _redis(around) as client:
        client.evalsha("f" * 40, 1, value)


@family("amqp", "orders", "invoices-17")
def rabbitmq_refused(_: Around, value: Any) -> None:
    with kombu.Connection(f"amqp://127.0.0.1:{free_port()}/{value}") as connection:
        connection.ensure_connection(max_retries=1, interval_start=0)


@family("amqp", 1, 2)
def rabbitmq_no_queue(around: Around, value: Any) -> None:
    with kombu.Connection(around("vhost").url, heartbeat=value * 60) as connection:
        connection.default_channel.queue_declare("payments", passive=True)


@family("amqp", 1, 2)
def rabbitmq_no_exchange(around: Around, value: Any) -> None:
    with kombu.Connection(around("vhost").url, heartbeat=value * 60) as connection:
        connection.default_channel.exchange_declare("work", "topic", passive=True)


@family("amqp", 1, 2)
def rabbitmq_precondition(around: Around, value: Any) -> None:
    with kombu.Connection(around("vhost").url, heartbeat=value * 60) as connection:
        channel = connection.default_channel
        channel.queue_declare("a", durable=True, auto_delete=False)
        channel.queue_declare("a", durable=False, auto_delete=False)


# What applications say themselves


class GatewayError(Exception):
    """An error as applications have them."""


@family("application", 17, 4711)
def says_number(_: Around, value: Any) -> None:
    raise GatewayError(f"Order {value} was not found")


@family("application", "ORD-2024-00017", "ORD-2025-04711")
def says_customer(_: Around, value: Any) -> None:
    raise GatewayError(f"Customer of order {value} was not found")


@family("application", "ann@example.org", "bob.lee@mail.example.com")
def says_mail(_: Around, value: Any) -> None:
    raise GatewayError(f"Could not send the confirmation to {value}: mailbox full")


@family("application", "7f9c24e8-3b12-4fef-91e0-56a2d5a4c8d1", "00000000-0000-4000-8000-000000000017")
def says_uuid(_: Around, value: Any) -> None:
    raise GatewayError(f"Payment {value} was declined")


@family(
    "application", dt.datetime(2024, 5, 1, 10, 0, tzinfo=dt.UTC), dt.datetime(2025, 11, 30, 1, 2, 3, 4, tzinfo=dt.UTC)
)
def says_date(_: Around, value: Any) -> None:
    raise GatewayError(f"Token expired at {value}")


@family("application", dt.datetime(2024, 5, 1, 10, 0, tzinfo=dt.UTC), dt.datetime(2025, 11, 30, tzinfo=dt.UTC))
def says_date_in_words(_: Around, value: Any) -> None:
    raise GatewayError(f"The quota is used up until {value:%d %B %Y}")


@family("application", "12.5 MB", "900 kB", "3 GB")
def says_size(_: Around, value: Any) -> None:
    raise GatewayError(f"The upload has {value}, which is too large")


@family("application", 1.5, 30)
def says_seconds(_: Around, value: Any) -> None:
    raise TimeoutError(f"No answer within {value}s")


@family("application", "1,234.50", "1.234,50", "99.00")
def says_amount(_: Around, value: Any) -> None:
    raise GatewayError(f"Amount {value} is over the limit")


@family("application", GatewayError(), GatewayError())
def says_object(_: Around, value: Any) -> None:
    raise GatewayError(f"Cannot handle {object.__repr__(value)}")


@family("application", [1, 2, 3], [17])
def says_list(_: Around, value: Any) -> None:
    raise GatewayError(f"Rows {value} could not be stored")


@family("application", {"id": 17, "state": "open"}, {"id": 18, "state": "paid", "tags": ["a"]})
def says_mapping(_: Around, value: Any) -> None:
    raise GatewayError(f"The payload {value} has no amount")


@family("application", "10.0.0.17:8443", "192.168.1.4:443", "[2001:db8::17]:443")
def says_address(_: Around, value: Any) -> None:
    raise ConnectionError(f"No route to {value}")


@family("application", "4f3c2a1b9d", "a1b2c3d4e5")
def says_hash(_: Around, value: Any) -> None:
    raise GatewayError(f"Commit {value} is not on the branch")


@family("application", "https://pay.example/charge/17", "https://pay.example/charge/18?retry=1")
def says_url(_: Around, value: Any) -> None:
    raise GatewayError(f"POST {value} gave no answer")


@family("application", 17, 18)
def says_code_1001(_: Around, value: Any) -> None:
    raise GatewayError(f"Gateway error code 1001 for order {value}")


@family("application", 17, 18)
def says_code_1002(_: Around, value: Any) -> None:
    raise GatewayError(f"Gateway error code 1002 for order {value}")


@family("application", 17, 18)
def says_status_422(_: Around, value: Any) -> None:
    raise GatewayError(f"Charge of order {value} failed with status 422")


@family("application", 17, 18)
def says_status_429(_: Around, value: Any) -> None:
    raise GatewayError(f"Charge of order {value} failed with status 429")


@family("application", "Ann O'Neill", 'Bob "Bobby" Lee')
def says_name_quoted(_: Around, value: Any) -> None:
    raise GatewayError(f"No customer named {value!r} in this region")


@family("application", "/var/data/17/in.csv", "/var/data/2024-05-01/in.csv", "C:\\data\\in.csv")
def says_path(_: Around, value: Any) -> None:
    raise GatewayError(f"Import of {value} stopped")
