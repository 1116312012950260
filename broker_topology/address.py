"""Where a broker is: an AMQP URL, read once, the same way for every driver and for the management API."""

from __future__ import annotations

import ssl
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self
from urllib.parse import parse_qs, quote, unquote, urlsplit

from broker_topology.errors import ConfigurationError

PLAIN_PORT, TLS_PORT = 5672, 5671
_SCHEMES = {"amqp": False, "pyamqp": False, "amqps": True}


class AddressError(ConfigurationError):
    """The broker's URL cannot be read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerAddress:
    """One virtual host of one broker, and who we are there. Its text never shows the password."""

    host: str
    port: int
    user: str
    password: str = field(repr=False)
    vhost: str
    tls: bool = False
    ca_file: str | None = None
    """A private certificate authority, PEM; None trusts the system's."""
    verify: bool = True
    """Whether a server's certificate is checked; ``?verify=verify_none`` in the URL turns it off."""

    @classmethod
    def parse(cls, url: str, *, ca_file: str | None = None) -> Self:
        """Read ``amqp[s]://user:password@host:port/vhost?cacertfile=...``. Raises AddressError.

        An empty path, a single slash and ``%2F`` all mean the virtual host ``/``, as they do to kombu;
        ``amqp://host//`` does too. User, password and virtual host are percent-decoded.
        Source: https://www.rabbitmq.com/docs/uri-spec
        """
        try:
            parts = urlsplit(url)
            host, port = parts.hostname, parts.port
        except ValueError as error:
            raise AddressError(f"the AMQP URL cannot be read: {_HINT}") from error
        if parts.scheme not in _SCHEMES:
            raise AddressError(f"the AMQP URL must start with amqp:// or amqps://; {_HINT}")
        if not host:
            raise AddressError(f"the AMQP URL names no host: {_HINT}")
        tls = _SCHEMES[parts.scheme]
        query = {key: values[-1] for key, values in parse_qs(parts.query).items()}
        ca_file = ca_file or query.get("cacertfile") or query.get("ssl_ca_certs")
        if ca_file and not Path(ca_file).is_file():
            raise AddressError(f"there is no certificate file {ca_file}")
        return cls(
            host=unquote(host),
            port=port or (TLS_PORT if tls else PLAIN_PORT),
            user=unquote(parts.username) if parts.username is not None else "guest",
            password=unquote(parts.password) if parts.password is not None else "guest",
            vhost=unquote(parts.path[1:]) or "/",
            tls=tls,
            ca_file=ca_file,
            verify=query.get("verify") != "verify_none",
        )

    def __str__(self) -> str:
        scheme = "amqps" if self.tls else "amqp"
        return f"{scheme}://{self.user}@{self.netloc}/{quote(self.vhost, safe='')}"

    @property
    def netloc(self) -> str:
        """Host and port, an IPv6 address in brackets."""
        return f"{self.url_host}:{self.port}"

    @property
    def url_host(self) -> str:
        """The host as URLs write it."""
        return f"[{self.host}]" if ":" in self.host else self.host

    @property
    def url(self) -> str:
        """The URL with its password, for a driver; never to be shown."""
        scheme = "amqps" if self.tls else "amqp"
        who = f"{quote(self.user, safe='')}:{quote(self.password, safe='')}"
        return f"{scheme}://{who}@{self.netloc}/{quote(self.vhost, safe='')}"

    def ssl_context(self) -> ssl.SSLContext:
        """A TLS context that trusts what this address trusts. Raises AddressError."""
        try:
            context = ssl.create_default_context(cafile=self.ca_file)
        except (ssl.SSLError, OSError) as error:
            raise AddressError(f"{self.ca_file} is not a PEM file of certificates") from error
        if not self.verify:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        return context

    def kombu_options(self) -> dict[str, Any]:
        """Keyword arguments of ``kombu.Connection`` for this address."""
        options: dict[str, Any] = {
            "transport": "pyamqp",
            "hostname": self.url_host,
            "port": self.port,
            "userid": self.user,
            "password": self.password,
            "virtual_host": self.vhost,
        }
        if self.tls and self.verify:
            options["ssl"] = {
                "server_hostname": self.host,
                "cert_reqs": ssl.CERT_REQUIRED,
                "ca_certs": self.ca_file,
            }
        elif self.tls:
            # py-amqp checks the name of whoever it names, so an unchecked connection names nobody.
            options["ssl"] = {"cert_reqs": ssl.CERT_NONE}
        return options


_HINT = (
    "expected amqp://user:password@host:5672/vhost, with special characters percent-encoded "
    "(@ is %40, : is %3A, / is %2F, % is %25)"
)
