"""The text of a definitions file: read with a limit, parsed with an error that says where.

Source of the format: https://www.rabbitmq.com/docs/definitions
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NoReturn

from broker_topology.errors import TopologyError

MAX_FILE_BYTES = 32 * 1024 * 1024
"""A larger file is refused: the export of a broker with 10,000 queues has about 3 MB."""

SECTIONS = ("vhosts", "exchanges", "queues", "bindings", "policies")
"""What every command reads; each is a list of objects."""

OTHER_SECTIONS = ("users", "permissions", "topic_permissions", "parameters", "global_parameters")
"""What only some commands read; each is a list of objects too."""


def read_definitions_text(path: str | Path) -> str:
    """The text of a file. Raises TopologyError, in one sentence, for one that cannot be read as text."""
    try:
        with Path(path).open("rb") as file:
            content = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise TopologyError(f"cannot read {path}: {error.strerror}") from error
    except ValueError as error:  # a NUL in the path
        raise TopologyError(f"cannot read {path!r}: {error}") from error
    if len(content) > MAX_FILE_BYTES:
        raise TopologyError(
            f"{path} has more than {MAX_FILE_BYTES // 1024 // 1024} MB, which no definitions file needs"
        )
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        raise TopologyError(f"{path} is not UTF-8 text (byte {error.start})") from error


def parse_definitions(text: str, *, name: str = "definitions") -> dict[str, Any]:
    """Parse the text of a definitions file as it is, every key kept. Raises TopologyError."""
    if not text.strip():
        raise TopologyError(f"{name} is empty")
    if text.lstrip().startswith("<"):
        raise TopologyError(f"{name} is a web page, not a definitions file")
    try:
        definitions = json.loads(text, object_pairs_hook=_unique, parse_constant=_refuse_constant)
    except json.JSONDecodeError as error:
        raise TopologyError(
            f"{name} is not JSON: {error.msg} at line {error.lineno}, column {error.colno}"
        ) from error
    except RecursionError as error:
        raise TopologyError(f"{name} is nested too deeply to be a definitions file") from error
    except ValueError as error:
        raise TopologyError(f"{name}: {error}") from error
    try:
        json.dumps(definitions, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        raise TopologyError(f"{name} holds half of a surrogate pair, which is no text") from error
    if not isinstance(definitions, dict):
        raise TopologyError(f"{name} holds {_kind(definitions)}; a definitions file is a JSON object")
    for key in SECTIONS + OTHER_SECTIONS:
        section = definitions.get(key, [])
        if not isinstance(section, list) or not all(isinstance(entry, dict) for entry in section):
            raise TopologyError(f"{name}: {key} must be a list of objects")
    return definitions


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object whose keys stand once each: which of two wins differs from one JSON reader to the next."""
    found = dict(pairs)
    if len(found) < len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in keys if keys.count(key) > 1)
        raise ValueError(f"an object has the key {twice!r} twice")
    return found


def _refuse_constant(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")


def _kind(value: object) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "true or false"
        case int() | float():
            return "a number"
        case str():
            return "a string"
        case _:
            return "a list"
