"""The retry policy: which failure, how long, when to give up."""

from __future__ import annotations

import json
import math
import random
from collections import Counter
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from broker_topology.errors import ConfigurationError
from tasks.errors import InDoubtError, PermanentFailure, TransientFailure
from tasks.failure_reference import reference
from tasks.retry_policy import GiveUp, GiveUpReason, RetryIn, RetryPolicy

NOW = datetime(2026, 5, 4, 3, 2, 1, tzinfo=UTC)
DEFAULT = RetryPolicy(transient=(reference, LookupError))
SCHEDULES = some.builds(
    RetryPolicy,
    max_retries=some.integers(0, 60),
    backoff_seconds=some.floats(0.001, 100),
    factor=some.floats(1, 10),
    cap_seconds=some.floats(100, 100_000),
    transient=some.just(ConnectionError),
)
UNIT = some.floats(0, 1, exclude_max=True)


def _decide(policy: RetryPolicy, error: BaseException, retries: int = 0) -> RetryIn | GiveUp:
    return policy.decide(error, retries, now=NOW, random=random.random)


def _http_error(status: int, **headers: str) -> httpx.HTTPStatusError:
    response = httpx.Response(status, headers={name.replace("_", "-"): text for name, text in headers.items()})
    return httpx.HTTPStatusError("", request=httpx.Request("GET", "http://s.example"), response=response)


@pytest.mark.parametrize(
    ("error", "transient", "decision"),
    [
        (ConnectionResetError(), (), GiveUp),
        (ConnectionResetError(), ConnectionError, RetryIn),
        (ConnectionResetError(), reference, RetryIn),
        (ConnectionResetError(), (LookupError, reference), RetryIn),
        (ValueError(), (LookupError, reference), GiveUp),
        (KeyError(), (LookupError, reference), RetryIn),
        (PermanentFailure(), (LookupError, reference), GiveUp),
        (InDoubtError(), reference, GiveUp),
        (TransientFailure(), (), RetryIn),
        (_http_error(404), httpx.HTTPStatusError, GiveUp),
        (_http_error(404), (reference, httpx.HTTPError), GiveUp),
        (_http_error(503), httpx.HTTPStatusError, RetryIn),
        (_http_error(503), (), GiveUp),
        (_http_error(501), httpx.HTTPStatusError, RetryIn),
        (_http_error(501), reference, GiveUp),
        (FileNotFoundError(2, "no"), reference, GiveUp),
        (FileNotFoundError(2, "no"), (reference, FileNotFoundError), RetryIn),
    ],
)
def test_what_is_named_is_retried_and_nothing_else(error: Exception, transient: Any, decision: type) -> None:
    """Named is transient, the status decides where a class hides both, the rest fails at once (R1, R2)."""
    decided = _decide(RetryPolicy(transient=transient), error)
    assert isinstance(decided, decision)
    if isinstance(decided, GiveUp):
        assert decided.reason is GiveUpReason.PERMANENT
        assert decided.explanation


def test_retries_end_at_the_limit_with_a_reason() -> None:
    """The last failure of a task that used up its retries says so (R5)."""
    assert isinstance(_decide(DEFAULT, KeyError(), 4), RetryIn)
    decided = _decide(DEFAULT, KeyError("gone"), 5)
    assert isinstance(decided, GiveUp)
    assert decided.reason == "retries_exhausted"
    assert "5 retries" in decided.explanation
    assert isinstance(_decide(replace(DEFAULT, max_retries=0), KeyError()), GiveUp)


@settings(deadline=None)  # the machine may be busy
@given(policy=SCHEDULES, retries=some.integers(0, 10_000), draw=UNIT)
def test_a_wait_is_never_zero_and_never_over_the_cap(policy: RetryPolicy, retries: int, draw: float) -> None:
    """Backoff grows to its cap and is jittered around 1, 2, 4, 8 ..., whatever the numbers (R3)."""
    seconds = policy.delay(retries, lambda: draw)
    assert 1 <= seconds <= policy.cap_seconds
    logarithm = math.log(policy.backoff_seconds) + retries * math.log(policy.factor)
    nominal = math.exp(min(math.log(policy.cap_seconds), logarithm))
    assert seconds >= nominal / 2 * 0.999
    assert seconds <= max(3, nominal * 1.501)


