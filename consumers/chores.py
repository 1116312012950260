"""What the drain's writer does between batches, every few seconds."""

from __future__ import annotations

import sqlalchemy as sa

from consumers import late_notes
from consumers.database import DatabaseUnavailableError, reading
from consumers.failure_notes import FailureNotes
from consumers.health import Health


class DrainChores:
    """Looks after what no delivery brings about."""

    def __init__(self, engine: sa.Engine, notes: FailureNotes, health: Health) -> None:
        self._engine, self._notes, self._health = engine, notes, health

    def run(self) -> None:
        """Find out whether the database answers, and complete letters that still miss their note."""
        try:
            with reading(self._engine) as connection:
                connection.execute(sa.text("SELECT 1"))
            self._health.well("database")
            if self._notes.configured:
                late_notes.complete(self._engine, self._notes)
        except DatabaseUnavailableError as error:
            self._health.ill("database", str(error))
