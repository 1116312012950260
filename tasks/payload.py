"""The fingerprint of a task's payload: the same call has the same one, however it travelled."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Collection, Mapping, Sequence
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any, Final
from uuid import UUID

from tasks.errors import PayloadNotSerializableError

FINGERPRINT_LENGTH: Final = 32
"""Hexadecimal digits, 128 bits: only calls under one key are ever compared."""


def fingerprint(
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    *,
    ignore: Collection[str] = (),
    parameters: Sequence[str] = (),
) -> str:
    """Fingerprint one call's arguments.

    Stable over JSON round trips: tuple or list, the order of a dict, 1 or 1.0, 1 or "1" as a dict's key are
    all one. ``parameters`` names the positional arguments, so that ``f(1)`` and ``f(order_id=1)`` are the
    same call and ``ignore`` finds what it names. Raises PayloadNotSerializableError.
    """
    named = dict(zip(parameters, args, strict=False))
    rest = list(args[len(named) :])
    call = {name: value for name, value in {**named, **kwargs}.items() if name not in ignore}
    try:
        canonical = json.dumps([_canonical(rest), _canonical(call)], sort_keys=True, separators=(",", ":"))
    except RecursionError as error:
        raise PayloadNotSerializableError("an argument is nested too deeply to be compared") from error
    return hashlib.sha256(canonical.encode()).hexdigest()[:FINGERPRINT_LENGTH]


EXACT_FLOAT_LIMIT: Final = 2**53
"""Beyond it, a float stands for several whole numbers."""


def _canonical(value: Any) -> Any:  # noqa: PLR0911, one line a type
    match value:
        case None | bool() | str():
            return str(value) if isinstance(value, str) else value
        case int():
            return int(value)
        case float():
            # Another JSON library may write 1.0 as 1.
            whole = math.isfinite(value) and value.is_integer() and abs(value) < EXACT_FLOAT_LIMIT
            return int(value) if whole else float(value)
        case Mapping():
            return {_key(key): _canonical(item) for key, item in value.items()}
        case list() | tuple():
            return [_canonical(item) for item in value]
        case datetime() | date() | time():
            return value.isoformat()
        case timedelta():
            return value.total_seconds()
        case Decimal() | UUID():
            return str(value)
        case bytes():
            return value.hex()
        case set() | frozenset():
            return sorted((_canonical(item) for item in value), key=json.dumps)
        case _:
            raise PayloadNotSerializableError(
                f"an argument of type {type(value).__qualname__} has no stable form: pass its id, or plain "
                "JSON, or name it in ignore_arguments"
            )


def _key(key: Any) -> str:
    """A dict's key as JSON would write it."""
    if isinstance(key, str):
        return key
    plain = _canonical(key)
    return plain if isinstance(plain, str) else json.dumps(plain, sort_keys=True)
