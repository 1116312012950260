"""Runs broker-topology and kills it, as a power cut would, at one point of a migration.

Usage: python -m tests.integration.killed_migration POINT ARGUMENTS..., where POINT is STEP:before, when the
journal is about to name that step; STEP:after, when it has just named it; moved:COUNT, in the midst of moving; or
deleted, when the queue is gone and not there again.
"""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

from broker_topology import journal, migrate, mover
from broker_topology.__main__ import main


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def arm(point: str) -> None:
    step, _, when = point.partition(":")
    write = journal.JournalFile.write
    confirmed = mover._Mover._confirmed

    def dying_write(self: journal.JournalFile, entry: journal.Journal) -> journal.Journal:
        if entry.step == step and when == "before":
            die()
        written = write(self, entry)
        if entry.step == step and when == "after":
            die()
        return written

    def dying_confirmed(self: Any, frame: Any) -> None:
        if self.count >= int(when):
            die()
        confirmed(self, frame)

    delete = migrate._Migration._delete

    def dying_delete(self: Any, channel: Any) -> None:
        delete(self, channel)
        die()

    if step == "deleted":
        migrate._Migration._delete = dying_delete  # type: ignore[method-assign]
    elif step == "moved":
        mover._Mover._confirmed = dying_confirmed  # type: ignore[method-assign]
    else:
        journal.JournalFile.write = dying_write  # type: ignore[method-assign,assignment]


if __name__ == "__main__":
    arm(sys.argv.pop(1))
    main()
