"""A message on its way from one queue to another: its address, and its properties as bytes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class Letter:
    """One message on its way."""

    exchange: str
    routing_key: str
    properties: bytes
    """The content header, as bytes."""


class Readdress(Protocol):
    """What becomes of a message's address and properties."""

    def __call__(self, letter: Letter) -> Letter:
        """The letter as it is sent on."""
