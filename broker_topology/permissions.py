"""Least-privilege users for the four roles that touch a topology: deployer, publisher, worker, drain.

Source: https://www.rabbitmq.com/docs/access-control#authorisation
"""

from __future__ import annotations

import base64
import hashlib
import re
import secrets
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from broker_topology.delays import EXCHANGE, LEVELS
from broker_topology.topology import Topology

NOTHING = "^$"
"""A pattern that matches no name."""


class Role(StrEnum):
    """Who touches a topology, and for what."""

    DEPLOYER = "deployer"
    """Runs broker-topology."""
    PUBLISHER = "publisher"
    """Sends tasks."""
    WORKER = "worker"
    """Runs tasks, and sends those that tasks send."""
    DRAIN = "drain"
    """Takes dead letters away, and replays them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rights:
    """What one role may do, as the three patterns that a broker matches names with, and why."""

    role: Role
    configure: str
    write: str
    read: str
    tags: tuple[str, ...]
    why: tuple[str, ...]
    """A sentence on each part."""


def rights(topology: Topology) -> tuple[Rights, ...]:
    """The rights of the four roles in one virtual host."""
    exchanges = [exchange.name for exchange in topology.exchanges]
    queues = [queue.name for queue in topology.queues]
    work = [queue.name for queue in topology.work_queues]
    sources = list(dict.fromkeys(binding.source for name in work for binding in topology.bindings_of(name)))
    own = [*exchanges, *queues]
    return (
        Rights(
            role=Role.DEPLOYER,
            configure=_pattern(own, [_DELAYS, _OWN]),
            write=_pattern([*own, "amq.default"], [_DELAYS, _OWN]),
            read=_pattern(own, [_DELAYS, _OWN]),
            tags=("policymaker", "monitoring"),
            why=(
                "configures what the file names, Celery's delay queues, and what we make (broker-topology.*)",
                "writes to exchanges and queues to bind them, and through the default exchange to its own queues",
                "reads exchanges to bind them, and queues to verify and to migrate them",
                "the tag policymaker sets policies, monitoring sees the nodes of a cluster",
            ),
        ),
        Rights(
            role=Role.PUBLISHER,
            configure=NOTHING,
            write=_pattern([*sources, LEVELS[-1]]),
            read=NOTHING,
            tags=(),
            why=(
                "configures nothing: deploy makes what there is",
                "writes to the exchanges of the work queues, and to the first delay exchange for a countdown",
                "reads nothing",
            ),
        ),
        Rights(
            role=Role.WORKER,
            configure=_pattern([], [_DELAYS, _CONTROL]),
            write=_pattern([*sources, *work], [_DELAYS, _CONTROL]),
            read=_pattern([*sources, *work], [_DELAYS, _CONTROL]),
            tags=(),
            why=(
                "configures Celery's delay queues, which every worker declares again, and the queues that control it",
                "writes to the exchanges of the work queues for retries, and to the queues that it binds again",
                "reads the work queues to consume them, and the exchanges that it binds",
            ),
        ),
        Rights(
            role=Role.DRAIN,
            configure=NOTHING,
            write=_pattern([*sources, "amq.default"]),
            read=_pattern(topology.drained_queues),
            tags=(),
            why=(
                "configures nothing: deploy makes what there is",
                "writes to the exchanges of the work queues and to the default exchange, for replays",
                "reads the dead-letter and the unroutable queue to consume them",
            ),
        ),
    )


def user_definitions(
    topology: Topology, passwords: Mapping[Role, str], *, vhost: str, prefix: str = ""
) -> dict[str, Any]:
    """Users and permissions as definitions that a broker imports; passwords are salted hashes."""
    all_rights = rights(topology)
    return {
        "users": [
            {
                "name": f"{prefix}{own.role}",
                "password_hash": password_hash(passwords[own.role]),
                "hashing_algorithm": "rabbit_password_hashing_sha256",
                "tags": list(own.tags),
            }
            for own in all_rights
        ],
        "permissions": [
            {
                "user": f"{prefix}{own.role}",
                "vhost": vhost,
                "configure": own.configure,
                "write": own.write,
                "read": own.read,
            }
            for own in all_rights
        ],
    }


def password_hash(password: str, salt: bytes | None = None) -> str:
    """A password as RabbitMQ stores it. Source: https://www.rabbitmq.com/docs/passwords."""
    salt = secrets.token_bytes(4) if salt is None else salt
    return base64.b64encode(salt + hashlib.sha256(salt + password.encode()).digest()).decode()


def new_password() -> str:
    """A password that nobody guesses, safe in a URL."""
    return secrets.token_urlsafe(24)


_DELAYS = rf"celery_delayed_[0-9]+|{EXCHANGE}"
_CONTROL = r"celeryev(\..*)?|(reply\.)?celery\.pidbox|.+\.pidbox"
_OWN = r"broker-topology\..*"


def _pattern(names: Iterable[str], patterns: Iterable[str] = ()) -> str:
    parts = [*(re.sub(r"([.\\+*?\[\]^$(){}|])", r"\\\1", name) for name in dict.fromkeys(names)), *patterns]
    return f"^({'|'.join(parts)})$" if parts else NOTHING
