"""A double of the outside: a payment, a mail and a CRM service over HTTP, in a process of its own.

Every call is appended to a ledger file, one JSON object a line, before it is answered: so that "charged once" is
counted outside of the product. The double never deduplicates.

    python -m sandbox.services --port 8081 --ledger ledger.jsonl

POST /payments/charges {"order_id", "amount_cents"} and an Idempotency-Key header: 201 {"id"}
GET  /payments/charges/KEY: 200 {"id"} where that key was charged, 404 where it was not
POST /mail/messages {"to", "template"}: 202 {"id"}
PUT  /crm/customers/ID {...}: 200, or 404 for an ID that starts with "unknown"
POST /control {"service": "crm", "status": 503, "delay_seconds": 0}: answer so from now on; status null: normal
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import threading
import time
import uuid
from collections import Counter
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx

from sandbox.processes import Process, free_port, listens
from tasks.provider_keys import provider_key


class OutsideServices:
    """The running double, for whoever starts it: its addresses, its ledger and its faults."""

    def __init__(self, folder: Path) -> None:
        port = free_port()
        self.url = f"http://127.0.0.1:{port}"
        self.ledger_file = folder / "ledger.jsonl"
        self.process = Process(
            [sys.executable, "-m", "sandbox.services", "--port", str(port), "--ledger", self.ledger_file],
            log=folder / "services.log",
            cwd=Path(__file__).parent.parent,
        )
        self.process.until_ready(lambda: listens(port), seconds=20)

    def environment(self) -> dict[str, str]:
        """What a worker needs to find the services."""
        return {f"{name.upper()}_URL": f"{self.url}/{name}" for name in ("payments", "mail", "crm")}

    def answer(self, service: str, *, status: int | None = None, delay_seconds: float = 0.0) -> None:
        """From now on a service answers with this status, after this delay; None is normal."""
        fault = {"service": service, "status": status, "delay_seconds": delay_seconds}
        httpx.post(f"{self.url}/control", json=fault).raise_for_status()

    def in_progress(self, service: str) -> int:
        """How many calls of a service wait for their answer."""
        return int(httpx.get(f"{self.url}/control").json().get(service, 0))

    def calls(self, service: str | None = None, *, accepted: bool = True) -> list[dict[str, Any]]:
        """The ledger: calls of one service or all, only accepted ones or only refused ones."""
        return [
            call
            for call in _read_ledger(self.ledger_file)
            if (service is None or call["service"] == service) and (call["status"] < 400) == accepted
        ]

    def charges(self, *keys: str) -> list[int]:
        """How often the charge of each of the publisher's keys was made."""
        made = Counter(call["key"] for call in self.calls("payments"))
        return [made[provider_key("payments.charge_customer", key, "charge")] for key in keys]

    def stop(self) -> None:
        """End the double."""
        self.process.stop(seconds=5)


def _read_ledger(path: Path) -> Iterator[dict[str, Any]]:
    if path.exists():
        for line in path.read_text().splitlines():
            yield json.loads(line)


class _Services(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 256

    def __init__(self, port: int, ledger: Path) -> None:
        super().__init__(("127.0.0.1", port), _Call)
        self.faults: dict[str, dict[str, Any]] = {}
        self.charges: dict[str, str] = {}
        self.in_progress: Counter[str] = Counter()
        self._ledger = os.open(ledger, os.O_CREAT | os.O_APPEND | os.O_WRONLY, 0o644)
        self._lock = threading.Lock()

    def record(self, entry: dict[str, Any]) -> None:
        """Append one call; on disk before it is answered."""
        with self._lock:
            os.write(self._ledger, (json.dumps(entry) + "\n").encode())


class _Call(BaseHTTPRequestHandler):
    server: _Services
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        self._serve()

    def do_PUT(self) -> None:
        self._serve()

    def do_GET(self) -> None:
        if self.path == "/control":
            return self._answer(200, dict(self.server.in_progress))
        charge_id = self.server.charges.get(self.path.removeprefix("/payments/charges/"))
        return self._answer(200, {"id": charge_id}) if charge_id else self._answer(404, {})

    def _serve(self) -> None:
        length = int(self.headers.get("Content-Length") or 0)
        received = self.rfile.read(length)
        if len(received) < length:
            return None  # the caller died while it spoke: no call was made
        body = json.loads(received or b"{}")
        service, _, rest = self.path.strip("/").partition("/")
        if service == "control":
            self.server.faults[body["service"]] = body
            return self._answer(200, {})
        fault = self.server.faults.get(service, {})
        self.server.in_progress[service] += 1
        time.sleep(fault.get("delay_seconds") or 0)
        self.server.in_progress[service] -= 1
        status = fault.get("status") or self._normal_status(service, rest)
        key = self.headers.get("Idempotency-Key")
        made = uuid.uuid4().hex
        entry = {"service": service, "path": rest, "key": key, "status": status, "at": time.time(), "body": body}
        self.server.record(entry)
        if status >= 400:
            return self._answer(status, {"error": status})
        if service == "payments" and key:
            self.server.charges[key] = made
        return self._answer(status, {"id": made})

    @staticmethod
    def _normal_status(service: str, rest: str) -> int:
        match service, rest.split("/"):
            case "payments", ["charges"]:
                return 201
            case "mail", ["messages"]:
                return 202
            case "crm", ["customers", customer]:
                return 404 if customer.startswith("unknown") else 200
            case _:
                return 404

    def _answer(self, status: int, body: dict[str, Any]) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002, the name of the base class
        """Stay silent: the ledger has it all."""


def main() -> None:
    """Serve until ended."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--ledger", type=Path, required=True)
    options = parser.parse_args()
    _Services(options.port, options.ledger).serve_forever()


if __name__ == "__main__":
    main()
