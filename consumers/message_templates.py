"""A message of an exception without its variable parts (pure).

What stays is what a programmer wrote: words, names of attributes, tables and constraints, and numbers that are
codes (errno, HTTP status). What goes is what a run put in: other numbers, quoted values, ids, dates, addresses,
paths. One pass from one interesting character to the next; no expression here can take more than linear time.
"""

from __future__ import annotations

import builtins
import re
from http import HTTPStatus

from consumers.worded_values import TELLING_WORDS, without_worded_values

MAX_READ_CHARACTERS = 1_200
"""How much of a message is looked at: what a failure is, it says at the beginning."""

MAX_TEMPLATE_LENGTH = 400
MAX_DEPTH = 3
"""How many messages inside of messages are opened."""


def message_template(message: str, *, code: str = "") -> str:
    """The message without its variable parts, on one line.

    ``code`` is the line that raised it: what is quoted and stands there is the programmer's, not the run's.
    """
    text = message[:MAX_READ_CHARACTERS]
    if "\n" in text or "[SQL:" in text:
        text = _SNIPPET.sub("", _DATABASE_TAIL.split(text, maxsplit=1)[0])
    if "</" in text:
        text = _MARKUP.sub(" ", text)
    words = _template(text, code, 0).split()
    if not TELLING_WORDS.isdisjoint(words):
        words = list(without_worded_values(words))
    return " ".join(words)[:MAX_TEMPLATE_LENGTH]


def _template(text: str, code: str, depth: int) -> str:
    if not _INTERESTING.search(text):
        return text
    text = _HINT.sub("", text)
    if "ipv" in text:
        text = _SCHEME_OF_PEER.sub("", text)
    if "input_value=" in text:
        text = _GIVEN.sub("", text)
    if "." in text:
        text = _FILE_OR_HOST.sub("<address>", text)
    if "[" in text:
        text = _STRERROR.sub(r"\1", text)
    if "codec" in text:
        text = _CODEC.sub(r"\1", text)
    return _Pass(text, code, depth).read()


def template_key(template: str) -> str:
    """What two templates have to have in common: placeholders of any kind and number, and units, are alike."""
    if ("<" not in template and "{}" not in template and "[]" not in template) or _BARE.fullmatch(template):
        return template
    if "<<email>>" in template:
        template = _DISPLAY_NAME.sub("<email>", template)
    if " <n>" in template or "-<n>" in template:
        template = _DATE_IN_WORDS.sub("<date>", template)
    key = _PLACEHOLDERS.sub("*", template)
    if " object at *>, <" in key:
        key = _REPEATED.sub(r"\1", key)
    return _COUNTED_THING.sub(r"\1", _UNIT.sub("*", key)) if "* " in key or "*." in key else key


_BARE = re.compile(r"<\w+>")
"""The key of a KeyError: a number is not looked up where a text is."""

_MONTH = r"(?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)[a-z]*\.?"
_DAY = r"(?:(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun)[a-z]*,? )?"
_FOREIGN_MONTH = r"(?i:jan|f[eé][bv]|m[aä]r|a[bpv]r|ma[iy]|ju[inl]|a[ug]g|ago|ao[uû]|sep|o[ckt]t|nov|d[eéi][cz]|ene)"
_DATE_IN_WORDS = re.compile(
    rf"\b{_DAY}{_MONTH} <n>|{_DAY}<n>(?:[ -]{_MONTH}|\.? (?:de )?{_FOREIGN_MONTH}[^\W\d_]{{0,7}}\.?)[ -](?:de )?<n>"
)
_PLACEHOLDERS = re.compile(
    r"(?:\b(?:(?:Posix|Windows)?Path|UUID|Decimal|ObjectId|Timestamp|(?:datetime\.)?(?:datetime|date|time|timedelta))\()?"
    r"[\[({]{0,3}<\w+>(?:[\s,.:;/'+\-\[\](){}]{0,4}<\w+>)*(?:,?\s?[\])}]){0,3}|\[\]|\{\}"
)
_UNIT = re.compile(
    r"\*\.? (?:(?:[kKMGT]i?B|bytes?|ms|s|sec|min|seconds?|minutes?|hours?|days?|[AP]M|GMT|UTC|"
    r"(?i:usd|eur|gbp|chf|jpy))\b|%)(?:, \*)?"
)
_COUNTED_THING = re.compile(
    r"(\* (?:\w+ )?(?:file|row|line|column|item|entr|record|message|error|attempt|retr|argument|value|character|"
    r"element|object|order|page|task|worker|time|week|month|year))(?:y|ies|s)\b"
)
_REPEATED = re.compile(r"(<[\w.]+ object at \*>)(?:, \1)+")
"""How many there were is a count."""

