"""The reference: which failures of the usual libraries are transient, as data (pure).

A task opts in with ``transient=reference``, extends it with ``transient=(reference, MyError)``, or puts rows of its
own first: ``replace(reference, rows=(Row(...), *reference.rows))``. What no row speaks of is not transient.
``docs/reference/transient-failures.md`` is made from this table.
"""

from __future__ import annotations

from collections.abc import Iterator

from tasks.failure_judgement import Judgement, Reference, Row, Verdict
from tasks.failure_signals import Signal

TRANSIENT, PERMANENT, AS_CAUSE = Verdict.TRANSIENT, Verdict.PERMANENT, Verdict.AS_CAUSE

TRANSIENT_STATUSES = (408, 425, 429, 500, 502, 503, 504)

_HTTP = ("requests.exceptions.HTTPError", "httpx.HTTPStatusError", "urllib.error.HTTPError")

HTTP_ROWS = (
    Row(
        library="HTTP",
        exceptions=(*_HTTP, "builtins.Exception"),
        verdict=TRANSIENT,
        signal=Signal.HTTP_STATUS,
        values=TRANSIENT_STATUSES,
        because="the server is overloaded, restarting or asks to come back",
    ),
    Row(
        library="HTTP",
        exceptions=(*_HTTP, "builtins.Exception"),
        verdict=PERMANENT,
        signal=Signal.HTTP_STATUS,
        values=range(300, 500),
        because="the same request gets the same answer",
    ),
    Row(
        library="requests",
        exceptions=("requests.exceptions.SSLError",),
        verdict=AS_CAUSE,
        signal=Signal.CAUSE,
        values=("ssl.SSLError",),
        because="TLS decides",
    ),
    Row(
        library="requests",
        exceptions=(
            "requests.exceptions.ConnectionError",
            "requests.exceptions.Timeout",
            "requests.exceptions.ChunkedEncodingError",
        ),
        verdict=TRANSIENT,
        because="the network or the server was away",
    ),
    Row(
        library="requests",
        exceptions=(
            "requests.exceptions.InvalidURL",
            "requests.exceptions.InvalidSchema",
            "requests.exceptions.MissingSchema",
            "requests.exceptions.InvalidHeader",
            "requests.exceptions.InvalidJSONError",
            "requests.exceptions.TooManyRedirects",
            "requests.exceptions.ContentDecodingError",
        ),
        verdict=PERMANENT,
        because="the request or the answer is wrong",
    ),
    Row(
        library="httpx",
        exceptions=("httpx.ConnectError", "httpx.ReadError", "httpx.WriteError"),
        verdict=AS_CAUSE,
        signal=Signal.CAUSE,
        values=("ssl.SSLError",),
        because="TLS decides: httpx has no class for it",
    ),
    Row(
        library="httpx",
        exceptions=(
            "httpx.TimeoutException",
            "httpx.NetworkError",
            "httpx.RemoteProtocolError",
            "httpx.ProxyError",
        ),
        verdict=TRANSIENT,
        because="the network or the server was away",
    ),
    Row(
        library="httpx",
        exceptions=(
            "httpx.InvalidURL",
            "httpx.UnsupportedProtocol",
            "httpx.LocalProtocolError",
            "httpx.TooManyRedirects",
            "httpx.DecodingError",
        ),
        verdict=PERMANENT,
        because="the request or the answer is wrong",
    ),
    Row(
        library="urllib",
        exceptions=("urllib.error.URLError",),
        verdict=AS_CAUSE,
        signal=Signal.CAUSE,
        because="its reason decides",
    ),
    Row(
        library="urllib",
        exceptions=("urllib.error.URLError", "http.client.InvalidURL"),
        verdict=PERMANENT,
        because="without a reason it is the address that is wrong",
    ),
    Row(
        library="urllib",
        exceptions=("http.client.IncompleteRead", "http.client.BadStatusLine"),
        verdict=TRANSIENT,
        because="the server broke off",
    ),
    Row(
        library="urllib3",
        exceptions=("urllib3.exceptions.MaxRetryError", "urllib3.exceptions.SSLError"),
        verdict=AS_CAUSE,
        signal=Signal.CAUSE,
        because="its reason decides",
    ),
    Row(
        library="urllib3",
        exceptions=(
            "urllib3.exceptions.TimeoutError",
            "urllib3.exceptions.ProtocolError",
            "urllib3.exceptions.NewConnectionError",
        ),
        verdict=TRANSIENT,
        because="the network or the server was away",
    ),
    Row(
        library="urllib3",
        exceptions=("urllib3.exceptions.LocationValueError", "urllib3.exceptions.DecodeError"),
        verdict=PERMANENT,
        because="the request or the answer is wrong",
    ),
)

