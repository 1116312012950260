"""Who hears which alert."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from broker_topology.errors import ConfigurationError
from consumers.alert_config import AlertConfig, duration, read_alert_config
from consumers.alert_rules import AlertRules, Kind

NOW = datetime(2026, 5, 4, 12, 0, tzinfo=UTC)

FILE = """
[channels.ops]
url = "slack://${SLACK_TOKEN}"
[channels.hook]
webhook = "https://hooks.example/dead-letters"
secret = "${HOOK_SECRET}"
[channels.team]
url = "mailto://mail.example"

[[routes]]
channels = ["ops"]
severities = ["critical"]
[[routes]]
channels = ["hook", "ops"]
tasks = ["payments.*"]
[[routes]]
channels = ["team"]
queues = ["crm"]
kinds = ["first_occurrence", "regression"]

[rules]
storm_cap = 3
follow_up_after = "90s"
depth_over = false

[quiet_hours]
begin = 22:00:00
end = "07:00"
timezone = "Europe/Berlin"

[digest]
every = "hourly"
"""
ENVIRONMENT = {"SLACK_TOKEN": "a/b/c", "HOOK_SECRET": "whsec_c2VjcmV0"}


def _read(tmp_path: Path, text: str = FILE, urls: str | None = None) -> AlertConfig:
    path = tmp_path / "alerts.toml"
    path.write_text(text)
    return read_alert_config(path, urls, ENVIRONMENT)


def _names(config: AlertConfig, kind: Kind, task: str | None = None, *queues: str) -> list[str]:
    return [address.channel for address in config.addresses(kind, now=NOW, task=task, queues=queues)]


def test_routes_choose_channels_by_task_queue_severity_and_kind(tmp_path: Path) -> None:
    """Each channel hears an alert once, whichever routes lead there; the log hears all (D4)."""
    config = _read(tmp_path)
    assert _names(config, Kind.FIRST_OCCURRENCE, "payments.charge", "payments") == ["log", "hook", "ops"]
    assert _names(config, Kind.REGRESSION, "payments.charge", "payments") == ["log", "ops", "hook"]
    assert _names(config, Kind.FIRST_OCCURRENCE, "crm.sync", "crm") == ["log", "team"]
    assert _names(config, Kind.GROWTH, "crm.sync", "crm") == ["log", "ops"]
    assert _names(config, Kind.FIRST_OCCURRENCE, "mail.send", "mail") == ["log"]
    assert _names(config, Kind.TEST) == ["log", "ops", "hook", "team"]


def test_the_file_is_read_with_secrets_from_the_environment(tmp_path: Path) -> None:
    """Addresses and secrets are filled in, rules are typed, and neither is shown (D4)."""
    config = _read(tmp_path)
    assert config.channels[0].url == "slack://a/b/c"
    assert config.channels[1].secret == "whsec_c2VjcmV0"
    assert "a/b/c" not in repr(config)
    assert "c2VjcmV0" not in repr(config)
    assert config.rules.storm_cap == 3
    assert config.rules.follow_up_after == timedelta(seconds=90)
    assert config.rules.depth_over is None


def test_quiet_hours_let_only_what_is_critical_through(tmp_path: Path) -> None:
    """The rest waits for the morning, in the zone of the team (D4)."""
    config = _read(tmp_path)
    night = datetime(2026, 5, 4, 22, 30, tzinfo=UTC)  # half past midnight in Berlin
    first = config.addresses(Kind.FIRST_OCCURRENCE, now=night, task="payments.a")
    assert [address.due_at for address in first[1:]] == [datetime(2026, 5, 5, 5, 0, tzinfo=UTC)] * 2
    assert first[0].due_at == night
    critical = config.addresses(Kind.REGRESSION, now=night, task="payments.a")
    assert {address.due_at for address in critical} == {night}
    evening = datetime(2026, 5, 4, 20, 30, tzinfo=UTC)  # half past ten, the day before
    late = config.addresses(Kind.FIRST_OCCURRENCE, now=evening, task="payments.a")
    assert late[1].due_at == datetime(2026, 5, 5, 5, 0, tzinfo=UTC)
    assert config.addresses(Kind.FIRST_OCCURRENCE, now=NOW, task="payments.a")[1].due_at == NOW


def test_addresses_alone_hear_everything(tmp_path: Path) -> None:
    """ALERT_URLS needs no file, and adds to one (D4)."""
    config = read_alert_config(None, "json://a.example mailto://b.example", {})
    assert _names(config, Kind.FOLLOW_UP) == ["log", "url-1", "url-2"]
    both = _read(tmp_path, urls="json://a.example")
    assert _names(both, Kind.FIRST_OCCURRENCE, "mail.send") == ["log", "url-1"]
    no_routes = _read(tmp_path, '[channels.x]\nurl = "json://x"', urls="json://a.example")
    assert _names(no_routes, Kind.DIGEST) == ["log", "x", "url-1"]


def test_without_anything_only_the_log_hears() -> None:
    """No channel is an error nowhere (D4)."""
    assert _names(read_alert_config(None, None, {}), Kind.REGRESSION) == ["log"]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("not toml at all", "is not TOML"),
        ("[channel.x]", "unknown section 'channel'"),
        ("[channels.x]", "url is missing"),
        ('[channels.x]\nwebhook = "http://a"', "secret is missing"),
        ('[channels.log]\nurl = "json://a"', "cannot be called 'log'"),
        ('[[routes]]\nchannels = ["nobody"]', "'nobody', which is not there"),
        ('[[routes]]\nseverities = ["loud"]\nchannels = []', "'loud'"),
        ("[rules]\nstorm_caps = 3", "unknown rule 'storm_caps'"),
        ("[rules]\nstorm_cap = -3", "storm_cap must be a number"),
        ("[rules]\nfollow_up_after = 90", "90 is no duration"),
        ("[digest]\nat = 08:30:00", "full hour"),
        ('[digest]\nevery = "monthly"', "digest.every must be one of"),
        ('[quiet_hours]\nbegin = "22:00"', "end is missing"),
        ('[quiet_hours]\nbegin = "22:00"\nend = "7"\ntimezone = "Mars/Olympus"', "ALERTS_FILE"),
        ('[channels.x]\nurl = "slack://${MISSING}"', "variable MISSING is not set"),
        ("channels = 3", "ALERTS_FILE"),
    ],
)
def test_a_wrong_file_is_refused_in_one_sentence(tmp_path: Path, text: str, says: str) -> None:
    """Whatever is wrong is said before the drain starts (D4)."""
    with pytest.raises(ConfigurationError, match=says):
        _read(tmp_path, text)


def test_a_missing_file_is_said(tmp_path: Path) -> None:
    """So is one that is not there (D4)."""
    with pytest.raises(ConfigurationError, match="cannot be read"):
        read_alert_config(tmp_path / "none.toml", None, {})


def test_the_file_in_the_docs_is_valid(tmp_path: Path) -> None:
    """What the page shows can be used as it is, and it names every kind of alert (D4)."""
    page = (Path(__file__).parent.parent.parent / "docs/reference/groups-and-alerts.md").read_text()
    example = page.partition("```toml")[2].partition("```")[0]
    path = tmp_path / "alerts.toml"
    path.write_text(example)
    config = read_alert_config(path, None, {"SLACK_TOKEN": "a/b/c", "PAGER_SECRET": "whsec_c2VjcmV0"})
    assert config.rules == AlertRules()
    assert len(config.routes) == 2
    assert [kind for kind in Kind if f"`{kind}`" not in page and kind is not Kind.TEST] == []


def test_durations_are_read() -> None:
    """90s, 20m, 1h30m and 2d (D4)."""
    assert duration("1h30m") == timedelta(minutes=90)
    with pytest.raises(ValueError, match="no duration"):
        duration("soon")
