"""One entry of a definitions file into a frozen value, or a sentence on why it cannot be."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """Why an entry of a definitions file cannot be used."""

    section: str
    index: int
    text: str

    def __str__(self) -> str:
        return f"{self.section}[{self.index}] {self.text}"


def read_entries(
    kind: type[T], entries: Iterable[Any], section: str, vhost: str, problems: list[Problem]
) -> Iterator[T]:
    """Build the values of one section and virtual host; what is malformed goes into ``problems`` instead."""
    for index, entry in enumerate(entries):
        place = entry.get("vhost", vhost)
        if not isinstance(place, str):
            problems.append(Problem(section=section, index=index, text=f"vhost is {place!r}; it must be a string"))
        elif place == vhost:
            match _read_entry(kind, entry):
                case str(problem):
                    problems.append(Problem(section=section, index=index, text=problem))
                case value:
                    yield value


def _read_entry(kind: type[T], entry: Mapping[str, Any]) -> T | str:
    """Build one frozen value, or say what is wrong; unknown keys are RabbitMQ's business and are left alone."""
    values = {key.replace("-", "_"): value for key, value in entry.items()}
    slots: dict[str, str] = {slot.name: str(slot.type) for slot in kind.__dataclass_fields__.values()}  # type: ignore[attr-defined]
    known = {key: value for key, value in values.items() if key in slots}
    for key, value in known.items():
        if slots[key] == "Arguments" and value == []:
            known[key] = {}  # what some JSON writers make of an empty object; brokers take it as one
        elif not isinstance(value, _EXPECTED[slots[key]]) or (slots[key] == "int" and isinstance(value, bool)):
            return f"{key} is {_shown(value)}; it must be {_NAMES[slots[key]]}"
    try:
        value = kind(**known)
    except TypeError as error:
        missing = str(error).partition("argument")[2].lstrip("s").strip(": ")
        return f"lacks {missing}"
    return _name_problem(values) or value


def _name_problem(values: Mapping[str, Any]) -> str | None:
    names = {"name": values.get("name"), "routing_key": values.get("routing_key")}
    names |= {key: values.get(key) for key in ("source", "destination")}
    for key, name in names.items():
        # AMQP's short strings end here, and py-amqp refuses longer ones with a struct error.
        if isinstance(name, str) and len(name.encode()) > 255:
            return f"{key} has more than 255 bytes"
        if isinstance(name, str) and key != "routing_key" and set(name) & {"\r", "\n"}:
            return f"{key} has a line break, which brokers take out of names"
    if values.get("name") == "":
        return "has an empty name"
    if values.get("destination_type", "queue") not in {"queue", "exchange"}:
        return f"destination_type is {_shown(values['destination_type'])}; it must be 'queue' or 'exchange'"
    return None


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:60]}..."


def as_object(value: object) -> Mapping[str, Any]:
    """The value where it is an object, else an empty one."""
    return value if isinstance(value, dict) else {}


_EXPECTED: dict[str, type] = {"str": str, "bool": bool, "int": int, "Arguments": dict}
_NAMES = {"str": "a string", "bool": "true or false", "int": "a whole number", "Arguments": "an object"}