DATABASE_ROWS = (
    Row(
        library="SQLAlchemy",
        exceptions=("sqlalchemy.exc.DBAPIError",),
        verdict=TRANSIENT,
        signal=Signal.INVALIDATED,
        values=(True,),
        because="the connection was lost and is replaced",
    ),
    Row(
        library="SQLAlchemy",
        exceptions=("sqlalchemy.exc.StatementError",),
        verdict=AS_CAUSE,
        signal=Signal.CAUSE,
        because="the driver's error decides",
    ),
    Row(
        library="SQLAlchemy",
        exceptions=("sqlalchemy.exc.TimeoutError",),
        verdict=TRANSIENT,
        because="the pool was exhausted",
    ),
    Row(
        library="Django",
        exceptions=("django.db.utils.OperationalError", "django.db.utils.InterfaceError"),
        verdict=AS_CAUSE,
        signal=Signal.CAUSE,
        because="the driver's error decides",
    ),
    Row(
        library="any driver",
        exceptions=("PEP 249 IntegrityError", "PEP 249 DataError", "PEP 249 ProgrammingError"),
        verdict=PERMANENT,
        because="the same statement breaks the same rule",
    ),
    Row(
        library="PostgreSQL",
        exceptions=("PEP 249 OperationalError", "PEP 249 Error"),
        verdict=TRANSIENT,
        signal=Signal.SQLSTATE,
        values=("40001", "40P01", "55P03", "57P01", "57P02", "57P03", "08", "53"),
        because="serialization, deadlock, lock, shutdown, lost connection, or no resources",
    ),
    Row(
        library="PostgreSQL",
        exceptions=("PEP 249 OperationalError", "PEP 249 Error"),
        verdict=PERMANENT,
        signal=Signal.SQLSTATE,
        values=("0A", "22", "23", "28", "3D", "42"),
        because="unsupported, data, integrity, login, no such database, or syntax and rights",
    ),
    Row(
        library="psycopg",
        exceptions=("psycopg.OperationalError", "psycopg2.OperationalError"),
        verdict=TRANSIENT,
        signal=Signal.SQLSTATE,
        values=("none",),
        because="no connection; a wrong password or database cannot be told from it",
    ),
    Row(
        library="SQLite",
        exceptions=("sqlite3.OperationalError",),
        verdict=TRANSIENT,
        signal=Signal.SQLITE_CODE,
        values=("SQLITE_BUSY", "SQLITE_LOCKED"),
        because="another connection writes: the database is locked",
    ),
    Row(
        library="SQLite",
        exceptions=("sqlite3.OperationalError",),
        verdict=PERMANENT,
        because="a table is missing, the file cannot be opened, or the statement is wrong",
    ),
    Row(
        library="MySQL",
        exceptions=("PEP 249 OperationalError", "PEP 249 InternalError"),
        verdict=TRANSIENT,
        signal=Signal.MYSQL_NUMBER,
        values=(1040, 1205, 1213, 2002, 2003, 2006, 2013),
        because="too many connections, lock wait, deadlock, server away, or lost connection",
    ),
)

BROKER_ROWS = (
    Row(
        library="redis",
        exceptions=(
            "redis.exceptions.AuthenticationError",
            "redis.exceptions.AuthorizationError",
            "redis.exceptions.ResponseError",
            "redis.exceptions.DataError",
        ),
        verdict=PERMANENT,
        because="the command, its data or the login is wrong",
    ),
    Row(
        library="redis",
        exceptions=(
            "redis.exceptions.ConnectionError",
            "redis.exceptions.TimeoutError",
            "redis.exceptions.ReadOnlyError",
            "redis.exceptions.OutOfMemoryError",
            "redis.exceptions.ClusterDownError",
            "redis.exceptions.TryAgainError",
            "redis.exceptions.WatchError",
        ),
        verdict=TRANSIENT,
        because="the server was away, loading, full or failing over, or another client was first",
    ),
    Row(
        library="kombu",
        exceptions=("kombu.exceptions.OperationalError",),
        verdict=AS_CAUSE,
        signal=Signal.CAUSE,
        because="the transport's error decides",
    ),
    Row(
        library="kombu",
        exceptions=("kombu.exceptions.OperationalError", "kombu.exceptions.LimitExceeded"),
        verdict=TRANSIENT,
        because="the broker was away, or the pool was exhausted",
    ),
    Row(
        library="kombu",
        exceptions=("kombu.exceptions.SerializationError", "kombu.exceptions.SerializerNotInstalled"),
        verdict=PERMANENT,
        because="the message cannot be written or read",
    ),
    Row(
        library="amqp",
        exceptions=(
            "amqp.exceptions.RecoverableConnectionError",
            "amqp.exceptions.RecoverableChannelError",
            "amqp.exceptions.MessageNacked",
        ),
        verdict=TRANSIENT,
        because="the broker closed the connection, is blocked, or its queue is full",
    ),
    Row(
        library="amqp",
        exceptions=(
            "amqp.exceptions.IrrecoverableConnectionError",
            "amqp.exceptions.IrrecoverableChannelError",
            "amqp.exceptions.ContentTooLarge",
        ),
        verdict=PERMANENT,
        because="refused, not found, or a precondition failed",
    ),
)

