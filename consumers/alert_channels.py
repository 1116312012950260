"""Channels: an Apprise address, a signed webhook, the log. Each takes one alert and answers, or says why not."""

from __future__ import annotations

import base64
import hashlib
import hmac
import importlib
import logging
from collections.abc import Callable
from datetime import datetime
from typing import Any, Protocol

import httpx
import structlog

from broker_topology.errors import ConfigurationError, DeadLetterOfficeError
from consumers.alert_config import LOG_CHANNEL, ChannelConfig
from consumers.alert_rules import Severity
from consumers.alert_text import body, text, title
from consumers.alerts import Delivery

log = structlog.get_logger()

TIMEOUT_SECONDS = 10.0
"""For connecting and for each read; with both, far below the claim on a delivery."""


class ChannelError(DeadLetterOfficeError):
    """The channel did not take the alert."""

    def __init__(self, message: str | None = None, *, final: bool = False) -> None:
        super().__init__(message)
        self.final = final
        """Whether trying again cannot help."""


class Channel(Protocol):
    """Something that takes alerts."""

    @property
    def name(self) -> str:
        """What routes call it."""
        ...

    def send(self, delivery: Delivery) -> None:
        """Hand one alert over. Raises ChannelError."""
        ...


class LogChannel:
    """The drain's own log: an event for each alert."""

    name = LOG_CHANNEL

    def send(self, delivery: Delivery) -> None:
        """Log it; never fails."""
        facts = delivery.facts
        group, letter = facts.get("group", {}), facts.get("letter", {})
        fields = {
            "alert": delivery.uid,
            "severity": delivery.severity.value,
            "title": title(delivery),
            "group": group.get("id"),
            "letter": letter.get("id"),
            "task": group.get("task"),
            "error": group.get("error_type"),
            "reason": letter.get("reason"),
            "queue": letter.get("queue"),
            "see": facts.get("command"),
        }
        log.log(
            logging.INFO if delivery.severity is Severity.INFO else logging.WARNING,
            f"alert.{delivery.kind}",
            **{name: value for name, value in fields.items() if value is not None},
        )


class AppriseChannel:
    """One of the many services that Apprise knows, by its address."""

    def __init__(self, config: ChannelConfig) -> None:
        self.name = config.name
        self._apprise = _apprise().Apprise()
        separator = "&" if "?" in config.url else "?"
        timeouts = "" if "rto=" in config.url else f"{separator}cto={TIMEOUT_SECONDS}&rto={TIMEOUT_SECONDS}"
        if not self._apprise.add(config.url + timeouts):
            raise ConfigurationError(f"alert channel {config.name}: Apprise does not know this address")

    def send(self, delivery: Delivery) -> None:
        """Send it. Raises ChannelError."""
        apprise = _apprise()
        kinds = {
            Severity.INFO: apprise.NotifyType.INFO,
            Severity.WARNING: apprise.NotifyType.WARNING,
            Severity.CRITICAL: apprise.NotifyType.FAILURE,
        }
        with apprise.LogCapture(level=logging.WARNING) as said:
            sent = self._apprise.notify(
                body=text(delivery), title=title(delivery), notify_type=kinds[delivery.severity]
            )
            problem = " ".join(said.getvalue().split())
        if not sent:
            raise ChannelError(problem[:500] or "Apprise could not send it")


def _apprise() -> Any:
    """Apprise, which is long to import and used only where a channel is one of its own."""
    return importlib.import_module("apprise")


class WebhookChannel:
    """A POST of JSON, signed as Standard Webhooks has it: https://www.standardwebhooks.com"""

    def __init__(self, config: ChannelConfig, *, clock: Callable[[], datetime]) -> None:
        self.name, self._url, self._clock = config.name, config.url, clock
        try:
            self._key = base64.b64decode((config.secret or "").removeprefix("whsec_"), validate=True)
        except ValueError as error:
            raise ConfigurationError(f"alert channel {config.name}: its secret is not base64") from error
        if len(self._key) < 16:
            raise ConfigurationError(f"alert channel {config.name}: its secret is shorter than 16 bytes")
        if httpx.URL(config.url).scheme not in {"http", "https"}:
            raise ConfigurationError(f"alert channel {config.name}: a webhook is an http or https address")

    def send(self, delivery: Delivery) -> None:
        """Post it; every 2xx is an answer. Raises ChannelError."""
        now = self._clock()
        content = body(delivery, sent_at=now)
        headers = {
            "content-type": "application/json",
            "user-agent": "dead-letter-office",
            "webhook-id": delivery.uid,
            "webhook-timestamp": str(int(now.timestamp())),
            "webhook-signature": signature(self._key, delivery.uid, int(now.timestamp()), content),
        }
        try:
            answer = httpx.post(self._url, content=content, headers=headers, timeout=TIMEOUT_SECONDS)
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise ChannelError(f"{type(error).__name__}: {error}") from error
        if not answer.is_success:
            raise ChannelError(f"it answers {answer.status_code}", final=answer.status_code == 410)


def signature(key: bytes, uid: str, timestamp: int, content: bytes) -> str:
    """What proves that the body is ours, and when it was sent."""
    signed = hmac.new(key, f"{uid}.{timestamp}.".encode() + content, hashlib.sha256).digest()
    return "v1," + base64.b64encode(signed).decode()


def open_channel(config: ChannelConfig, *, clock: Callable[[], datetime]) -> Channel:
    """The channel that a configuration describes. Raises ConfigurationError."""
    if config.secret is not None:
        return WebhookChannel(config, clock=clock)
    return AppriseChannel(config)
