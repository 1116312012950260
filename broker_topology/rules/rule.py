"""What a lint rule is, and what it finds."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum

from broker_topology.rules.subject import FileSubject, Subject


class Severity(StrEnum):
    """How bad a finding is. Only errors make ``lint`` fail."""

    ERROR = "error"
    """Messages are lost, looped or stuck, or a broker refuses the file."""
    WARNING = "warning"
    """Messages can be lost under a further condition."""
    NOTE = "note"
    """Worth knowing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hit:
    """One place where a rule is broken."""

    object: str
    """Such as ``queue payments``."""
    message: str
    """What is wrong here and what to do, one line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One rule: what it forbids, why, and where that comes from."""

    id: str
    severity: Severity
    title: str
    """What is wrong, without a subject: the table's second column."""
    why: str
    """One sentence."""
    reference: str
    """The page of RabbitMQ's documentation."""
    check: Callable[[Subject], Iterable[Hit]]
    refused: bool = False
    """Whether a broker refuses to create such an object, so that a deploy would stop half-way."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FileRule:
    """A rule on a whole file rather than on one virtual host of it."""

    id: str
    severity: Severity
    title: str
    why: str
    reference: str
    check: Callable[[FileSubject], Iterable[Hit]]
    refused: bool = False


def found_nowhere(_subject: FileSubject) -> Iterable[Hit]:
    """The check of a rule whose findings the engine makes by itself."""
    return ()
