"""What the kill matrix does to a worker; apart from its tasks, which join every app of a process."""

from __future__ import annotations

from enum import StrEnum


class Fault(StrEnum):
    """What happens at the point."""

    CHILD_KILLED = "child_killed"
    """The process that runs the task is killed; without children it is the worker."""
    WORKER_KILLED = "worker_killed"
    """The worker is killed with all its processes."""
    STOPPED = "stopped"
    """The worker with all its processes stands still, until somebody sends SIGCONT to ``stopped:KEY``."""