_DISPLAY_NAME = re.compile(r"(?:\b[A-Z][\w.'-]{0,40} ){0,4}<<email>>")


_OPENING, _CLOSING = "\u201e\u201c\u00ab\u00bb\u2018\u201a\u2039\u203a", "\u201c\u201d\u00bb\u00ab\u2019\u2039\u203a"
"""Quotation marks as they are printed in other languages."""

_MARKUP = re.compile(r"<[/!?]?[A-Za-z][^<>]*>")
"""A page that came instead of an answer says what it says between its tags."""

_SCHEME_OF_PEER = re.compile(r"\bipv[46]:(?=[\[\d])")
_GIVEN = re.compile(r", input_value=.*?, input_type=\w+(?=\])")
"""Pydantic's repr of what it was given, and the type of that."""

_INTERESTING = re.compile(rf"[\d@/\\'\"`{{={_OPENING}]")
"""A message without any of these is all words."""

_DATABASE_TAIL = re.compile(
    r"\n(?:[A-Z]{3,12}(?: \d+)?:\s|\[parameters:|\(Background on|\tdebug_error_string = )|\s\[SQL:"
)
"""Where a database driver's or SQLAlchemy's message stops to say what and goes on to say with which values."""

_FILE_OR_HOST = re.compile(
    r"(?<![\w./\\@:-])[\w-]+(?:\.[\w-]+)*\.(?:csv|json|txt|pdf|xml|html?|png|jpe?g|log|zip|gz|xlsx?|docx?|ya?ml|parquet|"
    r"tmp|com|org|net|local|internal|example|invalid)\b(?![\w.(])"
)

_HINT = re.compile(r"(?:\. ?Did you mean|\bChoices are|\(choose from|\bAvailable \w+ are)\b.*", re.DOTALL)
"""What there is to choose from changes without the failure changing."""

_SNIPPET = re.compile(r"\n[^\n]*\n[ \t]*\^+[ \t]*(?=\n|\Z)")
"""A line of somebody's text and a caret that points into it."""

_STRERROR = re.compile(r"(\[(?:Errno|WinError) -?\d+\])[^:'\"\n]*")
"""The number says it in every language."""

_CODEC = re.compile(r"(codec can't (?:de|en)code).*", re.DOTALL)
"""Whether one byte or several, and why, is chance."""


