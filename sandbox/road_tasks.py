"""Tasks that end in every way a task can end. Each run is counted in Redis, under the task's id."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time
from typing import Any

import redis
from celery import shared_task
from celery.exceptions import Ignore, Reject

from tasks import PermanentFailure, ReliableTask, TransientFailure


class SilentError(Exception):
    """An exception whose text cannot be had."""

    def __str__(self) -> str:
        raise RuntimeError("no text")


class UnpicklableError(Exception):
    """An exception that cannot leave its process."""

    def __init__(self) -> None:
        super().__init__("cannot be pickled")
        self.lock = open(os.devnull)  # noqa: SIM115, PTH123, an open file cannot be pickled


class Counted(ReliableTask):
    """Counts each run before its body."""

    abstract = True

    def run_counted(self) -> None:
        """One more run of this message."""
        counter().incr(f"runs:{self.request.id}")


def counter() -> redis.Redis:
    """The Redis that counts, for tasks and tests alike."""
    return redis.Redis.from_url(os.environ.get("COUNTER_URL") or os.environ["REDIS_URL"])


@shared_task(name="crm.echo", bind=True, base=Counted)
def echo(self: Counted, value: Any = None) -> Any:
    """Succeed."""
    self.run_counted()
    return value


@shared_task(name="crm.end", bind=True, base=Counted, max_retries=1)
def end(self: Counted, way: str) -> Any:
    """End in the way that is asked for."""
    self.run_counted()
    return WAYS[way]()


@shared_task(name="crm.end_transient", bind=True, base=Counted, max_retries=1, transient=ConnectionError)
def end_transient(self: Counted) -> None:
    """Fail in a way that is worth a retry, always."""
    self.run_counted()
    raise ConnectionError("still down")


@shared_task(name="crm.hard_limit", bind=True, base=Counted, time_limit=1)
def hard_limit(self: Counted) -> None:
    """Run into the hard time limit."""
    self.run_counted()
    time.sleep(30)


@shared_task(name="crm.soft_limit", bind=True, base=Counted, soft_time_limit=1, time_limit=20)
def soft_limit(self: Counted) -> None:
    """Run into the soft time limit."""
    self.run_counted()
    time.sleep(30)


@shared_task(name="crm.low_risk", bind=True, base=Counted, dead_letter=False, time_limit=1)
def low_risk(self: Counted, way: str) -> None:
    """A task that is left out: its failures are dropped."""
    self.run_counted()
    WAYS[way]()


@shared_task(name="crm.drop_expired", bind=True, base=Counted, drop_expired=True, drop_revoked=True)
def drop_expired(self: Counted) -> None:
    """A task that is worth nothing when it is late."""
    self.run_counted()


@shared_task(name="crm.retry_by_hand", bind=True, base=Counted, max_retries=2)
def retry_by_hand(self: Counted) -> None:
    """Retry by hand until the limit."""
    self.run_counted()
    raise self.retry_in(0.2, because=ConnectionError("by hand"))


@shared_task(name="crm.celery_retry", bind=True, base=Counted, max_retries=5)
def celery_retry(self: Counted) -> None:
    """Use Celery's own retry, with a limit for this message alone."""
    self.run_counted()
    raise self.retry(exc=ValueError("own limit"), countdown=0.1, max_retries=1)


@shared_task(name="crm.sleep", bind=True, base=Counted)
def sleep(self: Counted, seconds: float) -> None:
    """Take a while, and count the end too."""
    self.run_counted()
    time.sleep(seconds)
    counter().incr(f"ends:{self.request.id}")


def _raise(error: BaseException) -> Any:
    raise error


def _recurse() -> Any:
    return _recurse()


def _fill_memory() -> Any:
    return _raise(MemoryError("out of memory"))


WAYS: dict[str, Any] = {
    "value_error": lambda: _raise(ValueError("wrong")),
    "permanent": lambda: _raise(PermanentFailure("never")),
    "transient": lambda: _raise(TransientFailure("later", retry_after=1)),
    "recursion": _recurse,
    "memory_error": _fill_memory,
    "unpicklable": lambda: _raise(UnpicklableError()),
    "silent": lambda: _raise(SilentError()),
    "huge": lambda: _raise(ValueError("x" * 5_000_000)),
    "surrogate": lambda: _raise(ValueError("\ud800\x00 é")),
    "sys_exit": lambda: sys.exit(3),
    "os_exit": lambda: os._exit(3),
    "sigkill": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "segfault": lambda: ctypes.string_at(0),
    "reject": lambda: _raise(Reject("no good", requeue=False)),
    "requeue": lambda: _raise(Reject("again", requeue=True)),
    "ignore": lambda: _raise(Ignore()),
    "sleep": lambda: time.sleep(30),
    "unserialisable": object,
    "keyboard_interrupt": lambda: _raise(KeyboardInterrupt()),
}
