"""Replaces a queue whose arguments cannot be changed, under live publishers and without losing a message.

The queue is emptied over a detour (see detour.py), deleted, declared anew and filled again, step by step. Each
step is noted before it is done and can be done twice, so a migration that is killed goes on where it was.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import pika.exceptions

from broker_topology.address import BrokerAddress
from broker_topology.detour import PREFIX, Detour
from broker_topology.effective import matching
from broker_topology.journal import Journal, JournalFile, Step
from broker_topology.management import ManagementApi
from broker_topology.mover import Moved, move
from broker_topology.observation import take_snapshot
from broker_topology.plan import Action, Plan
from broker_topology.preflight import MigrationRefusedError, begin, queue_type
from broker_topology.routing import bindings_from, destinations, takes
from broker_topology.snapshot import Snapshot
from broker_topology.topology import Policy, Queue, Topology
from broker_topology.versions import CLASSIC, QUORUM
from broker_topology.wire import wired

WATCH_SECONDS = 5.0
"""How long an emptied queue is watched for publishers that the detour does not catch."""
QUIET_SECONDS = 1.5
"""How long a queue must be quiet before it counts as empty: what was on its way has arrived by then."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Migrated:
    """What became of one queue."""

    queue: str
    stashed: int
    """Messages that were in it."""
    held: int
    """Messages that were published meanwhile."""
    resumed: bool
    """Whether an earlier run had begun it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """How a migration goes about it."""

    folder: Path
    """Where journals are kept."""
    publishers_stopped: bool = False
    """The operator's word that nobody publishes to the queue, through the default exchange or else."""
    watch_seconds: float = WATCH_SECONDS
    quiet_seconds: float = QUIET_SECONDS


SETTLED_SECONDS = 0.3
"""The same for a queue that only we publish to."""
REPLACE_TRIES = 20
"""How often an emptied queue is tried to be deleted before something else came into it."""

Tell = Callable[[str], object]
"""Takes one line on what is being done."""


def begun(topology: Topology, names: tuple[str, ...], folder: Path, vhost: str) -> list[Queue]:
    """The queues of a file whose migration was begun. Raises MigrationRefusedError for a name not in the file."""
    return [queue for queue in _chosen(topology, names) if JournalFile(folder, vhost, queue.name).path.exists()]


def differing(topology: Topology, names: tuple[str, ...], plan: Plan) -> list[Queue]:
    """The queues of a file that differ from the broker's in what cannot be changed."""
    objects = {change.object for change in plan.of(Action.MIGRATE)}
    return [queue for queue in _chosen(topology, names) if f"queue {queue.name}" in objects]


def _chosen(topology: Topology, names: tuple[str, ...]) -> list[Queue]:
    for name in names:
        if topology.queue(name) is None:
            raise MigrationRefusedError(f"queue {name!r} is not in the file")
    return [queue for queue in topology.queues if not names or queue.name in names]


def migrate(
    queue: Queue, address: BrokerAddress, management: ManagementApi, options: Options, *, tell: Tell = lambda _: None
) -> Migrated:
    """Replace one queue of the broker by what the file says, or go on with what was begun.

    Raises MigrationRefusedError, MoveRefusedError, JournalError, BrokerUnavailableError. Whatever it raises,
    no message is lost, and another run goes on.
    """
    file = JournalFile(options.folder, address.vhost, queue.name)
    with file.locked():
        journal = file.read()
        resumed = journal is not None
        if journal is None:
            journal = file.write(begin(queue, address, management, publishers_stopped=options.publishers_stopped))
        elif journal.broker != str(address):
            raise MigrationRefusedError(f"{file.path} is of a migration on {journal.broker}, not on {address}")
        elif journal.wanted != queue and not journal.aborting:
            raise MigrationRefusedError(
                f"{file.path} is of a migration of queue {queue.name!r} to other arguments: finish it with "
                "that file, or take it back with --abort"
            )
        return _Migration(journal, file, address, management, options, tell).run(resumed=resumed)


def abort(queue: str, address: BrokerAddress, management: ManagementApi, options: Options, *, tell: Tell) -> None:
    """Take a begun migration back. Raises MigrationRefusedError where the queue was replaced already."""
    file = JournalFile(options.folder, address.vhost, queue)
    with file.locked():
        journal = file.read()
        if journal is None:
            raise MigrationRefusedError(f"no migration of queue {queue!r} was begun: there is no {file.path}")
        if list(Step).index(journal.step) >= list(Step).index(Step.REPLACE) and not journal.aborting:
            raise MigrationRefusedError(f"queue {queue!r} may be replaced already: run the migration to its end")
        journal = file.write(_aborted(journal, "it was taken back"))
        with suppress(MigrationRefusedError):
            _Migration(journal, file, address, management, options, tell).run(resumed=True)


