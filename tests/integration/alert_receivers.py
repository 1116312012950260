"""Real receivers of alerts: an HTTP server and an SMTP server on 127.0.0.1."""

from __future__ import annotations

import contextlib
import http.server
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from email import message_from_bytes
from email.message import Message
from typing import Any

from aiosmtpd.controller import Controller


@dataclass(slots=True, kw_only=True)
class HttpReceiver:
    """What an HTTP server got, and what it is to answer."""

    port: int = 0
    status: int = 200
    requests: list[tuple[dict[str, str], bytes]] = field(default_factory=list)
    """Headers in small letters, and the body."""
    before_answer: Callable[[], None] = lambda: None

    @property
    def url(self) -> str:
        """Its address."""
        return f"http://127.0.0.1:{self.port}/hook"

    def bodies(self) -> list[dict[str, Any]]:
        """The bodies, as JSON."""
        return [json.loads(body) for _, body in self.requests]


@contextmanager
def http_receiver(**fields: Any) -> Iterator[HttpReceiver]:
    """An HTTP server that keeps what it gets."""
    receiver = HttpReceiver(**fields)

    class Answer(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            receiver.requests.append(({name.lower(): value for name, value in self.headers.items()}, body))
            receiver.before_answer()
            with contextlib.suppress(OSError):
                self.send_response(receiver.status)
                self.send_header("Content-Length", "0")
                self.end_headers()

        def log_message(self, *_: object) -> None:
            """The test looks at what came."""

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answer)
    receiver.port = server.server_address[1]
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield receiver
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@dataclass(kw_only=True)  # without slots, which aiosmtpd cannot look into on Python 3.11.2
class MailReceiver:
    """What an SMTP server got."""

    port: int
    mails: list[Message] = field(default_factory=list)

    async def handle_DATA(self, _server: Any, _session: Any, envelope: Any) -> str:  # noqa: N802, aiosmtpd's name
        """Keep one mail."""
        self.mails.append(message_from_bytes(envelope.content))
        return "250 kept"


@contextmanager
def mail_receiver(port: int) -> Iterator[MailReceiver]:
    """An SMTP server that keeps what it gets."""
    receiver = MailReceiver(port=port)
    controller = Controller(receiver, hostname="127.0.0.1", port=port)
    controller.start()
    try:
        yield receiver
    finally:
        controller.stop()
