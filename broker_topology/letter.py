"""A message on its way from one queue to another: its address, and its properties as bytes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Letter:
    """One message on its way."""

    exchange: str
    routing_key: str
    properties: bytes
    """The content header, as bytes."""


Readdress = Callable[[Letter], Letter]
"""What becomes of a message's address and properties."""