class _Pass:
    """One pass over a text."""

    def __init__(self, text: str, code: str, depth: int) -> None:
        self.text, self.code, self.depth = text, code, depth
        self.written: list[str] = []
        self.end = 0
        """Up to where the text is written."""
        self.name_ended_at = -1
        """Where the newest quoted name that was kept ended."""
        self.is_data = text[:1] in ("{", "[") and text.rstrip()[-1:] in ("}", "]")
        """Whether the whole message is a list or a mapping, as of Django or an HTTP API."""

    def read(self) -> str:
        """The text with placeholders."""
        position = 0
        while found := _INTERESTING.search(self.text, position):
            position = self._part(found.start(), found[0])
        self.written.append(self.text[self.end :])
        return "".join(self.written)

    def _part(self, at: int, character: str) -> int:
        """Write what begins at a character; returns where to go on."""
        if character in "'\"":
            return self._quoted(at, character)
        if character == "{":
            if self.is_data:
                return at + 1
            return self._mapping(at)
        if character == "=":
            return self._assigned(at)
        if character == "`" or character in _OPENING:
            found = _TYPOGRAPHIC.match(self.text, at)
            return self._value(at, found.end(), found[1].strip()) if found else at + 1
        return self._token(at)

    def _write(self, start: int, end: int, instead: str) -> int:
        self.written += (self.text[self.end : start], instead)
        self.end = end
        return end

    def _replaced(self, at: int, found: re.Match[str] | None, placeholder: str) -> int:
        return self._write(at, found.end(), placeholder) if found else at + 1

    def _mapping(self, at: int) -> int:
        """``{...}``: what goes is all but the code of an error, as an HTTP API names it."""
        if self.text.endswith(("Error", "Exception"), 0, at):
            return at + 1  # ``KafkaError{code=...}``
        found = _MAPPING.match(self.text, at)
        named = _NAMED_ERROR.search(found[0]) if found else None
        return self._replaced(at, found, f"<values> '{named[1]}'" if named else "<values>")

    def _assigned(self, at: int) -> int:
        """``name=value``: the value goes, unless the name says that it is a code."""
        found = _ASSIGNED.match(self.text, at)
        if not found:
            return at + 1
        if _names_code(*_last_words(self.text, at)):
            return found.end()
        return self._write(at + 1, found.end(), "<value>")

    # Quoted

    def _quoted(self, at: int, quote: str) -> int:
        start = at
        if at and (self.text[at - 1].isalnum() or self.text[at - 1] in "_\\"):
            if self.text[at - 1] not in "bBuUrR" or (at > 1 and self.text[at - 2].isalnum()):
                return at + 1  # an apostrophe
            start = at - 1  # b'...'
        if found := _COMMAND.match(self.text, at):
            return self._write(start, found.end(), "<values>")
        found = (_SINGLE if quote == "'" else _DOUBLE).match(self.text, at)
        return self._value(start, found.end(), found[1]) if found else at + 1

    def _value(self, start: int, end: int, inner: str) -> int:
        if start == self.end == 0 and end == len(self.text):
            # A name that is not in the line that raised is the run's: ``prices[currency]``.
            name = _NAME.fullmatch(inner) is not None and (not self.code or inner in self.code)
        elif _STATUS_PHRASE.match(inner):
            return self._write(start, end, f"'{inner}'")
        elif self.depth < MAX_DEPTH and self._is_prose(start, inner):
            return self._write(start, end, f"'{_template(inner, self.code, self.depth + 1)}'")
        else:
            name = self._is_name(start, end, inner)
        if not (name and inner):
            return self._write(start, end, "<value>")
        self._write(start, end, f"'{_MANY_DIGITS.sub('#', inner)}'")
        self.name_ended_at = end
        return end

    def _is_prose(self, start: int, inner: str) -> bool:
        """Whether a quoted text is itself a message."""
        if " " not in inner or _BEGINS_PATH.match(inner):
            return False
        if _OPENS_PROSE.search(self.text, max(0, start - 12), start):
            return True
        if self.is_data:
            return inner.count(" ") > 1 or inner.endswith(".")
        return (
            self.text[max(0, start - 2) : start].strip().endswith("=")
            and _last_words(self.text, start)[1] in _MESSAGES
        )

    def _is_name(self, start: int, end: int, inner: str) -> bool:
        """Whether a quoted text is a name in a program or a schema."""
        if inner in _TYPES or _SNAKE_CASE.fullmatch(inner) or self.text.endswith("<class ", 0, start):
            return True
        if _PUNCTUATION_ONLY.fullmatch(inner):
            return self.text[start - 2 : start] != ": " and not _GIVES.search(self.text, max(0, start - 3), start)
        if "%" in inner and _TIME_FORMAT.fullmatch(inner):
            return _last_words(self.text, start)[1] == "format"
        return _IDENTIFIER.fullmatch(inner) is not None and self._is_named_around(start, end)

    def _is_named_around(self, start: int, end: int) -> bool:
        """Whether the words around a quoted text say that it is a name."""
        text = self.text
        before, last = _last_words(text, start)
        if self.is_data or text.startswith("=", start - 1) or text.endswith(" = ", 0, start):
            return text.startswith(":", end) or (_names_code(before, last) and not self._is_field(start, last))
        if _NAME_BEFORE.match(text, end) or _CALLED.search(text, max(0, start - 24), start):
            return True
        if self.name_ended_at > 0 and text[self.name_ended_at : start].strip() in _LISTS_ON:
            return True
        if _is_noun(last) or (last == "key" and before in _KEYS):
            # After a colon comes what was given: ``unknown url type: 'orders'``.
            return last in _LISTED or ":" not in text[start - 2 : start]
        if last in _JOINTS or _PUNCTUATION_ONLY.fullmatch(last):
            return last == "named" or _is_noun(before) or before == "for"
        return False

    def _is_field(self, start: int, name: str) -> bool:
        """Whether it is one of the data in a repr or in SQL: ``Order(id=17, state='open')``, ``state = 'open'``."""
        if name in _FIELDS and self.text.endswith(" = ", 0, start):
            return True
        opened = self.text.rfind("(", 0, start)
        if opened < 1 or name not in _FIELDS or self.text.find(")", opened, start) > 0:
            return False
        return self.text[opened - 1].isalnum() and not self.text.endswith(("Error", "Exception"), 0, opened)

    # Tokens: what has a digit, an @ or a slash

    def _token(self, at: int) -> int:
        start = at
        while start > self.end and self.text[start - 1] not in _DELIMITERS:
            start -= 1
        found = _TOKEN.match(self.text, start)
        if found and (found[0][0] == "/" or "://" in found[0]):
            found = _ADDRESS.match(self.text, start)
        core = found[0].rstrip(".:!?…)],;") if found else ""
        return self._write(start, start + len(core), self._core(start, core)) if core else at + 1

    def _core(self, start: int, core: str) -> str:
        end = start + len(core)
        if _NUMBER.fullmatch(core):
            return core if self._is_code(start, end, core) else "<n>"
        before, last = _last_words(self.text, start)
        if core == "/" and last in ("url", "uri", "path"):
            return "<path>"
        if (
            (last in _EXACT_CODES and _names_code(before, last))
            or _KEPT.fullmatch(core)
            or self.text.startswith(("(", " object"), end)
        ):
            return core
        if last == "index" and _INDEX_IN_MONGO.fullmatch(core):
            return _DIGITS.sub("#", core)
        return next((name for name, pattern in _KINDS if pattern.fullmatch(core)), None) or _mixed(core)

    def _is_code(self, start: int, end: int, number: str) -> bool:
        """Whether a number is one that a programmer compares with, rather than a count or a value."""
        text = self.text
        before, last = _last_words(text, start)
        if _names_code(before, last) or (last in ("with", "status") and before.startswith(_ANSWERS)):
            return True
        if len(number) == 3 and number[0] in "45":  # as of HTTP
            if start == 0 or text[:start] == "[" or text.endswith(("-> ", "=> "), 0, start):
                return True
            if _PHRASE.match(text, end) or (last.startswith(_ANSWERS) and not _COUNTED.match(text, end)):
                return True
        return text.startswith("(", start - 1) and _CODE_AFTER.match(text, end) is not None


