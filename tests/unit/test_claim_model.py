"""Every order of events around one claim, searched: what is promised holds, and each guard is needed for it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.claim_search import search
from tests.claim_world import Faults, Message

TWO, THREE = (Message(),) * 2, (Message(),) * 3

KEPT = {
    "calm": (Faults(), 1),
    "crash, repeat": (Faults(crashes=1), 2),
    "two crashes, repeat": (Faults(crashes=2), 3),
    "crash, park": (Faults(crashes=1, park=True), 1),
    "two crashes, park, a person replays both": (Faults(crashes=2, park=True, replays=2), 1),
    "stall": (Faults(stalls=1), 2),
    "stall and crash": (Faults(stalls=1, crashes=1), 3),
    "stall and crash, park": (Faults(stalls=1, crashes=1, park=True), 1),
    "stall, park, a person replays": (Faults(stalls=1, park=True, replays=1), 2),
    "record lost": (Faults(losses=1), 2),
    "record lost and crash": (Faults(losses=1, crashes=1), 3),
    "replies lost": (Faults(lost_replies=2, park=True), 1),
    "replies lost and crash, park": (Faults(lost_replies=1, crashes=1, park=True), 1),
    "delayed copies and failures": (Faults(delayed_copies=1, failures=1, park=True), 1),
    "failures": (Faults(failures=2), 1),
    "failure and crash": (Faults(failures=1, crashes=1), 2),
    "record expires": (Faults(expiries=1, replays=1, messages=THREE), 1),
    "other payload": (Faults(messages=(Message(), Message(payload="q"))), 1),
    "three messages, crash": (Faults(crashes=1, messages=THREE), 2),
    "three messages, stall": (Faults(stalls=1, messages=THREE), 2),
}
"""The faults of each search, and the most effects that they can cause: more than 1 in named windows alone."""


@pytest.mark.parametrize("name", KEPT)
def test_every_promise_holds_in_every_order_of_events(name: str) -> None:
    """At most one effect outside of the named windows, no ack without a result, nothing stuck (I2, I4, I5)."""
    faults, most_effects = KEPT[name]
    verdict = search(faults)
    assert not verdict.broken, "\n".join(verdict.story)
    assert verdict.most_effects == most_effects


NEEDED = {
    "busy": (Faults(), "effects"),
    "lease_ends": (Faults(crashes=1), "stuck"),
    "payload": (Faults(messages=(Message(), Message(payload="q"))), "payload"),
    "same_token": (Faults(lost_replies=1, park=True), "parked"),
    "ended_token": (Faults(delayed_copies=1, failures=1, park=True), "parked"),
    "park": (Faults(crashes=1, park=True), "effects"),
    "leave_once": (Faults(crashes=2, park=True, replays=2), "effects"),
    "retention": (Faults(expiries=1), "effects"),
    "fence_clock": (Faults(losses=1), "fence"),
    "first_stands": (Faults(stalls=1), "result"),
    "late_counts": (Faults(stalls=1), "acks"),
    "abandon_owner": (Faults(crashes=1, messages=THREE), "effects"),
    "check": (Faults(stalls=1), "effects"),
    "marker_last": (Faults(crashes=1), "marker"),
}
"""Each guard, the faults that need it, and the promise that its removal breaks."""


@pytest.mark.parametrize("guard", NEEDED)
def test_without_a_guard_a_promise_is_broken(guard: str) -> None:
    """Taking away any one guard makes the search find a story that breaks a promise (I4, I5, I9)."""
    faults, promise = NEEDED[guard]
    broken = search(replace(faults, without=frozenset({guard})))
    assert broken.broken == promise, broken
    assert search(faults).broken == ""
