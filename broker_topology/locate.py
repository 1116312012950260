"""Where things stand in the text of a definitions file, so that findings have lines and edits keep the rest."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass

_BLANK = " \t\r\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """Where one list of the top-level object stands: offsets into the text."""

    key_start: int
    start: int
    """Of the opening bracket."""
    end: int
    """Past the closing bracket."""
    entries: tuple[tuple[int, int], ...]
    """Start and end of each entry."""


def sections(text: str) -> dict[str, Section]:
    """Every top-level key whose value is a list. The text must be a JSON object, as parse_definitions checks."""
    return dict(_sections(text))


def value_span(text: str, start: int, wanted: str) -> tuple[int, int]:
    """Where the value of a key stands in the object that starts at ``start``. Raises KeyError."""
    decoder = json.JSONDecoder()
    at = _skip(text, start + 1)
    while text[at] != "}":
        key, at = decoder.raw_decode(text, at)
        value_at = _skip(text, _skip(text, at) + 1)  # past the colon
        _, at = decoder.raw_decode(text, value_at)
        if key == wanted:
            return value_at, at
        at = _after_comma(text, at)
    raise KeyError(wanted)


def line_of(text: str, offset: int) -> int:
    """The line of an offset, counted from 1."""
    return text.count("\n", 0, offset) + 1


def _sections(text: str) -> Iterator[tuple[str, Section]]:
    decoder = json.JSONDecoder()
    at = _skip(text, text.index("{") + 1)
    while text[at] != "}":
        key_start = at
        key, at = decoder.raw_decode(text, at)
        at = _skip(text, _skip(text, at) + 1)  # past the colon
        start = at
        if text[at] == "[":
            entries, at = _entries(text, at, decoder)
            yield key, Section(key_start=key_start, start=start, end=at, entries=tuple(entries))
        else:
            _, at = decoder.raw_decode(text, at)
        at = _after_comma(text, at)


def _entries(text: str, at: int, decoder: json.JSONDecoder) -> tuple[list[tuple[int, int]], int]:
    entries = []
    at = _skip(text, at + 1)
    while text[at] != "]":
        start = at
        _, at = decoder.raw_decode(text, at)
        entries.append((start, at))
        at = _after_comma(text, at)
    return entries, at + 1


def _after_comma(text: str, at: int) -> int:
    at = _skip(text, at)
    return _skip(text, at + 1) if text[at] == "," else at


def _skip(text: str, at: int) -> int:
    while text[at] in _BLANK:
        at += 1
    return at
