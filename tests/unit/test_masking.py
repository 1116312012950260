"""What is hidden when a letter is shown: by names, by looks, and by what is configured."""

from __future__ import annotations

import json
import re

import pytest

from broker_topology.errors import ConfigurationError
from consumers.masking import MASK, USUAL, read_masking


@pytest.mark.parametrize("name", ["password", "API_KEY", "cardNumber", "Authorization", "customer_iban"])
def test_names_hide_their_values_at_any_depth(name: str) -> None:
    """In any case, also as a part of a longer name, in objects and lists (D1)."""
    assert USUAL.value([{"a": {name: {"b": 1}}}, name]) == [{"a": {name: MASK}}, name]


@pytest.mark.parametrize(
    "secret",
    [
        "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.x",
        "4111 1111 1111 1111",
        "sk_live_abcdefgh",
        "amqp://ann:s3cret@host/",
    ],
)
def test_looks_hide_what_they_find(secret: str) -> None:
    """In arguments, and in the texts of a failure (D1)."""
    kept = USUAL.value([f"before {secret} after"])[0]
    assert secret not in kept
    assert re.fullmatch(r"before .*\*\*\*.* after", kept)
    row = USUAL.letter({"error_message": secret, "traceback": f"x {secret}", "decode_problem": None, "queue": "q"})
    assert (MASK in row["error_message"], MASK in row["traceback"], row["queue"]) == (True, True, "q")
    assert row["decode_problem"] is None


def test_what_is_harmless_stays() -> None:
    """Short numbers, words and structure are shown as they are (D1)."""
    harmless = {"order": 17, "amount": 12.5, "note": "gift", "list": [None, True], "id": "order-17"}
    assert USUAL.value(harmless) == harmless
    assert USUAL.json(json.dumps(harmless)) == json.dumps(harmless)
    assert USUAL.value(4111111111111111) == MASK


def test_further_names_and_looks_are_configured() -> None:
    """Beside the usual ones, never in their place (D1)."""
    masking = read_masking("Birthday, diagnosis", r"\bCUST-\d+")
    shown = masking.value({"birthday": "1970-01-01", "password": "x", "note": "for CUST-17 only"})
    assert shown == {"birthday": MASK, "password": MASK, "note": f"for {MASK} only"}
    assert read_masking(None, None) == USUAL
    with pytest.raises(ConfigurationError, match="MASK_PATTERN is no regular expression"):
        read_masking(None, "(")
