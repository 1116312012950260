"""Reading definitions files: what they mean, and every way in which they can be no definitions file."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st
from kombu.transport import native_delayed_delivery

from broker_topology import delays
from broker_topology.__main__ import main
from broker_topology.definitions import MAX_FILE_BYTES
from broker_topology.errors import TopologyError
from broker_topology.locate import line_of, sections
from broker_topology.topology import Exchange, is_delay_queue, parse_topology, read_topology
from tests.unit.definitions_files import FILES

DEFINITIONS = Path(__file__).parent.parent.parent / "definitions.json"


def definitions(**sections: Any) -> str:
    """The project's own definitions with some sections replaced."""
    return json.dumps(json.loads(DEFINITIONS.read_text()) | sections)


def test_roles_are_read_off_the_file() -> None:
    """Work, dead-letter and unroutable queues are told by how they are connected (D3)."""
    topology = read_topology(DEFINITIONS)
    assert [queue.name for queue in topology.work_queues] == ["payments", "notifications", "crm"]
    assert topology.dead_letter_queues == ("dead-letters",)
    assert topology.unroutable_queues == ("unroutable",)
    assert topology.drained_queues == ("dead-letters", "unroutable")


def test_celerys_delay_queues_are_no_work_queues() -> None:
    """An export of a running deployment does not turn 28 delay queues into work queues (D3)."""
    queue = {
        "name": "celery_delayed_27",
        "arguments": {"x-dead-letter-exchange": "celery_delayed_26"},
    }
    topology = parse_topology(json.dumps({"queues": [queue]}))
    assert topology.work_queues == ()
    assert is_delay_queue("celery_delayed_0")
    assert not is_delay_queue("celery_delayed_delivery")


def test_the_delay_names_are_kombus_own() -> None:
    """The names under which delayed delivery is looked for are those that kombu declares (R3)."""
    levels = range(native_delayed_delivery.MAX_NUMBER_OF_BITS_TO_USE)
    assert tuple(native_delayed_delivery.level_name(level) for level in levels) == delays.LEVELS
    assert delays.EXCHANGE == native_delayed_delivery.CELERY_DELAYED_DELIVERY_EXCHANGE


def test_one_virtual_host_is_taken_whatever_its_name() -> None:
    """The same file deploys to any virtual host; of several, one must be chosen (D3)."""
    queues = [{"name": "a", "vhost": "one"}, {"name": "b", "vhost": "two"}]
    assert parse_topology(json.dumps({"queues": queues[:1]}), vhost="other").queues[0].name == "a"
    assert parse_topology(json.dumps({"queues": queues}), vhost="two").queues[0].name == "b"
    with pytest.raises(TopologyError, match=r"several virtual hosts \(one, two\) and none of them is three"):
        parse_topology(json.dumps({"queues": queues}), vhost="three")


def test_an_export_may_bind_to_queues_that_it_leaves_out() -> None:
    """Brokers export bindings of exclusive queues without the queues; they are left out, in our files not (D3)."""
    binding = {"source": "amq.topic", "destination": "gone", "destination_type": "queue", "routing_key": ""}
    exported = {"rabbitmq_version": "4.3.6", "bindings": [binding]}
    assert parse_topology(json.dumps(exported)).bindings == ()
    with pytest.raises(TopologyError, match="leads to queue 'gone', which is not declared"):
        parse_topology(json.dumps({"bindings": [binding]}))


