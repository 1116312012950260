"""A TCP proxy on 127.0.0.1 that counts round trips and loses replies: the network at its worst.

A reply is lost after the server has done the work, which is what makes it dangerous: the client cannot know.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from enum import StrEnum
from types import TracebackType
from typing import Final, Self

CHUNK_BYTES: Final = 65_536


class Loss(StrEnum):
    """How a reply is lost."""

    CUT = "cut"
    """The connection is closed in its place."""
    SILENCE = "silence"
    """It never comes, and the connection stays open."""


class Proxy:
    """Forwards connections to a port; use it in a ``with`` block."""

    def __init__(self, target_port: int) -> None:
        self._target_port = target_port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._lock = threading.Lock()
        self._open, self._replying = threading.Event(), threading.Event()
        self.heal()
        self._links: list[_Link] = []
        self._to_lose = 0
        self._loss, self._marker = Loss.CUT, b""
        self.round_trips = 0
        """Requests that were sent, those of a connection's opening included."""
        self.lost = 0
        """Replies that were lost."""
        threading.Thread(target=self._accept, daemon=True).start()

    def lose_replies(self, count: int, *, to: bytes = b"", loss: Loss = Loss.CUT) -> None:
        """Lose the next replies to requests that contain ``to``."""
        with self._lock:
            self._to_lose, self._marker, self._loss = count, to, loss

    def partition(self) -> None:
        """Let nothing through any more, without closing anything."""
        self._open.clear()
        self._replying.clear()

    def hold_replies(self) -> None:
        """Let requests through, and keep back what is answered."""
        self._replying.clear()

    def heal(self) -> None:
        """Let everything through again, what was held back first."""
        self._open.set()
        self._replying.set()

    def cut(self) -> None:
        """Close every connection there is; new ones are let through."""
        links, self._links = self._links, []
        for link in links:
            link.close()

    def close(self) -> None:
        """Refuse connections, and close those there are."""
        self.heal()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for link in self._links:
            link.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            try:
                server = socket.create_connection(("127.0.0.1", self._target_port))
            except OSError:
                client.close()
                continue
            link = _Link(self, client, server)
            self._links.append(link)
            link.start()

    def _requested(self, request: bytes, *, first_chunk: bool) -> Loss | None:
        """Count a request, and decide whether its reply is to be lost."""
        self._open.wait()
        with self._lock:
            self.round_trips += first_chunk
            if self._to_lose and self._marker in request:
                self._to_lose -= 1
                self.lost += 1
                return self._loss
            return None


class _Link:
    """One connection through the proxy."""

    def __init__(self, proxy: Proxy, client: socket.socket, server: socket.socket) -> None:
        self._proxy, self._client, self._server = proxy, client, server
        self._asking = False
        self._loss: Loss | None = None
        for end in (client, server):
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def start(self) -> None:
        """Forward in both directions, from threads."""
        threading.Thread(target=self._requests, daemon=True).start()
        threading.Thread(target=self._replies, daemon=True).start()

    def close(self) -> None:
        """Close both ends."""
        for end in (self._client, self._server):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()

    def _requests(self) -> None:
        with contextlib.suppress(OSError):
            while chunk := self._client.recv(CHUNK_BYTES):
                loss = self._proxy._requested(chunk, first_chunk=not self._asking)
                self._asking, self._loss = True, loss or self._loss
                self._server.sendall(chunk)
        self.close()

    def _replies(self) -> None:
        with contextlib.suppress(OSError):
            while chunk := self._server.recv(CHUNK_BYTES):
                self._proxy._replying.wait()
                self._asking = False
                if self._loss is Loss.CUT:
                    break
                if self._loss is None:
                    self._client.sendall(chunk)
        self.close()