def _mixed(core: str) -> str:
    word, colon, number = core.rpartition(":")
    if colon and number.isdecimal():
        return core if word.lower().endswith(_CODE_NAMES) else "<address>"
    return "<id>" if _DIGITS.search(core) else core


def _last_words(text: str, end: int) -> tuple[str, str]:
    """The two words before a position, in small letters without punctuation."""
    words = text[max(0, end - 48) : end].lower().replace("(s)", "").split()
    words = [word for word in (word.strip(_PUNCTUATION).rpartition("-")[2] for word in words[-4:]) if word]
    return (["", "", *words][-2], ["", *words][-1])


def _names_code(before: str, last: str) -> bool:
    """Whether what follows these words is the code of an answer, and not the code of a thing."""
    return last.endswith(_CODE_NAMES) and last not in _CODED_THINGS and not (last == "code" and before in _CODED)


def _is_noun(word: str) -> bool:
    return word in _NOUNS or (word.endswith("s") and word[:-1] in _NOUNS)


_PUNCTUATION = ":;,.!?=()[]{}#'\""
_DELIMITERS = frozenset(" \t\r\n\v\f()[]{}<>,;='\"`|" + _OPENING + _CLOSING)
_TOKEN = re.compile(rf"[^\s()\[\]{{}}<>,;='\"`|{_OPENING}{_CLOSING}]+")
_ADDRESS = re.compile(r"[^\s'\"`<>]+")
_DIGITS = re.compile(r"\d")