BAD_TEXTS = {
    "": "is empty",
    " \n": "is empty",
    "<!DOCTYPE html><html><body>Log in</body></html>": "is a web page, not a definitions file",
    '{"queues": [\n  {"name": "a",}\n]}': "is not JSON: ",
    '{"queues": [}': "at line 1, column 13",
    "[]": "holds a list; a definitions file is a JSON object",
    "null": "holds null; a definitions file is a JSON object",
    "5": "holds a number",
    '"queues"': "holds a string",
    '{"queues": {}}': "queues must be a list of objects",
    '{"queues": null}': "queues must be a list of objects",
    '{"queues": ["a"]}': "queues must be a list of objects",
    '{"users": "u"}': "users must be a list of objects",
    '{"queues": [], "queues": []}': "an object has the key 'queues' twice",
    '{"queues": [{"name": "a", "arguments": {"x-max-length": NaN}}]}': "NaN is not JSON",
    '{"a": ' + "9" * 5000 + "}": "Exceeds the limit",
    '{"a": "\\ud800"}': "half of a surrogate pair",
    "[" * 100_000: "nested too deeply",
    "\ufeff{}": "is not JSON: Unexpected UTF-8 BOM",
    '{"queues": [{}]}': "queues[0] lacks 'name'",
    '{"queues": [{"name": 5}]}': "queues[0] name is 5; it must be a string",
    '{"queues": [{"name": ""}]}': "queues[0] has an empty name",
    '{"queues": [{"name": "a\\nb"}]}': "queues[0] name has a line break",
    '{"queues": [{"name": "' + "ä" * 128 + '"}]}': "queues[0] name has more than 255 bytes",
    '{"queues": [{"name": "a", "vhost": 5}]}': "queues[0] vhost is 5; it must be a string",
    '{"queues": [{"name": "a", "durable": "true"}]}': "durable is 'true'; it must be true or false",
    '{"queues": [{"name": "a", "arguments": [1]}]}': "arguments is [1]; it must be an object",
    '{"exchanges": [{"name": "a"}]}': "exchanges[0] lacks 'type'",
    '{"policies": [{"name": "a", "pattern": "a", "definition": {}, "priority": true}]}': "priority is True",
    '{"bindings": [{"source": "a"}]}': "bindings[0] lacks 'destination' and 'destination_type'",
    '{"bindings": [{"source": "amq.topic", "destination": "a", "destination_type": "x"}]}': "must be 'queue' or",
    definitions(queues=[]): "leads to queue 'payments', which is not declared",
    definitions(exchanges=[]): "starts at exchange 'work', which is not declared",
}


@pytest.mark.parametrize("number", range(len(BAD_TEXTS)))
def test_a_bad_file_is_one_sentence(tmp_path: Path, number: int) -> None:
    """Whatever a file holds, deploy ends with one sentence and exit code 2 (D3)."""
    text, sentence = list(BAD_TEXTS.items())[number]
    file = tmp_path / "bad.json"
    file.write_text(text, encoding="utf-8")
    result = CliRunner().invoke(main, ["deploy", str(file)])
    assert result.exit_code == 2, result.output
    assert sentence in result.stderr
    assert len(result.stderr.splitlines()) == 1
    assert len(result.stderr) < 400


def test_a_file_that_cannot_be_read_is_one_sentence(tmp_path: Path) -> None:
    """Missing, a folder, too large, binary: one sentence each (D3)."""
    large, binary = tmp_path / "large.json", tmp_path / "binary.json"
    with large.open("wb") as file:
        file.truncate(50 * 1024 * 1024)
    binary.write_bytes(b'{"a": "\xff"}')
    for path, sentence in [
        (tmp_path / "missing.json", "No such file or directory"),
        (tmp_path, "Is a directory"),
        (large, f"has more than {MAX_FILE_BYTES // 1024 // 1024} MB"),
        (binary, "is not UTF-8 text (byte 7)"),
        (Path("/dev/zero"), "has more than"),
    ]:
        with pytest.raises(TopologyError) as caught:
            read_topology(path)
        assert sentence in str(caught.value)
        assert "\n" not in str(caught.value)


@settings(deadline=None)
@given(FILES)
def test_any_json_is_a_topology_or_one_sentence(value: dict[str, Any]) -> None:
    """No JSON makes reading a file fail otherwise than by our error (D3)."""
    with contextlib.suppress(TopologyError):
        topology = parse_topology(json.dumps(value))
        assert isinstance(topology.drained_queues, tuple)


@settings(deadline=None)
@given(FILES, st.sampled_from([None, 1, 4]))
def test_entries_are_found_in_the_text(value: dict[str, Any], indent: int | None) -> None:
    """Every entry of every list stands where it is said to stand (D3)."""
    text = json.dumps(value, indent=indent)
    found = sections(text)
    assert found.keys() == {key for key, section in value.items() if isinstance(section, list)}
    for key, section in found.items():
        assert json.loads(text[section.start : section.end]) == value[key]
        assert [json.loads(text[start:end]) for start, end in section.entries] == value[key]
        assert line_of(text, section.start) == text[: section.start].count("\n") + 1


def test_an_empty_list_stands_for_an_empty_object() -> None:
    """Arguments that a JSON writer turned into a list are read as none (D3)."""
    text = json.dumps({"exchanges": [{"name": "a", "type": "topic", "arguments": []}]})
    assert parse_topology(text).exchanges == (Exchange(name="a", type="topic"),)
