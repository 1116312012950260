"""What the benches of the drain and the replay stand on: servers, rounds in turn, and the line of a figure."""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from broker_topology.deploy import deploy
from broker_topology.topology import read_topology
from sandbox import servers

TOPOLOGY = read_topology(Path(__file__).parent.parent / "definitions.json")


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """Servers of the bench's own, and how much it is to do."""

    url: str
    """The broker, with the topology deployed."""
    postgresql: str
    sqlite: str
    letters: int
    rounds: int


@contextmanager
def stage(description: str | None, *, letters: int) -> Iterator[Stage]:
    """Read the command line and start the servers; they end with the block."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--letters", type=int, default=letters)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="office-", ignore_cleanup_errors=True) as folder:
        Path(folder).chmod(0o755)
        broker, database = servers.rabbitmq(Path(folder)), servers.postgresql(Path(folder))
        try:
            url = servers.vhost_url(broker, "/")
            deploy(TOPOLOGY, url, management_url=servers.management_url(broker))
            yield Stage(
                url=url,
                postgresql=database.url,
                sqlite=f"sqlite:///{folder}/bench.db",
                letters=arguments.letters,
                rounds=arguments.rounds,
            )
        finally:
            broker.stop()
            database.stop()


def medians(sides: Mapping[str, Callable[[], float]], rounds: int) -> dict[str, float]:
    """Measure every side in turn, several times; the first round warms up and does not count."""
    rates: dict[str, list[float]] = {name: [] for name in sides}
    for number in range(rounds + 1):
        for name, side in sides.items():
            rate = side()
            if number:
                rates[name].append(rate)
    return {name: statistics.median(values) for name, values in rates.items()}


def tell(bench: str, figure: str, value: float, unit: str, rival: str, rival_value: float) -> None:
    """Print one figure as a JSON object."""
    said = {"bench": bench, "figure": figure, "value": round(value), "unit": unit}
    said |= {"rival": rival, "rival_value": round(rival_value), "ratio": round(value / rival_value, 2)}
    print(json.dumps(said), flush=True)
