"""Each lint rule, on a file that breaks it and on the project's own file, which breaks none."""

from __future__ import annotations

import contextlib
import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from hypothesis import given, settings
from hypothesis import strategies as st

from broker_topology.__main__ import main
from broker_topology.errors import TopologyError
from broker_topology.lint import PARAMETER, Report, lint, lint_text
from broker_topology.rules import RULES, LiveFacts
from broker_topology.sarif import to_sarif
from broker_topology.versions import POLICY_KEYS, QUEUE_ARGUMENTS, SUPPORTED, Version
from tests.unit.definitions_files import FILES, JSON

DEFINITIONS = Path(__file__).parent.parent.parent / "definitions.json"
GOOD: dict[str, Any] = json.loads(DEFINITIONS.read_text())
PAYMENTS, DLQ, WORK_LIMITS = 0, 3, 0

Edit = Callable[[dict[str, Any]], object]


def arguments(queue: int, **changes: Any) -> Edit:
    """Set arguments of a queue, underscores for hyphens; None takes one away."""

    def edit(definitions: dict[str, Any]) -> None:
        own = definitions["queues"][queue]["arguments"]
        for name, value in changes.items():
            own.pop(f"x-{name.replace('_', '-')}", None)
            if value is not None:
                own[f"x-{name.replace('_', '-')}"] = value

    return edit


def entry(section: str, index: int, **changes: Any) -> Edit:
    """Set fields of an entry; ``...`` takes one away."""

    def edit(definitions: dict[str, Any]) -> None:
        for name, value in changes.items():
            key = name.replace("apply_to", "apply-to")
            if value is ...:
                del definitions[section][index][key]
            else:
                definitions[section][index][key] = value

    return edit


def add(section: str, **fields: Any) -> Edit:
    """Add an entry; underscores in ``apply_to`` become a hyphen."""
    renamed = {key.replace("apply_to", "apply-to"): value for key, value in fields.items()}
    return lambda definitions: definitions.setdefault(section, []).append(renamed)


def both(*edits: Edit) -> Edit:
    def edit(definitions: dict[str, Any]) -> None:
        for each in edits:
            each(definitions)

    return edit


def queue(name: str, **arguments: Any) -> dict[str, Any]:
    own = {f"x-{key.replace('_', '-')}": value for key, value in arguments.items()}
    return {"name": name, "vhost": "/", "durable": True, "auto_delete": False, "arguments": own}


def policy(name: str, **fields: Any) -> dict[str, Any]:
    values = {"vhost": "/", "pattern": "^payments$", "apply_to": "queues", "priority": 1}
    return {"name": name, **values, **fields}


def no_alternates(definitions: dict[str, Any]) -> None:
    for exchange in definitions["exchanges"]:
        exchange["arguments"] = {}


def ignoring(**ignored: str) -> Edit:
    return add("global_parameters", name=PARAMETER, value={"ignore": [ignored]})


RETRY_LOOP = both(
    arguments(PAYMENTS, dead_letter_exchange="", dead_letter_routing_key="wait"),
    lambda d: d["queues"].append(
        queue("wait", message_ttl=1000, dead_letter_exchange="", dead_letter_routing_key="payments")
    ),
)

BROKEN: list[tuple[str, str, Edit]] = [
    (
        "work-queue-without-dlx",
        "queue payments",
        arguments(PAYMENTS, dead_letter_exchange=None, dead_letter_strategy=None),
    ),
    ("dlx-undeclared", "queue payments", arguments(PAYMENTS, dead_letter_exchange="dead-leters")),
    (
        "dlx-routes-nowhere",
        "queue payments",
        both(no_alternates, arguments(PAYMENTS, dead_letter_exchange="work", dead_letter_routing_key="nobody")),
    ),
    ("dead-letter-cycle", "queue payments", RETRY_LOOP),
    (
        "dead-letter-loop",
        "queue payments",
        arguments(PAYMENTS, dead_letter_exchange="", dead_letter_routing_key="payments"),
    ),
    ("dlq-drops-returned", "queue dead-letters", arguments(DLQ, delivery_limit=None)),
    ("dlq-drops-returned", "queue dead-letters", arguments(DLQ, delivery_limit=-1)),
    ("dlq-drops-returned", "queue dead-letters", arguments(DLQ, delivery_limit=20)),
    ("dlq-can-drop", "queue dead-letters", arguments(DLQ, message_ttl=1000)),
    ("dlq-can-drop", "queue dead-letters", arguments(DLQ, expires=1000)),
    ("dlq-can-drop", "queue dead-letters", arguments(DLQ, max_length=1000, overflow="drop-head")),
    ("at-least-once-ineffective", "queue payments", arguments(PAYMENTS, overflow=None)),
    (
        "at-least-once-ineffective",
        "queue payments",
        entry("policies", WORK_LIMITS, definition={"overflow": "drop-head", "max-length": 5}),
    ),
    ("at-least-once-unbounded", "queue payments", entry("policies", WORK_LIMITS, definition={"delivery-limit": 5})),
    ("at-most-once", "queue payments", arguments(PAYMENTS, dead_letter_strategy=None)),
    ("dlx-without-alternate", "queue payments", no_alternates),
    (
        "classic-dead-letter-queue",
        "queue dead-letters",
        arguments(DLQ, queue_type="classic", delivery_limit=None),
    ),
    (
        "dead-letter-key-without-dlx",
        "queue payments",
        arguments(PAYMENTS, dead_letter_exchange=None, dead_letter_routing_key="a"),
    ),
    (
        "delivery-limit-missing",
        "queue payments",
        both(arguments(PAYMENTS, delivery_limit=None), entry("policies", 0, definition={"max-length": 5})),
    ),
    ("delivery-limit-negative", "queue payments", arguments(PAYMENTS, delivery_limit=-1)),
    ("delivery-limit-negative", "policy work-limits", entry("policies", 0, definition={"delivery-limit": -1})),
    ("classic-work-queue", "queue old", lambda d: d["queues"].append(queue("old"))),
    ("reject-publish-dlx-on-quorum", "queue payments", arguments(PAYMENTS, overflow="reject-publish-dlx")),
    ("delayed-retry-without-minimum", "queue payments", arguments(PAYMENTS, delayed_retry_type="all")),
    ("work-queue-expires", "queue payments", arguments(PAYMENTS, expires=1000)),
    ("single-copy-quorum", "queue payments", arguments(PAYMENTS, quorum_initial_group_size=1)),
    (
        "policies-of-equal-priority",
        "policy other",
        add("policies", **policy("other", definition={"max-length": 5}, priority=10)),
    ),
    (
        "policy-shadowed",
        "policy work-limits",
        add("policies", **policy("other", definition={"max-length": 5}, priority=11)),
    ),
    (
        "operator-policy-weakens",
        "operator policy op",
        add(
            "parameters",
            component="operator_policy",
            vhost="/",
            name="op",
            value={"pattern": ".*", "definition": {"delivery-limit": 5}, "apply-to": "queues", "priority": 0},
        ),
    ),
    ("policy-key-unknown", "policy work-limits", entry("policies", 0, definition={"delivry-limit": 5})),
    ("policy-key-unknown", "policy work-limits", entry("policies", 0, definition={"ha-mode": "all"})),
    ("policy-key-unknown", "policy work-limits", entry("policies", 0, definition={"consumer-timeout": 60000})),
    ("policy-value-refused", "policy work-limits", entry("policies", 0, definition={"delivery-limit": "5"})),
    ("policy-value-refused", "policy work-limits", entry("policies", 0, definition={})),
    ("policy-apply-to-unknown", "policy work-limits", entry("policies", 0, apply_to="quorum_queues")),
    ("policy-apply-to-unknown", "policy work-limits", entry("policies", 0, apply_to="quorum-queues")),
    ("policy-pattern-invalid", "policy work-limits", entry("policies", 0, pattern="^(payments$")),
    ("policy-matches-nothing", "policy work-limits", entry("policies", 0, pattern="^paymemts$")),
    ("policy-key-without-effect", "policy work-limits", entry("policies", 0, definition={"max-age": "7D"})),
    ("policy-key-without-effect", "policy work-limits", entry("policies", 0, apply_to="exchanges")),
    ("malformed-entry", "queues[0]", entry("queues", PAYMENTS, durable="yes")),
    ("malformed-entry", "queues[0]", entry("queues", PAYMENTS, arguments="none")),
    ("malformed-entry", "exchanges[0]", entry("exchanges", 0, type=...)),
    ("malformed-entry", "bindings[0]", entry("bindings", 0, destination_type="topic")),
    ("malformed-entry", "policies[0]", entry("policies", 0, priority=1.5)),
    ("binding-undeclared", "binding work -> paymens", entry("bindings", 0, destination="paymens")),
    ("binding-undeclared", "binding wrk -> payments", entry("bindings", 0, source="wrk")),
    (
        "export-leaves-out",
        "binding work -> paymens",
        both(entry("bindings", 0, destination="paymens"), lambda d: d.update(rabbitmq_version="4.3.6")),
    ),
    ("declared-twice", "queue payments", lambda d: d["queues"].append(queue("payments"))),
    ("quorum-property", "queue payments", entry("queues", PAYMENTS, durable=False)),
    ("quorum-property", "queue payments", entry("queues", PAYMENTS, exclusive=True)),
    ("argument-not-for-type", "queue payments", arguments(PAYMENTS, max_priority=5)),
    ("argument-not-for-type", "queue payments", arguments(PAYMENTS, queue_type="classic")),
    ("argument-value", "queue payments", arguments(PAYMENTS, delivery_limit="20")),
    ("argument-value", "queue payments", arguments(PAYMENTS, delivery_limit=True)),
    ("argument-value", "queue payments", arguments(PAYMENTS, max_length=2**64)),
    ("argument-value", "queue payments", arguments(PAYMENTS, dead_letter_exchange=5)),
    ("argument-unknown", "queue payments", arguments(PAYMENTS, delivry_limit=20)),
    ("argument-too-new", "queue payments", arguments(PAYMENTS, consumer_timeout=60000)),
    ("queue-type-unknown", "queue payments", arguments(PAYMENTS, queue_type="quorom")),
    ("transient-queue", "queue t", lambda d: d["queues"].append(queue("t") | {"durable": False})),
    (
        "alternate-undeclared",
        "exchange work",
        entry("exchanges", 0, arguments={"alternate-exchange": "nowhere"}),
    ),
    ("exchange-without-alternate", "exchange work", entry("exchanges", 0, arguments={})),
    ("routing-key-shared-by-delays", "queue payments", entry("bindings", 0, routing_key="high.crm")),
    ("direct-exchange-with-delays", "queue payments", entry("exchanges", 0, type="direct")),
    ("work-queue-unbound", "queue payments", lambda d: d["bindings"].pop(0)),
    ("exchange-type-of-some", "exchange work", entry("exchanges", 0, type="x-delayed-message")),
    ("field-missing", "queue payments", entry("queues", PAYMENTS, durable=...)),
    ("field-missing", "queue payments", entry("queues", PAYMENTS, vhost=...)),
    ("vhost-undeclared", "vhost /", entry("vhosts", 0, name="/other")),
    ("plain-password", "user u", add("users", name="u", password="secret", tags="")),
    ("user-without-hash", "user u", add("users", name="u", tags="")),
    (
        "suppression-without-reason",
        f"global parameter {PARAMETER}",
        ignoring(rule="work-queue-without-dlx", reason=" "),
    ),
    (
        "suppression-unused",
        f"global parameter {PARAMETER}",
        ignoring(rule="work-queue-without-dlx", reason="for a test"),
    ),
]
LIVE_RULES = {"length-below-depth", "dead-letters-retained"}


def broken(edit: Edit) -> dict[str, Any]:
    definitions = copy.deepcopy(GOOD)
    edit(definitions)
    return definitions


def test_the_projects_own_file_breaks_no_rule() -> None:
    """definitions.json is clean on every version from 3.10 to 4.3 (D3)."""
    report = lint_text(DEFINITIONS.read_text())
    assert report.versions == SUPPORTED
    assert report.findings == ()


@pytest.mark.parametrize(
    ("rule_id", "label", "edit"), BROKEN, ids=[f"{rule}-{n}" for n, (rule, _, _) in enumerate(BROKEN)]
)
def test_a_broken_file_is_found(rule_id: str, label: str, edit: Edit) -> None:
    """A file that breaks a rule is found by that rule, in that place (D3)."""
    report = lint(broken(edit), name="broken")
    assert (rule_id, label) in {(finding.rule.id, finding.object) for finding in report.findings}


def test_every_rule_has_a_file_that_breaks_it() -> None:
    """No rule is without a proof that it can find something (D3)."""
    assert {rule.id for rule in RULES} == {rule_id for rule_id, _, _ in BROKEN} | LIVE_RULES


def test_the_reference_page_is_what_the_rules_say() -> None:
    """docs/reference/lint-rules.md is what ``lint --explain table`` prints (D3)."""
    page = DEFINITIONS.parent / "docs" / "reference" / "lint-rules.md"
    assert run("--explain", "table").output == page.read_text()


