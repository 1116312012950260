"""What may be shown of a message: sensitive values are masked, by their names and by their looks (pure)."""

from __future__ import annotations

import json
import re
from typing import Any

MASK = "***"
SENSITIVE_NAMES = ("password", "passwd", "token", "secret", "card", "cvc", "cvv", "iban", "authorization", "api_key")
"""A name that contains one of these hides its value."""

MAX_SHOWN_CHARACTERS = 1_000
MAX_READ_CHARACTERS = 100_000

_SECRET = re.compile(
    r"eyJ[\w-]{8,}\.[\w-]+"  # a JSON web token
    r"|\b(?:\d[ -]?){13,19}\b"  # the number of a card
    r"|\b(?:sk|pk|rk|ghp|xox[abp])[_-]\w{8,}"  # keys of APIs
    r"|(?<=://)[^/\s:@]+:[^/\s@]+(?=@)"  # user and password in an address
)


def masked_json(text: str | None) -> str | None:
    """A JSON text with sensitive values masked, short enough for a message; None where there is none."""
    if text is None:
        return None
    if len(text) > MAX_READ_CHARACTERS:
        return f"({len(text)} characters)"
    try:
        shown = json.dumps(masked(json.loads(text)), ensure_ascii=False)
    except (ValueError, RecursionError):
        return f"({len(text)} characters that cannot be read)"
    return shown if len(shown) <= MAX_SHOWN_CHARACTERS else shown[:MAX_SHOWN_CHARACTERS] + " ..."


def masked(value: Any) -> Any:
    """A decoded value with what is sensitive in it masked."""
    match value:
        case dict():
            return {name: MASK if _is_sensitive(name) else masked(item) for name, item in value.items()}
        case list():
            return [masked(item) for item in value]
        case str():
            return _SECRET.sub(MASK, value)
        case int() if len(str(abs(value))) in range(13, 20):
            return MASK
        case _:
            return value


def _is_sensitive(name: object) -> bool:
    lower = str(name).lower()
    return any(word in lower for word in SENSITIVE_NAMES)
