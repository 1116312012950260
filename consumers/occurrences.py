"""First occurrences: a kind of failure that was never seen before is said at once, in the log."""

from __future__ import annotations

import sqlalchemy as sa
import structlog

from consumers.database import DatabaseUnavailableError, reading
from consumers.dead_letters import dead_letters
from consumers.storing import Arrival, Stored

log = structlog.get_logger()

Kind = tuple[str | None, str | None, str]


class Occurrences:
    """Knows which kinds of failure were seen; the database knows those of earlier runs."""

    def __init__(self, engine: sa.Engine) -> None:
        self._engine = engine
        self._seen: set[Kind] = set()

    def announce(self, stored: Stored) -> None:
        """Log the batch, and an alert for each kind that is new."""
        if stored.new or stored.refused:
            log.info(
                "dead_letters.stored",
                new=len(stored.new),
                known_before=stored.known,
                refused=len(stored.refused),
            )
        for letter in stored.new:
            kind = _kind(letter.arrival)
            if kind in self._seen:
                continue
            self._seen.add(kind)
            if self._is_first(letter.letter_id, kind):
                log.warning(
                    "alert.first_occurrence",
                    letter=letter.letter_id,
                    task=kind[0],
                    error=kind[1],
                    reason=kind[2],
                    queue=letter.arrival.letter.queue,
                    see=f"dead-letters show {letter.letter_id}",
                )

    def _is_first(self, letter_id: int, kind: Kind) -> bool:
        c = dead_letters.c
        earlier = sa.select(c.id).where(
            c.task_name.is_not_distinct_from(kind[0]),
            c.error_type.is_not_distinct_from(kind[1]),
            c.reason == kind[2],
            c.id < letter_id,
        )
        try:
            with reading(self._engine) as connection:
                return connection.execute(earlier.limit(1)).first() is None
        except DatabaseUnavailableError:
            return True


def _kind(arrival: Arrival) -> Kind:
    error = arrival.note.error_type if arrival.note else None
    return arrival.letter.task_name, error, arrival.letter.reason
