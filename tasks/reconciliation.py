"""Settling a doubt: what a provider can tell, and what a person decides."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from broker_topology.settlement import Settlement
from tasks.provider_keys import provider_key


@dataclass(frozen=True, slots=True, kw_only=True)
class Doubt:
    """An interrupted run, as a ``reconcile`` hook sees it."""

    task_name: str
    key: str
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    attempt: int
    """The interrupted attempt; 0 where the key's record is older than its retention."""
    steps: Mapping[str, Any] = field(default_factory=dict)
    """Results of the named steps that are known to have finished."""

    def provider_key(self, step: str = "") -> str:
        """The key that the interrupted run gave to the provider."""
        return provider_key(self.task_name, self.key, step)


@dataclass(frozen=True, slots=True, kw_only=True)
class Happened:
    """The provider knows of the effect: this is the task's result."""

    result: Any = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DidNotHappen:
    """The provider knows that there was no effect: run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Unknown:
    """The provider cannot tell: a person has to."""


Reconciled = Happened | DidNotHappen | Unknown

__all__ = ["DidNotHappen", "Doubt", "Happened", "Reconciled", "Settlement", "Unknown"]
