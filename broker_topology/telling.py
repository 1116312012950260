"""What the commands print: reports as lines for people and as JSON for scripts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from broker_topology.deploy import Deployed
from broker_topology.lint import PARAMETER, Finding, Report
from broker_topology.migrate import Migrated
from broker_topology.permissions import Rights
from broker_topology.plan import Action, Plan
from broker_topology.rules import RULES, FileRule, Rule, Severity
from broker_topology.verdict import AS_IN_FILE, Verdict


def lint_lines(report: Report) -> Iterator[str]:
    """A lint report, one line for each finding and one in sum."""
    several = len({finding.vhost for finding in report.findings} - {None}) > 1
    for finding in report.active:
        where = f" in {finding.vhost}" if several and finding.vhost is not None else ""
        what = f"{finding.object}{where} {finding.message} [{finding.rule.id}]"
        yield f"{_place(finding, report)}: {finding.severity}: {what}"
    counts = [sum(finding.severity is severity for finding in report.active) for severity in Severity]
    words = [_count(count, str(severity)) for count, severity in zip(counts, Severity, strict=True) if count]
    off = len(report.findings) - len(report.active)
    switched_off = f", {off} switched off" if off else ""
    versions = ", ".join(str(version) for version in report.versions)
    yield f"{report.name}: {', '.join(words) or 'nothing found'}{switched_off} (RabbitMQ {versions})"


def lint_json(report: Report) -> dict[str, Any]:
    """A lint report for scripts."""
    return {
        "name": report.name,
        "versions": [str(version) for version in report.versions],
        "failed": report.failed,
        "findings": [
            {
                "rule": finding.rule.id,
                "severity": str(finding.severity),
                "vhost": finding.vhost,
                "object": finding.object,
                "message": finding.message,
                "line": finding.line,
                "suppressed": finding.suppressed,
            }
            for finding in report.findings
        ],
    }


def rule_lines(rule: Rule | FileRule) -> Iterator[str]:
    """One rule, explained."""
    yield f"{rule.id} ({rule.severity})"
    yield f"  {rule.title}."
    yield f"  {rule.why}"
    yield f"  {rule.reference}"


def rules_table() -> str:
    """The reference page of the rules, docs/reference/lint-rules.md; a test compares the two."""
    lines = [
        "# Lint rules",
        "",
        "Written by `broker-topology lint --explain table` from the rules themselves.",
        "",
        "`broker-topology lint FILE` exits 1 where a rule of severity error finds something. A file must hold on",
        "every version from 3.10 to 4.3, unless it is the export of one version or `--target` names one.",
        "",
        "A rule is switched off in the file's own place for parameters, with a reason. Brokers of every version",
        "import and export it unread:",
        "",
        "```json",
        '"global_parameters": [',
        f'  {{"name": "{PARAMETER}", "value": {{"ignore": [',
        '    {"rule": "classic-work-queue", "object": "queue legacy", "reason": "is deleted in May"}',
        "  ]}}",
        "]",
        "```",
        "",
        "`object` is written as findings write it; it may end in `*`, and without it the rule is off everywhere.",
        "",
        "| rule | severity | finds | why |",
        "|---|---|---|---|",
    ]
    lines += [f"| [{rule.id}]({rule.reference}) | {rule.severity} | {rule.title} | {rule.why} |" for rule in RULES]
    return "\n".join(lines) + "\n"


def plan_lines(plan: Plan) -> Iterator[str]:
    """A plan, one line for each difference."""
    for action in Action:
        for change in plan.of(action):
            yield f"{action:<8} {change}"
    for note in plan.notes:
        yield f"note     {note}"


def plan_json(deployed: Deployed) -> dict[str, Any]:
    """A plan or a deploy for scripts."""
    found = deployed.plan
    return {
        "vhost": found.vhost,
        "changed": deployed.changed,
        "failed": deployed.failed,
        "drift": bool(found.drift),
        "changes": [
            {"action": str(change.action), "object": change.object, "detail": change.detail}
            for change in found.changes
        ],
        "unchanged": list(found.unchanged),
        "ensured": list(found.ensured),
        "notes": list(found.notes),
        "policies_set": list(deployed.policies_set),
        "created": list(deployed.created),
        "policies_left_out": list(deployed.policies_left_out),
        "left_out_because": deployed.left_out_because,
    }


def deploy_lines(deployed: Deployed) -> Iterator[str]:
    """What a deploy did; what it could not do comes first."""
    found = deployed.plan
    failures = found.of(Action.MIGRATE, Action.CONFLICT)
    for change in failures:
        yield str(change)
    if found.blocked:
        differ = "argument differs" if len(found.blocked) == 1 else "arguments differ"
        yield f"nothing was changed: {len(found.blocked)} {differ} and cannot be changed in place"
        if found.of(Action.MIGRATE):
            yield "broker-topology migrate replaces such queues without losing a message"
        return
    for name in deployed.policies_set:
        yield f"set     policy {name}"
    for label in deployed.created:
        yield f"created {label}"
    for note in found.notes:
        yield f"note    {note}"
    for change in found.of(Action.EXTRA):
        yield f"extra   {change}"
    if not deployed.changed and not failures:
        yield f"nothing to change: all {len(found.unchanged) + len(found.ensured)} objects are in place"


def verdict_lines(verdict: Verdict) -> Iterator[str]:
    """A verdict, one line for each claim; what is only as the file says is counted, not listed."""
    quiet = 0
    for check in verdict.checks:
        if check.fault is not None:
            yield f"FAULT   {check.object}: {check.fault}"
        elif check.claim == AS_IN_FILE:
            quiet += 1
        else:
            yield f"proven  {check.object}: {check.claim}"
    yield f"proven  {quiet} objects: {AS_IN_FILE}"
    count = len(verdict.faults)
    yield "every road is proven" if not count else f"{_count(count, 'fault')} in virtual host {verdict.vhost}"


def verdict_json(verdict: Verdict) -> dict[str, Any]:
    """A verdict for scripts."""
    checks = [{"object": check.object, "claim": check.claim, "fault": check.fault} for check in verdict.checks]
    return {"vhost": verdict.vhost, "proven": not verdict.faults, "checks": checks}


def migration_lines(done: Sequence[Migrated]) -> Iterator[str]:
    """What became of each queue."""
    for migrated in done:
        resumed = ", begun by an earlier run" if migrated.resumed else ""
        yield (
            f"migrated queue {migrated.queue}: {migrated.stashed} messages moved, {migrated.held} held back"
            f" meanwhile{resumed}"
        )
    if not done:
        yield "nothing to migrate"


def policies_line(deployed: Deployed) -> str | None:
    """Which policies could not be seen or set, and why."""
    if deployed.left_out_because is None or not deployed.policies_left_out:
        return None
    return f"policies not set ({', '.join(deployed.policies_left_out)}): {deployed.left_out_because}"


def _place(finding: Finding, report: Report) -> str:
    return report.name if finding.line is None else f"{report.name}:{finding.line}"


def _count(count: int, word: str) -> str:
    return f"{count} {word}" if count == 1 else f"{count} {word}s"


def rights_lines(all_rights: Sequence[Rights]) -> Iterator[str]:
    """What each role may do, and why."""
    for own in all_rights:
        tags = f" (tags: {', '.join(own.tags)})" if own.tags else ""
        yield f"{own.role}{tags}"
        yield f"  configure  {own.configure}"
        yield f"  write      {own.write}"
        yield f"  read       {own.read}"
        for sentence in own.why:
            yield f"  - {sentence}"