@settings(deadline=None)  # the machine may be busy
@given(policy=SCHEDULES, draw=UNIT)
def test_covers_is_what_the_schedule_waits_at_least(policy: RetryPolicy, draw: float) -> None:
    """The waits, cut to whole seconds as the broker does, sum up to covers() at least (R5)."""
    waits = [int(policy.delay(retries, lambda: draw)) for retries in range(policy.max_retries)]
    shortest = [int(policy.delay(retries, lambda: 0.0)) for retries in range(policy.max_retries)]
    assert sum(waits) >= policy.covers().total_seconds()
    assert sum(shortest) == policy.covers().total_seconds()


@settings(deadline=None)  # the machine may be busy
@given(policy=SCHEDULES, retries=some.integers(0, 59), draw=UNIT, asked=some.floats(0, 1e9))
def test_what_a_server_asks_for_is_honoured_within_the_cap(
    policy: RetryPolicy, retries: int, draw: float, asked: float
) -> None:
    """The next attempt is not before the time asked for, and never later than the cap (R2)."""
    error = TransientFailure(retry_after=asked)
    decided = policy.decide(error, min(retries, policy.max_retries - 1), now=NOW, random=lambda: draw)
    if isinstance(decided, GiveUp):
        assert policy.max_retries == 0
        return
    assert 1 <= decided.seconds <= policy.cap_seconds
    assert decided.seconds >= min(asked, policy.cap_seconds / 2)
    assert asked >= policy.cap_seconds or decided.seconds >= asked


@pytest.mark.parametrize("asked", [7, 7.0, timedelta(seconds=7)])
def test_a_transient_failure_says_when(asked: Any) -> None:
    """A task that knows how long says it, as seconds or timedelta (R1)."""
    decided = _decide(RetryPolicy(), TransientFailure(retry_after=asked))
    assert isinstance(decided, RetryIn)
    assert 7 <= decided.seconds <= 9


@pytest.mark.parametrize("asked", [math.nan, -5.0, "soon", None, 0])
def test_a_senseless_wait_is_ignored(asked: Any) -> None:
    """What is no time falls back to the schedule (R1)."""
    decided = _decide(RetryPolicy(), TransientFailure(retry_after=asked))
    assert isinstance(decided, RetryIn)
    assert 1 <= decided.seconds <= 3


def test_retry_after_of_a_response_is_honoured_where_the_class_is_named() -> None:
    """The header counts with the reference and with a named class alike (R2)."""
    for transient in (reference, httpx.HTTPStatusError):
        decided = _decide(RetryPolicy(transient=transient), _http_error(429, Retry_After="30"))
        assert isinstance(decided, RetryIn)
        assert 30 <= decided.seconds <= 32


@pytest.mark.parametrize(("retries", "most"), [(0, 0.58), (1, 0.58), (2, 0.32), (3, 0.19), (4, 0.12), (9, 0.03)])
def test_failures_of_one_moment_come_back_spread(retries: int, most: float) -> None:
    """Of 1,000 failures of one moment no second sees more than its share, fractions cut off (R3)."""
    dice = random.Random(7)
    seconds = Counter(int(DEFAULT.delay(retries, dice.random)) for _ in range(1000))
    assert min(seconds) >= 1
    assert max(seconds.values()) <= most * 1000


def test_waits_do_not_sit_on_whole_seconds() -> None:
    """The policy itself does not round, so a transport that can be finer is (R3)."""
    assert len({DEFAULT.delay(3, random.random) for _ in range(100)}) > 90


def test_waits_double_and_stop_at_the_cap() -> None:
    """In the middle of the jitter the schedule is 2, 4, 8 ... and it ends within 300 to 600 s (R3)."""
    middles = [DEFAULT.delay(retries, lambda: 0.5) for retries in range(12)]
    assert middles == [2, 2, 4, 8, 16, 32, 64, 128, 256, 428, 450, 450]


