"""What a verification comes to: claims, each proven or with its fault."""

from __future__ import annotations

from dataclasses import dataclass

AS_IN_FILE = "is as the file says"


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One thing that was looked at or tried."""

    object: str
    claim: str
    """What is proven where nothing is wrong."""
    fault: str | None = None
    """What is wrong, as a clause; None where the claim is proven."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """Everything that was looked at and tried."""

    vhost: str
    checks: tuple[Check, ...]

    @property
    def faults(self) -> tuple[Check, ...]:
        """What is not as it must be."""
        return tuple(check for check in self.checks if check.fault is not None)
