"""Real TCP servers on 127.0.0.1 that answer badly: for exceptions that only a real library can raise."""

from __future__ import annotations

import contextlib
import socket
import ssl
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

Conversation = Callable[[socket.socket], None]


@contextmanager
def served(talk: Conversation, *, tls: ssl.SSLContext | None = None) -> Iterator[int]:
    """Hold ``talk`` with each client in a thread of its own; gives the port."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=_accept, args=(listener, talk, tls), daemon=True)
        thread.start()
        try:
            yield listener.getsockname()[1]
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join(10)


def _accept(listener: socket.socket, talk: Conversation, tls: ssl.SSLContext | None) -> None:
    with contextlib.suppress(OSError):
        while True:
            client, _ = listener.accept()
            threading.Thread(target=_serve, args=(client, talk, tls), daemon=True).start()


def _serve(client: socket.socket, talk: Conversation, tls: ssl.SSLContext | None) -> None:
    with contextlib.suppress(OSError):
        if tls:
            client = tls.wrap_socket(client, server_side=True)
        with client:
            talk(client)


def answers(raw: bytes) -> Conversation:
    """Read one HTTP request, send these bytes, close."""

    def talk(client: socket.socket) -> None:
        _read_request(client)
        client.sendall(raw)

    return talk


def status(code: int, **headers: str) -> Conversation:
    """Answer every HTTP request with a status and headers (``Retry_After="7"``)."""
    lines = [f"HTTP/1.1 {code} Said", "Content-Length: 0", "Connection: close"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return answers("\r\n".join([*lines, "", ""]).encode())


def says_nothing(client: socket.socket) -> None:
    """Read for ever and never answer."""
    while client.recv(4096):
        pass


def hangs_up(client: socket.socket) -> None:
    """Read what comes first and close."""
    client.recv(4096)


def resets(client: socket.socket) -> None:
    """Read the request and reset the connection."""
    _read_request(client)
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def says_lines(*lines: str) -> Conversation:
    """Say the first line, then one more after each line of the client's, then close: SMTP in small."""

    def talk(client: socket.socket) -> None:
        stream = client.makefile("rwb")
        for number, line in enumerate(lines):
            if number and not stream.readline():
                return
            stream.write(line.encode() + b"\r\n")
            stream.flush()

    return talk


def _read_request(client: socket.socket) -> None:
    received = b""
    while b"\r\n\r\n" not in received:
        received += (chunk := client.recv(4096))
        if not chunk:
            return
