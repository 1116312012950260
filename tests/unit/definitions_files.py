"""Definitions files that nobody would write, for tests that nothing may crash."""

from __future__ import annotations

from hypothesis import strategies as st

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=9), inner, max_size=4),
    max_leaves=12,
)
NAMES = st.sampled_from(["vhosts", "queues", "exchanges", "bindings", "policies", "parameters", "users", "other"])
FIELDS = st.sampled_from(
    ["name", "vhost", "arguments", "durable", "source", "pattern", "value", "component", "type", "definition"]
)
ENTRIES = st.lists(st.dictionaries(FIELDS, JSON, max_size=5), max_size=3) | JSON


FILES = st.dictionaries(NAMES, ENTRIES, max_size=5)
