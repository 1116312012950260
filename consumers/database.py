"""The database of the dead letters: engines, column types, and the schema's version."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.exc import ArgumentError, DBAPIError, NoSuchModuleError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError

from broker_topology.errors import ConfigurationError, DeadLetterOfficeError
from consumers.keyring import NO_KEYS, Keyring

if TYPE_CHECKING:
    from alembic.config import Config

metadata = sa.MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "fk": "fk_%(table_name)s_%(column_0_N_name)s",
        "pk": "pk_%(table_name)s",
    }
)

_MIGRATIONS = Path(__file__).parent / "migrations"
_VERSION = sa.table("alembic_version", sa.column("version_num", sa.String))

BUSY_TIMEOUT_SECONDS = 10
CONNECT_TIMEOUT_SECONDS = 10
RECYCLE_SECONDS = 3600

# SQLite gives a rowid of its own to INTEGER PRIMARY KEY alone.
BigId = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


class DatabaseUnavailableError(DeadLetterOfficeError):
    """The database cannot be used now."""


class SchemaError(ConfigurationError):
    """The schema of the database is not the one that this version knows."""


class UtcDateTime(sa.types.TypeDecorator[datetime]):
    """Aware UTC, on SQLite too."""

    impl = sa.DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: sa.Dialect) -> datetime | None:
        """Store as UTC; SQLite has no time zones."""
        if value is None:
            return None
        value = value.astimezone(UTC)
        return value.replace(tzinfo=None) if dialect.name == "sqlite" else value

    def process_result_value(self, value: datetime | None, dialect: sa.Dialect) -> datetime | None:  # noqa: ARG002
        """Give back aware UTC."""
        if value is None:
            return None
        return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)


def open_database(url: str, *, pool_size: int = 5, keyring: Keyring = NO_KEYS) -> sa.Engine:
    """An engine on SQLite or PostgreSQL; connects when it is first used. Raises ConfigurationError.

    Its connections carry the keys that rows are sealed and opened with. The one given back last is taken next:
    each that stores letters keeps their statements and pages in memory, some 30 MB after large ones.
    """
    if url.startswith(("postgres://", "postgresql://")):
        url = "postgresql+psycopg://" + url.partition("://")[2]
    try:
        parsed = sa.make_url(url)
        match parsed.get_backend_name():
            case "sqlite":
                if parsed.database in {None, "", ":memory:"}:
                    raise ConfigurationError("DATABASE_URL names no file: a database in memory would not outlive us")
                engine = sa.create_engine(parsed, pool_use_lifo=True, connect_args={"timeout": BUSY_TIMEOUT_SECONDS})
                sa.event.listen(engine, "connect", _prepare_sqlite)
                sa.event.listen(engine, "begin", _begin_sqlite)
                sa.event.listen(engine, "handle_error", _reopen_sqlite)
            case "postgresql":
                engine = sa.create_engine(
                    parsed,
                    pool_size=pool_size,
                    pool_use_lifo=True,
                    # A temporary table, which vacuum never freezes, keeps a session's oldest transaction.
                    pool_recycle=RECYCLE_SECONDS,
                    pool_pre_ping=True,
                    connect_args={"connect_timeout": CONNECT_TIMEOUT_SECONDS, **_NOTICE_DEAD_SERVERS},
                )
            case other:
                raise ConfigurationError(f"DATABASE_URL names {other}; SQLite and PostgreSQL are supported")
    except (ArgumentError, NoSuchModuleError) as error:
        raise ConfigurationError("DATABASE_URL is not a database address such as sqlite:///x.db") from error
    except ModuleNotFoundError as error:
        raise ConfigurationError(f"{error.name} is missing: pip install 'dead-letter-office[postgresql]'") from error
    return engine.execution_options(keyring=keyring)


# A server that vanished sends no reset: by default the system waits for it for a quarter of an hour or more.
_NOTICE_DEAD_SERVERS = {
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 30_000,  # milliseconds
}


def _prepare_sqlite(connection: Any, _record: object) -> None:
    # Transactions begin where SQLAlchemy says, DDL included, not where the driver guesses.
    connection.isolation_level = None
    cursor = connection.cursor()
    # A letter and its index entries fit few to a page of the default 4 kB. Only a new file takes this.
    cursor.execute("PRAGMA page_size=16384")
    cursor.execute("PRAGMA cache_size=-8192")
    # Readers and the writer do not block each other; a commit survives a crash of the process.
    cursor.execute("PRAGMA journal_mode=WAL")
    cursor.execute("PRAGMA synchronous=FULL")
    cursor.execute("PRAGMA foreign_keys=ON")
    cursor.close()


def _begin_sqlite(connection: sa.Connection) -> None:
    # Taken at once by writers: a read that turns into a write later cannot wait for the lock.
    immediate = connection.get_execution_options().get("writes")
    connection.exec_driver_sql("BEGIN IMMEDIATE" if immediate else "BEGIN")


# The disk went away under an open file, which stays bad even when the disk is back.
_STALE_FILE = {
    sqlite3.SQLITE_READONLY,
    sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_CORRUPT,
    sqlite3.SQLITE_CANTOPEN,
    sqlite3.SQLITE_NOTADB,
}


def _reopen_sqlite(context: sa.ExceptionContext) -> None:
    code = getattr(context.original_exception, "sqlite_errorcode", 0)
    if code & 0xFF in _STALE_FILE:
        context.is_disconnect = True


@contextlib.contextmanager
def transaction(engine: sa.Engine) -> Iterator[sa.Connection]:
    """One transaction. Raises DatabaseUnavailableError for whatever the driver raises."""
    try:
        with engine.execution_options(writes=True).begin() as connection:
            yield connection
    except (DBAPIError, PoolTimeoutError, engine.dialect.loaded_dbapi.Error) as error:
        raise DatabaseUnavailableError(database_problem(error)) from error


@contextlib.contextmanager
def reading(engine: sa.Engine) -> Iterator[sa.Connection]:
    """One transaction that only reads. Raises DatabaseUnavailableError."""
    try:
        with engine.connect() as connection:
            yield connection
    except (DBAPIError, PoolTimeoutError) as error:
        raise DatabaseUnavailableError(database_problem(error)) from error


def insert_of(connection: sa.Connection, table: sa.Table) -> Any:
    """An INSERT that knows ON CONFLICT, in the connection's dialect."""
    return (postgresql if connection.dialect.name == "postgresql" else sqlite).insert(table)


