"""Values in a message that are words: months and weekdays, ordinals, people's names, what is no number (pure)."""

from __future__ import annotations

import re
from collections.abc import Iterator


def without_worded_values(words: list[str]) -> Iterator[str]:
    """The words, with placeholders for those that a run put in."""
    at = 0
    while at < len(words):
        word = words[at]
        at += 1
        if word in _CALENDAR and (at > 1 or word != "May"):
            yield "<date>"
        elif word in _NOT_FINITE or (word in _ORDINALS and not _NUMBERED.isdisjoint(words[at : at + 1])):
            yield "<n>"
        elif word in _LITERALS and at == 1 and words[1:2] == ["is"]:
            yield "<value>"
        else:
            yield word
            if word in _PEOPLE and (end := _name_ends(words, at)) > at:
                yield "<name>"
                at = end


def _name_ends(words: list[str], start: int) -> int:
    """Where the name ends that begins at a word: a headline or a field of a person is none."""
    at_start = words[start - 1][0].isupper()  # there any noun may be written large
    end = start
    while end < min(len(words), start + MAX_WORDS_OF_NAME) and words[end] not in _NO_NAMES:
        if not _PART_OF_NAME.fullmatch(words[end]) and (end == start or words[end] not in _PART_OF_COMPANY):
            break
        end += 1
    follows = words[end] if end < len(words) else "A" if at_start else ""
    return end if end - start >= 1 + at_start and not follows[:1].isupper() else start


MAX_WORDS_OF_NAME = 6


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_CALENDAR = _words(
    "January February March April May June July August September October November December "
    "Monday Tuesday Wednesday Thursday Friday Saturday Sunday"
)
_ORDINALS = _words("first second third fourth fifth sixth seventh eighth ninth tenth")
_NUMBERED = _words("attempt try retry time row line column item entry element record page step part chunk")
"""The second argument is another argument; the second row is another row of the same kind."""

_NOT_FINITE = _words("nan inf -inf NaN Infinity -Infinity")
_LITERALS = _words("None True False")
_ROLES = _words("customer user client tenant patient member employee supplier vendor merchant recipient sender")
_PEOPLE = _ROLES | {role.capitalize() for role in _ROLES}
_NO_NAMES = _words(
    "Account Address Agent Balance Billing City Code Company Contact Country Currency Data Date Email Error Group Id "
    "Identity Key Language Limit List Locale Login Mail Name Not Number Order Password Payment Permission Phone Pool "
    "Profile Record Role Secret Service Session Settings Shipping Status Street Tax Time Token Type Zip"
)
_PART_OF_NAME = re.compile(
    r"[A-Z\u00c0-\u00d6\u00d8-\u00de](?:\.|[a-z\u00df-\u00f6\u00f8-\u00ff'\u2019-][\w'\u2019.-]*)"
)
_PART_OF_COMPANY = _words("& und and Co Co. KG AG SE SA SAS SARL LLC LTD BV NV AB OY")

TELLING_WORDS = _CALENDAR | _ORDINALS | _NOT_FINITE | _LITERALS | _PEOPLE
"""A message without any of these has no worded values."""
