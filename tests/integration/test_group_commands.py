"""The commands for groups and alerts, as a person and as a script use them."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import sqlalchemy as sa
from click.testing import CliRunner, Result

from consumers.__main__ import main
from consumers.audit import Act
from consumers.database import transaction
from consumers.dead_letters import dead_letters
from consumers.showing_groups import sparkline
from consumers.storing import store
from sandbox.processes import Process, eventually, free_port
from tests.integration.alert_receivers import http_receiver
from tests.integration.letters import arrival, groups_in

# Apprise loads every service that it knows, and one of them still uses imghdr.
pytestmark = pytest.mark.filterwarnings("ignore:'imghdr' is deprecated:DeprecationWarning")

Command = Callable[..., Result]


@pytest.fixture
def command(engine: sa.Engine, monkeypatch: pytest.MonkeyPatch) -> Command:
    """``dead-letters`` on the test's database; its exit code must be the one that is expected."""
    monkeypatch.setenv("DATABASE_URL", engine.url.render_as_string(hide_password=False))

    def run(*arguments: str, code: int = 0, **environment: str) -> Result:
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        result = CliRunner().invoke(main, list(arguments), env={"COLUMNS": "240"})
        assert result.exit_code == code, result.output
        return result

    return run


def _store(engine: sa.Engine, *messages: str) -> None:
    now = datetime.now(UTC)
    store(engine, [arrival(message, died_at=now - timedelta(minutes=1)) for message in messages], now=now)


def test_groups_are_listed_and_shown(engine: sa.Engine, command: Command) -> None:
    """A table with a picture of the last hours for people, JSON for scripts (D4)."""
    assert command("groups").output == "No groups.\n"
    _store(engine, "order 1 was declined", "order 2 was declined", "[red]no such customer\x1b[31m")
    listed = command("groups").output
    assert "GatewayError: order <n> was declined" in listed
    assert "█" in listed
    assert "[red]no such customer" in listed
    assert "\x1b" not in listed
    lines = [json.loads(line) for line in command("groups", "list", "--json").output.splitlines()]
    assert sorted(line["letters"] for line in lines) == [1, 2]
    assert lines[0]["queues"] == ["payments"]
    declined = next(line["id"] for line in lines if line["letters"] == 2)
    shown = command("groups", "show", str(declined)).output
    assert "2, 0 of them after a replay" in shown
    assert "1.4.0" in shown
    assert command("groups", "list", "--task", "other").output == "No groups.\n"
    letters = command("list", "--group", str(declined), "--json").output.splitlines()
    assert len(letters) == 2


def test_a_group_is_settled_ignored_reopened_and_muted(engine: sa.Engine, command: Command) -> None:
    """Each with reason and actor, in the group's history (D4, D5)."""
    _store(engine, "declined", "declined")
    said = command("settle", "1", "--reason", "fixed", "--by", "alice", "--release", "1.5").output
    assert said == "Group 1 is settled. 2 of its letters are still open: dead-letters list --group 1\n"
    assert "settled already" in command("settle", "1", "--reason", "again", code=1).output
    assert command("groups").output == "No groups.\n"
    assert "settled" in command("groups", "list", "--state", "settled").output
    command("reopen", "1", "--reason", "not yet", "--by", "bob")
    command("ignore", "1", "--for", "12h", "--more", "5", "--reason", "known", "--by", "bob")
    command("groups", "reopen", "1", "--reason", "no", "--by", "bob")
    command("groups", "mute", "1", "--for", "2h", "--reason", "working on it", "--by", "bob")
    shown = json.loads(command("groups", "show", "1", "--json").output)
    assert [(act["actor"], act["action"]) for act in shown["history"]] == [
        ("alice", "settle_group"),
        ("bob", "reopen_group"),
        ("bob", "ignore_group"),
        ("bob", "reopen_group"),
        ("bob", "mute_group"),
    ]
    assert "muted" in command("groups").output
    assert json.loads(shown["history"][0]["details"])["release"] == "1.5"


