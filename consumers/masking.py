"""What may be shown of a message: sensitive values are masked, by their names and by their looks (pure)."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from broker_topology.errors import ConfigurationError

MASK = "***"
SENSITIVE_NAMES = ("password", "passwd", "token", "secret", "card", "cvc", "cvv", "iban", "authorization", "api_key")
"""A name that contains one of these hides its value."""

MAX_SHOWN_CHARACTERS = 1_000
MAX_READ_CHARACTERS = 100_000

_SECRET = re.compile(
    r"eyJ[\w-]{8,}\.[\w-]+"  # a JSON web token
    r"|\b\d(?:[ -]?\d){12,18}\b"  # the number of a card
    r"|\b(?:sk|pk|rk|ghp|xox[abp])[_-]\w{8,}"  # keys of APIs
    r"|(?<=://)[^/\s:@]+:[^/\s@]+(?=@)"  # user and password in an address
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Masking:
    """What is hidden when a letter is shown."""

    names: tuple[str, ...] = SENSITIVE_NAMES
    """In lower case."""
    patterns: tuple[re.Pattern[str], ...] = (_SECRET,)

    def letter(self, row: Mapping[str, Any]) -> dict[str, Any]:
        """A row with its texts masked, as far as it has them; args, kwargs and properties are left as they are."""
        texts = {name: self.text(row[name]) for name in _TEXTS if row.get(name) is not None}
        return {**row, **texts}

    def json(self, text: str | None) -> str | None:
        """A JSON text masked, short enough for a message; None where there is none."""
        if text is None:
            return None
        if len(text) > MAX_READ_CHARACTERS:
            return f"({len(text)} characters)"
        try:
            shown = json.dumps(self.value(json.loads(text)), ensure_ascii=False)
        except (ValueError, RecursionError):
            return f"({len(text)} characters that cannot be read)"
        return shown if len(shown) <= MAX_SHOWN_CHARACTERS else shown[:MAX_SHOWN_CHARACTERS] + " ..."

    def value(self, value: Any) -> Any:
        """A decoded value with what is sensitive in it masked."""
        match value:
            case dict():
                return {name: MASK if self._is_sensitive(name) else self.value(item) for name, item in value.items()}
            case list():
                return [self.value(item) for item in value]
            case str():
                return self.text(value)
            case int() if len(str(abs(value))) in range(13, 20):
                return MASK
            case _:
                return value

    def at(self, path: str, value: Any) -> Any:
        """A value masked where it stands, such as ``kwargs.card.number``: any name on the way may hide it."""
        return MASK if any(self._is_sensitive(name) for name in path.split(".")) else self.value(value)

    def text(self, words: str) -> str:
        """A text with what looks sensitive in it masked."""
        for pattern in self.patterns:
            words = pattern.sub(MASK, words)
        return words

    def _is_sensitive(self, name: object) -> bool:
        lower = str(name).lower()
        return any(word in lower for word in self.names)


_TEXTS = ("error_message", "traceback", "decode_problem")
USUAL = Masking()


def read_masking(names: str | None, pattern: str | None) -> Masking:
    """The usual masking, and further names (separated by commas) and looks. Raises ConfigurationError."""
    further = tuple(name.strip().lower() for name in (names or "").split(",") if name.strip())
    try:
        patterns = (*USUAL.patterns, re.compile(pattern)) if pattern else USUAL.patterns
    except re.error as error:
        raise ConfigurationError(f"MASK_PATTERN is no regular expression: {error}") from error
    return Masking(names=(*USUAL.names, *further), patterns=patterns)
