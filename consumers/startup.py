"""The start of the drain: a database that is away is waited for, one with another schema is refused."""

from __future__ import annotations

import threading

import sqlalchemy as sa
import structlog

from consumers.backoff import Backoff
from consumers.database import DatabaseUnavailableError, require_schema
from consumers.health import Health

log = structlog.get_logger()

LAST_WAIT_SECONDS = 5.0


def until_schema_is_known(
    engine: sa.Engine, health: Health, stopping: threading.Event, *, auto_upgrade: bool
) -> bool:
    """Wait until the database answers with the schema of this version; False when told to stop before.

    Raises SchemaError, which no waiting mends.
    """
    backoff = Backoff(last_seconds=LAST_WAIT_SECONDS)
    while not stopping.is_set():
        health.turned()
        try:
            require_schema(engine, auto_upgrade=auto_upgrade)
        except DatabaseUnavailableError as error:
            wait = backoff.next()
            health.ill("database", str(error))
            log.warning("database.away", problem=str(error), retry_in_seconds=round(wait, 2))
            stopping.wait(wait)
        else:
            return True
    return False
