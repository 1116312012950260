"""The world around one claim: messages, two workers, a person, and everything that can go wrong.

``events`` says what can happen next; ``claim_search`` walks every order of it. The promises:

- effects: at most one effect, plus one for each named window that was entered (see ``Window``);
- acks: no message is acked unless its result is on record;
- marker: a result on record means that an effect happened;
- result: a result on record never changes;
- payload: no message is answered with the result of other arguments;
- fence: every acquisition has a higher fence than all before;
- parked: nobody is troubled with a doubt unless a run was interrupted, stalled or forgotten;
- stuck: from everywhere the story can end, with every message acked or in doubt.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from tests import claim_model
from tests.claim_model import Record


class Message(NamedTuple):
    """One delivery that is waiting, or in a worker's hand, or parked."""

    payload: str = "p"
    old: bool = False
    doubted: int = -1
    """The attempt that it was parked for."""
    permitted: int = -1
    """The attempt that a person says to repeat."""
    settled_done: bool = False


class Worker(NamedTuple):
    """idle, got (a message), begun (its claim), checked (it is held), acted, noted (the step), recorded."""

    phase: str = "idle"
    message: Message | None = None
    token: int = 0
    fence: int = 0
    attempt: int = 0
    step_known: bool = False
    late: bool = False
    """Its own clock says that the lease may have lapsed."""
    sure: bool = False
    """The claim was its own when it checked."""


IDLE = Worker()


@dataclass(frozen=True, slots=True, kw_only=True)
class Faults:
    """How much may go wrong in one story, and which guards are taken away."""

    messages: tuple[Message, ...] = (Message(), Message())
    park: bool = False
    crashes: int = 0
    stalls: int = 0
    """A live run loses its lease: stopped, starved or cut off."""
    losses: int = 0
    """Redis forgets the record."""
    lost_replies: int = 0
    delayed_copies: int = 0
    """A begin that was sent twice arrives once more, later."""
    failures: int = 0
    """A run raises, before its effect or after its step is noted."""
    expiries: int = 0
    replays: int = 0
    """A person settles a doubt, knowing what happened so far."""
    without: frozenset[str] = frozenset()


class Budget(NamedTuple):
    """What may still go wrong."""

    crashes: int
    stalls: int
    losses: int
    lost_replies: int
    delayed_copies: int
    failures: int
    expiries: int
    replays: int


class World(NamedTuple):
    """Everything at one moment."""

    queue: tuple[Message, ...]
    workers: tuple[Worker, Worker]
    record: Record | None
    budget: Budget
    parked: tuple[Message, ...] = ()
    late_commands: tuple[tuple[str, int, Message], ...] = ()
    effects: int = 0
    windows: int = 0
    """Effects that the named windows allow: a crash or a stall between effect and marker under ``repeat``,
    a stall between check and effect, a lost record."""
    doubts: int = 0
    """Reasons there have been to doubt: crashes, stalls, losses, expiries."""
    highest_fence: int = 0
    broken: str = ""


def events(world: World, faults: Faults) -> Iterator[tuple[str, World]]:
    """Everything that can happen next."""
    for number, worker in enumerate(world.workers):
        for event, following in _worker_events(world, number, worker, faults):
            yield f"worker {number}: {event}", following
    yield from _clock_events(world, faults)
    yield from _late_commands(world, faults)
    yield from _person(world)


def _worker_events(world: World, number: int, worker: Worker, faults: Faults) -> Iterator[tuple[str, World]]:
    match worker.phase:
        case "idle":
            for message in sorted(set(world.queue)):
                got = Worker(phase="got", message=message, token=_new_token(world))
                taken = world._replace(queue=_without(world.queue, message))
                yield f"takes {message}", _set(taken, number, got)
        case "got" if worker.message and worker.message.settled_done:
            yield from _complete(world, number, worker, faults)
        case "got":
            yield from _begin(world, number, worker, faults)
        case "begun" if "marker_last" in faults.without:
            yield from _marker_first(world, number, worker)
        case "begun":
            yield from _check(world, number, worker, faults)
        case "checked":
            yield from _act(world, number, worker, faults)
        case "acted":
            yield from _note(world, number, worker)
            yield from _complete(world, number, worker, faults)
        case "noted":
            yield from _complete(world, number, worker, faults)
        case "recorded":
            on_record = world.record is not None and world.record.state == "done"
            excused = faults.losses or faults.expiries
            acked = _set(world, number, IDLE)
            yield "acks", acked if on_record or excused else acked._replace(broken="acks")
    if worker.phase in ("begun", "checked", "noted") and world.budget.failures:
        _, record = claim_model.abandon(world.record, token=worker.token, ending="failed", without=faults.without)
        yield "raises", _back(_spent(world, "failures")._replace(record=record), number)
    if worker.phase != "idle" and world.budget.crashes:
        yield from _crash(world, number, worker, faults)


