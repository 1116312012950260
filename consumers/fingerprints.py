"""Which failures are the same failure (pure).

Two letters are the same failure where task, exception type, the frame of our own code and the message agree, once
the message's variable parts are taken out. Rules get better: RULES_VERSION says by which of them a fingerprint was
made, and where a better rule changes nothing the digest stays the same.
"""

from __future__ import annotations

import functools
import hashlib
import re
from typing import NamedTuple

from consumers.message_templates import MAX_READ_CHARACTERS, message_template, template_key

RULES_VERSION = 2

MAX_TITLE_LENGTH = 200
MAX_NAME_LENGTH = 500
MAX_FRAMES = 200


class Fingerprint(NamedTuple):
    """What tells one failure from another."""

    version: int
    digest: str
    """32 hexadecimal digits."""
    title: str
    """For people: the exception and its message without the variable parts."""


def fingerprint(
    *,
    task_name: str | None = None,
    error_type: str | None = None,
    error_message: str | None = None,
    traceback: str | None = None,
    own: str | None = None,
    queue: str | None = None,
    reason: str | None = None,
) -> Fingerprint:
    """The fingerprint of one dead letter.

    A task's ``own`` name for the failure decides alone. Without an exception, task, queue and reason do.
    """
    own, error_type = (own or "")[:MAX_NAME_LENGTH], (error_type or "")[:MAX_NAME_LENGTH]
    if own:
        return _made("own", own, title=own)
    if not error_type:
        title = f"{reason or 'dead'}: {task_name or 'unknown task'} from {queue or 'unknown queue'}"
        return _made("unsaid", task_name, queue, reason, title=title)
    place, code = ("", "") if error_type in _ANYWHERE else own_frame(traceback or "")
    template = _template(error_type, error_message or "", code)
    return _of_error(task_name, error_type, place, template)


def _template(error_type: str, message: str, code: str) -> str:
    if error_type in _SAYS_DATA:
        return ""
    if error_type in _SAYS_NAME:
        name = message[:MAX_READ_CHARACTERS].partition(" not found in ")[0]
        return _DIGITS.sub("#", _LANGUAGE.sub("", name))
    template = message_template(message, code=code)
    # What the interpreter did at the limit of the recursion is chance.
    return template[:32] if error_type == "builtins.RecursionError" else template


def _of_error(task_name: str | None, error_type: str, place: str, template: str) -> Fingerprint:
    last = error_type.rpartition(".")[2]
    title = f"{last}: {template}" if template else last
    return _made("error", task_name, error_type, place, template_key(template), title=title)


_ANYWHERE = frozenset(
    {
        "builtins.RecursionError",
        "builtins.MemoryError",
        "builtins.SystemExit",
        "builtins.KeyboardInterrupt",
        "billiard.exceptions.SoftTimeLimitExceeded",
        "celery.exceptions.SoftTimeLimitExceeded",
        "billiard.exceptions.TimeLimitExceeded",
        "billiard.exceptions.WorkerLostError",
    }
)
"""These strike wherever the code happens to be, so the frame says nothing."""


_SAYS_DATA = frozenset({"http.client.BadStatusLine", "builtins.StopIteration"})
"""Their text is what was received, and nothing else."""

_SAYS_NAME = frozenset({"jinja2.exceptions.TemplateNotFound", "django.template.exceptions.TemplateDoesNotExist"})
"""Their text is the name of something that a programmer wrote, and nothing else."""

_LANGUAGE = re.compile(r"[/_.\-][a-z]{2}(?:[_-][A-Z]{2})?(?=[/.])")


def _made(*parts: str | None, title: str) -> Fingerprint:
    text = "\x1f".join(part or "" for part in parts)
    digest = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()
    return Fingerprint(version=RULES_VERSION, digest=digest, title=" ".join(title.split())[:MAX_TITLE_LENGTH])


# The frame


def own_frame(traceback: str) -> tuple[str, str]:
    """File and function of the newest frame that is no library's, and its line of code; empty without one.

    The number of the line is left out, for it moves with every release, and of the path only the end is used,
    for the beginning differs from host to host.
    """
    start = max(traceback.rfind("Traceback (most recent call last)"), 0)
    end = len(traceback)
    for _ in range(MAX_FRAMES):
        end = traceback.rfind('  File "', start, end)
        if end < 0:
            break
        line, _, rest = traceback[end + 8 : end + 3000].partition("\n")
        path, _, where = line.partition('", line ')
        function = where.partition(", in ")[2]
        if function and function not in _INLINED and not _is_library(path):
            return f"{_short_path(path)}:{function}", rest.partition("\n")[0].strip()
    return "", ""


_INLINED = frozenset({"<listcomp>", "<dictcomp>", "<setcomp>", "<genexpr>"})
"""Python 3.12 has no frames for most of these any more."""


def _is_library(path: str) -> bool:
    if "-packages" in path or "/lib/python" in path or path.startswith("<frozen "):
        return True
    return "\\" in path and _WINDOWS_LIBRARY.search(path) is not None


_WINDOWS_LIBRARY = re.compile(r"\\Python\d*\\lib\\", re.IGNORECASE)
_DIGITS = re.compile(r"\d+")


@functools.lru_cache(maxsize=1024)
def _short_path(path: str) -> str:
    *_, folder, file = ["", *path.replace("\\", "/").split("/")]
    # A folder with a number is a release or a version.
    return f"{_DIGITS.sub('#', folder)}/{file}"


class Remembered:
    """Fingerprints of errors, remembered: in a storm messages differ in their numbers and ids alone.

    Two messages of one shape have one fingerprint, unless a number of theirs is a code. Then the template keeps
    it, and only the very same message is known again. Numbers that could be an HTTP status are no part of a shape.
    """

    def __init__(self) -> None:
        self._by_shape: dict[tuple[tuple[str | None, str, str, str], str], Fingerprint] = {}
        self._by_text: dict[tuple[tuple[str | None, str, str, str], str], Fingerprint] = {}

    def of_error(self, task_name: str | None, error_type: str, message: str, traceback: str) -> Fingerprint:
        """As ``fingerprint`` does for an exception."""
        error_type = error_type[:MAX_NAME_LENGTH]
        text = message[:MAX_READ_CHARACTERS]
        place, code = ("", "") if error_type in _ANYWHERE else own_frame(traceback)
        about = (task_name, error_type, place, code)
        known: Fingerprint | None = None
        shape = None if _COULD_BE_STATUS.search(text) else _NUMBERS.sub("0", text)
        if shape is not None:
            known = self._by_shape.get((about, shape))
        if known is None:
            known = self._by_text.get((about, text))
        if known is None:
            template = _template(error_type, message, code)
            known = _of_error(task_name, error_type, place, template)
            remembered = self._by_text
            if shape is not None and not _ANY_DIGIT.search(template):
                remembered, text = self._by_shape, shape
            if len(remembered) >= MAX_REMEMBERED:
                remembered.clear()
            remembered[about, text] = known
        return known


MAX_REMEMBERED = 10_000

_NUMBERS = re.compile(
    r"(?<![0-9A-Za-z])[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}|(?<![A-Za-z])\d[\da-fA-F-]*"
)
_ANY_DIGIT = re.compile(r"\d")
_COULD_BE_STATUS = re.compile(r"(?<![\w-])(?:[45]\d\d(?![\w-])|(?<=['\"])[1-3]\d\d )")
