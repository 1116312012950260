"""The start of the drain: the process made fit for it, and a database that is away waited for."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import sys
import threading

import sqlalchemy as sa
import structlog

from consumers.backoff import Backoff
from consumers.database import DatabaseUnavailableError, require_schema
from consumers.health import Health

log = structlog.get_logger()

LAST_WAIT_SECONDS = 5.0


def fit_process() -> None:
    """Set up this process for many small letters and a few large ones, and for its two busy threads."""
    # Thousands of letters in hand are no garbage: looking through them took a tenth of the processor's time.
    gc.freeze()
    gc.set_threshold(20_000, 50, 50)
    # Waking the other thread costs more than it waits for the interpreter's lock.
    sys.setswitchinterval(0.01)
    # glibc would keep room for the largest body that it has seen; so it gives large blocks back at once.
    mmap_threshold = -3
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).mallopt(mmap_threshold, 1024 * 1024)


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