def _begin(world: World, number: int, worker: Worker, faults: Faults) -> Iterator[tuple[str, World]]:
    message = worker.message
    assert message is not None
    answer, record = _asked_to_begin(world, worker.token, message, faults)
    following = _acquisition(world, record, answer, faults)
    if world.budget.lost_replies:
        yield "begins, the reply is lost", _spent(following, "lost_replies")
    if world.budget.delayed_copies:
        copy = (*world.late_commands, ("begin", worker.token, message))
        yield "begins, a copy is on its way", _spent(world, "delayed_copies")._replace(late_commands=copy)
    match answer:
        case ("acquired", fence, attempt, steps):
            begun = worker._replace(phase="begun", fence=fence, attempt=attempt, step_known=bool(steps))
            yield "begins: acquired", _set(following, number, begun)
        case ("done", result):
            foreign = world.record is not None and world.record.payload != message.payload
            answered = _set(following, number, worker._replace(phase="recorded"))
            yield f"begins: done by {result}", answered._replace(broken="payload") if foreign else answered
        case ("busy",):
            yield "begins: busy", _back(following, number)
        case ("mismatch", _):
            yield "begins: mismatch", _set(following, number, IDLE)
        case ("in_doubt", attempt, _):
            parked = tuple(sorted((*following.parked, message._replace(doubted=attempt))))
            broken = "" if world.doubts else "parked"
            yield "begins: in doubt", _set(following._replace(parked=parked, broken=broken), number, IDLE)


def _asked_to_begin(
    world: World, token: int, message: Message, faults: Faults
) -> tuple[claim_model.Answer, Record | None]:
    return claim_model.begin(
        world.record,
        token=token,
        payload=message.payload,
        clock=world.highest_fence + 1,
        park=faults.park,
        may_be_forgotten=message.old,
        permitted_attempt=message.permitted if message.permitted >= 0 else None,
        without=faults.without,
    )


def _acquisition(world: World, record: Record | None, answer: claim_model.Answer, faults: Faults) -> World:
    """The world after a begin was applied: new fences grow, and repeating in a named window is counted."""
    before = world.record
    following = world._replace(record=record)
    again = before is not None and record is not None and before.fence == record.fence
    if answer[0] != "acquired" or record is None or again:
        return following
    repeats = world.effects > 0 and not record.steps
    lapsed = before is not None and before.state == "running" and before.lapsed and not faults.park
    forgotten = before is None and world.budget.losses < faults.losses
    if repeats and (lapsed or forgotten):
        following = following._replace(windows=world.windows + 1)
    if record.fence <= world.highest_fence:
        following = following._replace(broken="fence")
    return following._replace(highest_fence=record.fence)


def _check(world: World, number: int, worker: Worker, faults: Faults) -> Iterator[tuple[str, World]]:
    if worker.step_known:
        yield "skips the step", _set(world, number, worker._replace(phase="noted"))
        return
    owned = _owns(world.record, worker)
    if not worker.late or "check" in faults.without:
        yield "checks its clock", _set(world, number, worker._replace(phase="checked", sure=owned))
        return
    answer, record = _renewed(world, worker)
    following = world._replace(record=record)
    if answer == ("held",):
        held = worker._replace(phase="checked", sure=True, late=False)
        yield "checks: held", _set(following, number, held)
    else:
        yield "checks: lost", _back(following, number)


def _act(world: World, number: int, worker: Worker, faults: Faults) -> Iterator[tuple[str, World]]:
    lost_since = not _owns(world.record, worker) and (worker.sure or faults.losses > 0)
    following = world._replace(effects=world.effects + 1, windows=world.windows + lost_since)
    acted = worker._replace(phase="recorded" if "marker_last" in faults.without else "acted")
    broken = "effects" if following.effects > 1 + following.windows else ""
    yield "EFFECT", _set(following._replace(broken=broken), number, acted)


def _marker_first(world: World, number: int, worker: Worker) -> Iterator[tuple[str, World]]:
    """The order that the article warns of: the marker before the effect."""
    assert worker.message is not None
    _, record = claim_model.complete(
        world.record, token=worker.token, payload=worker.message.payload, result=worker.fence
    )
    broken = "" if world.effects else "marker"
    marked = world._replace(record=record, broken=broken)
    yield "writes the marker first", _set(marked, number, worker._replace(phase="checked", sure=True))


def _note(world: World, number: int, worker: Worker) -> Iterator[tuple[str, World]]:
    answer, record = _renewed(world, worker, step=("step", worker.fence))
    following = world._replace(record=record)
    if answer == ("held",):
        yield "notes the step", _set(following, number, worker._replace(phase="noted", late=False))
    else:
        yield "notes the step: lost", _back(following, number)


def _complete(world: World, number: int, worker: Worker, faults: Faults) -> Iterator[tuple[str, World]]:
    message = worker.message
    assert message is not None
    answer, record = claim_model.complete(
        world.record,
        token=worker.token,
        payload=message.payload,
        result=worker.fence,
        fence=worker.fence,
        attempt=worker.attempt,
        without=faults.without,
    )
    following = world._replace(record=record)
    if record and record.state == "done":
        was = world.record if world.record and world.record.state == "done" else None
        if was and was.result != record.result:
            following = following._replace(broken="result")
        if not world.effects and not message.settled_done:
            following = following._replace(broken="marker")
    if world.budget.lost_replies:
        yield "completes, the reply is lost", _spent(following, "lost_replies")
    yield f"completes: {answer[0]}", _set(following, number, worker._replace(phase="recorded"))