def test_a_settling_of_several_groups_is_one_act(engine: sa.Engine, command: Command) -> None:
    """Where one of them is not there, none is settled (D5)."""
    _store(engine, "declined")
    assert "there is no group 9" in command("settle", "1", "9", "--reason", "fixed", code=1).output
    assert groups_in(engine)[0]["state"] == "open"


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (("settle", "1"), 2, "--reason"),
        (("settle", "1", "--reason", "  "), 1, "reason is required"),
        (("groups", "show", "7"), 1, "there is no group 7"),
        (("ignore", "1", "--for", "soon", "--reason", "x"), 2, "no duration"),
        (("regroup", "--apply"), 1, "reason is required"),
        (("alerts", "test"), 78, "no channel"),
    ],
)
def test_what_is_wrong_is_said_in_one_sentence(
    command: Command, arguments: tuple[str, ...], code: int, says: str
) -> None:
    """A reason is required, and mistakes are told without a traceback (D5)."""
    assert says in command(*arguments, code=code).output


def test_regrouping_shows_before_it_moves(engine: sa.Engine, command: Command) -> None:
    """The dry run is the default and changes nothing (D4)."""
    _store(engine, "order 1 was declined", "order 2 was declined")
    assert command("regroup").output == "0 of 2 letters would move; --apply does it.\n"
    with transaction(engine) as connection:
        connection.execute(dead_letters.update().values(group_id=None))
    shown = command("regroup").output
    assert "2 letters: no group -> GatewayError: order <n> was declined" in shown
    assert json.loads(command("regroup", "--json").output)["moved"] == 2
    assert "2 of 2 letters moved" in command("regroup", "--apply", "--reason", "first time").output
    assert command("regroup").output == "0 of 2 letters would move; --apply does it.\n"


def test_alert_channels_are_tested_and_alerts_listed(
    engine: sa.Engine, command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each channel says whether it answered; what was written to the outbox can be seen (D4)."""
    _store(engine, "declined")
    listed = [json.loads(line) for line in command("alerts", "list", "--json").output.splitlines()]
    assert [(alert["kind"], alert["channel"], alert["state"]) for alert in listed] == [
        ("first_occurrence", "log", "waiting")
    ]
    assert "first occurrence" in command("alerts", "list").output
    with http_receiver() as good:
        urls = f"json://127.0.0.1:{good.port}/ json://127.0.0.1:{free_port()}/"
        said = command("alerts", "test", code=1, ALERT_URLS=urls).output.splitlines()
        assert said[0] == "url-1: answered"
        assert said[1].startswith("url-2: ")
        assert "test of an alert channel" in good.bodies()[0]["title"]
        monkeypatch.delenv("ALERT_URLS")
        path = tmp_path / "alerts.toml"
        path.write_text(f'[channels.hook]\nwebhook = "{good.url}"\nsecret = "whsec_{"YWJj" * 8}"\n')
        assert command("alerts", "test", ALERTS_FILE=str(path)).output == "hook: answered\n"
        assert "no channel 'x'" in command("alerts", "test", "--channel", "x", code=78).output


def test_new_letters_are_followed_live(engine: sa.Engine, tmp_path: Path) -> None:
    """Each letter is a line as soon as it is stored; earlier ones are not told again (D4)."""
    _store(engine, "an earlier one")
    watching = Process(
        [sys.executable, "-m", "consumers", "watch", "--every", "0.2"],
        log=tmp_path / "watch.log",
        env={"DATABASE_URL": engine.url.render_as_string(hide_password=False), "PYTHONUNBUFFERED": "1"},
    )
    try:
        number = iter(range(1_000))

        def told() -> bool:
            _store(engine, f"failure {next(number)} of now")
            return "payments.charge_customer payments failed shop.GatewayError: failure" in watching.output()

        eventually(told, every=0.3)
    finally:
        watching.kill()
    assert "earlier" not in watching.output()


def test_the_picture_has_an_hour_for_each_bar() -> None:
    """The present hour is last, an hour without letters is empty, and one letter is still seen (D4)."""
    now = datetime(2026, 5, 4, 12, 30, tzinfo=UTC)
    hour = now.replace(minute=0)
    hours = {hour: 1_000, hour - timedelta(hours=1): 1, hour - timedelta(hours=3): 500}
    assert sparkline(hours, now=now, hours_shown=4) == "▅ ▂█"
    assert sparkline({}, now=now, hours_shown=4) == ""


def test_an_act_needs_a_reason() -> None:
    """Nobody changes a group without saying why (D5)."""
    with pytest.raises(Exception, match="reason is required"):
        Act(actor="alice", reason=" ")
