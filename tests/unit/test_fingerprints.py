"""Which failures are the same failure."""

from __future__ import annotations

import gc
import itertools
import json
import time
import traceback
import uuid
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from consumers.fingerprints import RULES_VERSION, Fingerprint, Remembered, fingerprint, own_frame
from consumers.message_templates import message_template
from consumers.worded_values import without_worded_values
from tests.unit.fingerprint_corpus import FAMILIES
from tests.unit.fingerprint_held_out import SECOND_LIST, Pair, pairs, texts

FOREIGN = Path(__file__).with_name("foreign_failures.json")


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """What a failure note says of one raised exception."""

    topic: str
    family: str
    error_type: str
    message: str
    traceback: str = ""

    def digest(self, *, with_traceback: bool) -> str:
        """Its fingerprint, as if all of them happened in one task."""
        return fingerprint(
            task_name="shop.charge",
            error_type=self.error_type,
            error_message=self.message,
            traceback=self.traceback if with_traceback else "",
        ).digest


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """How a fingerprint did on pairs of failures."""

    same: int
    different: int
    precision: float
    recall: float
    wrong: list[str]


def _score(failures: list[Failure], *, with_traceback: bool) -> Score:
    """Neighbours in a family are the same failure; two families of one topic are not."""
    digests: dict[tuple[str, str], list[tuple[str, str]]] = {}
    for failure in failures:
        digest = failure.digest(with_traceback=with_traceback)
        digests.setdefault((failure.topic, failure.family), []).append((digest, failure.message[:300]))
    neighbours = [pair for found in digests.values() for pair in itertools.pairwise(found)]
    same = [(first, second) for first, second in neighbours if first[1] != second[1]]  # equal texts prove nothing
    different = [
        (found[0], others[-1])
        for (one, found), (other, others) in itertools.combinations(digests.items(), 2)
        if one[0] == other[0]
    ]
    split = [pair for pair in same if pair[0][0] != pair[1][0]]
    merged = [pair for pair in different if pair[0][0] == pair[1][0]]
    together = len(same) - len(split)
    return Score(
        same=len(same),
        different=len(different),
        precision=together / (together + len(merged)),
        recall=together / len(same),
        wrong=[f"{first[1]!r} / {second[1]!r}" for first, second in split + merged],
    )


def _raised(request: pytest.FixtureRequest) -> list[Failure]:
    failures = []
    for family in FAMILIES:
        for value in family.values:
            with pytest.raises(Exception) as raised:  # noqa: PT011, whatever it is, it is to be grouped
                family.provoke(request.getfixturevalue, value)
            kind = type(raised.value)
            failures.append(
                Failure(
                    topic=family.topic,
                    family=family.name,
                    error_type=f"{kind.__module__}.{kind.__qualname__}",
                    message=str(raised.value),
                    traceback="".join(traceback.format_exception(raised.value)),
                )
            )
    gc.collect()
    return failures


@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
def test_real_exceptions_are_told_apart_and_together(request: pytest.FixtureRequest) -> None:
    """Of pairs of raised exceptions nearly all are judged right, with tracebacks and by messages alone (D4)."""
    failures = _raised(request)
    for with_traceback in (True, False):
        score = _score(failures, with_traceback=with_traceback)
        assert min(score.same, score.different) >= 100
        assert score.precision >= 0.97, score.wrong
        assert score.recall >= 0.97, score.wrong


def test_messages_of_other_libraries_are_told_apart_and_together() -> None:
    """So are messages of libraries that are not installed here (D4)."""
    failures = [
        Failure(topic=entry["topic"], family=entry["family"], error_type=entry["type"], message=message)
        for entry in json.loads(FOREIGN.read_text())
        for message in entry["messages"]
    ]
    score = _score(failures, with_traceback=False)
    assert min(score.same, score.different) >= 100
    assert score.precision >= 0.97, score.wrong
    assert score.recall >= 0.97, score.wrong


def _judged(held_out: list[Pair]) -> Score:
    """How the rules did on pairs that say themselves what they are."""
    judged = [(pair, _of(pair.error_type, pair.first) == _of(pair.error_type, pair.second)) for pair in held_out]
    same = sum(pair.same for pair, _ in judged)
    together = sum(pair.same and alike for pair, alike in judged)
    return Score(
        same=same,
        different=len(judged) - same,
        precision=together / sum(alike for _, alike in judged),
        recall=together / same,
        wrong=[f"{pair.first!r} / {pair.second!r}" for pair, alike in judged if pair.same != alike],
    )


