"""Arguments of a dead letter changed by a person: another body, the same message for all else (pure).

What is sent carries the call that it was before, so that a worker knows the key's claim again: under one key, other
arguments are otherwise refused as a mistake.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

from broker_topology.compression import decompress
from broker_topology.errors import DeadLetterOfficeError
from broker_topology.message import EDITED_FROM_HEADER, MAX_DECODED_BYTES, read_task_message
from broker_topology.raw_headers import MalformedHeaderError, RawHeader, long_string
from broker_topology.raw_properties import Properties, read_properties

MAX_ORIGINAL_BYTES = 64 * 1024
"""The call before travels in a header, and headers must fit into one frame."""


class NotEditableError(DeadLetterOfficeError):
    """The arguments of this letter cannot be edited."""


class EditError(DeadLetterOfficeError):
    """The change cannot be made."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """What a task is called with."""

    args: list[Any]
    kwargs: dict[str, Any]

    def to_json(self, *, indent: int | None = None) -> str:
        """JSON that ``from_json`` reads."""
        call = {"args": self.args, "kwargs": self.kwargs}
        text = json.dumps(call, indent=indent, ensure_ascii=False)
        # A lone surrogate can be written as an escape alone.
        return text if _is_text(text) else json.dumps(call, indent=indent)

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Read what a person has typed. Raises EditError."""
        try:
            value = json.loads(text, parse_constant=_refuse_constant)
        except (ValueError, RecursionError) as error:
            raise EditError(f"it is not JSON: {error}") from error
        match value:
            case {"args": list(args), "kwargs": dict(kwargs), **rest} if not rest:
                return cls(args=args, kwargs=kwargs)
            case _:
                raise EditError('it must be an object with a list "args" and an object "kwargs", and nothing else')

    def changed(self, path: str, value: Any) -> Self:
        """The call with one value set: ``args.0``, ``kwargs.amount``, ``kwargs.order.lines.2.price``.

        A name that is new is added to an object; a list keeps its length. Raises EditError.
        """
        first, *rest = path.split(".")
        match first, rest:
            case "args", [_, *_]:
                return replace(self, args=_with_value(self.args, rest, value, path))
            case "kwargs", [_, *_]:
                return replace(self, kwargs=_with_value(self.kwargs, rest, value, path))
            case _:
                raise EditError(f"{path!r} must begin with args. or kwargs., such as kwargs.amount")


@dataclass(frozen=True, slots=True, kw_only=True)
class Edited:
    """What is sent in the place of the original."""

    body: bytes
    properties: bytes
    differences: dict[str, tuple[Any, Any]]
    """Each changed value by its path: before and after."""


def read_call(properties: bytes, body: bytes) -> Call:
    """What a message calls its task with. Raises NotEditableError."""
    read = read_properties(properties)
    message = read_task_message(
        read.headers, body, content_type=read.content_type, content_encoding=read.content_encoding
    )
    if problem := read.problem or message.problem:
        raise NotEditableError(f"its arguments cannot be edited: {problem}")
    if not isinstance(message.args, list) or not isinstance(message.kwargs, dict):
        raise NotEditableError("its arguments cannot be edited: they are no list and object")
    return Call(args=message.args, kwargs=message.kwargs)


def edited(properties: bytes, body: bytes, after: Call) -> Edited:
    """The message with another call. Raises NotEditableError, and EditError where nothing is changed."""
    before = read_call(properties, body)
    try:
        if before.to_json() == after.to_json():
            raise EditError("nothing is changed")
        json.dumps([after.args, after.kwargs], allow_nan=False)
        differences = dict(
            _differences("args", before.args, after.args) + _differences("kwargs", before.kwargs, after.kwargs)
        )
    except ValueError as error:
        raise EditError("NaN and infinity are no JSON") from error
    except RecursionError as error:
        raise NotEditableError("its arguments cannot be edited: they are nested too deeply") from error
    read = read_properties(properties)
    try:
        header = RawHeader.parse(properties)
    except MalformedHeaderError as error:
        raise NotEditableError(f"its properties cannot be read: {error}") from error
    return Edited(
        body=_new_body(read, body, after),
        properties=_new_header(header, before).encode(),
        differences=differences,
    )


def _new_body(read: Properties, body: bytes, after: Call) -> bytes:
    compression = read.headers.get("compression")
    if compression:
        body = decompress(body, str(compression), MAX_DECODED_BYTES)
    encoding = read.content_encoding or "utf-8"
    payload = json.loads(body.decode(encoding))
    if isinstance(payload, list):
        payload[:2] = [after.args, after.kwargs]
    else:  # protocol 1
        payload |= {"args": after.args, "kwargs": after.kwargs}
    return json.dumps(payload).encode(encoding)


def _new_header(header: RawHeader, before: Call) -> RawHeader:
    # What Celery logs of a call: its publisher may have hidden it, so nothing of the new one is put there.
    shown = {b"argsrepr": "(edited)", b"kwargsrepr": "{edited}"}
    original = before.to_json().encode()
    if len(original) > MAX_ORIGINAL_BYTES:
        raise NotEditableError(
            f"its arguments cannot be edited: they have {len(original)} bytes, more than {MAX_ORIGINAL_BYTES}"
        )
    entries = [
        (name, long_string(shown[name]) if name in shown else value)
        for name, value in header.headers or ()
        if name != b"compression"
    ]
    # A letter that was edited before still belongs to the call that its key was first used with.
    if not any(name == EDITED_FROM_HEADER.encode() for name, _ in entries):
        entries.append((EDITED_FROM_HEADER.encode(), long_string(before.to_json())))
    return RawHeader(properties=header.properties, headers=tuple(entries))


def _with_value(old: Any, path: Sequence[str], value: Any, whole: str) -> Any:
    name, *rest = path
    match old:
        case dict():
            if rest and name not in old:
                raise EditError(f"{whole}: there is no {name!r}")
            return {**old, name: _with_value(old[name], rest, value, whole) if rest else value}
        case list():
            if not name.isdecimal() or len(name) > len(str(len(old))) or int(name) >= len(old):
                raise EditError(f"{whole}: there is no place {name!r} in a list of {len(old)}")
            place = int(name)
            return [
                *old[:place],
                _with_value(old[place], rest, value, whole) if rest else value,
                *old[place + 1 :],
            ]
        case _:
            raise EditError(f"{whole}: there is nothing below a value of type {type(old).__name__}")


def _differences(path: str, before: Any, after: Any) -> list[tuple[str, tuple[Any, Any]]]:
    match before, after:
        case dict(), dict():
            names = dict.fromkeys([*before, *after])
            return [
                difference
                for name in names
                for difference in _differences(f"{path}.{name}", before.get(name, _NONE), after.get(name, _NONE))
            ]
        case list(), list() if len(before) == len(after):
            pairs = enumerate(zip(before, after, strict=True))
            return [d for place, pair in pairs for d in _differences(f"{path}.{place}", *pair)]
        case _:
            same = type(before) is type(after) and before == after
            return [] if same else [(path, (_told(before), _told(after)))]


_NONE = object()


def _told(value: Any) -> Any:
    return "(none)" if value is _NONE else value


def _is_text(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is no JSON")
