"""The journal of one migration: a file that says how far it has come, so that it can go on after a kill."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Any, Self
from urllib.parse import quote

from broker_topology.errors import DeadLetterOfficeError
from broker_topology.topology import Binding, Queue

FORMAT = 1


class Step(StrEnum):
    """What is to be done next. Each step may be done again after a kill in its midst."""

    PREPARE = "prepare"
    """Declare the detour: a switch exchange, a holding queue, a stash."""
    DIVERT = "divert"
    """Lead the queue's bindings over the switch."""
    HOLD = "hold"
    """Turn the switch: what is published from now on waits in the holding queue."""
    STASH = "stash"
    """Move what is in the queue into the stash."""
    REPLACE = "replace"
    """Delete the empty queue and declare it anew."""
    OPEN = "open"
    """Turn the switch back: what is published goes to the queue again."""
    UNDIVERT = "undivert"
    """Give the queue its bindings back."""
    RESTORE = "restore"
    """Move stash and holding queue into the queue."""
    CLEAN = "clean"
    """Remove the detour."""


class JournalError(DeadLetterOfficeError):
    """The journal of a migration cannot be used."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Journal:
    """One migration, as far as it has come."""

    broker: str
    """The AMQP address, without its password."""
    wanted: Queue
    """What the queue becomes."""
    current: Queue
    """What it was."""
    bindings: tuple[Binding, ...]
    """Those that led into it."""
    step: Step = Step.PREPARE
    aborting: bool = False
    """Whether the queue is left as it was."""
    abort_reason: str = ""

    def to_json(self) -> str:
        """The journal as stored."""
        return json.dumps({"format": FORMAT, **asdict(self)}, indent=2) + "\n"

    @classmethod
    def from_json(cls, text: str, path: Path) -> Self:
        """Read a stored journal. Raises JournalError."""
        try:
            values: dict[str, Any] = json.loads(text)
            if values.pop("format") != FORMAT:
                raise JournalError(f"{path} is the journal of another version of broker-topology")
            return cls(
                **values
                | {
                    "wanted": Queue(**values["wanted"]),
                    "current": Queue(**values["current"]),
                    "bindings": tuple(Binding(**binding) for binding in values["bindings"]),
                    "step": Step(values["step"]),
                }
            )
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise JournalError(f"{path} is not a journal of a migration: {error}") from error


class JournalFile:
    """Where the journal of one queue is kept; only one process has it at a time."""

    def __init__(self, folder: Path, vhost: str, queue: str) -> None:
        self.path = folder / f"broker-topology-migrate-{quote(vhost, safe='')}-{quote(queue, safe='')}.json"

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the journal. Raises JournalError where another process does, or the folder cannot be written."""
        lock = self.path.with_suffix(".lock")
        try:
            file = lock.open("w")
        except OSError as error:
            raise JournalError(f"the journal {self.path} cannot be kept: {error.strerror}") from error
        with file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                # Whoever had it before may have removed it between our open and our lock.
                ours = os.fstat(file.fileno()).st_ino == lock.stat().st_ino
            except OSError:
                ours = False
            if not ours:
                raise JournalError(f"another process is at this migration: it holds {lock}")
            try:
                yield
            finally:
                lock.unlink(missing_ok=True)

    def read(self) -> Journal | None:
        """The journal of a migration that was begun; None where there is none. Raises JournalError."""
        try:
            return Journal.from_json(self.path.read_text(encoding="utf-8"), self.path)
        except FileNotFoundError:
            return None

    def write(self, journal: Journal) -> Journal:
        """Store a journal so that it survives a crash of the machine."""
        draft = self.path.with_suffix(".new")
        with draft.open("w", encoding="utf-8") as file:
            file.write(journal.to_json())
            file.flush()
            os.fsync(file.fileno())
        draft.replace(self.path)
        folder = os.open(self.path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
        return journal

    def advance(self, journal: Journal, step: Step) -> Journal:
        """Note the step that is to be done next."""
        return self.write(replace(journal, step=step))

    def remove(self) -> None:
        """The migration is over."""
        self.path.unlink(missing_ok=True)
