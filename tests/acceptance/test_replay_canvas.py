"""A replay completes what its letter was part of: chords, chains, groups, callbacks and errbacks."""

from __future__ import annotations

import json
import uuid
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import pytest
import redis
from celery import Celery, chain, chord, group, signature

from broker_topology.deploy import deploy
from broker_topology.topology import read_topology
from sandbox import servers
from sandbox.processes import eventually
from sandbox.road import Road
from sandbox.services import OutsideServices
from tests.conftest import DEFINITIONS, new_vhost

# One worker and one drain for the whole file, so one process of pytest too.
pytestmark = pytest.mark.xdist_group("canvas")

MEMBERS = 20


@dataclass(frozen=True, kw_only=True)
class Canvas:
    """One virtual host with a worker that keeps results, a drain, and what the tasks kept."""

    road: Road
    kept: redis.Redis

    @property
    def app(self) -> Celery:
        """The app that publishes."""
        return self.road.publisher

    def step(self, name: str, *args: Any, **options: Any) -> Any:
        """A signature by name."""
        return signature(name, args=args, app=self.app, **options)

    def fixable(self, number: int) -> Any:
        """A member whose fault can be mended."""
        return self.step("crm.fixable", number, immutable=True)

    def hear(self, label: str) -> Any:
        """An errback that counts its calls."""
        return self.step("crm.hear", label, immutable=True)

    def break_(self, *numbers: int) -> None:
        """From now on these members fail."""
        self.kept.sadd("broken", *numbers)

    def mend(self, *numbers: int) -> None:
        """From now on these members succeed."""
        self.kept.srem("broken", *numbers)

    def calls(self, label: str) -> list[Any]:
        """What the callback was given, one entry a call."""
        return [json.loads(entry) for entry in self.kept.lrange(f"kept:{label}", 0, -1)]

    def heard(self, label: str) -> int:
        """How often the errback was called."""
        return int(self.kept.get(f"heard:{label}") or 0)

    def result(self, task_id: str) -> Any:
        """What the result backend says of a task now."""
        return self.app.AsyncResult(task_id).result

    def open_letters(self, count: int = 1) -> list[dict[str, Any]]:
        """The letters that wait for a decision, once there are that many."""

        def found() -> list[dict[str, Any]]:
            letters = [letter for letter in self.road.letters() if letter["state"] == "open"]
            assert len(letters) == count, [(letter["id"], letter["state"]) for letter in letters]
            return letters

        return eventually(found, seconds=60, every=0.3)

    def replay(self, *letters: dict[str, Any]) -> None:
        """Replay letters as a person would."""
        ids = [str(letter["id"]) for letter in letters]
        done = self.road.command("dead-letters", "replay", *ids, "--reason", "mended", "--yes")
        assert done.returncode == 0, done.stderr

    def item_of(self, letter_id: int) -> dict[str, Any]:
        """What became of a letter in its replay."""
        [item] = [
            item for replay in self._replays() for item in self._items(replay) if item["letter_id"] == letter_id
        ]
        return item

    def items_of_last_replay(self) -> list[dict[str, Any]]:
        """What became of each letter of the newest replay."""
        return self._items(self._replays()[0])

    def _replays(self) -> list[dict[str, Any]]:
        listed = self.road.command("dead-letters", "replays", "--json")
        return [json.loads(line) for line in listed.stdout.splitlines()]

    def _items(self, replay: dict[str, Any]) -> list[dict[str, Any]]:
        shown = self.road.command("dead-letters", "replays", "show", str(replay["id"]), "--json")
        return list(json.loads(shown.stdout)["items"])

    def until_settled(self, *letters: dict[str, Any]) -> None:
        """Wait until the outcome of replayed letters is known, and is success."""

        def settled() -> bool:
            states = [self.road.letter(letter["id"])["state"] for letter in letters]
            assert states == ["settled"] * len(letters)
            return True

        eventually(settled, seconds=60, every=0.3)