def _of(error_type: str, message: str) -> str:
    failure = Failure(topic="", family="", error_type=error_type, message=message)
    return failure.digest(with_traceback=False)


def test_failures_that_were_held_out_are_told_apart_and_together() -> None:
    """So are pairs that were labelled before anybody had read the rules (D4)."""
    score = _judged(list(pairs()))
    assert min(score.same, score.different) >= 100
    assert score.precision >= 0.97, score.wrong
    assert score.recall >= 0.97, score.wrong


def test_what_no_rule_was_made_for_is_known_to_be_harder() -> None:
    """On a second list, after which no rule was made, four of five pairs that belong together are together (D4)."""
    score = _judged(list(texts(SECOND_LIST)))
    assert (score.same, score.different) == (30, 30)
    assert score.precision >= 0.85, score.wrong
    assert score.recall >= 0.8, score.wrong


@pytest.mark.parametrize(
    ("message", "told"),
    [
        ("period March is closed", "period <date> is closed"),
        ("May not be empty", "May not be empty"),
        ("third attempt failed", "<n> attempt failed"),
        ("third argument must be int", "third argument must be int"),
        ("loss is nan", "loss is <n>"),
        ("None is not a valid Color", "<value> is not a valid Color"),
        ("got None", "got None"),
        ("Customer Jane O'Neil has no address", "Customer <name> has no address"),
        ("Customer Müller & Co. KG has no address", "Customer <name> has no address"),
        ("no rate for user Anna", "no rate for user <name>"),
        ("Customer Address is missing", "Customer Address is missing"),
        ("User Session Expired", "User Session Expired"),
        ("Customer Jane Doe Rejected", "Customer Jane Doe Rejected"),
        ("client SSL handshake failed", "client SSL handshake failed"),
    ],
)
def test_values_that_are_words_are_taken_out(message: str, told: str) -> None:
    """Months, ordinals and people's names are the run's; fields, headlines and which argument are not (D4)."""
    assert " ".join(without_worded_values(message.split())) == told


@pytest.mark.parametrize(
    ("first", "second", "same"),
    [
        ("step 5 exceeds 3", "step 5 undercuts 3", False),  # no date, however it is read
        ("no rates for 1. März 2024", "no rates for 31. Oktober 2023", True),
        ("postcode 10115 unknown", "postcode 75001 unknown", True),
        ("error code 10115 met", "error code 75001 met", False),
        ("refused: {'error': 'no_funds', 'id': 1}", "refused: {'error': 'no_funds', 'id': 2, 'a': 3}", True),
        ("refused: {'error': 'no_funds', 'id': 1}", "refused: {'error': 'expired', 'id': 1}", False),
        ("got <p>502 Bad Gateway</p>", "got <div class='a'><h1>502 Bad Gateway</h1></div>", True),
        ("got <p>502 Bad Gateway</p>", "got <p>404 Not Found</p>", False),
        ("only 1 row left", "only 2 rows left", True),
    ],
)
def test_near_misses_are_judged(first: str, second: str, *, same: bool) -> None:
    """Each is the narrow case of one kind of rule (D4)."""
    assert (_of("shop.Error", first) == _of("shop.Error", second)) is same


@pytest.mark.parametrize(
    ("message", "template"),
    [
        ("list index out of range", "list index out of range"),
        ("invalid literal for int() with base 10: 'abc'", "invalid literal for int() with base <n>: <value>"),
        ("'NoneType' object has no attribute 'split'", "'NoneType' object has no attribute 'split'"),
        ("'customer_id'", "'customer_id'"),
        ("'order-17'", "<value>"),
        (
            '(psycopg.errors.UniqueViolation) duplicate key violates unique constraint "orders_pkey"\nDETAIL:  x',
            "(psycopg.errors.UniqueViolation) duplicate key violates unique constraint 'orders_pkey'",
        ),
        (
            "404 Client Error: Not Found for url: https://api.example/orders/17?a=b",
            "404 Client Error: Not Found for url: <url>",
        ),
        ("[Errno 2] No such file or directory: '/srv/a.csv'", "[Errno 2]: <value>"),
        ("Order 17 of ann@example.org at 2024-05-01T10:00:00Z", "Order <n> of <email> at <date>"),
        ("<Cart object at 0x7f8b1c0d5e50> is empty", "<Cart object at <n>> is empty"),
        ("Gateway error code 1001 for order 4711", "Gateway error code 1001 for order <n>"),
        ("could not convert string to float: 'cut off", "could not convert string to float: <value>"),
    ],
)
def test_what_varies_is_taken_out_of_a_message(message: str, template: str) -> None:
    """Values go, what a programmer wrote stays (D4)."""
    assert message_template(message) == template


