"""Where a broker and its management API may be, and every way in which they may not answer."""

from __future__ import annotations

import http.server
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
import trustme
from click.testing import CliRunner, Result

from broker_topology import management
from broker_topology.__main__ import main
from broker_topology.address import AddressError, BrokerAddress
from sandbox import servers
from sandbox.processes import free_port
from tests.conftest import DEFINITIONS, VirtualHost, new_vhost

Answer = Callable[[http.server.BaseHTTPRequestHandler], None]


@contextmanager
def front(answer: Answer) -> Iterator[str]:
    """An HTTP server that gives every request one answer; its address."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def handle_one(self) -> None:
            answer(self)

        do_GET = do_PUT = do_DELETE = handle_one  # noqa: N815, the server looks for these names

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def status(code: int, body: bytes = b"", content_type: str = "text/html", **headers: str) -> Answer:
    """An answer with that status."""

    def answer(request: http.server.BaseHTTPRequestHandler) -> None:
        request.send_response(code)
        request.send_header("Content-Type", content_type)
        request.send_header("Content-Length", str(len(body)))
        for name, value in headers.items():
            request.send_header(name, value)
        request.end_headers()
        request.wfile.write(body)

    return answer


def forward(to: str, prefix: str) -> Answer:
    """Hand requests under a path prefix on to a management API, as a reverse proxy does."""

    def answer(request: http.server.BaseHTTPRequestHandler) -> None:
        if not request.path.startswith(prefix):
            status(404)(request)
            return
        length = int(request.headers.get("Content-Length", 0))
        theirs = httpx.request(
            request.command,
            to + request.path.removeprefix(prefix),
            content=request.rfile.read(length),
            headers={
                key: request.headers[key] for key in ("Authorization", "Content-Type") if key in request.headers
            },
        )
        status(theirs.status_code, theirs.content, theirs.headers.get("content-type", "text/plain"))(request)

    return answer


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["deploy", str(DEFINITIONS), *arguments])


def test_a_management_api_may_stand_behind_a_path_prefix(vhost: VirtualHost) -> None:
    """A reverse proxy with a prefix, with and without a slash or /api at its end (D3)."""
    plain = vhost.management_url.replace("guest:guest@", "")
    with front(forward(plain, "/rabbit/admin")) as url:
        for address in (f"{url}/rabbit/admin", f"{url}/rabbit/admin/", f"{url}/rabbit/admin/api/"):
            result = run("--url", vhost.url, "--management-url", address)
            assert result.exit_code == 0, result.output
        wrong = run("--url", vhost.url, "--management-url", f"{url}/rabbit")
    assert wrong.exit_code == 2
    assert "there is no management API there (404): check its port and path prefix" in wrong.stderr
    assert len(vhost.api("GET", "/policies/{vhost}").json()) == 2


def slow(request: http.server.BaseHTTPRequestHandler) -> None:
    time.sleep(1.0)
    status(200, b"{}", "application/json")(request)


FAULTS: dict[str, tuple[Answer, str]] = {
    "401": (status(401), "it does not let user 'guest' in (401): wrong password, or no management tag"),
    "403": (status(403), "user 'guest' may not see or change"),
    "404": (status(404), "there is no management API there (404)"),
    "500": (status(500), "it answers 500 to"),
    "a login page": (status(200, b"<html>Log in</html>"), "it answers text/html, not JSON"),
    "a redirect": (status(302, Location="https://sso.example/"), "it redirects to https://sso.example/ (302)"),
    "other JSON": (status(200, b"[]", "application/json"), "is not a RabbitMQ management API"),
    "half an answer": (status(200, b'{"a":', "application/json"), "not JSON"),
    "no answer in time": (slow, "does not answer in time"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_management_api_that_fails_is_one_sentence(
    vhost: VirtualHost, fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever a named API answers, deploy ends with one sentence, exit code 2, nothing done, no password (D3)."""
    monkeypatch.setattr(management, "TIMEOUT_SECONDS", 0.3)
    answer, sentence = FAULTS[fault]
    with front(answer) as url:
        result = run("--url", vhost.url, "--management-url", url.replace("//", "//guest:secret-word@"))
    assert result.exit_code == 2, result.output
    assert sentence in result.stderr
    assert len(result.stderr.splitlines()) == 1
    assert "secret-word" not in result.output
    assert vhost.api("GET", "/queues/{vhost}").json() == []