@pytest.fixture(scope="module")
def started(
    rabbitmq_server: servers.Server, redis_server: servers.Server, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Canvas]:
    """One worker and one drain for the whole file."""
    folder = tmp_path_factory.mktemp("canvas")
    vhost = new_vhost(rabbitmq_server)
    deploy(read_topology(DEFINITIONS), vhost.url, management_url=vhost.management_url)
    with ExitStack() as stack, redis.Redis.from_url(redis_server.url, decode_responses=True) as kept:
        stack.callback(vhost.api, "DELETE", "/vhosts/{vhost}")
        kept.flushdb()
        services = OutsideServices(folder)
        stack.callback(services.stop)
        road = Road(
            folder=folder,
            amqp_url=vhost.url,
            management_url=vhost.management_url,
            redis_url=redis_server.url,
            database_url=f"sqlite:///{folder}/dead-letters.db",
            services=services,
            task_modules="sandbox.canvas_tasks",
            more_environment={"RESULT_BACKEND": redis_server.url, "TASK_IGNORE_RESULT": "false"},
        )
        stack.callback(road.stop)
        road.worker("--concurrency=4")
        road.drain()
        app = road.publisher
        app.conf.result_backend = redis_server.url
        app.conf.task_ignore_result = False
        stack.callback(app.backend.client.close)
        stack.callback(app.backend.result_consumer.stop)
        # A result that outlives its Redis, as that of a failed test, would look for it for long.
        stack.callback(app.backend.result_consumer.subscribed_to.clear)
        yield Canvas(road=road, kept=kept)
        kept.flushdb()


@pytest.fixture
def canvas(started: Canvas) -> Iterator[Canvas]:
    """The canvas with no fault in it, and no letter left open by another test."""
    yield started
    started.kept.delete("broken")
    left = [str(letter["id"]) for letter in started.road.letters() if letter["state"] == "open"]
    if left:
        started.road.command("dead-letters", "discard", *left, "--reason", "left over by a test", "--yes")


@pytest.fixture
def label() -> str:
    """A name for what one test keeps."""
    return uuid.uuid4().hex


def test_chord_whose_member_died_is_completed_by_the_replay(canvas: Canvas, label: str) -> None:
    """A chord of 20 whose member 7 died: its errback once, then its callback once, all results in order. (D5)"""
    canvas.break_(7)
    body = canvas.step("crm.keep", label).on_error(canvas.hear(label))
    result = chord([canvas.fixable(number) for number in range(MEMBERS)])(body)
    [letter] = canvas.open_letters()
    eventually(lambda: canvas.heard(label) == 1)
    assert canvas.calls(label) == []

    canvas.mend(7)
    canvas.replay(letter)
    expected = [number * 10 for number in range(MEMBERS)]
    eventually(lambda: canvas.calls(label) == [expected], what="the callback")
    canvas.until_settled(letter)
    assert canvas.result(result.id) == expected
    assert canvas.calls(label) == [expected]
    assert canvas.heard(label) == 1


def test_two_dead_members_fail_their_chord_once_and_complete_it_once(canvas: Canvas, label: str) -> None:
    """Two dead members, replayed one after the other: no callback before the second, no second errback. (D5)"""
    canvas.break_(2, 5)
    chord([canvas.fixable(number) for number in range(6)])(
        canvas.step("crm.keep", label).on_error(canvas.hear(label))
    )
    letters = canvas.open_letters(2)
    eventually(lambda: canvas.heard(label) == 1)
    canvas.mend(2, 5)
    canvas.replay(letters[0])
    canvas.until_settled(letters[0])
    assert canvas.calls(label) == []
    canvas.replay(letters[1])
    canvas.until_settled(letters[1])
    eventually(lambda: canvas.calls(label) == [[0, 10, 20, 30, 40, 50]], what="the callback")
    assert canvas.heard(label) == 1


