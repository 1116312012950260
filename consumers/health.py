"""Whether the drain lives and is ready, with reasons; over HTTP, together with its metrics."""

from __future__ import annotations

import http.server
import json
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

import prometheus_client
import structlog

from broker_topology.errors import ConfigurationError
from consumers.metrics import DrainMetrics

log = structlog.get_logger()

STALLED_SECONDS = 60.0
"""A network loop that has not turned for so long is dead, whatever its thread looks like."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """An answer and its reasons."""

    ok: bool
    reasons: list[str]


class Health:
    """What each part of the drain last said of itself. Written by the drain's threads, read by HTTP's."""

    def __init__(self, *, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._problems: dict[str, str] = {"broker": "not connected yet", "database": "not reached yet"}
        self._turned_at = monotonic()
        self._lock = threading.Lock()

    def well(self, part: str) -> None:
        """A part works."""
        with self._lock:
            if self._problems.pop(part, None):
                log.info("health.recovered", part=part)

    def ill(self, part: str, problem: str) -> None:
        """A part does not work, and why."""
        with self._lock:
            self._problems[part] = problem

    def problem(self, part: str) -> str | None:
        """Why a part does not work; None while it does."""
        with self._lock:
            return self._problems.get(part)

    def turned(self) -> None:
        """The network loop goes round."""
        self._turned_at = self._monotonic()

    def live(self) -> Verdict:
        """Whether the process works at all; not live means: restart it."""
        silent = self._monotonic() - self._turned_at
        if silent > STALLED_SECONDS:
            return Verdict(ok=False, reasons=[f"the network loop has stood still for {silent:.0f} s"])
        return Verdict(ok=True, reasons=[])

    def ready(self) -> Verdict:
        """Whether letters are being stored right now."""
        with self._lock:
            reasons = [f"{part}: {problem}" for part, problem in sorted(self._problems.items())]
        live = self.live()
        return Verdict(ok=live.ok and not reasons, reasons=live.reasons + reasons)


class HealthServer:
    """``/livez``, ``/readyz`` and ``/metrics`` on one address."""

    def __init__(self, health: Health, metrics: DrainMetrics, *, host: str, port: int) -> None:
        answers: dict[str, Callable[[], Verdict]] = {"/livez": health.live, "/readyz": health.ready}

        class Answer(http.server.BaseHTTPRequestHandler):
            timeout = 10  # seconds, for whoever connects and asks nothing

            def do_GET(self) -> None:
                path = self.path.partition("?")[0]
                if path == "/metrics":
                    self._send(
                        200,
                        prometheus_client.CONTENT_TYPE_LATEST,
                        prometheus_client.generate_latest(metrics.registry),
                    )
                elif path in answers:
                    verdict = answers[path]()
                    body = json.dumps({"ok": verdict.ok, "reasons": verdict.reasons}).encode()
                    self._send(200 if verdict.ok else 503, "application/json", body + b"\n")
                else:
                    self._send(404, "text/plain", b"/livez, /readyz and /metrics are here\n")

            def _send(self, status: int, content_type: str, body: bytes) -> None:
                self.send_response(status)
                self.send_header("Content-Type", content_type)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                """Probes come every few seconds; they are no news."""

        try:
            self._server = http.server.ThreadingHTTPServer((host, port), Answer)
        except (OSError, OverflowError) as error:
            raise AddressTakenError(f"cannot listen on {host}:{port} for health: {error}") from error
        self._server.daemon_threads = True
        self.port: int = self._server.server_address[1]
        self._thread = threading.Thread(target=self._server.serve_forever, name="health", daemon=True)
        self._thread.start()
        log.info("health.listening", host=host, port=self.port)

    def close(self) -> None:
        """Stop answering."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(5)


class AddressTakenError(ConfigurationError):
    """The address for health and metrics cannot be listened on."""
