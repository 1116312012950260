"""The thread that stores: it takes what has arrived, commits it, and only then gives the receipts back.

The network loop decodes while this thread waits for the database, so the two overlap.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import sqlalchemy as sa
import structlog

from consumers.backoff import Backoff
from consumers.database import DatabaseUnavailableError
from consumers.failure_notes import FailureNotes
from consumers.filing import Filing
from consumers.inserting import Arrival
from consumers.letters import Letter
from consumers.storing import Stored, no_longer_in_doubt, store

log = structlog.get_logger()

LINGER_SECONDS = 0.02
"""How long a small batch waits for more: far below what a person notices, a commit saved each time."""
FULL_ROWS = 500
LAST_WAIT_SECONDS = 2.0
"""How long to wait at most before a database that is away is tried again."""


class Incoming(NamedTuple):
    """One letter on its way into the database."""

    source: Any
    """The channel that it came on; its delivery tag means nothing on another one."""
    tag: int
    letter: Letter

    @property
    def size_bytes(self) -> int:
        """What it holds of memory, roughly."""
        return len(self.letter.body) + self.letter.unpacked_bytes + len(self.letter.properties) + 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Receipt:
    """What may be acknowledged after a commit."""

    source: Any
    tags: list[int]
    refused: list[int]
    """What stays with the broker: the database takes it in no form."""
    held_bytes: int
    """Bodies of all of them, with what was unpacked of them."""
    equal: Counter[str]
    """Letters without an id among the tags, by content hash."""


class Inbox:
    """Letters that wait for the writer."""

    def __init__(self, *, max_batch_rows: int, max_batch_bytes: int) -> None:
        self._max_rows, self._max_bytes = max_batch_rows, max_batch_bytes
        self._waiting: list[Incoming] = []
        self._taken = 0
        """How many the writer has in hand."""
        self._taken_died_at: datetime | None = None
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._closed = False

    def put(self, incoming: Incoming) -> None:
        """Add one letter."""
        with self._lock:
            self._waiting.append(incoming)
            if len(self._waiting) in {1, FULL_ROWS}:
                self._changed.notify()

    def forget(self, source: Any) -> None:
        """Drop what waits from a channel that is gone: the broker delivers it again."""
        with self._changed:
            self._waiting = [incoming for incoming in self._waiting if incoming.source is not source]

    def __len__(self) -> int:
        return self._taken + len(self._waiting)

    def oldest_died_at(self) -> datetime | None:
        """When the letter died that is not stored for longest; None when all are."""
        with self._changed:
            if self._taken_died_at is not None:
                return self._taken_died_at
            return self._waiting[0].letter.died_at if self._waiting else None

    def close(self) -> None:
        """Let the writer finish what is here and end."""
        with self._changed:
            self._closed = True
            self._changed.notify()

    def take(self, *, idle_seconds: float) -> list[Incoming] | None:
        """The next batch, the one before it being done; empty after ``idle_seconds`` of quiet; None in the end."""
        with self._changed:
            self._taken, self._taken_died_at = 0, None
            self._changed.wait_for(lambda: self._waiting or self._closed, idle_seconds)
            if 0 < len(self._waiting) < FULL_ROWS and not self._closed:
                self._changed.wait_for(lambda: len(self._waiting) >= FULL_ROWS or self._closed, LINGER_SECONDS)
            batch = self._waiting[: self._fitting()]
            self._waiting = self._waiting[len(batch) :]
            self._taken, self._taken_died_at = len(batch), batch[0].letter.died_at if batch else None
            return None if not batch and self._closed else batch

    def _fitting(self) -> int:
        size = 0
        for number, incoming in enumerate(self._waiting[: self._max_rows]):
            size += incoming.size_bytes
            if size > self._max_bytes and number:
                return number
        return self._max_rows


class Writer(threading.Thread):
    """Stores what is in the inbox until that is closed."""

    def __init__(
        self,
        inbox: Inbox,
        engine: sa.Engine,
        notes: FailureNotes,
        *,
        clock: Callable[[], datetime],
        committed: Callable[[list[Receipt], Stored, float], None],
        unavailable: Callable[[str], None],
        chores: Callable[[], None],
        ended: Callable[[], None],
        chores_seconds: float = 3.0,
        filing: Filing | None = None,
    ) -> None:
        super().__init__(name="writer", daemon=True)
        self._inbox, self._engine, self._notes, self._clock = inbox, engine, notes, clock
        self._committed, self._unavailable = committed, unavailable
        self._chores, self._ended = chores, ended
        self._filing = filing or Filing()
        self.failed = False
        """Whether it ended by an error of ours."""
        self.large_bytes = 0
        """The size of the letter in hand, where it is alone."""
        self._chores_seconds, self._chores_at = chores_seconds, 0.0
        self._giving_up = threading.Event()
        self._busy_since: float | None = None
        self._certain: list[Receipt] = []
        self._certain_lock = threading.Lock()
        self._settling: WeakKeyDictionary[Any, Counter[str]] = WeakKeyDictionary()
        """Letters without an id, by channel and content hash, that are stored and may not be acknowledged yet."""

    @property
    def busy_seconds(self) -> float:
        """How long it has been at what it does now; 0 while it waits for letters."""
        since = self._busy_since
        return 0.0 if since is None else time.monotonic() - since

    def certain(self, receipt: Receipt) -> None:
        """The broker has the acks of these letters without an id. Safe from other threads."""
        with self._certain_lock:
            self._certain.append(receipt)

    def end_doubts(self) -> None:
        """Write down which letters without an id never come again; later while the database is away."""
        with self._certain_lock:
            certain, self._certain = self._certain, []
        if not certain:
            return
        try:
            no_longer_in_doubt(self._engine, sum((receipt.equal for receipt in certain), Counter()))
        except DatabaseUnavailableError:
            with self._certain_lock:
                self._certain += certain
            return
        for receipt in certain:
            self._settling[receipt.source] -= receipt.equal

    def give_up(self) -> None:
        """Stop waiting for a database that is away: the letters in hand stay with the broker."""
        self._giving_up.set()

    def run(self) -> None:
        """Store batch after batch. An error of ours ends it, and is told: unacknowledged letters stay."""
        try:
            self._store_batches()
        except Exception:
            log.exception("writer.failed")
            self.failed = True
        finally:
            self._ended()

    def _store_batches(self) -> None:
        while (batch := self._inbox.take(idle_seconds=self._chores_seconds)) is not None:
            self._busy_since = time.monotonic()
            self.large_bytes = batch[0].size_bytes if len(batch) == 1 else 0
            self.end_doubts()
            if time.monotonic() >= self._chores_at:
                self._chores()
                self._chores_at = time.monotonic() + self._chores_seconds
            if batch and not self._store_batch(batch):
                return
            # Large letters are not kept while the next batch is waited for.
            del batch
            self.large_bytes = 0
            self._busy_since = None

    def _store_batch(self, batch: list[Incoming]) -> bool:
        """Store one batch and give its receipts back. False when told to give up."""
        arrivals = self._notes.beside([incoming.letter for incoming in batch])
        sources = {id(incoming.source): incoming.source for incoming in batch}.values()
        settling = sum((self._settling.get(source, Counter()) for source in sources), Counter())
        started = time.monotonic()
        stored = self._until_stored(arrivals, settling)
        if stored is None:
            return False
        receipts = _receipts(batch, arrivals, stored)
        for receipt in receipts:
            if receipt.equal:
                self._settling.setdefault(receipt.source, Counter()).update(receipt.equal)
        self._committed(receipts, stored, time.monotonic() - started)
        return True

    def _until_stored(self, arrivals: Sequence[Arrival], settling: Mapping[str, int]) -> Stored | None:
        """Store a batch, waiting for the database as long as it takes. None when told to give up."""
        backoff = Backoff(last_seconds=LAST_WAIT_SECONDS)
        while True:
            try:
                return store(self._engine, arrivals, now=self._clock(), filing=self._filing, settling=settling)
            except DatabaseUnavailableError as error:
                self._unavailable(str(error))
                wait = backoff.next()
                log.warning("database.away", problem=str(error), retry_in_seconds=round(wait, 2))
            if self._giving_up.wait(wait):
                return None


def _receipts(batch: Sequence[Incoming], arrivals: Sequence[Arrival], stored: Stored) -> list[Receipt]:
    refused_ids = {id(arrival) for arrival in stored.refused}
    sources = {id(incoming.source): incoming.source for incoming in batch}
    receipts = []
    for source in sources.values():
        tags, refused, size = [], [], 0
        equal: Counter[str] = Counter()
        for incoming, arrival in zip(batch, arrivals, strict=True):
            if incoming.source is not source:
                continue
            size += len(incoming.letter.body) + incoming.letter.unpacked_bytes
            if refused_ids and id(arrival) in refused_ids:
                refused.append(incoming.tag)
            else:
                tags.append(incoming.tag)
                if incoming.letter.content_hash:
                    equal[incoming.letter.content_hash] += 1
        receipts.append(Receipt(source=source, tags=tags, refused=refused, held_bytes=size, equal=equal))
    return receipts