@pytest.mark.parametrize(
    "url", ["ftp://host", "host:15672", "http://", "http://host:port", "http://host:99999", "https://[::1"]
)
def test_a_management_url_that_is_none_is_one_sentence(vhost: VirtualHost, url: str) -> None:
    """An address that cannot be read is told as such (D3)."""
    result = run("--url", vhost.url, "--management-url", url)
    assert result.exit_code == 2, result.output
    assert "the management URL" in result.stderr


def test_the_api_of_another_broker_is_not_taken(vhost: VirtualHost, own_rabbitmq: servers.PrivateRabbitMQ) -> None:
    """Policies do not go to a broker that is not the one of the AMQP address (D3)."""
    own_rabbitmq.rabbitmqctl("set_cluster_name", "other")
    result = run("--url", vhost.url, "--management-url", own_rabbitmq.management_url)
    assert result.exit_code == 2
    assert "is that of another broker: cluster 'other'" in result.stderr


@dataclass(frozen=True, slots=True, kw_only=True)
class Tls:
    """A broker with TLS on both doors, under a private certificate authority, and on IPv6."""

    vhost: VirtualHost
    ca_file: Path
    tls_port: int
    https_port: int
    ipv6_port: int


@pytest.fixture(scope="module")
def tls(servers_folder: Path) -> Iterator[Tls]:
    folder = servers_folder / "certificates"
    folder.mkdir()
    authority = trustme.CA()
    certificate = authority.issue_cert("localhost", "127.0.0.1", "::1")
    ca_file, key, chain = folder / "ca.pem", folder / "key.pem", folder / "chain.pem"
    authority.cert_pem.write_to_path(ca_file)
    certificate.private_key_pem.write_to_path(key)
    chain.write_bytes(b"".join(part.bytes() for part in certificate.cert_chain_pems))
    for path in (folder, ca_file, key, chain):
        path.chmod(0o755)
    tls_port, https_port, ipv6_port = free_port(), free_port(), free_port()
    files = f"cacertfile = {ca_file}\n{{0}}.certfile = {chain}\n{{0}}.keyfile = {key}\n"
    server = servers.PrivateRabbitMQ(
        servers_folder / "tls",
        extra_config=(
            f"listeners.ssl.1 = 127.0.0.1:{tls_port}\nlisteners.tcp.2 = ::1:{ipv6_port}\n"
            f"ssl_options.{files.format('ssl_options')}"
            f"management.ssl.ip = 127.0.0.1\nmanagement.ssl.port = {https_port}\n"
            f"management.ssl.{files.format('management.ssl')}"
        ),
    )
    yield Tls(vhost=new_vhost(server), ca_file=ca_file, tls_port=tls_port, https_port=https_port, ipv6_port=ipv6_port)
    server.stop()


def test_amqps_and_https_under_a_private_authority(tls: Tls) -> None:
    """With the authority's certificate, by option or in the URL, both doors open (D3)."""
    amqps = f"amqps://guest:guest@localhost:{tls.tls_port}/{tls.vhost.name}"
    https = f"https://localhost:{tls.https_port}"
    first = run("--url", amqps, "--management-url", https, "--ca-file", str(tls.ca_file))
    assert first.exit_code == 0, first.output
    assert "set     policy work-limits" in first.output
    second = run("--url", f"{amqps}?cacertfile={tls.ca_file}", "--management-url", https)
    assert second.output.startswith("nothing to change")
    unchecked = run("--url", f"{amqps}?verify=verify_none", "--management-url", https)
    assert unchecked.output.startswith("nothing to change")


