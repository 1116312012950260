"""Notes: what one version writes, another reads."""

from __future__ import annotations

import json
from datetime import UTC, datetime

import pytest

from broker_topology.errors import MalformedNoteError
from broker_topology.notes import MAX_TRACEBACK_LENGTH, FailureNote, OutcomeNote, cut, failure_note_key

NOW = datetime(2026, 11, 30, 12, 0, tzinfo=UTC)


def test_failure_note_survives_the_round_trip() -> None:
    """What is written is what is read. (D1)"""
    note = FailureNote(
        reason="permanent", error_type="builtins.ValueError", error_message="é\ud800\x00", failed_at=NOW, retries=3
    )
    assert FailureNote.from_json(note.to_json()) == note


def test_unknown_fields_of_a_newer_worker_are_ignored() -> None:
    """A drain reads the notes of a newer worker. (D1)"""
    newer = json.loads(FailureNote(reason="r", error_type="t", error_message="m", failed_at=NOW).to_json())
    newer |= {"version": 99, "mood": "bad"}
    assert FailureNote.from_json(json.dumps(newer)).reason == "r"


def test_long_texts_are_cut_from_the_middle() -> None:
    """A note stays small whatever the exception says, and keeps how it began and ended. (D1)"""
    note = FailureNote(
        reason="r",
        error_type="t",
        error_message="m" * 5_000_000,
        failed_at=NOW,
        traceback="first" + "x" * 10**6 + "last",
    )
    stored = FailureNote.from_json(note.to_json())
    assert len(note.to_json()) < 50_000
    assert len(stored.traceback) <= MAX_TRACEBACK_LENGTH
    assert stored.traceback.startswith("first")
    assert stored.traceback.endswith("last")
    assert cut("short", 10) == "short"


@pytest.mark.parametrize("text", ["", "[]", "null", "{}", '{"failed_at": "yesterday"}', "\xff", '{"failed_at": 5}'])
def test_malformed_note_is_one_kind_of_error(text: str) -> None:
    """Whatever stands in Redis in a note's place, the reader meets one error. (D1)"""
    for kind in (FailureNote, OutcomeNote):
        with pytest.raises(MalformedNoteError):
            kind.from_json(text)


def test_note_without_a_required_field_is_malformed() -> None:
    """A note that lacks what every version has is malformed, not a crash. (D1)"""
    with pytest.raises(MalformedNoteError):
        FailureNote.from_json(json.dumps({"failed_at": NOW.isoformat()}))
    whole = json.loads(FailureNote(reason="r", error_type="t", error_message="m", failed_at=NOW).to_json())
    with pytest.raises(MalformedNoteError):
        FailureNote.from_json(json.dumps(whole | {"error_message": 5}))


def test_key_of_a_note_is_text_that_redis_takes() -> None:
    """A task id may be any text, lone surrogates included. (D2)"""
    assert failure_note_key("m-\ud800", 0).encode()
    assert failure_note_key("m-1", 2, "r-1") == "dead-letter-office:failure:m-1:2:r-1"
