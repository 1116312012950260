"""Replay: publish the original messages again, deliberately, audited, gently, and followed to their outcome.

The API that the commands are a thin layer over: ids or ``select``, ``preview``, then ``begin`` and ``run``, or
``replay`` for both. What a crash leaves is run again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime

import sqlalchemy as sa

from broker_topology.errors import DeadLetterOfficeError
from broker_topology.topology import Topology
from consumers.audit import Act, Action, record
from consumers.database import reading, transaction
from consumers.dead_letters import Filter, State, change_state, dead_letters, require_keys, require_searchable
from consumers.editing import Edited
from consumers.groups import settle_emptied
from consumers.letters import UNROUTABLE
from consumers.masking import USUAL, Masking
from consumers.outcomes import Outcomes
from consumers.publisher import Publisher
from consumers.replay_run import RefusedError, ReplayOptions, ReplayReport, ReplayRun, destination
from consumers.replays import (
    Progress,
    ReplayStateError,
    freeze,
    store_edits,
)

IN_DOUBT = "in_doubt"


class NothingToReplayError(DeadLetterOfficeError):
    """None of these letters is open."""


class InDoubtError(DeadLetterOfficeError):
    """A letter in doubt needs a decision."""


def select(engine: sa.Engine, where: Filter, *, limit: int | None = None) -> list[int]:
    """Ids of the open letters that a filter chooses, oldest first.

    Raises UnsearchableError where a text is to be found in letters that are encrypted, DatabaseUnavailableError.
    """
    c = dead_letters.c
    query = sa.select(c.id).where(*where.clauses(), c.state == State.OPEN.value).order_by(c.id).limit(limit)
    with reading(engine) as connection:
        if where.search:
            require_searchable(connection, where)
        return list(connection.execute(query).scalars())


@dataclass(frozen=True, slots=True, kw_only=True)
class Preview:
    """What a replay of some letters would be, and what stands against it."""

    letters: int
    tasks: dict[str, int]
    queues: dict[str, int]
    oldest: datetime | None
    newest: datetime | None
    in_doubt: int
    no_way_back: int
    """Letters of which nobody knows the queue: they need ``--to-queue``."""
    unknown_queues: list[str]
    """Queues that the topology does not know (any more)."""


def preview(engine: sa.Engine, topology: Topology, letter_ids: Sequence[int]) -> Preview:
    """Look before replaying. Raises DatabaseUnavailableError."""
    c = dead_letters.c
    columns = (c.task_name, c.queue, c.drained_queue, c.reason, c.note_reason, c.died_at)
    tasks: dict[str, int] = {}
    queues: dict[str, int] = {}
    moments: list[datetime] = []
    in_doubt = no_way_back = 0
    with reading(engine) as connection:
        for start in range(0, len(letter_ids), 500):
            chunk = letter_ids[start : start + 500]
            for row in connection.execute(sa.select(*columns).where(c.id.in_(chunk))):
                tasks[row.task_name or ""] = tasks.get(row.task_name or "", 0) + 1
                queues[row.queue] = queues.get(row.queue, 0) + 1
                moments.append(row.died_at)
                in_doubt += row.note_reason == IN_DOUBT
                no_way_back += row.reason != UNROUTABLE and row.queue == row.drained_queue
    known = {queue.name for queue in topology.queues}
    return Preview(
        letters=len(moments),
        tasks=tasks,
        queues=queues,
        oldest=min(moments, default=None),
        newest=max(moments, default=None),
        in_doubt=in_doubt,
        no_way_back=no_way_back,
        unknown_queues=sorted(queues.keys() - known),
    )


def begin(
    engine: sa.Engine,
    act: Act,
    letter_ids: Sequence[int],
    *,
    now: datetime,
    options: ReplayOptions | None = None,
    edit: Callable[[int, bytes, bytes], Edited] | None = None,
    masking: Masking = USUAL,
) -> ReplayReport:
    """Freeze a selection: claim the open ones of these letters for a new replay, audited.

    ``edit`` makes of a letter's id, properties and body what is sent in its place; the letter stays as it is.

    Raises NothingToReplayError, InDoubtError, SealedError, DatabaseUnavailableError, and what ``edit`` raises.
    """
    options = options or ReplayOptions()
    with transaction(engine) as database:
        require_keys(database, letter_ids)
        if options.settle_as is None:
            _require_no_doubt(database, letter_ids)
        replay_id, claimed = freeze(database, act, letter_ids, now=now, options=asdict(options))
        if not claimed:
            raise NothingToReplayError(_why_none(database, letter_ids))
        if edit is not None:
            store_edits(database, act, replay_id, edit, masking=masking, now=now)
    return ReplayReport(replay_id=replay_id, left_out=sorted(set(letter_ids) - set(claimed)))


def run(
    engine: sa.Engine,
    publisher: Publisher,
    topology: Topology,
    report: ReplayReport,
    *,
    clock: Callable[[], datetime],
    outcomes: Outcomes | None = None,
    watch: Callable[[Progress], None] = lambda _: None,
) -> ReplayReport:
    """Publish what is waiting in a replay, step by step, until all is sent or something says stop.

    Raises BrokerUnavailableError, DatabaseUnavailableError; the replay can then be run again.
    """
    return ReplayRun(engine, publisher, topology, report, clock, outcomes, watch).go()


def replay(
    engine: sa.Engine,
    publisher: Publisher,
    topology: Topology,
    act: Act,
    letter_ids: Sequence[int],
    *,
    clock: Callable[[], datetime],
    options: ReplayOptions | None = None,
    outcomes: Outcomes | None = None,
) -> ReplayReport:
    """Freeze and run in one go. Raises what ``begin`` and ``run`` raise."""
    report = begin(engine, act, letter_ids, now=clock(), options=options)
    return run(engine, publisher, topology, report, clock=clock, outcomes=outcomes)


def discard(engine: sa.Engine, act: Act, letter_ids: Sequence[int], *, now: datetime) -> list[int]:
    """Decide against letters, audited; returns those that were open. Raises DatabaseUnavailableError."""
    with transaction(engine) as database:
        discarded: list[int] = []
        for start in range(0, len(letter_ids), 500):
            chunk = letter_ids[start : start + 500]
            discarded += change_state(database, chunk, State.DISCARDED, now=now, from_states=[State.OPEN])
        record(database, act, Action.DISCARD, now=now, letter_ids=discarded)
        settle_emptied(database, discarded, act, now=now)
    return discarded


def _require_no_doubt(database: sa.Connection, letter_ids: Sequence[int]) -> None:
    c = dead_letters.c
    for start in range(0, len(letter_ids), 500):
        chunk = letter_ids[start : start + 500]
        query = sa.select(c.id).where(c.id.in_(chunk), c.note_reason == IN_DOUBT, c.state == State.OPEN.value)
        if doubtful := database.execute(query.limit(1)).scalar():
            raise InDoubtError(
                f"{doubtful} is in doubt: find out whether its effect happened, then replay it with --as repeat "
                "or --as done"
            )


def _why_none(database: sa.Connection, letter_ids: Sequence[int]) -> str:
    rows = database.execute(
        sa.select(dead_letters.c.id, dead_letters.c.state).where(dead_letters.c.id.in_(letter_ids[:10]))
    ).all()
    states = {row.id: State(row.state).value.replace("_", " ") for row in rows}
    words = [f"{letter_id} is {states.get(letter_id, 'unknown')}" for letter_id in letter_ids[:10]]
    return f"nothing to replay: {', '.join(words)}" if words else "nothing to replay: no letter is chosen"


__all__ = [
    "InDoubtError",
    "NothingToReplayError",
    "Preview",
    "RefusedError",
    "ReplayOptions",
    "ReplayReport",
    "ReplayStateError",
    "begin",
    "destination",
    "discard",
    "preview",
    "replay",
    "run",
    "select",
]
