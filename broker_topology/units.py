"""Durations and sizes as people write them on a command line."""

from __future__ import annotations

import re

from broker_topology.errors import ConfigurationError

_MILLISECONDS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_BYTES = {"": 1, "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "kib": 2**10, "mib": 2**20, "gib": 2**30}


def milliseconds(text: str) -> int:
    """Read ``90s``, ``30m``, ``2h`` or ``1d``. Raises ConfigurationError."""
    match = re.fullmatch(r"(\d{1,12})\s*(ms|s|m|h|d)", text.strip().lower())
    if match is None:
        raise ConfigurationError(f"{text!r} is not a duration such as 90s, 30m, 2h or 1d")
    return int(match[1]) * _MILLISECONDS[match[2]]


def byte_count(text: str) -> int:
    """Read ``1000000``, ``512MiB`` or ``1GB``. Raises ConfigurationError."""
    match = re.fullmatch(r"(\d{1,15})\s*([kmg]?i?b?)", text.strip().lower())
    if match is None or match[2] not in _BYTES:
        raise ConfigurationError(f"{text!r} is not a size such as 1000000, 512MiB or 1GB")
    return int(match[1]) * _BYTES[match[2]]
