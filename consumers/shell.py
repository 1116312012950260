"""What every command of ``dead-letters`` needs: settings, the database, who and when, errors in one sentence."""

from __future__ import annotations

import getpass
import logging
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from functools import wraps
from typing import Any

import click
import sqlalchemy as sa
import structlog

from broker_topology.errors import BrokerUnavailableError, ConfigurationError, DeadLetterOfficeError
from consumers.database import DatabaseUnavailableError, open_database, require_schema
from consumers.drain import DrainFailedError
from consumers.keyring import Keyring, read_keyring
from consumers.masking import Masking, read_masking
from consumers.settings import Settings, read_settings

EXIT_REFUSED = 1
"""What was asked for could not be done, or not for all of it."""
EXIT_SOFTWARE = 70
"""EX_SOFTWARE: an error of ours; a restart may help."""
EXIT_CONFIGURATION = 78
"""EX_CONFIG: a restart cannot help."""
EXIT_UNAVAILABLE = 75
"""EX_TEMPFAIL: a server is away; trying again may help."""


def _exit_code(error: DeadLetterOfficeError) -> int:
    match error:
        case ConfigurationError():
            return EXIT_CONFIGURATION
        case BrokerUnavailableError() | DatabaseUnavailableError():
            return EXIT_UNAVAILABLE
        case DrainFailedError():
            return EXIT_SOFTWARE
        case _:
            return EXIT_REFUSED


def one_sentence(command: Callable[..., Any]) -> Callable[..., Any]:
    """Say our errors in one sentence, and end with a code that says whether to try again."""

    @wraps(command)
    def run(*args: Any, **kwargs: Any) -> Any:
        try:
            return command(*args, **kwargs)
        except DeadLetterOfficeError as error:
            click.echo(f"dead-letters: {error}", err=True)
            sys.exit(_exit_code(error))

    return run


def prepared_settings() -> Settings:
    """The settings, with the log set up as they say. Raises ConfigurationError."""
    settings = read_settings()
    _set_up_logs(settings)
    return settings


def database(settings: Settings | None = None) -> sa.Engine:
    """The database, with the schema that this version knows. Raises SchemaError, DatabaseUnavailableError."""
    settings = settings or prepared_settings()
    engine = open_database(settings.database_url, keyring=keyring(settings))
    if context := click.get_current_context(silent=True):
        context.call_on_close(engine.dispose)
    require_schema(engine, auto_upgrade=engine.dialect.name == "sqlite")
    return engine


def keyring(settings: Settings) -> Keyring:
    """The keys of encryption at rest. Raises ConfigurationError."""
    keys = settings.encryption_keys.get_secret_value() if settings.encryption_keys else None
    return read_keyring(keys, settings.encryption_keys_file, encrypt=settings.encrypt_letters)


def masking(settings: Settings) -> Masking:
    """What is hidden when letters are shown. Raises ConfigurationError."""
    return read_masking(settings.mask_names, settings.mask_pattern)


def login() -> str:
    """Who runs the command. Raises ConfigurationError."""
    try:
        return getpass.getuser()
    except (OSError, KeyError):
        raise ConfigurationError("your login is unknown: say who you are with --by") from None


def now() -> datetime:
    """Aware UTC."""
    return datetime.now(UTC)


def _set_up_logs(settings: Settings) -> None:
    # pika logs every lost connection several times, with tracebacks; we log each once.
    logging.getLogger("pika").setLevel(logging.CRITICAL)
    logging.getLogger("alembic").setLevel(logging.WARNING)
    people = settings.log_format == "text" or (settings.log_format == "auto" and sys.stderr.isatty())
    renderer: Any = structlog.dev.ConsoleRenderer() if people else structlog.processors.JSONRenderer()
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(
            logging.getLevelNamesMapping()[settings.log_level.upper()]
        ),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )
