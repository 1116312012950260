"""Files that are made, and files that are edited in place."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from broker_topology.__main__ import main
from broker_topology.edit import Limits, add_queue, new_definitions, remove_queue
from broker_topology.errors import ConfigurationError, TopologyError
from broker_topology.lint import lint_text
from broker_topology.topology import parse_topology
from broker_topology.units import byte_count, milliseconds

DEFINITIONS = Path(__file__).parent.parent.parent / "definitions.json"
TEXT = DEFINITIONS.read_text()
NAMES = st.text("abz.-_ß|()*\\ ", min_size=1, max_size=12).filter(lambda name: "*" not in name.split("."))


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, arguments)


@settings(deadline=None)
@given(st.lists(NAMES, min_size=1, max_size=4, unique=True))
def test_new_files_are_clean_and_have_the_queues(names: list[str]) -> None:
    """Whatever the queues are called, a new file breaks no rule (D3)."""
    assume(not any(one.endswith(f".{other}") for one in names for other in names))
    text = new_definitions(tuple(names))
    assert [queue.name for queue in parse_topology(text).work_queues] == names
    assert lint_text(text).findings == ()


def test_queues_that_a_delay_cannot_tell_apart_are_not_made() -> None:
    """A name that ends with another's, or is a wildcard, is refused with the reason (D3, R3)."""
    for names in (("email", "high.email"), ("*", "payments")):
        with pytest.raises(TopologyError, match="would be delivered to both"):
            new_definitions(names)
    with pytest.raises(TopologyError, match=r"'low\.crm' of queue low\.crm ends with 'crm'"):
        add_queue(TEXT, "low.crm", Limits())


def test_a_new_file_means_what_the_projects_own_file_means() -> None:
    """``new`` with the names of definitions.json makes a file with the same objects (D3)."""
    made = parse_topology(run("new", "payments", "notifications", "crm").stdout)
    assert made == parse_topology(TEXT)


@settings(deadline=None)
@given(NAMES)
def test_a_queue_that_is_added_and_removed_leaves_no_trace(name: str) -> None:
    """Adding and removing a queue gives back the very bytes of the file (D3)."""
    added = add_queue(TEXT, name, Limits())
    assert lint_text(added).findings == ()
    assert parse_topology(added).queue(name) is not None
    assert remove_queue(added, name) == TEXT
    limited = add_queue(TEXT, name, Limits(max_length=5))
    assert remove_queue(limited, name) == TEXT


def test_everything_else_stays_byte_for_byte() -> None:
    """Unknown keys, odd spacing and other virtual hosts are kept as they are (D3)."""
    odd = (
        '{"rabbit_version":"4.0.5",  "x-ours" : {"b":1,"a":[ 1,2 ]},\n'
        ' "queues":[{"vhost":"other","name":"a","arguments":{"x-dead-letter-exchange":"d"},"durable":true},\n'
        '   {"name":"b","vhost":"/","durable":true,"auto_delete":false,'
        '"arguments":{"x-dead-letter-exchange":"d"},"type":"classic"}],\n'
        '"exchanges":[{"name":"d","vhost":"/","type":"fanout"}, {"name":"e","vhost":"/","type":"topic"}],'
        '"bindings":[{"source":"e","vhost":"/","destination":"b","destination_type":"queue","routing_key":"b"}]}\n'
    )
    added = add_queue(odd, "new", Limits(), vhost="/")
    one, other = json.loads(odd), json.loads(added)
    assert other["x-ours"] == one["x-ours"]
    assert list(other)[: len(one)] == list(one)
    assert other["queues"][:2] == one["queues"]
    assert other["queues"][2]["arguments"]["x-dead-letter-exchange"] == "d"
    assert '"x-ours" : {"b":1,"a":[ 1,2 ]}' in added
    assert remove_queue(added, "new", vhost="/").replace(',\n  "policies": [\n  ]', "").rstrip().startswith(odd[:60])


def test_limits_make_a_policy_of_their_own(tmp_path: Path) -> None:
    """Limits on the command line become a policy that no other policy shadows (D3)."""
    file = tmp_path / "definitions.json"
    file.write_text(TEXT)
    arguments = [
        "--delivery-limit",
        "9",
        "--consumer-timeout",
        "2h",
        "--max-length-bytes",
        "4GiB",
        "--max-length",
        "7",
    ]
    assert run("add-queue", str(file), "reports", *arguments).exit_code == 0
    policy = parse_topology(file.read_text()).policies[-1]
    assert (policy.name, policy.pattern) == ("reports-limits", "^reports$")
    assert policy.definition == {
        "delivery-limit": 9,
        "consumer-timeout": 7_200_000,
        "max-length-bytes": 4 * 2**30,
        "max-length": 7,
    }
    rules = {finding.rule.id for finding in lint_text(file.read_text()).findings}
    assert rules == {"policy-key-unknown"}, "consumer-timeout is unknown to 3.10"


def test_queues_are_not_added_or_removed_against_sense(tmp_path: Path) -> None:
    """What exists, what is missing, and where dead letters end: one sentence each, the file untouched (D3)."""
    file = tmp_path / "definitions.json"
    file.write_text(TEXT)
    for arguments, sentence in [
        (("add-queue", str(file), "payments"), "has a queue 'payments' already"),
        (("add-queue", str(file), ""), "has an empty name"),
        (("add-queue", str(file), "a\nb"), "has a line break"),
        (("add-queue", str(file), "a" * 256), "more than 255 bytes"),
        (("add-queue", str(file), "a", "--exchange", "nowhere"), "declares no exchange 'nowhere'"),
        (("add-queue", str(file), "a", "--consumer-timeout", "2 weeks"), "is not a duration"),
        (("add-queue", str(file), "a", "--max-length-bytes", "lots"), "is not a size"),
        (("remove-queue", str(file), "missing"), "has no queue 'missing'"),
        (("remove-queue", str(file), "dead-letters"), "is where dead letters or unroutable messages end"),
        (("new", "a", "a"), "a queue is named twice"),
        (("new", "dead-letters"), "comes by itself"),
    ]:
        result = run(*arguments)
        assert result.exit_code == 2, arguments
        assert sentence in result.stderr
    assert file.read_text() == TEXT


def test_a_file_without_work_queues_says_what_is_missing() -> None:
    """Where nothing tells the exchanges, add-queue asks for them (D3)."""
    with pytest.raises(TopologyError, match="no work queue whose exchange could be used"):
        add_queue("{}", "a", Limits())
    exchanges = '{"exchanges": [{"name": "e", "type": "topic"}]}'
    with pytest.raises(TopologyError, match="no work queue whose dead-letter exchange could be used"):
        add_queue(exchanges, "a", Limits(), exchange="e")


def test_units_are_read() -> None:
    """Durations and sizes are read as people write them (D3)."""
    assert [milliseconds(text) for text in ("5ms", "90s", "30m", "2h", "1d")] == [
        5,
        90_000,
        1_800_000,
        7_200_000,
        86_400_000,
    ]
    assert [byte_count(text) for text in ("7", "1KB", "512MiB", "1 gb")] == [7, 1000, 2**29, 10**9]
    for text in ("", "h", "-1h", "1.5h"):
        with pytest.raises(ConfigurationError):
            milliseconds(text)
    for text in ("", "1TB", "ib"):
        with pytest.raises(ConfigurationError):
            byte_count(text)
