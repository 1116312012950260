"""What an exception says, in a form that can be kept: it never raises and is bounded (pure).

Foreign exceptions do anything: ``str`` that raises, texts of megabytes, lone surrogates that no database takes.
"""

from __future__ import annotations

import re
import traceback
from typing import Any, NamedTuple

from broker_topology.notes import MAX_MESSAGE_LENGTH, MAX_TRACEBACK_LENGTH, cut

MAX_TYPE_LENGTH = 200
MAX_MESSAGE_IN_TRACEBACK = 2_000
MAX_OWN_FRAMES = 100
"""How many frames of our own code are kept where all cannot be: the newest."""


class ErrorText(NamedTuple):
    """What an exception is and says."""

    type: str
    """With its module, such as ``builtins.ValueError``."""
    text: str


def describe_error(error: BaseException, *, max_length: int = MAX_MESSAGE_LENGTH) -> ErrorText:
    """Type and text of any exception, cut to ``max_length`` characters."""
    kind = type(error)
    try:
        name = f"{kind.__module__}.{kind.__qualname__}"
    except Exception as failure:  # a metaclass may do anything
        name = f"? ({type(failure).__name__} while asked for its name)"
    try:
        text = str(error)
    except (Exception, SystemExit) as failure:  # __str__ may do anything
        text = f"(no text: its __str__ raised {type(failure).__name__})"
    return ErrorText(storable(cut(name, MAX_TYPE_LENGTH)), storable(cut(text, max_length)))


def storable(text: str) -> str:
    """A text that every database and encoding takes: lone surrogates and NUL are written as escapes."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8").replace("\x00", "\\x00")


def short_traceback(error: Any, *, max_length: int = MAX_TRACEBACK_LENGTH) -> str:
    """A traceback cut to ``max_length`` characters, so that the frames of our own code survive.

    Takes an exception, Celery's ExceptionInfo, or a traceback as text. Where it is too long, texts of
    exceptions are cut, then frames of libraries go, then the oldest of our own.
    """
    text = storable(_traceback_text(error))
    if len(text) <= max_length:
        return text
    blocks = _blocks(text)
    blocks = [block if _is_frame(block) else cut(block, MAX_MESSAGE_IN_TRACEBACK) for block in blocks]
    for droppable in (_is_library_frame, _is_frame):
        blocks = _drop(blocks, droppable, max_length)
    return cut("".join(blocks), max_length)


def _traceback_text(error: Any) -> str:
    try:
        if isinstance(error, BaseException):
            return "".join(traceback.format_exception(error))
        return str(getattr(error, "traceback", error))
    except (Exception, SystemExit) as failure:  # foreign code runs while it is formatted
        return f"(no traceback: {type(failure).__name__} while it was formatted)\n"


_FRAME_START = re.compile(r'(?m)^ *(?:[|+] )*  File "')


def _blocks(text: str) -> list[str]:
    """Split a traceback into its frames and what stands between them."""
    blocks: list[str] = []
    for line in text.splitlines(keepends=True):
        starts_frame = _FRAME_START.match(line) is not None
        belongs_to_frame = bool(blocks) and _is_frame(blocks[-1]) and line.startswith("    ")
        belongs_to_words = bool(blocks) and not _is_frame(blocks[-1]) and not starts_frame
        if belongs_to_frame or belongs_to_words:
            blocks[-1] += line
        else:
            blocks.append(line)
    return blocks


def _is_frame(block: str) -> bool:
    return _FRAME_START.match(block) is not None


_LIBRARY = re.compile(r'File "(?:[^"\n]*[/\\](?:site-packages|dist-packages|lib[/\\]python3[^/\\"]*)[/\\]|<frozen )')


def _is_library_frame(block: str) -> bool:
    return _is_frame(block) and _LIBRARY.search(block.partition("\n")[0]) is not None


def _drop(blocks: list[str], droppable: Any, max_length: int) -> list[str]:
    """Leave droppable blocks out, oldest first, until the rest fits; say how many are gone."""
    surplus = sum(map(len, blocks)) + 60 - max_length
    kept: list[str] = []
    dropped = 0
    for block in blocks:
        if surplus > 0 and droppable(block):
            surplus -= len(block)
            dropped += 1
        else:
            kept.append(block)
    if dropped:
        kept.insert(1, f"  ({dropped} frames left out)\n")
    return kept
