"""Who hears which alert: channels, routes, quiet hours and rules, read from a TOML file or the environment."""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from datetime import UTC, datetime, time, timedelta
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from broker_topology.errors import ConfigurationError
from consumers.alert_rules import SEVERITIES, AlertRules, Kind, Severity
from consumers.alerts import Addressed

LOG_CHANNEL = "log"
"""Every alert is an event in the drain's log too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChannelConfig:
    """Where a channel leads: an Apprise address, or a webhook with the secret that signs it."""

    name: str
    url: str = field(repr=False)
    secret: str | None = field(default=None, repr=False)
    """Set for a webhook."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """Which alerts a set of channels hears: every list that is not empty must match."""

    channels: tuple[str, ...]
    tasks: tuple[str, ...] = ()
    """Patterns such as ``payments.*``; an alert without a task matches none."""
    queues: tuple[str, ...] = ()
    severities: tuple[Severity, ...] = ()
    kinds: tuple[Kind, ...] = ()

    def hears(self, kind: Kind, *, task: str | None, queues: tuple[str, ...]) -> bool:
        """Whether an alert goes this way."""
        return (
            (not self.severities or SEVERITIES[kind] in self.severities)
            and (not self.kinds or kind in self.kinds)
            and (not self.tasks or any(fnmatchcase(task or "", pattern) for pattern in self.tasks))
            and (not self.queues or any(fnmatchcase(q, pattern) for q in queues for pattern in self.queues))
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class QuietHours:
    """When only what is critical is sent; the rest waits for the end."""

    begin: time
    end: time
    zone: ZoneInfo

    def over_at(self, now: datetime) -> datetime:
        """When what is written at ``now`` may be sent: now, or the end of the quiet hours."""
        local = now.astimezone(self.zone)
        clock = local.time()
        over_midnight = self.begin > self.end
        after_begin, before_end = clock >= self.begin, clock < self.end
        if not ((after_begin or before_end) if over_midnight else (after_begin and before_end)):
            return now
        day = local.date() if clock < self.end else local.date() + timedelta(days=1)
        return datetime.combine(day, self.end, tzinfo=self.zone).astimezone(UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class AlertConfig:
    """Everything about alerts that is configured."""

    channels: tuple[ChannelConfig, ...] = ()
    routes: tuple[Route, ...] = ()
    """Without any, every channel hears everything."""
    rules: AlertRules = field(default_factory=AlertRules)
    quiet_hours: QuietHours | None = None
    digest: str = "daily"
    """``daily``, ``hourly`` or ``off``."""
    digest_at: time = time(8, 0)
    zone: ZoneInfo = field(default_factory=lambda: ZoneInfo("UTC"))

    def addresses(
        self, kind: Kind, *, now: datetime, task: str | None = None, queues: tuple[str, ...] = ()
    ) -> list[Addressed]:
        """The channels that are to hear an alert, the log first."""
        due = now
        if self.quiet_hours and SEVERITIES[kind] is not Severity.CRITICAL and kind is not Kind.TEST:
            due = self.quiet_hours.over_at(now)
        routes = self.routes or (Route(channels=tuple(channel.name for channel in self.channels)),)
        names = dict.fromkeys(
            name for route in routes if route.hears(kind, task=task, queues=queues) for name in route.channels
        )
        if kind is Kind.TEST:
            names = dict.fromkeys(channel.name for channel in self.channels)
        return [Addressed(channel=LOG_CHANNEL, due_at=now), *(Addressed(channel=name, due_at=due) for name in names)]


def read_alert_config(
    path: Path | None, urls: str | None, environment: Mapping[str, str] = os.environ
) -> AlertConfig:
    """Read the file, and Apprise addresses of channels that hear everything. Raises ConfigurationError."""
    values: dict[str, Any] = {}
    if path is not None:
        try:
            values = tomllib.loads(path.read_text())
        except OSError as error:
            raise ConfigurationError(f"ALERTS_FILE {path} cannot be read: {error.strerror}") from error
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise ConfigurationError(f"ALERTS_FILE {path} is not TOML: {error}") from error
    try:
        config = _config(_filled(values, environment))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ConfigurationError(f"ALERTS_FILE {path}: {_problem(error)}") from error
    named = {channel.name for channel in config.channels}
    extra = tuple(
        ChannelConfig(name=f"url-{number}", url=url) for number, url in enumerate((urls or "").split(), start=1)
    )
    _check(config, named)
    if not extra:
        return config
    every = Route(channels=tuple(channel.name for channel in extra))
    routes = config.routes or ((Route(channels=tuple(sorted(named))),) if named else ())
    return replace(config, channels=config.channels + extra, routes=(*routes, every))


def _config(values: dict[str, Any]) -> AlertConfig:
    known = {"channels", "routes", "rules", "quiet_hours", "digest"}
    if unknown := values.keys() - known:
        raise ValueError(f"unknown section {sorted(unknown)[0]!r}; there are {', '.join(sorted(known))}")
    digest = values.get("digest", {})
    quiet = values.get("quiet_hours")
    return AlertConfig(
        channels=tuple(_channel(name, given) for name, given in values.get("channels", {}).items()),
        routes=tuple(_route(given) for given in values.get("routes", [])),
        rules=_rules(values.get("rules", {})),
        quiet_hours=quiet
        and QuietHours(
            begin=_time(quiet["begin"]), end=_time(quiet["end"]), zone=_zone(quiet.get("timezone", "UTC"))
        ),
        digest=_one_of(digest.get("every", "daily"), ("daily", "hourly", "off"), "digest.every"),
        digest_at=_full_hour(_time(digest.get("at", "08:00"))),
        zone=_zone(digest.get("timezone", "UTC")),
    )


def _channel(name: str, given: dict[str, Any]) -> ChannelConfig:
    if name == LOG_CHANNEL or not name or len(name) > 100:
        raise ValueError(f"a channel cannot be called {name!r}")
    if "webhook" in given:
        return ChannelConfig(name=name, url=str(given["webhook"]), secret=str(given["secret"]))
    return ChannelConfig(name=name, url=str(given["url"]))


def _route(given: dict[str, Any]) -> Route:
    return Route(
        channels=tuple(given["channels"]),
        tasks=tuple(given.get("tasks", ())),
        queues=tuple(given.get("queues", ())),
        severities=tuple(Severity(severity) for severity in given.get("severities", ())),
        kinds=tuple(Kind(kind) for kind in given.get("kinds", ())),
    )


def _rules(given: dict[str, Any]) -> AlertRules:
    usual = AlertRules()
    values: dict[str, Any] = {}
    for name, value in given.items():
        if name not in {slot.name for slot in fields(AlertRules)}:
            raise ValueError(f"unknown rule {name!r}")
        is_time = isinstance(getattr(usual, name), timedelta)
        if value is False and name in {"depth_over", "age_over"}:
            values[name] = None
        elif is_time:
            values[name] = duration(value)
        elif isinstance(value, int | float) and not isinstance(value, bool) and value > 0:
            values[name] = value
        else:
            raise ValueError(f"rule {name} must be a number above 0, not {value!r}")
    return AlertRules(**values)


def _check(config: AlertConfig, named: set[str]) -> None:
    for route in config.routes:
        for name in route.channels:
            if name not in named:
                raise ConfigurationError(f"ALERTS_FILE: a route leads to channel {name!r}, which is not there")


def duration(text: object) -> timedelta:
    """``90s``, ``20m``, ``1h30m``, ``2d`` as a time. Raises ValueError."""
    if not isinstance(text, str) or not re.fullmatch(r"(\d{1,6}[dhms])+", text):
        raise ValueError(f"{text!r} is no duration: write 90s, 20m, 1h30m or 2d")
    units = {"d": "days", "h": "hours", "m": "minutes", "s": "seconds"}
    found = timedelta()
    for number, unit in re.findall(r"(\d+)([dhms])", text):
        found += timedelta(**{units[unit]: int(number)})
    return found


def _filled(value: Any, environment: Mapping[str, str]) -> Any:
    """Secrets stay out of the file: ``${NAME}`` is taken from the environment."""
    match value:
        case dict():
            return {key: _filled(item, environment) for key, item in value.items()}
        case list():
            return [_filled(item, environment) for item in value]
        case str():
            return re.sub(r"\$\{(\w+)\}", lambda found: _variable(found[1], environment), value)
        case _:
            return value


def _variable(name: str, environment: Mapping[str, str]) -> str:
    try:
        return environment[name]
    except KeyError:
        raise ValueError(f"the variable {name} is not set") from None


def _time(value: object) -> time:
    return value if isinstance(value, time) else time.fromisoformat(str(value))


def _full_hour(at: time) -> time:
    if at != at.replace(minute=0, second=0, microsecond=0):
        raise ValueError(f"digest.at must be a full hour, not {at}: letters are counted by the hour")
    return at


def _zone(name: object) -> ZoneInfo:
    try:
        return ZoneInfo(str(name))
    except (ZoneInfoNotFoundError, ValueError) as error:
        raise ValueError(f"{name!r} is no time zone") from error


def _one_of(value: str, choices: tuple[str, ...], what: str) -> str:
    if value not in choices:
        raise ValueError(f"{what} must be one of {', '.join(choices)}, not {value!r}")
    return value


def _problem(error: Exception) -> str:
    return f"{error.args[0]} is missing" if isinstance(error, KeyError) else str(error)
