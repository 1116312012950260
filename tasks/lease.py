"""The thread that renews leases while tasks run: one for each process, started when it is first needed.

Prefork children, threads and the solo pool each get theirs. Under gevent and eventlet with their monkey
patches the thread is a greenlet: it renews whenever the task yields, and a task that computes for longer
than its lease without yielding loses it. The same holds for C code that keeps the interpreter's lock.
"""

from __future__ import annotations

import heapq
import itertools
import os
import threading
import time
from collections.abc import Callable


class Renewals:
    """Calls each lease's ``renew`` when it is due, until it is told to stop.

    ``renew()`` answers how many seconds from now it wants to be called again, or None for never.
    """

    def __init__(self) -> None:
        self._forget()
        os.register_at_fork(after_in_child=self._forget)  # a thread does not survive a fork

    def _forget(self) -> None:
        self._changed = threading.Condition()
        self._due: list[tuple[float, int, Renewal]] = []
        self._number = itertools.count()
        self._thread: threading.Thread | None = None
        self._wakes_at = float("inf")

    def start(self, renew: Callable[[], float | None], *, after_seconds: float) -> Renewal:
        """Call ``renew`` in so many seconds, from a thread."""
        renewal = Renewal(renew)
        self._schedule(renewal, time.monotonic() + after_seconds)
        return renewal

    def _schedule(self, renewal: Renewal, due_at: float) -> None:
        with self._changed:
            heapq.heappush(self._due, (due_at, next(self._number), renewal))
            if self._thread is None:
                self._thread = threading.Thread(target=self._loop, name="lease-renewals", daemon=True)
                self._thread.start()
            elif due_at < self._wakes_at:
                self._changed.notify()

    def _loop(self) -> None:
        while True:
            renewal = self._next()
            again_in = renewal.call()
            if again_in is not None:
                self._schedule(renewal, time.monotonic() + again_in)

    def _next(self) -> Renewal:
        """Wait for the renewal that is due first; those that were stopped meanwhile are dropped."""
        with self._changed:
            while True:
                while self._due and self._due[0][2].stopped:
                    heapq.heappop(self._due)
                now = time.monotonic()
                if self._due and self._due[0][0] <= now:
                    return heapq.heappop(self._due)[2]
                self._wakes_at = self._due[0][0] if self._due else float("inf")
                self._changed.wait(self._wakes_at - now if self._due else None)


class Renewal:
    """One lease's place in the schedule."""

    __slots__ = ("_calling", "_renew", "stopped")

    def __init__(self, renew: Callable[[], float | None]) -> None:
        self._renew = renew
        self._calling = threading.Lock()
        self.stopped = False

    def call(self) -> float | None:
        """Renew now, unless stopped."""
        with self._calling:
            return None if self.stopped else self._renew()

    def stop(self) -> None:
        """Never renew again. A renewal that is on its way now may still arrive; that is harmless."""
        self.stopped = True


RENEWALS = Renewals()
