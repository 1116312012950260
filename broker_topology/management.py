"""The broker's management HTTP API, as far as it is used here.

Source: https://www.rabbitmq.com/docs/http-api-reference
"""

from __future__ import annotations

import html
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Self
from urllib.parse import quote, unquote, urlsplit

import httpx

from broker_topology.address import AddressError, BrokerAddress
from broker_topology.errors import BrokerUnavailableError, TopologyError
from broker_topology.topology import Policy

TIMEOUT_SECONDS = 10.0
CONNECT_TIMEOUT_SECONDS = 4.0
_STANDARD_PORTS = {False: 15672, True: 15671}


class ManagementUnavailableError(BrokerUnavailableError):
    """The management API cannot be reached, or refuses us."""


class RefusedByBrokerError(TopologyError):
    """The broker refuses what the definitions ask for."""


def default_management_url(address: BrokerAddress) -> str:
    """Where the management API of a broker usually is: beside it, on port 15672, or 15671 with TLS."""
    scheme = "https" if address.tls else "http"
    return f"{scheme}://{address.url_host}:{_STANDARD_PORTS[address.tls]}"


class ManagementApi:
    """One broker's management API, with the user of the AMQP address unless its URL names another.

    Every method raises ManagementUnavailableError, in one sentence, when the API is absent, refuses the
    user, fails or answers with something that is not RabbitMQ's.
    """

    def __init__(self, url: str, address: BrokerAddress) -> None:
        self.url, user, password = _read_url(url, address)
        self._user = user
        self._client = httpx.Client(
            base_url=f"{self.url}/api/",
            auth=(user, password),
            timeout=httpx.Timeout(TIMEOUT_SECONDS, connect=CONNECT_TIMEOUT_SECONDS),
            verify=address.ssl_context() if self.url.startswith("https:") else True,
            follow_redirects=False,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._client.close()

    def overview(self) -> dict[str, Any]:
        """What the broker says of itself; ``rabbitmq_version`` is always there."""
        overview = self.get("overview")
        if not isinstance(overview, dict) or "rabbitmq_version" not in overview:
            raise ManagementUnavailableError(f"{self.url} is not a RabbitMQ management API")
        return overview

    def policies(self, vhost: str) -> list[dict[str, Any]]:
        """Every policy of a virtual host."""
        return self._list("policies", vhost)

    def operator_policies(self, vhost: str) -> list[dict[str, Any]]:
        """Every operator policy of a virtual host."""
        return self._list("operator-policies", vhost)

    def queues(self, vhost: str) -> list[dict[str, Any]]:
        """Every queue of a virtual host, with its statistics."""
        return self._list("queues", vhost)

    def queue(self, vhost: str, name: str) -> dict[str, Any] | None:
        """One queue with its statistics; None where there is none."""
        found = self.get("queues", vhost, name, missing=None)
        return found if isinstance(found, dict) else None

    def exchanges(self, vhost: str) -> list[dict[str, Any]]:
        """Every exchange of a virtual host."""
        return self._list("exchanges", vhost)

    def bindings(self, vhost: str) -> list[dict[str, Any]]:
        """Every binding of a virtual host, the default exchange's included."""
        return self._list("bindings", vhost)

    def put_policy(self, vhost: str, policy: Policy) -> None:
        """Set a policy. Raises RefusedByBrokerError for one that this broker does not understand."""
        body = {
            "pattern": policy.pattern,
            "definition": dict(policy.definition),
            "priority": policy.priority,
            "apply-to": policy.apply_to,
        }
        self._send("PUT", ("policies", vhost, policy.name), body)

    def delete_policy(self, vhost: str, name: str) -> None:
        """Remove a policy; one that is gone already is no error."""
        self._send("DELETE", ("policies", vhost, name), None)

    def get(self, *path: str, missing: object = ...) -> Any:
        """Read one resource; ``missing`` is the answer for one that does not exist, where it is given."""
        response = self._request("GET", path, None)
        if response.status_code == 404 and missing is not ...:
            return missing
        self._check(response, path)
        try:
            return response.json()
        except ValueError as error:
            raise ManagementUnavailableError(
                f"{self.url} is not a RabbitMQ management API: it answers {_media_type(response)}, not JSON"
            ) from error

    def _list(self, *path: str) -> list[dict[str, Any]]:
        found = self.get(*path)
        if not isinstance(found, list):
            raise ManagementUnavailableError(f"{self.url} is not a RabbitMQ management API")
        return found

    def _send(self, method: str, path: tuple[str, ...], body: object) -> None:
        response = self._request(method, path, body)
        if response.status_code == 400:
            raise RefusedByBrokerError(f"the broker refuses {path[0]} {path[-1]}: {_reason(response)}")
        if method == "DELETE" and response.status_code == 404:
            return
        self._check(response, path)

    def _request(self, method: str, path: tuple[str, ...], body: object) -> httpx.Response:
        try:
            # A slash in a name travels as %2F: RabbitMQ decodes each part of the path by itself.
            return self._client.request(method, "/".join(quote(part, safe="") for part in path), json=body)
        except httpx.TimeoutException as error:
            raise ManagementUnavailableError(f"the management API at {self.url} does not answer in time") from error
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise ManagementUnavailableError(
                f"the management API at {self.url} cannot be reached ({error})"
            ) from error

    def _check(self, response: httpx.Response, path: tuple[str, ...]) -> None:
        if response.is_success:
            return
        match response.status_code:
            case 401:
                why = f"it does not let user {self._user!r} in (401): wrong password, or no management tag"
            case 403:
                why = f"user {self._user!r} may not see or change {path[0]} (403)"
            case 404 if _media_type(response) == "application/json":
                why = f"it knows no {'/'.join(path)} (404): the virtual host may be missing"
            case 404:
                why = "there is no management API there (404): check its port and path prefix"
            case status if 300 <= status < 400:
                why = f"it redirects to {response.headers.get('location', 'nowhere')} ({status})"
            case status:
                why = f"it answers {status} to {path[0]}"
        raise ManagementUnavailableError(f"the management API at {self.url} cannot be used: {why}")


def _read_url(url: str, address: BrokerAddress) -> tuple[str, str, str]:
    """Split a management URL into the URL without credentials, user and password."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise AddressError("the management URL cannot be read: expected http://host:15672") from error
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        raise AddressError("the management URL must be like http://host:15672 or https://host/prefix")
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    path = parts.path.rstrip("/").removesuffix("/api")
    plain = f"{parts.scheme}://{host}{f':{port}' if port else ''}{path}"
    if parts.username is None:
        return plain, address.user, address.password
    return plain, unquote(parts.username), unquote(parts.password or "")


def _reason(response: httpx.Response) -> str:
    try:
        answer = response.json()
    except ValueError:
        return response.text[:200]
    if isinstance(answer, Mapping):
        reason = str(answer.get("reason") or answer.get("error") or answer)
        return html.unescape(" ".join(reason.split()))
    return str(answer)


def _media_type(response: httpx.Response) -> str:
    return str(response.headers.get("content-type", "no content type")).partition(";")[0].strip()