def database_problem(error: Exception) -> str:
    """One sentence on what the database said, without the statement and its values."""
    cause = error.orig if isinstance(error, DBAPIError) else error
    text = str(cause or "").strip().splitlines()
    if not text:
        return "the database cannot be reached"
    # What PostgreSQL itself says has a code; what the driver says of a connection has none.
    unreachable = type(cause).__name__ == "OperationalError" and getattr(cause, "sqlstate", "") is None
    return f"the database {'cannot be reached' if unreachable else 'refuses'}: {text[0]}"


def upgrade(engine: sa.Engine, revision: str = "head") -> None:
    """Bring the schema to a revision. Raises DatabaseUnavailableError."""
    import alembic.command  # noqa: PLC0415, long to import, and nearly every start finds the schema as it should be

    config = alembic_config()
    try:
        with engine.execution_options(writes=True).begin() as connection:
            config.attributes["connection"] = connection
            alembic.command.upgrade(config, revision)
    except DBAPIError as error:
        raise DatabaseUnavailableError(database_problem(error)) from error


def schema_revision(engine: sa.Engine) -> str | None:
    """The revision that the database is at; None for an empty one. Raises DatabaseUnavailableError."""
    with reading(engine) as connection:
        if not sa.inspect(connection).has_table(_VERSION.name):
            return None
        return connection.execute(sa.select(_VERSION.c.version_num)).scalar()


def head_revision() -> str:
    """The newest revision that this version knows."""
    return max(_known_revisions())


def _known_revisions() -> set[str]:
    # The file of each begins with it.
    return {script.name.partition("_")[0] for script in (_MIGRATIONS / "versions").glob("[0-9]*.py")}


def require_schema(engine: sa.Engine, *, auto_upgrade: bool = False) -> None:
    """Refuse a schema that this version does not know, or upgrade it.

    Raises SchemaError with the command to run, DatabaseUnavailableError.
    """
    current, head = schema_revision(engine), head_revision()
    if current == head:
        return
    if current is not None and current not in _known_revisions():
        raise SchemaError(f"the database is at revision {current}, newer than this version: upgrade it")
    if not auto_upgrade:
        state = "has no tables yet" if current is None else f"is at revision {current}, not {head}"
        raise SchemaError(f"the database {state}: run `dead-letters db upgrade`")
    upgrade(engine)


def alembic_config() -> Config:
    """Where the migrations are; the connection goes into its attributes."""
    from alembic.config import Config  # noqa: PLC0415, as above

    config = Config()
    config.set_main_option("script_location", str(_MIGRATIONS))
    return config
