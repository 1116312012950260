"""Rules on a whole file: what an import needs, and users."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from broker_topology.rules.rule import FileRule, Hit, Severity, found_nowhere
from broker_topology.rules.subject import FileSubject, on_versions
from broker_topology.topology import is_export
from broker_topology.versions import Version

_V4_0, _V4_3 = Version(4, 0), Version(4, 3)

REQUIRED: dict[str, dict[str, Version | None]] = {
    "exchanges": {"vhost": None, "type": None, "durable": _V4_3},
    "queues": {"vhost": None, "durable": _V4_0, "auto_delete": _V4_0},
    "bindings": {"vhost": None, "destination_type": None, "routing_key": None},
    "policies": {"vhost": None, "pattern": None},
    "users": {"tags": None},
}
"""What an import needs in each section, and the first version that does without; seen on 3.10, 4.0 and 4.3."""


def _field_missing(subject: FileSubject) -> Iterator[Hit]:
    single = _is_single_vhost(subject)
    for section, fields in REQUIRED.items():
        for index, entry in enumerate(subject.definitions.get(section, [])):
            for key, until in fields.items():
                if key in entry or (key == "vhost" and single):
                    continue
                bad = [version for version in subject.versions if until is None or version < until]
                if bad:
                    yield Hit(
                        object=_label(section, index, entry),
                        message=f"lacks {key}, without which an import fails {on_versions(bad)}",
                    )


def _vhost_undeclared(subject: FileSubject) -> Iterator[Hit]:
    declared = [entry.get("name") for entry in subject.definitions.get("vhosts", [])]
    used: dict[str, str] = {}
    for section in ("exchanges", "queues", "bindings", "policies"):
        for index, entry in enumerate(subject.definitions.get(section, [])):
            if isinstance(vhost := entry.get("vhost"), str):
                used.setdefault(vhost, _label(section, index, entry))
    for vhost, first in used.items():
        if vhost not in declared and not _is_single_vhost(subject):
            yield Hit(object=f"vhost {vhost}", message=f"is used by {first}, and vhosts does not declare it")


def _plain_password(subject: FileSubject) -> Iterator[Hit]:
    for entry in subject.definitions.get("users", []):
        if "password" in entry:
            yield Hit(
                object=f"user {entry.get('name')}", message="has its password in plain text; store password_hash"
            )


def _user_without_hash(subject: FileSubject) -> Iterator[Hit]:
    for entry in subject.definitions.get("users", []):
        if not entry.get("password_hash") and "password" not in entry:
            yield Hit(
                object=f"user {entry.get('name')}",
                message="has no password_hash: an import clears the password that this user has on the broker",
            )


def _is_single_vhost(subject: FileSubject) -> bool:
    """Whether the file is what a broker exports for one virtual host, where no entry names it."""
    definitions = subject.definitions
    if definitions.get("rabbitmq_definition_format") == "single_virtual_host":
        return True
    return is_export(definitions) and "vhosts" not in definitions


def _label(section: str, index: int, entry: dict[str, Any]) -> str:
    name = entry.get("name")
    if isinstance(name, str):
        return f"{'policy' if section == 'policies' else section.removesuffix('s')} {name}"
    if section == "bindings":
        return f"binding {entry.get('source')} -> {entry.get('destination')}"
    return f"{section}[{index}]"


_DEFINITIONS = "https://www.rabbitmq.com/docs/definitions"

RULES = (
    FileRule(
        id="field-missing",
        severity=Severity.ERROR,
        title="An entry lacks a field that an import needs",
        why="3.10 needs durable and auto_delete on every queue; without a vhost every version refuses the file.",
        reference=_DEFINITIONS,
        check=_field_missing,
    ),
    FileRule(
        id="vhost-undeclared",
        severity=Severity.ERROR,
        title="A virtual host is used and not declared",
        why="An import into a broker that lacks the virtual host is refused.",
        reference=_DEFINITIONS,
        check=_vhost_undeclared,
    ),
    FileRule(
        id="plain-password",
        severity=Severity.ERROR,
        title="A password in plain text",
        why="Definitions files are copied and committed; a salted hash serves the same.",
        reference="https://www.rabbitmq.com/docs/passwords",
        check=_plain_password,
    ),
    FileRule(
        id="user-without-hash",
        severity=Severity.ERROR,
        title="A user without a password hash",
        why="An import overwrites users, and one without a hash has its password cleared.",
        reference="https://www.rabbitmq.com/docs/passwords",
        check=_user_without_hash,
    ),
    FileRule(
        id="suppression-without-reason",
        severity=Severity.ERROR,
        title="A rule is switched off without a reason",
        why="Whoever reads the file later must be able to tell whether the reason still holds.",
        reference=_DEFINITIONS,
        check=found_nowhere,
    ),
    FileRule(
        id="suppression-unused",
        severity=Severity.NOTE,
        title="A rule is switched off that finds nothing",
        why="A suppression that outlived its finding hides the next one.",
        reference=_DEFINITIONS,
        check=found_nowhere,
    ),
)
