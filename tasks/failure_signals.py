"""What can be read off an exception without importing the library that raised it (pure).

Attributes are those that the libraries document: ``response.status_code`` of requests and httpx, ``code`` of
urllib, ``sqlstate`` of psycopg, ``orig`` of SQLAlchemy, ``response["Error"]["Code"]`` of botocore.
"""

from __future__ import annotations

import errno
import math
import socket
import urllib.error
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from enum import StrEnum
from typing import Any

MAX_CAUSES = 20
"""How many exceptions of a chain are looked at: chains can be cycles."""

DBAPI_NAMES = frozenset(
    {
        "Error",
        "InterfaceError",
        "DatabaseError",
        "DataError",
        "OperationalError",
        "IntegrityError",
        "InternalError",
        "ProgrammingError",
        "NotSupportedError",
    }
)
"""The exceptions that every driver has by PEP 249."""

ABSENT = "none"
"""The candidate of an error that could have a SQLSTATE and has none."""


class Signal(StrEnum):
    """What one row of the reference looks at, in words for people."""

    HTTP_STATUS = "HTTP status"
    SQLSTATE = "SQLSTATE"
    SQLITE_CODE = "SQLite code"
    MYSQL_NUMBER = "MySQL number"
    INVALIDATED = "connection_invalidated"
    ERRNO = "errno"
    AMQP_CODE = "AMQP code"
    SMTP_CODE = "SMTP code"
    AWS_CODE = "AWS code"
    CAUSE = "cause"


def candidates(error: BaseException, signal: Signal) -> tuple[object, ...]:
    """What ``error`` says for ``signal``, the exact word first; empty where it says nothing."""
    return _READERS[signal](error)


def http_status(error: BaseException) -> int | None:
    """The status of the HTTP response that an exception carries."""
    status: object = _attribute(error, "response", "status_code")
    if isinstance(error, urllib.error.HTTPError):
        status = error.code
    if status is None:
        status = _item(_attribute(error, "response"), "ResponseMetadata", "HTTPStatusCode")
    return int(status) if isinstance(status, int) else None


def retry_after_seconds(error: BaseException, now: datetime) -> float | None:
    """The response's ``Retry-After``, given in seconds or as a date, counted from ``now``; None without one."""
    headers = _attribute(error, "response", "headers")
    if isinstance(error, urllib.error.HTTPError):
        headers = error.headers
    if headers is None:
        headers = _item(_attribute(error, "response"), "ResponseMetadata", "HTTPHeaders")
    value = _call(headers, "get", "Retry-After") or _call(headers, "get", "retry-after")
    if not isinstance(value, str):
        return None
    try:
        seconds = float(value)
    except ValueError:
        try:
            date = parsedate_to_datetime(value)
        except (ValueError, TypeError, IndexError, OverflowError):
            return None
        seconds = ((date if date.tzinfo else date.replace(tzinfo=UTC)) - now).total_seconds()
    return max(0.0, seconds) if math.isfinite(seconds) else None


def qualified_name(kind: type) -> str:
    """Module and name of a class, such as ``requests.exceptions.HTTPError``."""
    return f"{_attribute(kind, '__module__')}.{_attribute(kind, '__qualname__')}"


def names(error: BaseException) -> Iterator[str]:
    """What an exception is called, the most specific class first; a driver's also by its name in PEP 249."""
    lineage = type(error).__mro__
    roots = {_package(kind) for kind in lineage if _attribute(kind, "__name__") == "Error"}
    for kind in lineage:
        yield qualified_name(kind)
        last = str(_attribute(kind, "__name__"))
        if last in DBAPI_NAMES and _package(kind) in roots:
            yield f"PEP 249 {last}"


def causes(error: BaseException) -> Iterator[BaseException]:
    """The exceptions inside of an exception, nearest first: its cause, ``orig``, ``reason`` and arguments."""
    waiting, seen = [error], {id(error)}
    while waiting and len(seen) <= MAX_CAUSES:
        outer = waiting.pop(0)
        inner = [outer.__cause__, _attribute(outer, "orig"), _attribute(outer, "reason"), *outer.args[:3]]
        for found in inner:
            if isinstance(found, BaseException) and id(found) not in seen:
                seen.add(id(found))
                waiting.append(found)
                yield found


def _sqlstate(error: BaseException) -> tuple[object, ...]:
    code = _attribute(error, "sqlstate") or _attribute(error, "pgcode")
    # The first two characters are the class: 23 for every broken constraint.
    return (code, code[:2]) if isinstance(code, str) else (ABSENT,)


def _sqlite_code(error: BaseException) -> tuple[object, ...]:
    name = _attribute(error, "sqlite_errorname")
    if isinstance(name, str):  # SQLITE_BUSY_SNAPSHOT is a SQLITE_BUSY
        return (name, "_".join(name.split("_")[:2]))
    text = str(error.args[0]) if error.args and isinstance(error.args[0], str) else ""
    return ("SQLITE_BUSY",) if "is locked" in text else ()


def _mysql_number(error: BaseException) -> tuple[object, ...]:
    number = error.args[0] if error.args else None
    return (number,) if isinstance(number, int) else ()


def _errno(error: BaseException) -> tuple[object, ...]:
    number = _attribute(error, "errno")
    if not isinstance(number, int):
        return ()
    known = _RESOLVER_NAMES if isinstance(error, socket.gaierror) else errno.errorcode
    return (known[number],) if number in known else ()


def _aws_code(error: BaseException) -> tuple[object, ...]:
    code = _item(_attribute(error, "response"), "Error", "Code")
    return (code,) if isinstance(code, str) else ()


def _number(*path: str) -> Callable[[BaseException], tuple[object, ...]]:
    def read(error: BaseException) -> tuple[object, ...]:
        value = _attribute(error, *path)
        return (value,) if isinstance(value, int) else ()

    return read


def _http_status(error: BaseException) -> tuple[object, ...]:
    status = http_status(error)
    return () if status is None else (status,)


def _cause_names(error: BaseException) -> tuple[object, ...]:
    return tuple(name for inner in causes(error) for name in names(inner))


_READERS: dict[Signal, Callable[[BaseException], tuple[object, ...]]] = {
    Signal.HTTP_STATUS: _http_status,
    Signal.SQLSTATE: _sqlstate,
    Signal.SQLITE_CODE: _sqlite_code,
    Signal.MYSQL_NUMBER: _mysql_number,
    Signal.INVALIDATED: _number("connection_invalidated"),
    Signal.ERRNO: _errno,
    Signal.AMQP_CODE: _number("reply_code"),
    Signal.SMTP_CODE: _number("smtp_code"),
    Signal.AWS_CODE: _aws_code,
    Signal.CAUSE: _cause_names,
}

_RESOLVER_NAMES = {
    number: name for name, number in vars(socket).items() if name.startswith("EAI_") and isinstance(number, int)
}


def _package(kind: type) -> str:
    return str(_attribute(kind, "__module__")).partition(".")[0]


def _attribute(target: object, *path: str) -> Any:
    """Follow attributes; None where one is missing, or is a property of somebody's that raises."""
    for name in path:
        try:
            target = getattr(target, name, None)
        except Exception:  # foreign code may raise anything, and a failure must be judged
            return None
    return target


def _item(target: object, *path: str) -> Any:
    for name in path:
        target = target.get(name) if isinstance(target, Mapping) else None
    return target


def _call(target: object, method: str, argument: str) -> Any:
    try:
        return getattr(target, method)(argument)
    except Exception:  # as above
        return None
