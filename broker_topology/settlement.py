"""How a doubt was settled outside of the worker, as a message carries it in a header."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Self

SETTLEMENT_HEADER = "settlement"


@dataclass(frozen=True, slots=True, kw_only=True)
class Settlement:
    """What is known of an interrupted run's effect.

    A person replays with ``--as repeat`` or ``--as done --result``; a worker that could not record a result sends
    it along as done.
    """

    name: str
    """Usable once: the replay's id, or the execution's token."""
    result_json: str | None = None
    """The result where the work is done; None where it is to be repeated."""

    def to_header(self) -> str:
        """The header's value."""
        return json.dumps({"name": self.name, "result_json": self.result_json})

    @classmethod
    def from_header(cls, value: object) -> Self | None:
        """Read a header's value; None where there is none or it is malformed."""
        try:
            settlement = json.loads(value) if isinstance(value, str | bytes) else None
        except (ValueError, RecursionError):
            return None
        match settlement:
            case {"name": str(name), "result_json": str() | None as result_json}:
                return cls(name=name, result_json=result_json)
            case _:
                return None
