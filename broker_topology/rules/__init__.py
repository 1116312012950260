"""The lint rules, as data: each has an id, a severity, one sentence why, and a reference."""

from broker_topology.rules import dead_letter_queues, dead_letters, declarations, exchanges, files, limits, policies
from broker_topology.rules.rule import FileRule, Hit, Rule, Severity
from broker_topology.rules.subject import FileSubject, LiveFacts, Role, Subject

VHOST_RULES: tuple[Rule, ...] = (
    *dead_letters.RULES,
    *dead_letter_queues.RULES,
    *limits.RULES,
    *policies.RULES,
    *declarations.RULES,
    *exchanges.RULES,
)
FILE_RULES: tuple[FileRule, ...] = files.RULES

RULES: tuple[Rule | FileRule, ...] = (*VHOST_RULES, *FILE_RULES)
"""Every rule, in the order of the reference table."""

__all__ = [
    "FILE_RULES",
    "RULES",
    "VHOST_RULES",
    "FileRule",
    "FileSubject",
    "Hit",
    "LiveFacts",
    "Role",
    "Rule",
    "Severity",
    "Subject",
]
