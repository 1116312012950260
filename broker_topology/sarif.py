"""A lint report as SARIF 2.1.0, which code hosts show beside the lines of a change.

Source: https://docs.oasis-open.org/sarif/sarif/v2.1.0/sarif-v2.1.0.html
"""

from __future__ import annotations

from pathlib import PurePath
from typing import Any

from broker_topology.lint import Finding, Report
from broker_topology.rules import RULES, FileRule, Rule


def to_sarif(report: Report) -> dict[str, Any]:
    """The report as a SARIF log with one run."""
    rules = list(RULES)
    return {
        "$schema": "https://json.schemastore.org/sarif-2.1.0.json",
        "version": "2.1.0",
        "runs": [
            {
                "tool": {"driver": {"name": "broker-topology", "rules": [_rule(rule) for rule in rules]}},
                "results": [_result(finding, rules, report.name) for finding in report.findings],
            }
        ],
    }


def _rule(rule: Rule | FileRule) -> dict[str, Any]:
    return {
        "id": rule.id,
        "shortDescription": {"text": rule.title},
        "fullDescription": {"text": rule.why},
        "helpUri": rule.reference,
        "defaultConfiguration": {"level": str(rule.severity)},
    }


def _result(finding: Finding, rules: list[Rule | FileRule], name: str) -> dict[str, Any]:
    physical: dict[str, Any] = {"artifactLocation": {"uri": PurePath(name).as_posix()}}
    if finding.line is not None:
        physical["region"] = {"startLine": finding.line}
    place: dict[str, Any] = {"logicalLocations": [{"fullyQualifiedName": _qualified(finding), "kind": "resource"}]}
    result: dict[str, Any] = {
        "ruleId": finding.rule.id,
        "ruleIndex": rules.index(finding.rule),
        "level": str(finding.severity),
        "message": {"text": f"{finding.object}: {finding.message}"},
        "locations": [place | {"physicalLocation": physical}],
    }
    if finding.suppressed is not None:
        result["suppressions"] = [{"kind": "inSource", "justification": finding.suppressed}]
    return result


def _qualified(finding: Finding) -> str:
    return finding.object if finding.vhost is None else f"{finding.vhost}/{finding.object}"