# Atomic groups: a possessive repetition of a group with a lookahead matches wrongly in Python 3.11.2.
_SINGLE = re.compile(r"'((?!\s)(?>(?:[^'\\]|\\.|'(?=\w))*))(?:'|\\?\Z)", re.DOTALL)
_DOUBLE = re.compile(r'"((?!\s)(?>(?:[^"\\]|\\.)*))(?:"|\\?\Z)', re.DOTALL)
"""A quoted text that does not end is one that was cut off."""

_COMMAND = re.compile(r"'\[[^\]\n]*+\]'")
_TYPOGRAPHIC = re.compile(rf"[`{_OPENING}]\s?([^`{_OPENING}{_CLOSING}\n]*+)[`{_CLOSING}]")
_MAPPING = re.compile(r"\{(?=[^{}\n]*['\":,])(?>(?:[^{}\n]|\{[^{}\n]*+\})*)\}")
_NAMED_ERROR = re.compile(r"['\"](?:error|(?:error|decline)?_?[cC]ode)['\"]: ?['\"]([A-Za-z_][\w.\-]{2,60})['\"]")
_ASSIGNED = re.compile(r"=[^\s,;()\[\]{}'\"<>=]+")

_NAME = re.compile(r"(?![a-f]{8,}$)[A-Za-z_.]{1,40}")
_GIVES = re.compile(r"\w, \Z")
"""``invalid load key, '<'``, unlike what may come next: ``',', ';'``."""

_TIME_FORMAT = re.compile(r"[^%]{0,12}(?:%[A-Za-z][^%]{0,3}){2,12}")
_INDEX_IN_MONGO = re.compile(r"(?:[A-Za-z][A-Za-z.]*_-?\d+_?)+")
_IDENTIFIER = re.compile(r"[^\W\d][\w.\-]{0,120}")
_SNAKE_CASE = re.compile(r"_?[a-z]+(?:_[a-z]+)+")
"""A programmer's name wherever it stands."""

_PUNCTUATION_ONLY = re.compile(r"[!-/:-@\[-`{-~]{1,3}")
_TYPES = frozenset(
    {"NoneType", "function", "method", "module", "generator", "coroutine", "builtin_function_or_method"}
    | {name for name, kind in vars(builtins).items() if isinstance(kind, type)}
)
_MANY_DIGITS = re.compile(r"\d{3,}|(?<=\d)\d")
_STATUS_PHRASE = re.compile(r"[1-5]\d\d [A-Z]")

_BEGINS_PATH = re.compile(r"[~.]{0,2}/|[A-Za-z]:\\|\\\\")
_OPENS_PROSE = re.compile(r"\((?:-?\d+, ?)?b?\Z")
"""The repr of an exception: what is quoted in it is its message."""

_CALLED = re.compile(r"(?:Error|Exception|NotFound|DoesNotExist)(?:\(|: ?)\Z")

_NAMED_THINGS = """
    arg argument attribute backend block class code codec collection column command constraint database
    dialect domain driver encoding engine event exchange extension feature field filter flag function header
    index instance keyword library macro method module name named near object operand operation operator
    option package parameter permission plugin property queue relation role schema scheme scope sequence
    setting signature state table tag trigger type variable vhost view spalte tabelle datenbank funktion
    colonne contrainte columna tabla
"""
_NOUNS = frozenset(_NAMED_THINGS.split())
"""What has a name in programs and schemas; PostgreSQL says some of them in the language of its server."""