def test_member_replayed_before_its_chord_is_over_counts_as_a_success(canvas: Canvas, label: str) -> None:
    """A member replayed while another still runs: the chord never fails, and the callback runs once. (D5)"""
    canvas.break_(1)
    chord([canvas.fixable(1), canvas.step("crm.wait_for", label, immutable=True)])(
        canvas.step("crm.keep", label).on_error(canvas.hear(label))
    )
    [letter] = canvas.open_letters()
    canvas.mend(1)
    canvas.replay(letter)
    canvas.until_settled(letter)
    canvas.kept.rpush(f"go:{label}", "on")
    eventually(lambda: canvas.calls(label) == [[10, "on"]], what="the callback")
    assert canvas.heard(label) == 0


def test_member_that_is_a_chain_completes_its_chord(canvas: Canvas, label: str) -> None:
    """The head of a chain in a chord died: after its replay the chain goes on and the chord's callback runs. (D5)"""
    canvas.break_(4)
    inner = chain(canvas.fixable(4), canvas.step("crm.keep", f"inner-{label}"))
    chord([canvas.fixable(3), inner])(canvas.step("crm.keep", label).on_error(canvas.hear(label)))
    [letter] = canvas.open_letters()
    eventually(lambda: canvas.heard(label) == 1)
    canvas.mend(4)
    canvas.replay(letter)
    eventually(lambda: canvas.calls(label) == [[30, 40]], what="the callback")
    canvas.until_settled(letter)
    assert canvas.calls(f"inner-{label}") == [40]
    assert canvas.heard(label) == 1


def test_group_that_waits_for_a_chord_runs_after_the_replay(canvas: Canvas, label: str) -> None:
    """A chord whose callback is a group: each of its tasks runs once after the replay, with all results. (D5)"""
    canvas.break_(60)
    body = group([canvas.step("crm.keep", f"{label}-{number}") for number in range(2)])
    chord([canvas.fixable(60), canvas.fixable(61)])(body)
    [letter] = canvas.open_letters()
    canvas.mend(60)
    canvas.replay(letter)
    canvas.until_settled(letter)
    eventually(lambda: [canvas.calls(f"{label}-{number}") for number in range(2)] == [[[600, 610]], [[600, 610]]])
    assert [one for one in canvas.road.letters() if one["state"] == "open"] == []


def test_chain_goes_on_after_the_replay(canvas: Canvas, label: str) -> None:
    """The second of four links died: replayed, the links behind it run once, with its result. (D5)"""
    canvas.break_(8)
    result = chain(
        canvas.fixable(7), canvas.fixable(8), canvas.step("crm.keep", label), canvas.step("crm.keep", f"{label}-end")
    ).apply_async()
    [letter] = canvas.open_letters()
    assert canvas.calls(label) == []
    canvas.mend(8)
    canvas.replay(letter)
    eventually(lambda: canvas.calls(f"{label}-end") == [80], what="the last link")
    canvas.until_settled(letter)
    eventually(lambda: canvas.result(result.id) == 80)
    assert canvas.calls(label) == [80]


def test_group_is_complete_after_the_replay(canvas: Canvas) -> None:
    """A group of five of which one died: its GroupResult succeeds with every result in order. (D5)"""
    canvas.break_(12)
    result = group([canvas.fixable(number) for number in range(10, 15)]).apply_async()
    [letter] = canvas.open_letters()
    canvas.mend(12)
    canvas.replay(letter)
    canvas.until_settled(letter)
    assert [canvas.result(member.id) for member in result.results] == [100, 110, 120, 130, 140]


def test_link_runs_once_after_the_replay(canvas: Canvas, label: str) -> None:
    """A task with ``link`` and ``link_error``: one errback for its death, one callback for its success. (D5)"""
    canvas.break_(20)
    canvas.fixable(20).apply_async(link=canvas.step("crm.keep", label), link_error=canvas.hear(label))
    [letter] = canvas.open_letters()
    eventually(lambda: canvas.heard(label) == 1)
    assert canvas.calls(label) == []
    canvas.mend(20)
    canvas.replay(letter)
    canvas.until_settled(letter)
    eventually(lambda: canvas.calls(label) == [200], what="the callback")
    assert canvas.heard(label) == 1


