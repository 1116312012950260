"""The thread that renews leases while tasks run: one for each process, started when it is first needed.

Prefork children, threads and the solo pool each get theirs. Under gevent and eventlet with their monkey
patches the thread is a greenlet: it renews whenever the task yields, and a task that computes for longer
than its lease without yielding loses it. The same holds for C code that keeps the interpreter's lock.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Hashable

import structlog

log = structlog.get_logger(__name__)

Renew = Callable[[], float | None]
"""Renews one lease; answers how many seconds from now it wants to be called again, or None for never."""


class Renewals:
    """Calls each lease's ``renew`` when it is due, until it is told to stop."""

    def __init__(self) -> None:
        self._forget()
        os.register_at_fork(after_in_child=self._forget)  # a thread does not survive a fork

    def _forget(self) -> None:
        self._changed = threading.Condition()
        self._due: dict[Hashable, tuple[float, Renew]] = {}
        self._thread: threading.Thread | None = None
        self._wakes_at = float("inf")

    def start(self, lease: Hashable, renew: Renew, *, after_seconds: float) -> None:
        """Call ``renew`` in so many seconds, from a thread."""
        due_at = time.monotonic() + after_seconds
        self._due[lease] = (due_at, renew)
        if self._thread is None or due_at < self._wakes_at:
            self._wake()

    def stop(self, lease: Hashable) -> None:
        """Never renew again. A renewal that is on its way now may still arrive; that is harmless.

        The thread is left asleep: most runs are over long before their first renewal is due, and waking it
        for each would cost more than the rest of the claim.
        """
        self._due.pop(lease, None)

    def _wake(self) -> None:
        with self._changed:
            if self._thread is None:
                self._thread = threading.Thread(target=self._loop, name="lease-renewals", daemon=True)
                self._thread.start()
            else:
                self._changed.notify()

    def _loop(self) -> None:
        while True:
            lease, renew = self._next()
            try:
                again_in = renew()
            except Exception:
                # The edge of a thread: one lease's failure must not end the renewals of the others. This one
                # lapses, unless its run asks for itself.
                log.exception("lease.renewal_crashed")
                again_in = None
            if again_in is not None and lease in self._due:
                self._due[lease] = (time.monotonic() + again_in, renew)
            else:
                self._due.pop(lease, None)

    def _next(self) -> tuple[Hashable, Renew]:
        """Wait for the renewal that is due first."""
        with self._changed:
            while True:
                # Before the look, so that whoever starts a lease during it sees that it has to wake us.
                self._wakes_at = float("inf")
                first = min(self._due.copy().items(), key=lambda item: item[1][0], default=None)
                if first is None:
                    self._changed.wait()
                    continue
                lease, (self._wakes_at, renew) = first
                if (remaining := self._wakes_at - time.monotonic()) <= 0:
                    return lease, renew
                self._changed.wait(remaining)


RENEWALS = Renewals()
