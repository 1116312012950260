"""The lint engine: runs the rules over a file or a broker's state and applies what the file switches off.

A rule is switched off in the file's own place for parameters, with a reason::

    "global_parameters": [
      {"name": "broker-topology-lint", "value": {"ignore": [
        {"rule": "classic-work-queue", "object": "queue legacy", "reason": "is drained and deleted in May"}
      ]}}
    ]

Brokers of every version take and export this parameter unread. ``object`` may end in ``*`` or be left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from broker_topology.definitions import parse_definitions
from broker_topology.entries import as_object
from broker_topology.errors import ConfigurationError
from broker_topology.locate import line_of, sections
from broker_topology.rules import FILE_RULES, RULES, VHOST_RULES, FileRule, FileSubject, LiveFacts, Rule, Severity
from broker_topology.rules.rule import Hit
from broker_topology.rules.subject import Subject
from broker_topology.topology import is_export, topology_of, vhosts_of
from broker_topology.versions import SUPPORTED, Version

PARAMETER = "broker-topology-lint"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One broken rule in one place."""

    rule: Rule | FileRule
    object: str
    message: str
    vhost: str | None = None
    """None for what concerns the whole file."""
    line: int | None = None
    """In the file's text; None for a broker's state."""
    suppressed: str | None = None
    """The reason for which the file switches it off."""

    @property
    def severity(self) -> Severity:
        """The rule's severity."""
        return self.rule.severity


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """Everything that was found."""

    name: str
    """Of the file or broker."""
    versions: tuple[Version, ...]
    findings: tuple[Finding, ...]
    """The worst first; suppressed ones included."""

    @property
    def active(self) -> tuple[Finding, ...]:
        """What is not switched off."""
        return tuple(finding for finding in self.findings if finding.suppressed is None)

    @property
    def failed(self) -> bool:
        """Whether there is an error that is not switched off."""
        return any(finding.severity is Severity.ERROR for finding in self.active)


def lint_text(
    text: str,
    *,
    name: str = "definitions",
    target: Version | None = None,
    live: Mapping[str, LiveFacts] | None = None,
) -> Report:
    """Lint the text of a definitions file; findings have lines. Raises TopologyError."""
    report = lint(parse_definitions(text, name=name), name=name, target=target, live=live)
    lines = _Lines(text)
    return replace(
        report,
        findings=tuple(replace(finding, line=lines.of(finding)) for finding in report.findings),
    )


def lint(
    definitions: Mapping[str, Any],
    *,
    name: str,
    target: Version | None = None,
    live: Mapping[str, LiveFacts] | None = None,
) -> Report:
    """Lint parsed definitions.

    They must hold on ``target``; without one, on the version that exported them, or else on every supported
    version. ``live`` is what a broker knows of its queues, by virtual host.
    """
    versions = (target,) if target else versions_of(definitions)
    found: list[Finding] = []
    for vhost in vhosts_of(definitions):
        topology, _ = topology_of(definitions, vhost)
        subject = Subject(topology, definitions, versions=versions, live=(live or {}).get(vhost))
        for rule in VHOST_RULES:
            found += [_finding(rule, hit, vhost) for hit in rule.check(subject)]
    whole = FileSubject(definitions=definitions, versions=versions)
    for file_rule in FILE_RULES:
        found += [_finding(file_rule, hit, None) for hit in file_rule.check(whole)]
    order = list(Severity)
    findings = sorted(_suppress(found, definitions), key=lambda finding: order.index(finding.severity))
    return Report(name=name, versions=versions, findings=tuple(findings))


def refused(subject: Subject) -> list[Finding]:
    """What a broker would refuse to create, so that nobody need find out half-way."""
    return [_finding(rule, hit, None) for rule in VHOST_RULES if rule.refused for hit in rule.check(subject)]


def rule_of(rule_id: str) -> Rule | FileRule:
    """The rule of that id. Raises ConfigurationError."""
    for rule in RULES:
        if rule.id == rule_id:
            return rule
    raise ConfigurationError(f"there is no rule {rule_id!r}; broker-topology lint --explain all lists them")


def versions_of(definitions: Mapping[str, Any]) -> tuple[Version, ...]:
    """The version that exported the definitions, or every supported one."""
    if is_export(definitions):
        return (Version.parse(str(definitions.get("rabbitmq_version", definitions.get("rabbit_version")))),)
    return SUPPORTED


def _finding(rule: Rule | FileRule, hit: Hit, vhost: str | None) -> Finding:
    return Finding(rule=rule, object=hit.object, message=hit.message, vhost=vhost)


def _suppress(findings: list[Finding], definitions: Mapping[str, Any]) -> Iterator[Finding]:
    """Mark what the file switches off, and add what is wrong with how it does."""
    used: set[int] = set()
    ignored = list(_ignored(definitions))
    for finding in findings:
        reasons = []
        for index, entry in enumerate(ignored):
            pattern = entry.get("object", "*")
            if entry.get("rule") == finding.rule.id and _same(finding.object, str(pattern)):
                used.add(index)
                reasons.append(str(entry.get("reason") or "").strip())
        yield replace(finding, suppressed=next((reason for reason in reasons if reason), None))
    for index, entry in enumerate(ignored):
        rule_id = str(entry.get("rule"))
        if not str(entry.get("reason") or "").strip():
            hit = Hit(object=f"global parameter {PARAMETER}", message=f"switches {rule_id} off without a reason")
            yield _finding(rule_of("suppression-without-reason"), hit, None)
        elif index not in used:
            known = any(rule.id == rule_id for rule in RULES)
            what = "which finds nothing there" if known else "which is no rule"
            hit = Hit(object=f"global parameter {PARAMETER}", message=f"switches {rule_id} off, {what}")
            yield _finding(rule_of("suppression-unused"), hit, None)


def _same(label: str, pattern: str) -> bool:
    return label.startswith(pattern[:-1]) if pattern.endswith("*") else label == pattern


def _ignored(definitions: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    for parameter in definitions.get("global_parameters", []):
        if parameter.get("name") == PARAMETER:
            ignore = as_object(parameter.get("value")).get("ignore", [])
            yield from (as_object(entry) for entry in (ignore if isinstance(ignore, list) else []))


_SECTION_OF = {
    "queue": "queues",
    "exchange": "exchanges",
    "policy": "policies",
    "user": "users",
    "vhost": "vhosts",
    "global parameter": "global_parameters",
    "operator policy": "parameters",
}


class _Lines:
    """The line of each object of a file."""

    def __init__(self, text: str) -> None:
        self._text, self._sections = text, sections(text)
        self._definitions = parse_definitions(text)

    def of(self, finding: Finding) -> int | None:
        label = finding.object
        for kind, section in _SECTION_OF.items():
            if label.startswith(f"{kind} "):
                return self._first(section, finding.vhost, f"{kind} ", label)
        if label.startswith("binding "):
            return self._first("bindings", finding.vhost, "binding ", label)
        section, bracket, index = label.partition("[")
        if bracket and section in self._sections and index.removesuffix("]").isdigit():
            return self._line(section, int(index.removesuffix("]")))
        return None

    def _first(self, section: str, vhost: str | None, kind: str, label: str) -> int | None:
        for index, entry in enumerate(self._definitions.get(section, [])):
            ends = f"{entry.get('source')} -> {entry.get('destination')}"
            name = ends if section == "bindings" else entry.get("name")
            if f"{kind}{name}" == label and (vhost is None or entry.get("vhost", vhost) == vhost):
                return self._line(section, index)
        return None

    def _line(self, section: str, index: int) -> int:
        return line_of(self._text, self._sections[section].entries[index][0])
