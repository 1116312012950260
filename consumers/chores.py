"""What the drain's writer does between batches, every few seconds."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime

import sqlalchemy as sa

from consumers import late_notes
from consumers.database import DatabaseUnavailableError, reading
from consumers.failure_notes import FailureNotes
from consumers.filing import Filing
from consumers.health import Health
from consumers.outcomes import Outcomes


class DrainChores:
    """Looks after what no delivery brings about."""

    def __init__(
        self,
        engine: sa.Engine,
        notes: FailureNotes,
        health: Health,
        filing: Filing,
        outcomes: Outcomes,
        *,
        clock: Callable[[], datetime],
    ) -> None:
        self._engine, self._notes, self._health = engine, notes, health
        self._filing, self._outcomes, self._clock = filing, outcomes, clock

    def run(self) -> None:
        """Find out whether the database answers, complete letters that miss their note, settle what succeeded."""
        try:
            with reading(self._engine) as connection:
                connection.execute(sa.text("SELECT 1"))
            self._health.well("database")
            if self._notes.configured:
                late_notes.complete(self._engine, self._notes, self._filing, now=self._clock())
            self._outcomes.collect()
        except DatabaseUnavailableError as error:
            self._health.ill("database", str(error))
