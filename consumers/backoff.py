"""Waiting between attempts: doubling, capped, with jitter."""

from __future__ import annotations

import random

FIRST_SECONDS = 0.2
LAST_SECONDS = 15.0


class Backoff:
    """Seconds to wait before the next attempt."""

    def __init__(self, *, first_seconds: float = FIRST_SECONDS, last_seconds: float = LAST_SECONDS) -> None:
        self._first, self._last = first_seconds, last_seconds
        self._seconds = first_seconds

    def next(self) -> float:
        """How long to wait now; each time longer, until ``reset()``."""
        seconds = self._seconds
        self._seconds = min(seconds * 2, self._last)
        return seconds * random.uniform(0.5, 1.0)  # noqa: S311, jitter

    def reset(self) -> None:
        """It works again."""
        self._seconds = self._first