def test_rules_have_ids_and_one_sentence_each() -> None:
    """Every rule says why, in one sentence, and where that comes from (D3)."""
    assert len({rule.id for rule in RULES}) == len(RULES)
    for rule in RULES:
        assert rule.why.endswith("."), rule.id
        assert ". " not in rule.why.replace("3.x ", "").replace("4.0 ", ""), rule.id
        assert rule.reference.startswith("https://"), rule.id


@pytest.mark.parametrize(
    ("rule_id", "edit", "good", "bad"),
    [
        ("dlq-drops-returned", arguments(DLQ, delivery_limit=-1), "4.0", "3.10"),
        ("dlq-drops-returned", arguments(DLQ, delivery_limit=None), "3.10", "4.0"),
        (
            "delivery-limit-missing",
            both(arguments(0, delivery_limit=None), lambda d: d["policies"].pop(0)),
            "4.0",
            "3.10",
        ),
        ("policy-key-unknown", entry("policies", 0, definition={"consumer-timeout": 60000}), "4.0", "3.10"),
        ("policy-key-unknown", entry("policies", 0, definition={"ha-mode": "all"}), "3.10", "4.0"),
        ("policy-apply-to-unknown", entry("policies", 0, apply_to="quorum_queues"), "3.12", "3.11"),
        ("field-missing", entry("queues", 0, durable=...), "4.0", "3.10"),
    ],
)
def test_a_target_version_decides(rule_id: str, edit: Edit, good: str, bad: str) -> None:
    """What is wrong on one version only is found for that target only (D3)."""
    for target, expected in ((good, False), (bad, True)):
        report = lint(broken(edit), name="broken", target=Version.parse(target))
        assert (rule_id in {finding.rule.id for finding in report.findings}) == expected, target


def test_depths_of_a_broker_are_held_against_the_file() -> None:
    """A length below the current depth, and dead letters held back, are found with live facts (D3)."""
    live = LiveFacts(messages={"payments": 6}, retained={"crm": 2}, nodes=3)
    definitions = broken(entry("policies", 0, definition={"max-length": 5, "delivery-limit": 5}))
    report = lint(definitions, name="live", live={"/": live})
    found = {(finding.rule.id, finding.object) for finding in report.findings}
    assert ("length-below-depth", "queue payments") in found
    assert ("dead-letters-retained", "queue crm") in found


def test_a_retry_queue_with_a_reject_on_its_way_is_no_cycle() -> None:
    """The classic retry pattern, where only rejects leave the work queue, is left alone (D3)."""
    definitions = broken(both(RETRY_LOOP, arguments(PAYMENTS, delivery_limit=None), lambda d: d["policies"].pop(0)))
    definitions["queues"][PAYMENTS]["arguments"].pop("x-dead-letter-strategy")
    report = lint(definitions, name="retry", target=Version(3, 10))
    assert "dead-letter-cycle" not in {finding.rule.id for finding in report.findings}