@pytest.mark.parametrize(
    ("outage", "seconds"),
    [("20m", 1200), ("90s", 90), ("1h30m", 5400), ("2d", 172_800), (timedelta(minutes=3), 180), (45, 45)],
)
def test_a_policy_is_made_for_an_outage(outage: Any, seconds: float) -> None:
    """for_outage takes the fewest retries that outlast the outage for certain (R5)."""
    policy = RetryPolicy.for_outage(outage, transient=reference)
    assert policy.transient is reference
    assert policy.covers() >= timedelta(seconds=seconds)
    assert replace(policy, max_retries=policy.max_retries - 1).covers() < timedelta(seconds=seconds)


@pytest.mark.parametrize("outage", ["", "soon", "20", "-1m", "m", "1h 30m", math.nan, -1, "9999d", "9" * 400 + "d"])
def test_a_senseless_outage_is_refused(outage: Any) -> None:
    """A duration that is none, or that no schedule covers, is an error that says so (R5)."""
    with pytest.raises(ConfigurationError):
        RetryPolicy.for_outage(outage)


def test_for_outage_works_out_the_retries_itself() -> None:
    """Both a limit and an outage would contradict each other (R5)."""
    with pytest.raises(ConfigurationError, match="max_retries"):
        RetryPolicy.for_outage("1m", max_retries=3)


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"transient": Exception}, "builtins.Exception among the transient"),
        ({"transient": (LookupError, BaseException)}, "builtins.BaseException among"),
        ({"transient": (reference, KeyboardInterrupt)}, "no failure"),
        ({"transient": PermanentFailure}, "cannot be transient"),
        ({"transient": InDoubtError}, "cannot be transient"),
        ({"transient": "ConnectionError"}, "exception types"),
        ({"transient": (ConnectionError(),)}, "exception types"),
        ({"transient": int}, "exception types"),
        ({"transient": None}, "exception types"),
        ({"max_retries": None}, "max_retries"),
        ({"max_retries": -1}, "max_retries"),
        ({"max_retries": True}, "max_retries"),
        ({"max_retries": 2.0}, "max_retries"),
        ({"backoff_seconds": 0}, "backoff_seconds"),
        ({"backoff_seconds": -1}, "backoff_seconds"),
        ({"backoff_seconds": math.nan}, "backoff_seconds"),
        ({"backoff_seconds": "1"}, "backoff_seconds"),
        ({"backoff_seconds": 700}, "more than cap_seconds"),
        ({"cap_seconds": 0.5}, "cap_seconds"),
        ({"cap_seconds": math.inf}, "cap_seconds"),
        ({"factor": 0.5}, "factor"),
    ],
)
def test_a_policy_that_cannot_be_kept_is_refused(fields: dict[str, Any], says: str) -> None:
    """Declaring Exception transient, no limit, or senseless numbers is an error at once (R1, R5)."""
    with pytest.raises(ConfigurationError, match=says):
        RetryPolicy(**fields)
    with pytest.raises(ConfigurationError, match=says):
        replace(DEFAULT, **fields)


@pytest.mark.parametrize("name", ["Retry", "Ignore", "Reject"])
def test_celerys_words_of_control_are_no_failures(name: str) -> None:
    """Retry, Ignore and Reject among the transient ones would be swallowed (R1)."""
    celery_exceptions = pytest.importorskip("celery.exceptions")
    with pytest.raises(ConfigurationError, match="no failure"):
        RetryPolicy(transient=getattr(celery_exceptions, name))


def test_a_policy_is_a_value() -> None:
    """Equal fields make equal policies, and a replaced field changes nothing else (R6)."""
    assert replace(DEFAULT, max_retries=2) == replace(DEFAULT, max_retries=2)
    assert replace(DEFAULT, max_retries=2).transient == DEFAULT.transient
    assert RetryPolicy().max_retries == 5
    assert json.dumps(RetryPolicy().covers().total_seconds()) == "16.0"


def test_one_second_of_cap_is_kept() -> None:
    """With the smallest cap every wait is the one second that the broker can do (R3)."""
    policy = RetryPolicy(cap_seconds=1)
    assert {policy.delay(retries, random.random) for retries in range(20)} == {1.0}
    assert policy.delay(3, random.random, not_before_seconds=99) == 1.0
