"""A ballot among servers: all are asked at once, and the count stops when it is decided.

A server that hangs must not slow the others down, so each has a thread of its own and a short line: when it
is full, the server counts as away without being asked. One thread, because what is said to a server must
arrive in order: a vote is cast before it is taken back.
"""

from __future__ import annotations

import os
import threading
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue
from typing import Any, Final, Generic, TypeVar

from tasks.errors import RedisUnavailableError

S = TypeVar("S")
A = TypeVar("A")

LONGEST_LINE: Final = 16
"""Questions that may wait for one server."""


class Ballot(Generic[S]):
    """Asks servers, in parallel, from any thread of any process."""

    def __init__(self, servers: Sequence[S], *, majority: int) -> None:
        self._servers, self._majority = tuple(servers), majority
        self._forget()
        os.register_at_fork(after_in_child=self._forget)  # threads do not survive a fork

    def _forget(self) -> None:
        self._lock = threading.Lock()
        self._lines: list[Line[S]] = []

    def ask(self, question: Callable[[S], A], side: Callable[[A], Hashable]) -> tuple[list[A], bool]:
        """The answers, and whether they decide: a majority is on one side, or nobody is left to ask."""
        replies: SimpleQueue[Any] = SimpleQueue()
        for line in self._standing_lines():
            line.put(question, replies)
        answers: list[A] = []
        votes: Counter[Hashable] = Counter()
        for _ in self._servers:
            match replies.get():
                case RedisUnavailableError():
                    continue
                case BaseException() as error:
                    raise error
                case answer:
                    answers.append(answer)
                    votes[side(answer)] += 1
                    if votes[side(answer)] >= self._majority:
                        return answers, True
        return answers, len(answers) == len(self._servers)

    def tell(self, message: Callable[[S], object]) -> None:
        """Say something to every server without waiting for it."""
        for line in self._standing_lines():
            line.put(message, SimpleQueue())

    def idle(self) -> bool:
        """Whether every server has answered everything."""
        return all(line.idle for line in self._lines)

    def _standing_lines(self) -> Sequence[Line[S]]:
        with self._lock:
            if not self._lines:
                self._lines = [Line(server) for server in self._servers]
            return self._lines


class Line(Generic[S]):
    """The questions that wait for one server."""

    def __init__(self, server: S) -> None:
        self._server = server
        self._thread = ThreadPoolExecutor(1, "claims-ballot")
        self._waiting = 0
        self._lock = threading.Lock()

    @property
    def idle(self) -> bool:
        """Whether nothing waits for this server."""
        return self._waiting == 0

    def put(self, question: Callable[[S], object], replies: SimpleQueue[Any]) -> None:
        """Queue a question; its answer, or the error, will be put into ``replies``."""
        with self._lock:
            if full := self._waiting >= LONGEST_LINE:
                replies.put(RedisUnavailableError("a Redis server does not answer"))
            else:
                self._waiting += 1
        if not full:
            self._thread.submit(self._answer, question, replies)

    def _answer(self, question: Callable[[S], object], replies: SimpleQueue[Any]) -> None:
        try:
            answer = question(self._server)
        except BaseException as error:
            answer = error
        with self._lock:
            self._waiting -= 1
        replies.put(answer)
