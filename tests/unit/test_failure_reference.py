"""The reference of transient failures: each row against the real exception of the real library."""

from __future__ import annotations

import gc
import importlib
import random
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path
from typing import Any

import httpx
import pytest
import requests
import sqlalchemy.exc

from tasks.failure_judgement import Reference, Row, Verdict
from tasks.failure_reference import TRANSIENT_STATUSES, markdown, reference
from tasks.failure_signals import names, qualified_name, retry_after_seconds
from tasks.retry_policy import GiveUp, RetryIn, RetryPolicy
from tests.unit import faulty_servers as servers
from tests.unit.failure_cases import CASES, Case

ROOT = Path(__file__).parent.parent.parent
NOW = datetime(2026, 5, 4, 3, 2, 1, tzinfo=UTC)
CASE_LIST = [pytest.param(case, id=name) for name, case in CASES.items()]


@pytest.fixture
def _leaks() -> Iterator[None]:
    """Libraries that fail leave sockets open: collect them here, where no other test pays for it."""
    yield
    gc.collect()


@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.usefixtures("_leaks")
@pytest.mark.parametrize("case", CASE_LIST)
def test_the_real_exception_is_judged_by_its_row(case: Case, request: pytest.FixtureRequest) -> None:
    """Every row decides the exception of the real library, and the policy follows it (R1, R2)."""
    with pytest.raises(Exception) as raised:  # noqa: PT011, which one it is, the case says
        case.provoke(request.getfixturevalue)
    error = raised.value
    row = reference.deciding_row(error)
    assert row is not None, qualified_name(type(error))
    assert row.title == case.row, f"{type(error)}: {error}"
    asked = {row.title for row in reference.rows if set(row.exceptions) & set(names(error))}
    assert case.through is None or case.through in asked
    decision = RetryPolicy(transient=reference).decide(error, 0, now=NOW, random=random.random)
    assert isinstance(decision, RetryIn if row.verdict is Verdict.TRANSIENT else GiveUp)


def test_every_row_has_a_case() -> None:
    """No row stands in the table unproven, and no two rows have the same title (R1)."""
    titles = [row.title for row in reference.rows]
    assert len(titles) == len(set(titles))
    assert set(titles) == {case.row for case in CASES.values()} | {
        case.through for case in CASES.values() if case.through
    }


@pytest.mark.parametrize("name", sorted({name for row in reference.rows for name in row.exceptions}))
def test_every_class_exists(name: str) -> None:
    """A name of the table is the name by which the installed library knows the class (R1)."""
    module, _, last = name.rpartition(".")
    if name.startswith("PEP 249 "):
        pytest.skip("a family of classes, not one")
    try:
        kind: Any = importlib.import_module(module)
    except ModuleNotFoundError:
        pytest.skip(f"{module} is not installed")
    kind = getattr(kind, last)
    assert issubclass(kind, BaseException)
    assert qualified_name(kind) == name


@pytest.mark.parametrize("status", [*range(400, 512), 301, 304])
def test_every_status_is_decided_alike_for_every_client(status: int) -> None:
    """408, 425, 429, 500, 502, 503, 504 are transient, the rest of 4xx permanent (R2)."""
    request = httpx.Request("GET", "http://service.example")
    response = requests.Response()
    response.status_code = status
    errors = [
        httpx.HTTPStatusError("", request=request, response=httpx.Response(status)),
        requests.HTTPError(response=response),
    ]
    for error in errors:
        judgement = reference.judge(error, now=NOW)
        if status in TRANSIENT_STATUSES:
            assert judgement is not None
            assert judgement.verdict is Verdict.TRANSIENT
        elif status < 500:
            assert judgement is not None
            assert judgement.verdict is Verdict.PERMANENT
        else:
            assert judgement is None


@pytest.mark.parametrize("client", [httpx.get, requests.get])
def test_retry_after_is_read_from_the_response(client: Any) -> None:
    """Seconds and dates are read; garbage is as if it were not there (R2)."""
    texts = {
        "7": 7.0,
        "7.5": 7.5,
        "0": 0.0,
        format_datetime(NOW + timedelta(seconds=90), usegmt=True): 90.0,
        format_datetime(NOW - timedelta(days=1), usegmt=True): 0.0,
        "soon": None,
        "nan": None,
        "inf": None,
        "-3": 0.0,
        "Mon, 99 Foo 2026 99:99:99 GMT": None,
    }
    for text, expected in texts.items():
        with servers.served(servers.status(503, Retry_After=text)) as port:
            with pytest.raises((httpx.HTTPError, requests.HTTPError)) as raised:
                client(f"http://127.0.0.1:{port}/").raise_for_status()
            assert retry_after_seconds(raised.value, NOW) == expected, text


def test_what_no_row_speaks_of_is_not_transient() -> None:
    """Everything not named fails at once (R1)."""
    for error in (ValueError("a"), KeyError("a"), ZeroDivisionError(), OSError("no number"), Exception()):
        assert reference.judge(error, now=NOW) is None


def test_an_exception_whose_attributes_raise_is_judged() -> None:
    """A property that raises is a missing one (R1)."""

    class HostileError(ConnectionError):
        @property
        def response(self) -> object:
            raise RuntimeError("no")

        orig = reason = sqlstate = response

    judgement = reference.judge(HostileError(), now=NOW)
    assert judgement is not None
    assert judgement.verdict is Verdict.TRANSIENT


def test_an_error_that_is_its_own_cause_is_judged() -> None:
    """A circle of causes ends (R1)."""
    error, other = (sqlalchemy.exc.StatementError("a", "b", None, orig=None) for _ in range(2))
    error.orig, other.orig = other, error
    error.__cause__ = error
    assert reference.judge(error, now=NOW) is None


def test_rows_of_a_users_own_come_first() -> None:
    """A table extended with rows decides by them (R1)."""
    own = Row(
        library="ours", exceptions=("builtins.LookupError",), verdict=Verdict.TRANSIENT, because="a cache fills"
    )
    table = Reference(rows=(own, *reference.rows))
    judgement = table.judge(KeyError("a"), now=NOW)
    assert judgement is not None
    assert judgement.because == "a cache fills"


def test_the_table_imports_no_library() -> None:
    """Judging needs nothing that the user has not installed (R1)."""
    code = (
        "import sys, types; package = types.ModuleType('tasks'); package.__path__ = ['tasks'];"
        "sys.modules['tasks'] = package; import tasks.retry_policy;"
        "print({'requests', 'httpx', 'sqlalchemy', 'redis', 'kombu', 'celery'} & set(sys.modules))"
    )
    output = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert output == "set()\n"


def test_the_docs_show_the_table() -> None:
    """The page in the docs is the table of the code (R1)."""
    page = (ROOT / "docs/reference/transient-failures.md").read_text()
    assert markdown() in page