SYSTEM_ROWS = (
    Row(
        library="TLS",
        exceptions=("ssl.SSLEOFError", "ssl.SSLZeroReturnError", "ssl.SSLSyscallError"),
        verdict=TRANSIENT,
        because="the other side went away",
    ),
    Row(
        library="TLS",
        exceptions=("ssl.SSLError",),
        verdict=PERMANENT,
        because="a certificate, a version or a cipher does not fit",
    ),
    Row(
        library="resolver",
        exceptions=("socket.gaierror",),
        verdict=TRANSIENT,
        signal=Signal.ERRNO,
        values=("EAI_AGAIN", "EAI_FAIL", "EAI_NODATA", "EAI_NONAME"),
        because="an outage of the resolver says no such host, too",
    ),
    Row(
        library="system",
        exceptions=("builtins.ConnectionError", "builtins.TimeoutError"),
        verdict=TRANSIENT,
        because="the network or the other side was away",
    ),
    Row(
        library="system",
        exceptions=("builtins.OSError",),
        verdict=TRANSIENT,
        signal=Signal.ERRNO,
        values=(
            "EADDRNOTAVAIL",
            "EAGAIN",
            "EBUSY",
            "EHOSTDOWN",
            "EHOSTUNREACH",
            "EINTR",
            "EMFILE",
            "ENETDOWN",
            "ENETRESET",
            "ENETUNREACH",
            "ENFILE",
            "ENOBUFS",
            "ENOMEM",
            "ESTALE",
        ),
        because="the network was away, or the machine was short of something for a while",
    ),
    Row(
        library="system",
        exceptions=("builtins.OSError",),
        verdict=PERMANENT,
        signal=Signal.ERRNO,
        values=(
            "EACCES",
            "EBADF",
            "EDQUOT",
            "EEXIST",
            "EINVAL",
            "EISDIR",
            "ELOOP",
            "ENAMETOOLONG",
            "ENOENT",
            "ENOSPC",
            "ENOTDIR",
            "ENOTEMPTY",
            "EPERM",
            "EROFS",
        ),
        because="the file or the right is missing, or somebody has to make room",
    ),
    Row(
        library="SMTP",
        exceptions=("smtplib.SMTPResponseException",),
        verdict=TRANSIENT,
        signal=Signal.SMTP_CODE,
        values=range(400, 500),
        because="the mail server asks to come back",
    ),
    Row(
        library="SMTP",
        exceptions=("smtplib.SMTPResponseException",),
        verdict=PERMANENT,
        signal=Signal.SMTP_CODE,
        values=range(500, 600),
        because="the mail server refuses",
    ),
    Row(
        library="SMTP",
        exceptions=("smtplib.SMTPServerDisconnected",),
        verdict=TRANSIENT,
        because="the mail server was away",
    ),
)

AWS_ROWS = (
    Row(
        library="AWS",
        exceptions=("builtins.Exception",),
        verdict=TRANSIENT,
        signal=Signal.AWS_CODE,
        values=(
            "BandwidthLimitExceeded",
            "EC2ThrottledException",
            "InternalError",
            "InternalFailure",
            "InternalServerError",
            "LimitExceededException",
            "PriorRequestNotComplete",
            "ProvisionedThroughputExceededException",
            "RequestLimitExceeded",
            "RequestThrottled",
            "RequestThrottledException",
            "RequestTimeout",
            "RequestTimeoutException",
            "ServiceUnavailable",
            "SlowDown",
            "ThrottledException",
            "Throttling",
            "ThrottlingException",
            "TooManyRequestsException",
            "TransactionInProgressException",
        ),
        because="throttled, or the service is in trouble; many of these come with HTTP status 400",
    ),
)

reference = Reference(rows=(*AWS_ROWS, *HTTP_ROWS, *DATABASE_ROWS, *BROKER_ROWS, *SYSTEM_ROWS))
"""What a task opts in with: ``transient=reference``."""


def markdown(table: Reference = reference) -> str:
    """The table as it stands in the docs."""
    return "\n".join(_markdown_lines(table)) + "\n"


def _markdown_lines(table: Reference) -> Iterator[str]:
    yield "| library | exception | when | verdict | because |"
    yield "|---|---|---|---|---|"
    for row in table.rows:
        exceptions = "<br>".join(f"`{name}`" for name in row.exceptions)
        yield f"| {row.library} | {exceptions} | {row.condition} | {row.verdict} | {row.because} |"


__all__ = ["Judgement", "Reference", "Row", "Verdict", "markdown", "reference"]