TRACEBACK = """Traceback (most recent call last):
  File "/srv/releases/20240501/shop/orders.py", line 17, in charge
    total = prices[currency]
            ~~~~~~^^^^^^^^^^
  File "/usr/lib/python3.11/json/decoder.py", line 355, in raw_decode
    raise JSONDecodeError("Expecting value", s, err.value) from None
KeyError: 'x'
"""


def test_the_frame_is_the_newest_of_our_own_code() -> None:
    """Libraries below and lines, releases and hosts do not count; file and function do (D4)."""
    assert own_frame(TRACEBACK) == ("shop/orders.py:charge", "total = prices[currency]")
    moved = TRACEBACK.replace("line 17", "line 99").replace("/srv/releases/20240501", "/app/venv")
    assert own_frame(moved) == own_frame(TRACEBACK)
    windows = TRACEBACK.replace("/srv/releases/20240501/shop/", "C:\\app\\shop\\")
    assert own_frame(windows) == own_frame(TRACEBACK)


@pytest.mark.parametrize(
    "line",
    [
        '  File "/v/lib/python3.11/site-packages/celery/app/trace.py", line 1, in f',
        '  File "/usr/lib/python3/dist-packages/yaml/x.py", line 1, in f',
        '  File "C:\\Python311\\Lib\\json\\decoder.py", line 1, in f',
        '  File "<frozen importlib._bootstrap>", line 1, in f',
        '  File "/srv/shop/orders.py", line 2, in <listcomp>',
    ],
)
def test_frames_of_libraries_and_of_inlined_code_are_passed_over(line: str) -> None:
    """The frame above them is the one that counts (D4)."""
    assert own_frame(TRACEBACK + line + "\n    x\n")[0] == "shop/orders.py:charge"


def test_the_frame_is_that_of_the_error_raised_last() -> None:
    """Of a chain the last traceback counts, however the earlier ones look (D4)."""
    chained = (
        TRACEBACK.replace("charge", "earlier") + "\nDuring handling of the above exception, another:\n\n" + TRACEBACK
    )
    assert own_frame(chained)[0] == "shop/orders.py:charge"
    assert own_frame("no traceback at all") == ("", "")


def _print(**fields: Any) -> Fingerprint:
    values = {"task_name": "shop.charge", "error_type": "builtins.KeyError", "error_message": "'x'"}
    return fingerprint(**(values | fields))


def test_task_type_frame_and_message_all_count() -> None:
    """Each of the four makes another failure (D4)."""
    found = Counter(
        made.digest
        for made in (
            _print(),
            _print(task_name="shop.refund"),
            _print(error_type="builtins.IndexError"),
            _print(traceback=TRACEBACK),
            _print(error_message="'y'"),
            _print(error_message="y of z"),
        )
    )
    assert len(found) == 6


def test_a_name_that_is_not_in_the_code_is_a_value() -> None:
    """``prices[currency]`` fails for every currency alike; ``order["amount"]`` is about the amount (D4)."""
    of_data = {_print(error_message=f"'{name}'", traceback=TRACEBACK).digest for name in ("EUR", "dollar")}
    assert len(of_data) == 1
    literal = TRACEBACK.replace("prices[currency]", 'order["amount"] + order["tax"]')
    of_code = {_print(error_message=f"'{name}'", traceback=literal).digest for name in ("amount", "tax")}
    assert len(of_code) == 2


def test_a_tasks_own_name_decides_alone() -> None:
    """A fingerprint that the task gave groups whatever else differs (D4)."""
    first = _print(own="gateway-down", traceback=TRACEBACK)
    second = fingerprint(task_name="other", error_type="X", error_message="y", own="gateway-down")
    assert first == second
    assert first.title == "gateway-down"
    assert _print(own="gateway-slow") != first


