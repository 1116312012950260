"""Results on record: plain JSON, and a stated placeholder for what JSON cannot hold or is too large.

A result is only known after the effect, so nothing here may fail: what cannot be kept is said in its place.
"""

from __future__ import annotations

import json
import types
import typing
from dataclasses import dataclass
from typing import Any, Final

NOT_KEPT: Final = "result_not_kept"
"""The key by which a placeholder is known."""


@dataclass(frozen=True, slots=True)
class Kept:
    """A result and what the record holds of it."""

    json: str
    """The result, or a placeholder that says why it was not kept."""
    result: Any
    """What the caller gets: the result as its duplicates will get it, or as it was where it was not kept."""
    problem: bool = False
    """Whether ``json`` is a placeholder."""


def keep(result: Any, max_result_bytes: float) -> Kept:
    """Put a result into the form of the record. Never raises."""
    try:
        text = _ENCODER.encode(result)
        restored = restore(text)
        # JSON would turn other keys into strings, and a duplicate would see another type than the first.
        if restored != result and restored != _listed(result):
            return Kept(_placeholder("not_json", type=type(result).__qualname__), result, problem=True)
    except (TypeError, ValueError, RecursionError) as error:
        placeholder = _placeholder("not_json", type=type(result).__qualname__, error=str(error)[:200])
        return Kept(placeholder, result, problem=True)
    if len(text) > max_result_bytes:
        return Kept(_placeholder("too_large", bytes=len(text), limit_bytes=max_result_bytes), result, problem=True)
    return Kept(text, restored)


_ENCODER = json.JSONEncoder(allow_nan=False, separators=(",", ":"))


def restore(result_json: str) -> Any:
    """The result of a record."""
    return json.loads(result_json)


def is_placeholder(result: Any) -> bool:
    """Whether a restored result says why the real one was not kept."""
    return isinstance(result, dict) and NOT_KEPT in result


def _placeholder(why: str, **details: Any) -> str:
    return json.dumps({NOT_KEPT: why, **details}, separators=(",", ":"))


def _listed(value: Any) -> Any:
    """The value with its tuples as lists: the one change of type that JSON may make."""
    match value:
        case tuple() | list():
            return [_listed(item) for item in value]
        case dict():
            return {key: _listed(item) for key, item in value.items()}
        case _:
            return value


_PLAIN = (str, int, float, bool, type(None), list, tuple, dict, object, Any, None)


def result_problem(annotation: Any) -> str | None:
    """Why results of a declared type cannot be kept as JSON, as a clause; None where they can, or who knows.

    ``annotation`` is the resolved return annotation of a task: a type, a union, a generic of plain ones.
    """
    kind = typing.get_origin(annotation) or annotation
    parts = typing.get_args(annotation)
    if kind in _CONTAINERS:
        if kind is dict and parts and parts[0] not in (str, Any):
            return f"JSON turns dict keys of type {getattr(parts[0], '__name__', parts[0])} into strings"
        problems = (result_problem(part) for part in parts if part is not Ellipsis)
        return next((problem for problem in problems if problem), None)
    if isinstance(kind, type) and kind not in _PLAIN and not typing.is_typeddict(kind):
        return f"JSON cannot hold a {kind.__qualname__}"
    return None


def declared_result_problem(run: Any) -> str | None:
    """Why results of a task's body cannot be kept, by its return annotation; None where it has none."""
    try:
        annotation = typing.get_type_hints(run).get("return", Any)
    except (NameError, TypeError, AttributeError):
        return None  # a name that only a type checker knows
    return result_problem(annotation)


_CONTAINERS = (typing.Union, types.UnionType, list, tuple, dict)
