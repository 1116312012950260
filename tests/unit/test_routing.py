"""The broker's routing as computed."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker_topology.routing import destinations, topic_matches
from broker_topology.topology import Binding, Exchange, Queue, Topology


@pytest.mark.parametrize(
    ("pattern", "key", "expected"),
    [
        ("a", "a", True),
        ("a", "b", False),
        ("a.*", "a.b", True),
        ("a.*", "a", False),
        ("a.*", "a.b.c", False),
        ("a.#", "a", True),
        ("a.#", "a.b.c", True),
        ("#", "", True),
        ("#", "a.b", True),
        ("#.a", "a", True),
        ("#.a", "1.0.a", True),
        ("#.a", "a.1", False),
        ("*", "", False),
        ("", "", True),
        ("", "a", False),
        ("a.#.c", "a.c", True),
        ("a.#.c", "a.b.b.c", True),
        ("#.#", "", True),
        ("*.#.*", "a", False),
        ("*.#.*", "a.b", True),
        ("a..b", "a..b", True),
    ],
)
def test_topic_patterns(pattern: str, key: str, expected: bool) -> None:
    """A star takes one word, a hash any number of words (D3)."""
    assert topic_matches(pattern, key) == expected


WORDS = st.lists(st.sampled_from(["a", "b", "*", "#"]), max_size=5)


@settings(deadline=None)
@given(WORDS, st.lists(st.sampled_from(["a", "b"]), max_size=5))
def test_topic_matching_is_what_recursion_says(pattern: list[str], key: list[str]) -> None:
    """The matching agrees with its definition, written down recursively (D3)."""

    def matches(parts: list[str], words: list[str]) -> bool:
        if not parts:
            return not words
        if parts[0] == "#":
            return any(matches(parts[1:], words[taken:]) for taken in range(len(words) + 1))
        return bool(words) and parts[0] in {"*", words[0]} and matches(parts[1:], words[1:])

    assert topic_matches(".".join(pattern), ".".join(key)) == matches(pattern, key)


def topology(*bindings: tuple[str, str, str], alternate: dict[str, str] | None = None) -> Topology:
    names = {source for source, _, _ in bindings} | set(alternate or {}) | {"other"}
    return Topology(
        vhost="/",
        exchanges=tuple(
            Exchange(
                name=name,
                type="topic",
                arguments={"alternate-exchange": alternate[name]} if alternate and name in alternate else {},
            )
            for name in sorted(names)
        ),
        queues=(Queue(name="q"), Queue(name="r")),
        bindings=tuple(
            Binding(
                source=source,
                destination=destination,
                destination_type="queue" if destination in {"q", "r"} else "exchange",
                routing_key=key,
            )
            for source, destination, key in bindings
        ),
    )


def test_messages_go_through_exchanges_and_alternates() -> None:
    """Exchange-to-exchange bindings, cycles and alternate exchanges are followed (D3)."""
    found = topology(("e", "f", "#"), ("f", "q", "a"), ("f", "e", "#"), ("other", "r", "#"), alternate={"f": "other"})
    assert destinations(found, "e", "a") == {"q"}
    assert destinations(found, "e", "b") == set()
    aside = topology(("e", "q", "a"), ("other", "r", "#"), alternate={"e": "other"})
    assert destinations(aside, "e", "a") == {"q"}
    assert destinations(aside, "e", "b") == {"r"}
    assert destinations(aside, "e", None) == {"q", "r"}
    assert destinations(aside, "", "q") == {"q"}
    assert destinations(aside, "nowhere", "q") == set()