def test_an_unknown_authority_is_one_sentence(tls: Tls) -> None:
    """Without the authority's certificate no password goes out, and the reason is told (D3)."""
    amqps = f"amqps://guest:secret-word@localhost:{tls.tls_port}/{tls.vhost.name}"
    result = run("--url", amqps)
    assert result.exit_code == 2
    assert f"no TLS connection to localhost:{tls.tls_port}" in result.stderr
    assert "certificate" in result.stderr.lower()
    assert "secret-word" not in result.output
    plain = run("--url", tls.vhost.url, "--management-url", f"https://localhost:{tls.https_port}")
    assert plain.exit_code == 2
    assert "CERTIFICATE_VERIFY_FAILED" in plain.stderr
    missing = run("--url", amqps, "--ca-file", "/no/such/file.pem")
    assert "there is no certificate file /no/such/file.pem" in missing.stderr
    no_pem = run("--url", amqps, "--ca-file", str(DEFINITIONS))
    assert no_pem.exit_code == 2
    assert "no TLS connection" in no_pem.stderr or "is not a PEM file" in no_pem.stderr


def test_ipv6_addresses(tls: Tls) -> None:
    """An IPv6 address in brackets reaches the broker through both drivers (D3)."""
    url = f"amqp://guest:guest@[::1]:{tls.ipv6_port}/{tls.vhost.name}"
    arguments = ["--url", url, "--management-url", tls.vhost.management_url]
    assert run(*arguments).exit_code == 0
    verified = CliRunner().invoke(main, ["verify", str(DEFINITIONS), *arguments])
    assert verified.exit_code == 0, verified.output


def test_verify_and_migrate_use_tls_too(tls: Tls, tmp_path: Path) -> None:
    """The pika connections trust the same authority (D3)."""
    amqps = f"amqps://guest:guest@localhost:{tls.tls_port}/{tls.vhost.name}"
    shared = ["--url", amqps, "--management-url", tls.vhost.management_url, "--ca-file", str(tls.ca_file)]
    assert run(*shared).exit_code == 0
    tls.vhost.api("DELETE", "/queues/{vhost}/crm").raise_for_status()
    tls.vhost.api("PUT", "/queues/{vhost}/crm", {"durable": True}).raise_for_status()
    migrated = CliRunner().invoke(
        main, ["migrate", str(DEFINITIONS), "crm", *shared, "--watch-seconds", "0", "--journal-dir", str(tmp_path)]
    )
    assert migrated.exit_code == 0, migrated.output
    verified = CliRunner().invoke(main, ["verify", str(DEFINITIONS), *shared])
    assert verified.exit_code == 0, verified.output


@pytest.mark.parametrize(
    ("url", "host", "port", "user", "password", "vhost"),
    [
        ("amqp://host", "host", 5672, "guest", "guest", "/"),
        ("amqp://host/", "host", 5672, "guest", "guest", "/"),
        ("amqp://host//", "host", 5672, "guest", "guest", "/"),
        ("amqp://host/%2F", "host", 5672, "guest", "guest", "/"),
        ("amqp://host/%2Fa%25b", "host", 5672, "guest", "guest", "/a%b"),
        ("amqps://u@host:1/v", "host", 1, "u", "guest", "v"),
        ("amqps://host/v", "host", 5671, "guest", "guest", "v"),
        ("pyamqp://u:p%40s%3As%2F%25@[::1]:7/v", "::1", 7, "u", "p@s:s/%", "v"),
        ("amqp://:@host/v", "host", 5672, "", "", "v"),
    ],
)
def test_urls_are_read_alike_everywhere(url: str, host: str, port: int, user: str, password: str, vhost: str) -> None:
    """Host, port, user, password and virtual host, percent-decoded; and back again (D3)."""
    address = BrokerAddress.parse(url)
    found = (address.host, address.port, address.user, address.password, address.vhost)
    assert found == (host, port, user, password, vhost)
    assert BrokerAddress.parse(address.url) == address
    if password not in {"", "guest"}:
        assert password not in repr(address)
        assert password not in str(address)


@pytest.mark.parametrize(
    "url", ["", "host", "http://host", "amqp://", "amqp://u:p/w@host/", "amqp://h:port", "amqp://[::1"]
)
def test_urls_that_are_none_are_one_sentence(url: str) -> None:
    """What cannot be read is refused with what was expected (D3)."""
    with pytest.raises(AddressError, match="percent-encoded"):
        BrokerAddress.parse(url)
