"""What groups and alerts cost the drain: the same letters of one failure, counted into their group or not.

Both sides read the same messages in the same run, in turn; a figure is the median of several rounds. Letters
come with failure notes as workers leave them, so that every message is read for its variable parts.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

import sqlalchemy as sa

from benchmarks.drain import QUEUE, fill, fresh_database, timed_drain
from benchmarks.stage import Stage, medians, stage, tell
from broker_topology.notes import FailureNote
from consumers.alerts import alerts
from consumers.failure_notes import FailureNotes
from consumers.filing import Filed, Filing, sorted_letter
from consumers.fingerprints import Remembered
from consumers.grouping import Sorted
from consumers.groups import failure_groups, group_hours
from consumers.inserting import Arrival
from consumers.letters import Letter

TRACEBACK = """Traceback (most recent call last):
  File "/srv/venv/lib/python3.11/site-packages/celery/app/trace.py", line 479, in trace_task
    R = retval = fun(*args, **kwargs)
  File "/srv/shop/payments.py", line 41, in charge_customer
    gateway.charge(order_id, amount_cents)
  File "/srv/venv/lib/python3.11/site-packages/gateway/client.py", line 112, in charge
    raise GatewayError(f"order {order} was declined by {host}")
gateway.GatewayError: order 17 was declined by 10.0.0.17:8443
"""


class Notes(FailureNotes):
    """A note beside every letter, without the time that Redis takes."""

    def __init__(self, *, noted: bool) -> None:
        super().__init__(None)
        self._noted = noted
        self._now = datetime.now(UTC)

    def beside(self, letters: Sequence[Letter]) -> list[Arrival]:
        """Each letter with a note of its own."""
        if not self._noted:
            return super().beside(letters)
        return [
            Arrival(
                letter=letter,
                note=FailureNote(
                    reason="failed",
                    error_type="gateway.GatewayError",
                    error_message=f"order {number} was declined by 10.0.0.{number % 250}:8443",
                    failed_at=self._now,
                    traceback=TRACEBACK,
                ),
            )
            for number, letter in enumerate(letters)
        ]


class NoGroups(Filing):
    """Stores without groups."""

    def place(
        self,
        connection: sa.Connection,  # noqa: ARG002, the signature of Filing
        letters: Sequence[tuple[Letter, FailureNote | None]],
        *,
        now: datetime,  # noqa: ARG002
    ) -> list[tuple[Sorted, int]]:
        """Nothing is looked at."""
        return [(self._nothing(letters), 0)] * len(letters)

    def count(self, connection: sa.Connection, filed: Sequence[Filed], *, now: datetime) -> None:
        """Nothing is counted."""

    def committed(self, filed: Sequence[Filed]) -> None:
        """Nothing is remembered."""

    @staticmethod
    def _nothing(letters: Sequence[tuple[Letter, FailureNote | None]]) -> Sorted:
        return sorted_letter(letters[0][0], None, Remembered())


def main() -> None:
    """Print one JSON object per figure."""
    with stage(__doc__, letters=20_000) as on:
        for name, address in (("PostgreSQL", on.postgresql), ("SQLite", on.sqlite)):
            for noted in (True, False):
                measure(on, name, address, noted=noted)


def measure(on: Stage, name: str, address: str, *, noted: bool) -> None:
    """Measure both sides in turn, several times, and print the figure."""

    def rate(*, grouped: bool) -> float:
        return drain_rate(on.url, address, on.letters, noted=noted, grouped=grouped)

    median = medians({"with": lambda: rate(grouped=True), "without": lambda: rate(grouped=False)}, on.rounds)
    figure = f"drain with groups into {name}, {'with' if noted else 'without'} failure notes"
    tell("groups", figure, median["with"], "letters/s", "the same drain without groups", median["without"])


def drain_rate(url: str, address: str, letters: int, *, noted: bool, grouped: bool) -> float:
    """The drain, from its start until the last letter of one failure is committed."""
    engine = fresh_database(address)
    with engine.begin() as connection:
        for table in (alerts, group_hours, failure_groups):
            connection.execute(table.delete())
    fill(url, letters)
    filing = Filing() if grouped else NoGroups()
    rate = timed_drain(url, engine, letters, notes=Notes(noted=noted), filing=filing)
    with engine.connect() as connection:
        spoken = connection.execute(sa.select(alerts.c.kind)).scalars().all()
        counted = connection.execute(sa.select(failure_groups.c.letters)).scalars().all()
    engine.dispose()
    if grouped and (spoken != ["first_occurrence"] or counted != [letters]):
        raise SystemExit(f"{letters} letters of one failure in {QUEUE} gave {spoken} and {counted}")
    return rate


if __name__ == "__main__":
    main()
