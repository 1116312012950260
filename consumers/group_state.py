"""Where a group of failures can stand (pure)."""

from __future__ import annotations

from enum import StrEnum


class GroupState(StrEnum):
    """Where a group stands."""

    OPEN = "open"
    SETTLED = "settled"
    """A person said that the cause is gone: a letter that dies afterwards is a regression."""
    IGNORED = "ignored"
    """Counted in silence, until a time or for a number of letters."""
    MERGED = "merged"
    """Better rules moved its letters to another group."""
