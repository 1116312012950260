"""The state of one virtual host of a broker, in the terms of a definitions file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from broker_topology.rules.subject import LiveFacts
from broker_topology.topology import Topology
from broker_topology.versions import Version


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """What a broker had when it was asked."""

    vhost: str
    version: Version
    definitions: Mapping[str, Any]
    """As an export would have them, operator policies and queues that do not last included."""
    topology: Topology
    live: LiveFacts
    queues: Mapping[str, Mapping[str, Any]]
    """Every queue as the management API shows it."""
