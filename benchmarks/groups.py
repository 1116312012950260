"""What groups and alerts cost the drain: the same letters of one failure, counted into their group or not.

Both sides read the same messages in the same run, in turn; a figure is the median of several rounds. Letters
come with failure notes as workers leave them, so that every message is read for its variable parts.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import sqlalchemy as sa

from benchmarks.drain import QUEUE, TOPOLOGY, fill, fresh_database, timed_drain
from broker_topology.deploy import deploy
from broker_topology.notes import FailureNote
from consumers.alerts import alerts
from consumers.failure_notes import FailureNotes
from consumers.filing import Filed, Filing, sorted_letter
from consumers.fingerprints import Remembered
from consumers.grouping import Sorted
from consumers.groups import failure_groups, group_hours
from consumers.inserting import Arrival
from consumers.letters import Letter
from sandbox import servers

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

    def beside(self, letters: Sequence[tuple[Letter, int]]) -> list[Arrival]:
        """Each letter with a note of its own."""
        if not self._noted:
            return super().beside(letters)
        return [
            Arrival(
                letter=letter,
                copy=copy,
                note=FailureNote(
                    reason="failed",
                    error_type="gateway.GatewayError",
                    error_message=f"order {number} was declined by 10.0.0.{number % 250}:8443",
                    failed_at=self._now,
                    traceback=TRACEBACK,
                ),
            )
            for number, (letter, copy) in enumerate(letters)
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
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--letters", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="office-", ignore_cleanup_errors=True) as folder:
        Path(folder).chmod(0o755)
        broker, database = servers.rabbitmq(Path(folder)), servers.postgresql(Path(folder))
        try:
            url = servers.vhost_url(broker, "/")
            deploy(TOPOLOGY, url, management_url=servers.management_url(broker))
            for name, address in (("PostgreSQL", database.url), ("SQLite", f"sqlite:///{folder}/bench.db")):
                for noted in (True, False):
                    measure(url, name, address, arguments.letters, arguments.rounds, noted=noted)
        finally:
            broker.stop()
            database.stop()


def measure(url: str, name: str, address: str, letters: int, rounds: int, *, noted: bool) -> None:
    """Measure both sides in turn, several times, and print the figure."""
    rates: dict[bool, list[float]] = {True: [], False: []}
    for number in range(rounds + 1):
        for grouped in (True, False):
            rate = drain_rate(url, address, letters, noted=noted, grouped=grouped)
            if number:  # the first round warms up
                rates[grouped].append(rate)
    with_groups, without = statistics.median(rates[True]), statistics.median(rates[False])
    print(
        json.dumps(
            {
                "bench": "groups",
                "figure": f"drain with groups into {name}, {'with' if noted else 'without'} failure notes",
                "value": round(with_groups),
                "unit": "letters/s",
                "rival": "the same drain without groups",
                "rival_value": round(without),
                "ratio": round(with_groups / without, 2),
            }
        ),
        flush=True,
    )


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