def _crash(world: World, number: int, worker: Worker, faults: Faults) -> Iterator[tuple[str, World]]:
    crashed = _back(_spent(world, "crashes")._replace(doubts=world.doubts + 1), number)
    yield "IS KILLED", crashed
    _, record = claim_model.abandon(world.record, token=worker.token, ending="interrupted", without=faults.without)
    yield "child is killed, its parent abandons", crashed._replace(record=record)
    assert worker.message is not None
    command = ("abandon", worker.token, worker.message)
    yield "child is killed, its parent is slow", crashed._replace(late_commands=(*world.late_commands, command))


def _clock_events(world: World, faults: Faults) -> Iterator[tuple[str, World]]:
    record = world.record
    if record is None:
        return
    if record.state == "running" and not record.lapsed and "lease_ends" not in faults.without:
        owner = next((n for n, worker in enumerate(world.workers) if worker.token == record.token), None)
        lapsed = world._replace(record=record._replace(lapsed=True))
        if owner is None:
            yield "the lease of a dead run lapses", lapsed
        elif world.budget.stalls:
            late = world.workers[owner]._replace(late=True)
            stalled = _set(_spent(lapsed, "stalls"), owner, late)
            yield f"worker {owner} STALLS, its lease lapses", stalled._replace(doubts=world.doubts + 1)
    if world.budget.losses:
        lost = _spent(world, "losses")._replace(record=None, doubts=world.doubts + 1)
        yield "Redis LOSES the record", lost
    if record.state == "done" and world.budget.expiries:
        # The record was written after each of these messages was published, and it has outlived retention.
        aged = [message._replace(old=True) for message in world.queue]
        workers = [
            worker._replace(message=worker.message._replace(old=True)) if worker.message else worker
            for worker in world.workers
        ]
        yield (
            "the record EXPIRES",
            _spent(world, "expiries")._replace(
                record=None,
                queue=tuple(sorted(aged)),
                workers=(workers[0], workers[1]),
                doubts=world.doubts + 1,
            ),
        )


def _late_commands(world: World, faults: Faults) -> Iterator[tuple[str, World]]:
    for command in world.late_commands:
        name, token, message = command
        rest = list(world.late_commands)
        rest.remove(command)
        without = world._replace(late_commands=tuple(rest))
        if name == "abandon":
            _, record = claim_model.abandon(world.record, token=token, ending="interrupted", without=faults.without)
            yield f"the abandon of {token} arrives late", without._replace(record=record)
        else:
            answer, record = _asked_to_begin(world, token, message, faults)
            arrived = _acquisition(without, record, answer, faults)
            if answer[0] == "acquired" and world.record is not None and world.record.token != token:
                # The original was refused, and its copy takes the claim for nobody: one doubt too many, never
                # one effect too many.
                arrived = arrived._replace(doubts=arrived.doubts + 1)
            yield f"a copy of {token}'s begin arrives", arrived


def _person(world: World) -> Iterator[tuple[str, World]]:
    """A person replays what is parked, as done or to be repeated, according to what happened so far."""
    if not world.budget.replays:
        return
    for message in sorted(set(world.parked)):
        replayed = _spent(world, "replays")._replace(parked=_without(world.parked, message))
        told = {"settled_done": True} if world.effects else {"permitted": message.doubted}
        again = message._replace(**told)
        yield f"a person replays: {again}", replayed._replace(queue=tuple(sorted((*world.queue, again))))


def _renewed(
    world: World, worker: Worker, step: tuple[str, int] | None = None
) -> tuple[claim_model.Answer, Record | None]:
    assert worker.message is not None
    return claim_model.renew(
        world.record,
        token=worker.token,
        payload=worker.message.payload,
        fence=worker.fence,
        attempt=worker.attempt,
        may_restore=not worker.late,
        step=step,
    )


def _new_token(world: World) -> int:
    """The smallest number that nothing remembers, so that stories that differ in names alone are one."""
    known = {worker.token for worker in world.workers} | {token for _, token, _ in world.late_commands}
    if world.record:
        known.add(world.record.token)
    return next(token for token in range(1, len(known) + 2) if token not in known)


def _owns(record: Record | None, worker: Worker) -> bool:
    return record is not None and record.state == "running" and record.token == worker.token


def _set(world: World, number: int, worker: Worker) -> World:
    first, second = world.workers
    return world._replace(workers=(worker, second) if number == 0 else (first, worker))


def _back(world: World, number: int) -> World:
    """The message returns to the queue, and the worker is free."""
    message = world.workers[number].message
    assert message is not None
    return _set(world._replace(queue=tuple(sorted((*world.queue, message)))), number, IDLE)


def _spent(world: World, fault: str) -> World:
    left = getattr(world.budget, fault) - 1
    return world._replace(budget=world.budget._replace(**{fault: left}))


def _without(messages: tuple[Message, ...], message: Message) -> tuple[Message, ...]:
    rest = list(messages)
    rest.remove(message)
    return tuple(rest)
