"""What an exception says: never raises, always bounded, our own frames kept."""

from __future__ import annotations

import json
import sqlite3
import sys
from types import SimpleNamespace
from typing import Any

import pytest
from billiard.einfo import ExceptionInfo
from hypothesis import given, settings
from hypothesis import strategies as some

from tasks.failure_text import describe_error, short_traceback, storable


class SilentError(Exception):
    """Its text cannot be had."""

    def __str__(self) -> str:
        raise SystemExit(3)


class WordlessError(Exception):
    """Its text is none."""

    __str__ = int.__new__  # type: ignore[assignment]


class LyingMeta(type):
    """A class that does not say its module."""

    @property
    def __module__(cls) -> str:  # type: ignore[override]
        raise RuntimeError("no")


def _liar() -> BaseException:
    return LyingMeta("LiarError", (Exception,), {})("a")  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("error", "kind", "text"),
    [
        (ValueError("wrong"), "builtins.ValueError", "wrong"),
        (KeyError("a"), "builtins.KeyError", "'a'"),
        (sqlite3.OperationalError("locked"), "sqlite3.OperationalError", "locked"),
        (SilentError("a"), "tests.unit.test_failure_text.SilentError", "(no text: its __str__ raised SystemExit)"),
        (WordlessError(), "tests.unit.test_failure_text.WordlessError", "(no text: its __str__ raised TypeError)"),
        (_liar(), "? (RuntimeError while asked for its name)", "a"),
        (ValueError("a\x00b\ud800"), "builtins.ValueError", "a\\x00b\\ud800"),
        (ValueError(), "builtins.ValueError", ""),
    ],
)
def test_any_exception_is_described(error: BaseException, kind: str, text: str) -> None:
    """Type and text of exceptions that behave badly are still told (D1)."""
    assert describe_error(error) == (kind, text)


def test_five_megabytes_of_text_are_cut() -> None:
    """The text keeps where it began and how it ended (D1)."""
    described = describe_error(ValueError("begin" + "x" * 5_000_000 + "end"))
    assert len(described.text) <= 8_000
    assert described.text.startswith("begin")
    assert described.text.endswith("end")


def test_a_name_of_a_megabyte_is_cut() -> None:
    """So is the name of a type (D1)."""
    assert len(describe_error(type("E" * 1_000_000, (Exception,), {})()).type) <= 200


@settings(deadline=None)  # the machine may be busy
@given(some.text())
def test_what_is_told_can_be_stored(text: str) -> None:
    """Whatever the text, it is UTF-8 without NUL, and plain text stays as it is (D1)."""
    told = storable(text)
    assert "\x00" not in told
    assert json.loads(json.dumps(told).encode()) == told
    told.encode()
    if text.isprintable():
        assert told == text


def _raised(provoke: Any) -> BaseException:
    try:
        provoke()
    except BaseException as error:  # noqa: BLE001, RUF100, the test wants it whatever it is
        return error
    raise AssertionError("nothing was raised")


def _own_code(depth: int) -> None:
    if depth:
        _through_a_library(depth)
    raise ValueError("m" * 50_000)


def _through_a_library(depth: int) -> None:
    # json calls back into our code: its frames stand between ours.
    json.loads("[1]", parse_int=lambda _: _own_code(depth - 1))


def test_a_short_traceback_is_kept_whole() -> None:
    """What fits is not touched (D1)."""
    text = short_traceback(_raised(lambda: _own_code(0) if sys.argv is None else int("a")))
    assert text.startswith("Traceback (most recent call last):\n")
    assert text.endswith("ValueError: invalid literal for int() with base 10: 'a'\n")


def test_frames_of_libraries_go_before_ours() -> None:
    """Where leaving libraries out is enough, none of our own frames is lost (D1)."""
    text = short_traceback(_raised(lambda: _own_code(8)), max_length=9_000)
    assert text.count("in _own_code\n") == 9
    assert text.count("in _through_a_library\n") == 8
    assert "frames left out)" in text


@pytest.mark.parametrize("max_length", [3_500, 6_000, 9_000])
def test_frames_of_our_own_code_survive_the_cut(max_length: int) -> None:
    """Long texts are cut, then libraries' frames go, and ours stay, the newest for certain (D1)."""
    text = short_traceback(_raised(lambda: _own_code(8)), max_length=max_length)
    assert len(text) <= max_length
    assert 'raise ValueError("m" * 50_000)' in text
    assert "frames left out)" in text
    assert text.startswith("Traceback (most recent call last):\n")
    assert "ValueError: mmmm" in text
    ours, theirs = text.count("test_failure_text.py"), text.count("json/decoder.py")
    assert ours > theirs


def _endless(depth: int = 0) -> None:
    if depth % 2:
        _endless(depth + 1)
    _endless(depth + 1)


def test_a_recursion_error_is_told() -> None:
    """A thousand frames become a text of the size that was asked for (D1)."""
    text = short_traceback(_raised(_endless), max_length=4_000)
    assert len(text) <= 4_000
    assert "RecursionError: maximum recursion depth exceeded" in text


def test_chains_and_groups_are_told() -> None:
    """Causes and the members of a group are in it (D1)."""

    def group() -> None:
        members = [_raised(lambda: int("a")), KeyError("b")]
        raise BaseExceptionGroup("several", members) from OSError("first")

    text = short_traceback(_raised(group))
    assert "OSError: first" in text
    assert "invalid literal" in text
    assert "KeyError: 'b'" in text


def test_celerys_exception_info_is_taken() -> None:
    """A parent that knows the failure of its child only as ExceptionInfo can tell it (D1)."""
    try:
        int("a")
    except ValueError:
        info = ExceptionInfo()
    assert "invalid literal for int()" in short_traceback(info)


@pytest.mark.parametrize(
    "error", [SilentError(), WordlessError(), _liar(), "text", None, SimpleNamespace(traceback=3)]
)
def test_no_failure_makes_a_traceback_fail(error: Any) -> None:
    """Whatever comes, a text comes out (D1)."""
    assert isinstance(short_traceback(error), str)


@settings(deadline=None)  # the machine may be busy
@given(some.text(alphabet='\n "|+-File,line<>a/', max_size=3000))
def test_a_text_that_looks_like_a_traceback_is_cut_too(text: str) -> None:
    """Hostile texts are bounded (D1)."""
    assert len(short_traceback(text, max_length=200)) <= 200