def test_three_deaths_and_replays_are_three_linked_letters(canvas: Canvas, label: str) -> None:
    """Fail, replay, fail again, three times: each death is linked to its replay, one errback each. (D5, D6)"""
    canvas.break_(30)
    canvas.fixable(30).apply_async(link=canvas.step("crm.keep", label), link_error=canvas.hear(label))
    chain_of_letters = []
    for death in range(1, 4):
        [letter] = canvas.open_letters()
        chain_of_letters.append(letter["id"])
        eventually(lambda death=death: canvas.heard(label) == death)  # type: ignore[misc]
        if death == 3:
            canvas.mend(30)
        canvas.replay(letter)
    canvas.until_settled(letter)
    eventually(lambda: canvas.calls(label) == [300], what="the callback")
    assert canvas.heard(label) == 3
    followed = [canvas.item_of(letter_id) for letter_id in chain_of_letters]
    assert [item["state"] for item in followed] == ["failed_again", "failed_again", "succeeded"]
    assert [item["new_letter_id"] for item in followed] == [*chain_of_letters[1:], None]
    letters = [canvas.road.letter(letter_id) for letter_id in chain_of_letters]
    assert [letter["replay_key"] for letter in letters[1:]] == [item["key"] for item in followed[:2]]
    assert len({letter["task_id"] for letter in letters}) == 1


def test_letters_that_fail_again_at_once_are_published_once_each(canvas: Canvas) -> None:
    """51 letters replayed into the same fault: 51 publishes, no more, and 51 linked deaths. (D5, D6, D7)"""
    numbers = range(100, 151)
    canvas.break_(*numbers)
    group([canvas.fixable(number) for number in numbers]).apply_async()
    letters = canvas.open_letters(51)
    canvas.replay(*letters)
    # Each letter that came from the replay is open; those before it have failed again.
    renewed = canvas.open_letters(51)
    canvas.road.until_settled(seconds=30)
    assert [int(canvas.kept.get(f"began:{number}") or 0) for number in numbers] == [2] * 51
    followed = canvas.items_of_last_replay()
    assert {item["state"] for item in followed} == {"failed_again"}
    assert sorted(item["letter_id"] for item in followed) == sorted(letter["id"] for letter in letters)
    assert sorted(item["new_letter_id"] for item in followed) == sorted(letter["id"] for letter in renewed)


def test_fault_that_comes_back_halfway_stops_within_one_ramp_step(canvas: Canvas) -> None:
    """Two of 60 go first, then 20 of which 16 fail: stopped there, 38 were never sent. (D5)"""
    numbers = range(200, 260)
    canvas.break_(*numbers)
    group([canvas.fixable(number) for number in numbers]).apply_async()
    letters = sorted(canvas.open_letters(60), key=lambda letter: int(letter["id"]))
    fixed = [canvas.road.letter(letter["id"])["args"][0] for letter in letters[:6]]
    canvas.mend(*fixed)
    ids = [str(letter["id"]) for letter in letters]
    stopped = canvas.road.command("dead-letters", "replay", *ids, "--reason", "mended?", "--canary", "2")
    assert stopped.returncode == 1
    assert "failed again" in stopped.stdout + stopped.stderr
    canvas.open_letters(16)  # only the renewed deaths are open: what was not sent still belongs to the replay

    def followed() -> bool:
        states = Counter(item["state"] for item in canvas.items_of_last_replay())
        assert states == {"succeeded": 6, "failed_again": 16, "waiting": 38}
        return True

    eventually(followed, every=0.3)
    runs = [int(canvas.kept.get(f"began:{number}") or 0) for number in numbers]
    assert Counter(runs) == {2: 22, 1: 38}
