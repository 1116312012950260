"""Processes and ports that the sandbox starts, and ends by their own id."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")

PATIENCE = float(os.environ.get("PATIENCE", "4"))
"""Deadlines are meant for an idle machine; several tests at once on a small one take so many times longer."""


LONGEST_PAUSE_SECONDS = 1.0


class NotReadyError(Exception):
    """A server or a condition did not come about in time."""


def free_port() -> int:
    """A TCP port on 127.0.0.1 that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def eventually(condition: Callable[[], T], *, seconds: float = 30.0, what: str = "", every: float = 0.05) -> T:
    """Poll until ``condition()`` is true and return its value; what takes long to ask is asked less often.

    An AssertionError inside counts as not yet. At the deadline it is raised, or NotReadyError.
    """
    deadline = time.monotonic() + seconds * PATIENCE
    while True:
        asked_at = time.monotonic()
        try:
            if value := condition():
                return value
            failure: Exception = NotReadyError(f"not within {seconds:g} s: {what or condition}")
        except AssertionError as error:
            failure = error
        if time.monotonic() > deadline:
            raise failure
        time.sleep(max(every, min(time.monotonic() - asked_at, LONGEST_PAUSE_SECONDS)))


class Process:
    """A command in its own process group, its output in a file."""

    def __init__(
        self,
        command: Sequence[str | Path],
        *,
        log: Path,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        user: str | None = None,
    ) -> None:
        self.log = log
        with log.open("ab") as output:
            self._popen = subprocess.Popen(
                [str(part) for part in command],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, **(env or {})},
                cwd=cwd,
                user=user,
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        """The id of the process, which is its group's too."""
        return self._popen.pid

    @property
    def exit_code(self) -> int | None:
        """None while it runs; negative when a signal ended it."""
        return self._popen.poll()

    def signal(self, number: int) -> None:
        """Send a signal to the process alone."""
        if self.exit_code is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """SIGKILL the whole group: a crash."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self._popen.wait()

    def stop(self, *, seconds: float = 20.0) -> int:
        """SIGTERM the process, then kill what is left of its group. Returns the exit code."""
        self.signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._popen.wait(seconds * PATIENCE)
        self.kill()
        return self._popen.returncode

    def wait(self, *, seconds: float = 30.0) -> int:
        """Wait for the process to end by itself. Returns the exit code."""
        return self._popen.wait(seconds * PATIENCE)

    def output(self) -> str:
        """Everything that it printed so far."""
        return self.log.read_text(errors="replace")

    def until_ready(self, ready: Callable[[], object], *, seconds: float = 60.0) -> None:
        """Poll until ``ready()`` is true; a process that ends first fails at once, with its output."""

        def check() -> bool:
            if self.exit_code is not None:
                raise NotReadyError(f"{self.log.stem} exited with {self.exit_code}:\n{self.output()[-3000:]}")
            return bool(ready())

        try:
            eventually(check, seconds=seconds, what=f"{self.log.stem} to be ready")
        except NotReadyError:
            self.kill()
            raise


def listens(port: int) -> bool:
    """Whether somebody accepts connections on that port of 127.0.0.1."""
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex(("127.0.0.1", port)) == 0