def test_without_a_note_task_queue_and_reason_decide() -> None:
    """A death that no worker saw is told by the broker's words (D4)."""
    silent = {"error_type": None, "error_message": None, "queue": "payments", "reason": "delivery_limit"}
    first = _print(**silent)
    assert first.title == "delivery_limit: shop.charge from payments"
    others = [
        _print(**(silent | change)) for change in ({"queue": "crm"}, {"reason": "expired"}, {"task_name": None})
    ]
    assert len({first.digest, *(other.digest for other in others)}) == 4


@pytest.mark.parametrize(
    "kind", ["builtins.RecursionError", "billiard.exceptions.SoftTimeLimitExceeded", "builtins.MemoryError"]
)
def test_what_strikes_anywhere_has_no_frame(kind: str) -> None:
    """A time limit hits wherever the code is, so the place says nothing (D4)."""
    assert _print(error_type=kind, traceback=TRACEBACK) == _print(error_type=kind)


def test_the_title_is_for_people() -> None:
    """It says the exception and the message without values, on one short line (D4)."""
    assert _print(error_message="Order 17\n was not  found").title == "KeyError: Order <n> was not found"
    assert len(_print(error_message="word " * 10_000).title) <= 200
    assert _print(error_message="").title == "KeyError"


@settings(deadline=None)  # the machine may be busy
@given(some.text(max_size=300), some.text(max_size=300), some.text(max_size=300))
def test_any_text_has_a_fingerprint(message: str, trace: str, name: str) -> None:
    """Nothing raises, and the same letter has the same fingerprint again (D4)."""
    made = _print(error_message=message, traceback=trace, error_type=name)
    assert made == _print(error_message=message, traceback=trace, error_type=name)
    assert len(made.digest) == 32
    assert made.version == RULES_VERSION


@settings(deadline=None)  # the machine may be busy
@given(some.text(alphabet="'\"`{}[]()<>=:/\\@-.,#0123456789abA \n\u00ab\u00bb", max_size=1500))
def test_no_message_of_odd_characters_raises_or_stalls(message: str) -> None:
    """The characters that rules look at, in any order, cost little time (D4)."""
    started = time.process_time()
    message_template(message)
    assert time.process_time() - started < 0.5


@pytest.mark.parametrize(
    "unit",
    [
        "'",
        "{",
        "{,",
        "[",
        "1,",
        "a@",
        "/",
        "\n^",
        "(1, '",
        "\\",
        "\u00ab",
        "0:",
        "1.",
        "a.",
        "=a",
        '"\\',
        "('a b ",
        "</a",
        ", input_value=",
        "{'code': '",
        "A. <",
        "a_1",
        "customer A ",
        "\ud800",
    ],
)
def test_megabytes_cost_no_time(unit: str) -> None:
    """A hostile text of megabytes is looked at only where it begins and ends (D4)."""
    text = unit * (3_000_000 // len(unit))
    started = time.process_time()
    _print(error_message=text, traceback=text, error_type=text)
    _print(error_message=text, traceback='Traceback (most recent call last)\n  File "' * 50_000)
    _print(own=text)
    assert time.process_time() - started < 0.5


@settings(deadline=None)  # the machine may be busy
@given(some.randoms(use_true_random=False))
def test_what_is_remembered_changes_no_fingerprint(dice: Random) -> None:
    """Whatever was seen before, a message has the fingerprint that it has alone (D4)."""
    remembered = Remembered()
    entries = json.loads(FOREIGN.read_text())
    for entry in dice.sample(entries, 40):
        for message in entry["messages"]:
            others = "".join(dice.choice("0123456789") if char.isdecimal() else char for char in message)
            for text in (message, others, message):
                alone = fingerprint(task_name="t", error_type=entry["type"], error_message=text, traceback=TRACEBACK)
                assert remembered.of_error("t", entry["type"], text, TRACEBACK).digest == alone.digest, text


def test_a_storm_is_recognised_by_its_shape() -> None:
    """Numbers and ids alone do not make a message new (D4)."""
    remembered = Remembered()
    made = {
        id(remembered.of_error("t", "GatewayError", f"order {number} of {uuid.uuid4()} was declined", TRACEBACK))
        for number in range(1_000, 3_000)
    }
    assert len(made) == 1
    codes = {remembered.of_error("t", "OSError", f"[Errno {number}] failed", "").digest for number in (0, 1, 2, 0)}
    assert len(codes) == 3
