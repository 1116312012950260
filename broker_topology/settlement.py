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

    result_json: str | None = None
    """The result where the work is done; None where it is to be repeated."""
    attempt: int | None = None
    """The interrupted attempt that may be repeated: a doubt that another attempt left is not settled by this."""

    def to_header(self) -> str:
        """The header's value."""
        return json.dumps({"result_json": self.result_json, "attempt": self.attempt})

    @classmethod
    def from_header(cls, value: object) -> Self | None:
        """Read a header's value; None where there is none or it is malformed."""
        try:
            settlement = json.loads(value) if isinstance(value, str | bytes) else None
        except (ValueError, RecursionError):
            return None
        match settlement:
            case {"result_json": str() | None as result_json, "attempt": int() | None as attempt}:
                return cls(result_json=result_json, attempt=attempt)
            case _:
                return None


DOUBT_PREFIX = "in_doubt "


def doubt_state(attempt: int) -> str:
    """What a failure note's ``claim_state`` says of a claim in doubt."""
    return f"{DOUBT_PREFIX}{attempt}"


def attempt_in_doubt(claim_state: str | None) -> int | None:
    """The interrupted attempt that a ``claim_state`` names, for ``Settlement.attempt``; None where it names none."""
    prefix, _, attempt = (claim_state or "").partition(" ")
    return int(attempt) if f"{prefix} " == DOUBT_PREFIX and attempt.isdecimal() else None
