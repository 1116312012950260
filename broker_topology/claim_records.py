"""Where a worker's claims stand in Redis, for whoever may look at them and change nothing (pure).

A claim is a hash; its time to live is the retention of its key. Only the worker's scripts write it.
"""

from __future__ import annotations

from enum import StrEnum

STATE_FIELD = "state"


class ClaimState(StrEnum):
    """What the field ``state`` of a claim may be."""

    RUNNING = "running"
    FREE = "free"
    """A run failed, and left no doubt."""
    IN_DOUBT = "in_doubt"
    DONE = "done"


def record_name(task_name: str, key: str) -> str:
    """The Redis key of a claim; the length keeps ``a:b`` + ``c`` apart from ``a`` + ``b:c``."""
    return f"dead-letter-office:claim:{len(task_name)}:{task_name}:{key}"