_KEYS = frozenset(("for", "foreign", "unique", "primary"))
_JOINTS = frozenset(("of", "for", "not", "named", "unique"))
_LISTS_ON = frozenset(("and", "or", ",", ", and", ", or", "from", "in"))
_NAME_BEFORE = re.compile(
    r" (?:object|codec|takes|must|should|has no|cannot be|referenced before|not supported|"
    r"is (?:undefined|required|missing|deprecated|not defined|a required|an invalid keyword))\b"
)
_LISTED = frozenset(("argument", "arguments", "column", "columns", "field", "fields", "parameters", "options"))
_MESSAGES = frozenset(("message", "msg", "detail", "details", "reason", "description", "error", "title"))

_NUMBER = re.compile(
    r"#?[+-]?[€$£]?(?:0[xX][0-9a-fA-F]+|\d[\d._]*(?:[eE][+-]?\d+)?)"
    r"(?:%|[mµun]?s|sec|min|[mhd]|[kKMGT]i?B?|bytes|B|x|th|st|nd|rd|[€$£])?"
)
_KEPT = re.compile(
    r"[^\W\d_]+(?:/[^\W\d_]+)+|"  # and/or, text/html
    r"(?!eyJ)(?:[A-Za-z_]\w*\.)+[A-Z]\w*|"  # a class with its module
    r"(?i:utf-?\d+|sha-?\d+|md5|base64|u?int\d+|float\d+|ipv[46]|https?/[\d.]+|http2|s3|ec2|oauth2?|(?:tls|ssl)v?[\d.]+|"
    r"x509|latin-?1|iso[\d-]+|cp\d+|k8s|h2|v\d|(?:ORA|PLS|TNS|DPY|DPI|SQLSTATE)-?\d+)"
)
_KINDS = (
    ("<url>", re.compile(r"[A-Za-z][\w+.-]*://.*", re.DOTALL)),
    ("<email>", re.compile(r"[^@\s]+@[^@\s]+\.\w+")),
    ("<address>", re.compile(r"[\w.+-]+@[\w.-]+")),
    ("<uuid>", re.compile(r"[0-9a-fA-F]{8}-?(?:[0-9a-fA-F]{4}-?){3}[0-9a-fA-F]{12}")),
    ("<date>", re.compile(r"\d{4}-\d\d-\d\d(?:[T_]\d\d:?\d\d.*)?|\d{1,4}[./]\d{1,2}[./]\d{1,4}", re.DOTALL)),
    ("<time>", re.compile(r"\d{1,2}:\d\d(?::\d\d)?(?:[.,]\d+)?(?:Z|[+-]\d\d:?\d\d)?")),
    ("<address>", re.compile(r"(?:\d{1,3}\.){3}\d{1,3}(?::\d+)?|[0-9a-fA-F]{0,4}(?::[0-9a-fA-F]{0,4}){2,7}")),
    ("<path>", re.compile(r"(?:~|\.{1,2})?/[^/].*|[A-Za-z]:[\\/].*|[\w.-]+(?:[/\\][\w.-]*)+", re.DOTALL)),
)

_CODE_NAMES = (
    "errno",
    "error",
    "code",
    "status",
    "signal",
    "http",
    "sqlstate",
    "type",
    "state",
    "kind",
    "reason",
    "response",
)
_CODED = frozenset(
    "access area bank bar country coupon currency item post postal product promo qr tax voucher zip".split()  # noqa: SIM905
)
"""What has a code that is data."""

_CODED_THINGS = frozenset([*(f"{thing}code" for thing in _CODED), "opcode", "passcode", "geocode", "unicode"])
_FIELDS = frozenset(("state", "status", "kind", "type"))
_EXACT_CODES = frozenset(("code", "errno", "sqlstate"))
_ANSWERS = ("respon", "answer", "return", "fail", "exit", "repl", "got", "receiv")
_COUNTED = re.compile(r" \w")
_PHRASE = re.compile(
    "|".join([" (?:Client |Server )?[Ee]rror", *(f" {re.escape(status.phrase)}" for status in HTTPStatus)])
)
_CODE_AFTER = re.compile(r"\) [A-Z]|, b?['\"][^'\"\s]+ ")
