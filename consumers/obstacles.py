"""What stands against a replay before it begins, as Redis, the broker and the workers that are up tell it.

Everything is only looked at, and whoever does not answer in time is said to be away.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import celery
import pika.exceptions
import redis
import sqlalchemy as sa
from amqp.exceptions import AMQPError
from kombu.exceptions import OperationalError
from redis.backoff import NoBackoff
from redis.retry import Retry

from broker_topology.address import BrokerAddress
from broker_topology.claim_records import STATE_FIELD, ClaimState, record_name
from broker_topology.errors import BrokerUnavailableError
from broker_topology.wire import said, wired
from consumers.database import reading
from consumers.dead_letters import dead_letters

TIMEOUT_SECONDS = 1.0
BATCH = 500
MAX_NAME_BYTES = 255


@dataclass(frozen=True, slots=True, kw_only=True)
class Obstacles:
    """What stands against a replay of some letters."""

    already_done: list[int] = field(default_factory=list)
    """Letters whose key is on record as done: a replay answers with the result on record, and does nothing."""
    running: list[int] = field(default_factory=list)
    """Letters whose key a run holds: a replay waits for it."""
    in_doubt: list[int] = field(default_factory=list)
    """Letters whose key is in doubt by now: they come back unless that is settled."""
    forgotten: list[int] = field(default_factory=list)
    """Letters whose key Redis has no record of: those older than the key's retention are in doubt."""
    missing_queues: list[str] = field(default_factory=list)
    """Queues that the broker does not have."""
    unknown_tasks: list[str] = field(default_factory=list)
    """Tasks that none of the workers that are up has."""
    workers: int | None = None
    """How many workers answered; None where they could not be asked."""
    away: dict[str, str] = field(default_factory=dict)
    """Who could not be asked, and why."""


def obstacles(
    engine: sa.Engine,
    letter_ids: Sequence[int],
    *,
    amqp_url: str,
    redis_url: str | None,
    to_queue: str | None = None,
) -> Obstacles:
    """Look at what stands against a replay. Raises DatabaseUnavailableError, ConfigurationError."""
    c = dead_letters.c
    letters: list[Any] = []
    with reading(engine) as connection:
        for start in range(0, len(letter_ids), BATCH):
            chosen = c.id.in_(letter_ids[start : start + BATCH])
            letters += connection.execute(sa.select(c.id, c.task_name, c.idempotency_key, c.queue).where(chosen))
    away: dict[str, str] = {}
    by_state = _claims(letters, redis_url, away)
    names, workers = _registered(amqp_url, away)
    tasks = sorted({letter.task_name for letter in letters if letter.task_name})
    return Obstacles(
        already_done=by_state[ClaimState.DONE],
        running=by_state[ClaimState.RUNNING],
        in_doubt=by_state[ClaimState.IN_DOUBT],
        forgotten=by_state[None],
        missing_queues=_missing(amqp_url, [to_queue] if to_queue else {letter.queue for letter in letters}, away),
        unknown_tasks=[task for task in tasks if task not in names] if workers else [],
        workers=workers,
        away=away,
    )


def _claims(letters: Sequence[Any], url: str | None, away: dict[str, str]) -> dict[ClaimState | None, list[int]]:
    """Letters by the state of their key; under None those of which no server has a record."""
    found: dict[ClaimState | None, list[int]] = {state: [] for state in (*ClaimState, None)}
    keyed = [letter for letter in letters if letter.idempotency_key and letter.task_name]
    if not keyed:
        return found
    if not url:
        away["redis"] = "REDIS_URL is not set"
        return found
    states: dict[int, set[str]] = {letter.id: set() for letter in keyed}
    for server in url.split(","):
        try:
            with _client(server.strip()) as client:
                for start in range(0, len(keyed), BATCH):
                    some = keyed[start : start + BATCH]
                    with client.pipeline(transaction=False) as pipeline:
                        for letter in some:
                            pipeline.hget(record_name(letter.task_name, letter.idempotency_key), STATE_FIELD)
                        for letter, state in zip(some, pipeline.execute(), strict=True):
                            states[letter.id] |= {state} - {None}
        except (redis.RedisError, OSError, ValueError) as error:
            away["redis"] = type(error).__name__
    for letter_id, told in states.items():
        # Of a quorum's servers, any one that has it as done is right.
        strongest = next((state for state in _STRONGEST if state.value in told), None)
        if strongest is not None or "redis" not in away:
            found[strongest].append(letter_id)
    return found


_STRONGEST = (ClaimState.DONE, ClaimState.IN_DOUBT, ClaimState.RUNNING, ClaimState.FREE)


def _client(url: str) -> redis.Redis:
    return redis.Redis.from_url(
        url,
        socket_timeout=TIMEOUT_SECONDS,
        socket_connect_timeout=TIMEOUT_SECONDS,
        retry=Retry(NoBackoff(), 0),
        decode_responses=True,
    )


def _missing(url: str, queues: Iterable[str], away: dict[str, str]) -> list[str]:
    missing = []
    try:
        with wired(BrokerAddress.parse(url), name="dead-letters replay") as connection:
            for queue in sorted(queues):
                if not queue or not queue.isprintable() or len(queue.encode()) > MAX_NAME_BYTES:
                    missing.append(queue)  # no broker has it, and pika waits for ever for a name with a line feed
                    continue
                channel = connection.channel()
                try:
                    channel.queue_declare(queue, passive=True)
                except pika.exceptions.ChannelClosedByBroker as error:
                    if error.reply_code == 404:
                        missing.append(queue)
                    else:
                        away[f"queue {queue}"] = said(error)
                else:
                    channel.close()
    except BrokerUnavailableError as error:
        away["broker"] = str(error)
    return missing


def _registered(url: str, away: dict[str, str]) -> tuple[set[str], int | None]:
    """The names of the tasks that workers have, and how many workers answered."""
    # Celery loads its app, which is large, when it is named: only here.
    app = celery.Celery(broker=BrokerAddress.parse(url).url, set_as_current=False)
    try:
        with app.connection_for_read(connect_timeout=TIMEOUT_SECONDS) as connection:
            answers = app.control.inspect(timeout=TIMEOUT_SECONDS, connection=connection).registered() or {}
    except (OperationalError, AMQPError, OSError) as error:
        away["workers"] = type(error).__name__
        return set(), None
    finally:
        with contextlib.suppress(OSError):
            app.close()
    # An entry may be followed by options, such as [rate_limit=10/m].
    return {entry.partition(" [")[0] for entries in answers.values() for entry in entries}, len(answers)