def test_a_suppression_needs_its_reason_and_its_place() -> None:
    """A rule is switched off by the file with a reason, for the named object alone (D3)."""
    edit = both(
        arguments(0, overflow=None),
        arguments(1, overflow=None),
        ignoring(rule="at-least-once-ineffective", object="queue payments", reason="until May"),
    )
    report = lint(broken(edit), name="suppressed")
    found = {f.object: f.suppressed for f in report.findings if f.rule.id == "at-least-once-ineffective"}
    assert found == {"queue payments": "until May", "queue notifications": None}
    assert report.failed
    assert "suppression-unused" not in {finding.rule.id for finding in report.findings}


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["lint", *arguments])


def test_findings_have_lines_and_decide_the_exit_code(tmp_path: Path) -> None:
    """People see file, line, severity, object and rule; an error exits 1, a warning 0 (D3)."""
    bad, mild = tmp_path / "bad.json", tmp_path / "mild.json"
    text = DEFINITIONS.read_text()
    bad.write_text(text.replace('"x-dead-letter-exchange": "dead-letters"', '"x-dead-letter-exchange": "none"', 1))
    line = text[: text.index('"name": "payments"')].count("\n")
    result = run(str(bad))
    assert result.exit_code == 1
    assert f"{bad}:{line}: error: queue payments its dead-letter exchange 'none' is not declared" in result.output
    mild.write_text(text.replace('{"delivery-limit": 5, "max-length-bytes": 1073741824}', '{"delivery-limit": 5}'))
    result = run(str(mild))
    assert result.exit_code == 0
    assert "warning" in result.output


def test_json_and_sarif_carry_the_same_findings(tmp_path: Path) -> None:
    """Scripts and code hosts get every finding, suppressed ones marked (D3)."""
    file = tmp_path / "broken.json"
    edit = both(arguments(DLQ, message_ttl=5), ignoring(rule="dlq-can-drop", reason="a test"))
    file.write_text(json.dumps(broken(edit), indent=2))
    as_json = json.loads(run(str(file), "--json").stdout)
    as_sarif = json.loads(run(str(file), "--sarif").stdout)
    [finding] = as_json["findings"]
    [result] = as_sarif["runs"][0]["results"]
    assert (finding["rule"], finding["suppressed"]) == ("dlq-can-drop", "a test")
    assert result["ruleId"] == "dlq-can-drop"
    assert result["suppressions"] == [{"kind": "inSource", "justification": "a test"}]
    region = result["locations"][0]["physicalLocation"]["region"]
    assert region == {"startLine": finding["line"]}
    rules = as_sarif["runs"][0]["tool"]["driver"]["rules"]
    assert rules[result["ruleIndex"]]["id"] == "dlq-can-drop"
    assert to_sarif(lint(GOOD, name="good"))["runs"][0]["results"] == []


def test_a_rule_explains_itself() -> None:
    """``--explain`` prints the why and the reference of one rule or of all (D3)."""
    one = run("--explain", "dlq-drops-returned")
    assert "https://www.rabbitmq.com/docs/quorum-queues" in one.output
    assert all(rule.id in run("--explain", "all").output for rule in RULES)
    unknown = run("--explain", "nonsense")
    assert unknown.exit_code == 2
    assert "there is no rule 'nonsense'" in unknown.stderr


@settings(deadline=None)
@given(FILES)
def test_any_json_can_be_linted(value: dict[str, Any]) -> None:
    """No JSON makes a rule fail: it is linted, or it is no definitions file (D3)."""
    with contextlib.suppress(TopologyError):
        assert isinstance(lint_text(json.dumps(value)), Report)


ARGUMENTS = st.dictionaries(st.sampled_from(sorted(QUEUE_ARGUMENTS)), JSON, max_size=4)


@settings(deadline=None)
@given(ARGUMENTS, st.dictionaries(st.sampled_from(sorted(POLICY_KEYS)), JSON, max_size=4))
def test_any_value_of_a_setting_can_be_linted(own: dict[str, Any], definition: dict[str, Any]) -> None:
    """Settings of any type, in arguments and policies, make no rule fail (D3)."""
    edit = both(lambda d: d["queues"][0].update(arguments=own), entry("policies", 0, definition=definition))
    assert isinstance(lint(broken(edit), name="odd"), Report)