def _aborted(journal: Journal, reason: str) -> Journal:
    return replace(journal, aborting=True, abort_reason=reason, step=Step.OPEN)


class _Migration:
    def __init__(
        self,
        journal: Journal,
        file: JournalFile,
        address: BrokerAddress,
        management: ManagementApi,
        options: Options,
        tell: Tell,
    ) -> None:
        self._journal, self._file, self._options, self._tell = journal, file, options, tell
        self._address, self._management = address, management
        self._queue = journal.wanted
        self._detour = Detour(journal.wanted.name)
        self._stashed = self._held = 0

    def run(self, *, resumed: bool) -> Migrated:
        if resumed:
            self._tell(f"going on at step {self._journal.step}")
        with wired(self._address, name="broker-topology migrate") as connection:
            # Whatever was killed in its midst, the detour stands before the next step is done.
            if self._journal.step not in {Step.PREPARE, Step.CLEAN}:
                self._prepare(connection)
            while self._step(connection):
                pass
        self._file.remove()
        if self._journal.aborting:
            raise MigrationRefusedError(f"queue {self._queue.name} is as it was: {self._journal.abort_reason}")
        return Migrated(queue=self._queue.name, stashed=self._stashed, held=self._held, resumed=resumed)

    def _step(self, connection: Any) -> bool:
        """Do the step that the journal names, and note the next one; False after the last."""
        step = self._journal.step
        self._tell(f"{step} ...")
        following = {
            Step.PREPARE: self._prepare,
            Step.DIVERT: self._divert,
            Step.HOLD: self._hold,
            Step.STASH: self._stash,
            Step.REPLACE: self._replace,
            Step.OPEN: self._open,
            Step.UNDIVERT: self._undivert,
            Step.RESTORE: self._restore,
            Step.CLEAN: self._clean,
        }[step](connection)
        if following is None:
            return False
        self._journal = self._file.advance(self._journal, following)
        return True

    def _prepare(self, connection: Any) -> Step:
        self._shield()
        channel = connection.channel()
        opened = self._journal.step in {Step.PREPARE, Step.DIVERT, Step.UNDIVERT, Step.RESTORE}
        self._detour.lay(channel, self._journal, turned_to_queue=opened)
        channel.close()
        return Step.DIVERT

    def _divert(self, connection: Any) -> Step:
        self._detour.divert(connection.channel(), self._journal.bindings)
        return Step.HOLD

    def _hold(self, connection: Any) -> Step:
        self._detour.hold_back(connection.channel())
        return Step.STASH

    def _stash(self, connection: Any) -> Step:
        moved = self._empty(connection, watch_seconds=self._options.watch_seconds)
        reason = self._why_not(moved)
        if reason is not None and not self._options.publishers_stopped:
            self._journal = _aborted(self._journal, reason)
            return Step.OPEN
        return Step.REPLACE

    def _why_not(self, moved: Moved) -> str | None:
        name, source = self._queue.name, self._journal.bindings[:1]
        instead = f"exchange {source[0].source!r} with key {source[0].routing_key!r}" if source else "an exchange"
        todo = f"point its publishers to {instead}, or stop them and say --publishers-stopped"
        if moved.late:
            return f"{moved.late} messages came into it past every exchange, through the default exchange: {todo}"
        if moved.by_default_exchange:
            return (
                f"{moved.by_default_exchange} of the messages in it were published through the default exchange, and "
                f"while queue {name} is away such messages are lost: {todo}"
            )
        return None

    def _replace(self, connection: Any) -> Step:
        for _ in range(REPLACE_TRIES):
            if self._declared(connection):
                return Step.OPEN
            channel = connection.channel()
            found = channel.queue_declare(self._queue.name, passive=True).method
            if found.consumer_count:
                raise MigrationRefusedError(
                    f"{found.consumer_count} consumers came to queue {self._queue.name} meanwhile: stop them, "
                    "and run this again"
                )
            if found.message_count:
                self._empty(connection, watch_seconds=0)
            self._delete(channel)
        raise MigrationRefusedError(
            f"messages keep coming into queue {self._queue.name} through the default exchange: stop its publishers, "
            "and run this again"
        )

    def _declared(self, connection: Any) -> bool:
        """Declare the queue as it is to be; False where it still is what it was."""
        channel = connection.channel()
        try:
            channel.queue_declare(
                self._queue.name,
                durable=self._queue.durable,
                auto_delete=self._queue.auto_delete,
                arguments=dict(self._queue.arguments),
            )
        except pika.exceptions.ChannelClosedByBroker as error:
            if error.reply_code != 406:
                raise
            return False
        channel.close()
        return True

    def _delete(self, channel: Any) -> None:
        """Delete the queue if it is empty; the caller looks whether it is gone."""
        if queue_type(self._journal.current) == CLASSIC:
            with suppress(pika.exceptions.ChannelClosedByBroker):
                channel.queue_delete(self._queue.name, if_unused=True, if_empty=True)
            return
        # A quorum queue knows no if-empty, so it is asked right before.
        if channel.queue_declare(self._queue.name, passive=True).method.message_count == 0:
            channel.queue_delete(self._queue.name)

    def _open(self, connection: Any) -> Step:
        self._detour.let_through(connection.channel())
        return Step.UNDIVERT

    def _undivert(self, connection: Any) -> Step:
        self._detour.undivert(connection.channel(), self._journal.bindings)
        return Step.RESTORE

    def _restore(self, connection: Any) -> Step:
        leads_home = _leads_home(take_snapshot(self._management, self._address.vhost), self._queue.name)
        for name in (self._detour.stash, self._detour.hold):
            while _depth(connection, name):
                moved = move(
                    self._address,
                    name,
                    lambda letter: self._detour.home(letter, leads_home),
                    quiet_seconds=self._options.quiet_seconds if name == self._detour.hold else SETTLED_SECONDS,
                    progress=self._progress(name),
                )
                self._held += moved.count if name == self._detour.hold else 0
        return Step.CLEAN

    def _clean(self, connection: Any) -> Step | None:
        channel = connection.channel()
        self._detour.close(channel)
        for name in (self._detour.stash, self._detour.hold):
            if _depth(connection, name):
                return Step.RESTORE
        self._detour.remove(channel)
        for name in (self._detour.stash, self._detour.hold):
            self._management.delete_policy(self._address.vhost, name)
        return None

    def _empty(self, connection: Any, *, watch_seconds: float) -> Moved:
        depth = connection.channel().queue_declare(self._queue.name, passive=True).method.message_count
        moved = move(
            self._address,
            self._queue.name,
            self._detour.into_stash,
            quiet_seconds=self._options.quiet_seconds,
            watch_seconds=watch_seconds,
            expected=max(depth, 1),
            progress=self._progress(self._queue.name),
        )
        self._stashed += moved.count
        return moved

    def _progress(self, source: str) -> Callable[[int], None]:
        told_at, told = time.monotonic(), 0

        def tell(count: int) -> None:
            nonlocal told_at, told
            if count > told and time.monotonic() - told_at >= 1.0:
                told_at, told = time.monotonic(), count
                self._tell(f"{count} messages moved from {source}")

        return tell

    def _shield(self) -> None:
        """Keep wide policies off the queues of the detour: a length or TTL would lose what they hold."""
        snapshot = take_snapshot(self._management, self._address.vhost)
        policies = [policy for policy in snapshot.topology.policies if not policy.name.startswith(PREFIX)]
        for name in (self._detour.stash, self._detour.hold):
            if matching(policies, "queue", name, QUORUM):
                policy = Policy(
                    name=name,
                    pattern=f"^{_escaped(name)}$",
                    definition={"overflow": "reject-publish"},
                    apply_to="queues",
                    priority=max(policy.priority for policy in policies) + 1,
                )
                self._management.put_policy(self._address.vhost, policy)


def _leads_home(snapshot: Snapshot, queue: str) -> Callable[[str, str], bool]:
    """Whether a message that is published to an exchange with a key reaches this queue and no other."""

    @cache
    def leads_home(exchange: str, key: str) -> bool:
        topology = snapshot.topology
        bound = any(
            binding.destination == queue and takes(topology, binding, key)
            for binding in bindings_from(topology, exchange)
        )
        declared = topology.exchange(exchange)
        certain = declared is not None and declared.type in {"direct", "topic", "fanout"}
        return bound and certain and destinations(topology, exchange, key) == {queue}

    return leads_home


def _depth(connection: Any, queue: str) -> int:
    channel = connection.channel()
    try:
        count = int(channel.queue_declare(queue, passive=True).method.message_count)
    except pika.exceptions.ChannelClosedByBroker as error:
        if error.reply_code != 404:
            raise
        return 0
    channel.close()
    return count


def _escaped(name: str) -> str:
    return "".join(letter if letter.isalnum() or letter in "-_" else f"[{letter}]" for letter in name)
