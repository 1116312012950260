"""A letter whose arguments are wrong is edited and replayed; what stands against a replay is said before."""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any

import pytest
import redis

from broker_topology.claim_records import record_name
from sandbox.processes import eventually
from sandbox.road import Road
from tests.conftest import VirtualHost

TASKS = """
from pathlib import Path

from celery import shared_task

from tasks import Idempotency, PermanentFailure

LEDGER = Path(__file__).parent / "ledger.txt"


@shared_task(name="crm.pay", idempotency=Idempotency())
def pay(order, *, amount, card=None):
    if amount < 0:
        raise PermanentFailure(f"cannot pay {amount}")
    with LEDGER.open("a") as ledger:
        print(order, amount, file=ledger)
    return amount
"""


@pytest.fixture
def shop(road: Road) -> Road:
    """A worker with a guarded task that refuses what is below 0, and a drain; one letter is there."""
    (road.folder / "orders.py").write_text(TASKS)
    road.task_modules = "orders"
    road.worker()
    road.drain()
    pay(road, -1)
    eventually(lambda: len(road.letters()) == 1)
    return road


def pay(road: Road, amount: int) -> None:
    """Publish the decision of order-1."""
    kwargs = {"amount": amount, "card": "4111111111111111"}
    road.publisher.send_task("crm.pay", ("order-1",), kwargs, idempotency_key="pay-order-1")


def ledger(road: Road) -> list[str]:
    """What was paid."""
    path = road.folder / "ledger.txt"
    return path.read_text().splitlines() if path.exists() else []


def audit(road: Road) -> list[dict[str, Any]]:
    """What the audit log has on the letter, oldest first."""
    history: list[dict[str, Any]] = road.letter(1)["history"]
    return history


def test_a_letter_with_one_argument_set_is_done_once(shop: Road) -> None:
    """The new argument runs under the old key, the letter stays as it was, its group is settled. (D5, D6, I3)"""
    done = shop.command("dead-letters", "replay", "1", "--reason", "typo", "--by", "ada", "--set", "kwargs.amount=10")
    assert done.returncode == 0, done.stderr
    eventually(lambda: shop.letter(1)["state"] == "settled")
    pay(shop, -1)  # the same decision once more: it is done, and the result stands
    eventually(lambda: shop.depth("crm") == 0 and shop.unsettled() == 0)
    assert ledger(shop) == ["order-1 10"]
    assert len(shop.letters()) == 1
    assert shop.letter(1)["kwargs"] == {"amount": -1, "card": "***"}
    (edit,) = (entry for entry in audit(shop) if entry["action"] == "edit")
    assert (edit["actor"], edit["reason"]) == ("ada", "typo")
    assert json.loads(edit["details"]) == {"kwargs.amount": {"from": -1, "to": 10}}
    groups = shop.command("dead-letters", "groups", "list", "--state", "settled", "--json").stdout
    assert json.loads(groups.splitlines()[0])["state_reason"] == "all its letters are dealt with"


def test_a_decimal_is_known_again_after_an_edit(shop: Road) -> None:
    """It travels as an object, and the key was first used with what the worker made of that. (D5, I3)"""
    kwargs = {"amount": Decimal("-1.50")}
    shop.publisher.send_task("crm.pay", ("order-2",), kwargs, idempotency_key="pay-order-2")
    eventually(lambda: len(shop.letters()) == 2)
    shop.command("dead-letters", "replay", "2", "--reason", "typo", "--set", "kwargs.amount=3")
    eventually(lambda: ledger(shop) == ["order-2 3"])
    eventually(lambda: shop.letter(2)["state"] == "settled")


def test_the_audit_hides_what_is_secret(shop: Road) -> None:
    """The number of a card is in no audit log. (D5)"""
    shop.command(
        "dead-letters",
        "replay",
        "1",
        "--reason",
        "typo",
        "--set",
        "kwargs.amount=1",
        "--set",
        "kwargs.card=4222222222222",
    )
    (edit,) = (entry for entry in audit(shop) if entry["action"] == "edit")
    assert json.loads(edit["details"])["kwargs.card"] == {"from": "***", "to": "***"}


EDITORS = {
    "unchanged": ("true", "nothing is changed"),
    "not JSON": ("sed -i s/{/x/", "This cannot be sent"),
    "another shape": ("sed -i s/args/arguments/", "This cannot be sent"),
    "missing": ("no-such-editor", "Error"),
}


@pytest.mark.parametrize("slip", EDITORS)
def test_a_slip_in_the_editor_replays_nothing(shop: Road, slip: str) -> None:
    """One clear sentence, the letter is open, and nothing was published. (D5)"""
    editor, sentence = EDITORS[slip]
    shop.more_environment |= {"EDITOR": editor, "VISUAL": editor}
    done = shop.command("dead-letters", "replay", "1", "--reason", "typo", "--edit")
    assert done.returncode == 1
    assert sentence in done.stderr
    assert "Traceback" not in done.stderr
    assert (shop.letter(1)["state"], ledger(shop)) == ("open", [])


EDITOR = "sed -i s/:.-1/:12/"


def test_a_letter_edited_by_hand_is_done(shop: Road) -> None:
    """The editor shows args and kwargs, and what is saved is sent. (D5)"""
    shop.more_environment |= {"EDITOR": EDITOR, "VISUAL": EDITOR}
    assert shop.command("dead-letters", "replay", "1", "--reason", "typo", "--edit").returncode == 0
    eventually(lambda: ledger(shop) == ["order-1 12"])


def test_an_edit_that_does_not_fit_claims_nothing(shop: Road) -> None:
    """A path that leads nowhere, or a change that is none, leaves the letter open. (D5)"""
    for change, sentence in (
        ("kwargs.a.b=1", "letter 1: kwargs.a.b: there is no 'a'"),
        ("kwargs.amount=-1", "nothing"),
    ):
        done = shop.command("dead-letters", "replay", "1", "--reason", "typo", "--set", change)
        assert (done.returncode, sentence in done.stderr) == (1, True)
    assert shop.letter(1)["state"] == "open"


def test_what_stands_against_a_replay_is_said_before(shop: Road, deployed: VirtualHost) -> None:
    """Done, unknown, gone: from Redis, the workers and the broker, each by its count. (D5)"""
    shop.publisher.send_task("crm.nobody_has_it", idempotency_key="forgotten")
    eventually(lambda: len(shop.letters()) == 2)
    shop.command("dead-letters", "replay", "1", "--reason", "typo", "--set", "kwargs.amount=10")
    eventually(lambda: shop.letter(1)["state"] == "settled")

    def against(*more: str) -> dict[str, Any]:
        shown = shop.command("dead-letters", "replay", "1", "2", "--reason", "look", "--dry-run", "--json", *more)
        assert shown.returncode == 0, shown.stderr
        return dict(json.loads(shown.stdout)["against"])

    said = against()
    assert (said["already_done"], said["forgotten"], said["away"]) == ([1], [2], {})
    assert (said["unknown_tasks"], said["workers"], said["missing_queues"]) == (["crm.nobody_has_it"], 1, [])
    assert against("--to-queue", "crm2")["missing_queues"] == ["crm2"]
    with redis.Redis.from_url(shop.redis_url) as client:
        client.hset(record_name("crm.pay", "pay-order-1"), "state", "in_doubt")
    assert against()["in_doubt"] == [1]
    for process in shop.processes[:1]:
        process.stop()
    deployed.api("DELETE", "/queues/{vhost}/crm")
    said = against()
    assert (said["workers"], said["missing_queues"], said["unknown_tasks"]) == (0, ["crm"], [])
    words = shop.command("dead-letters", "replay", "1", "2", "--reason", "look", "--dry-run").stderr
    for part in ("1 have a key that is in doubt", "queue crm does not exist", "no worker answers"):
        assert part in words
    shop.redis_url = "redis://127.0.0.1:1/0"
    assert "redis" in against()["away"]


def test_a_group_is_settled_when_its_last_letter_is_discarded(shop: Road) -> None:
    """Nobody waits for any of its letters; a letter that dies later opens it again. (D6)"""

    def state() -> str:
        shown = shop.command("dead-letters", "groups", "list", "--state", "all", "--json").stdout
        return str(json.loads(shown.splitlines()[0])["state"])

    pay(shop, -1)
    eventually(lambda: len(shop.letters()) == 2)
    shop.command("dead-letters", "discard", "1", "--reason", "test data")
    assert state() == "open"
    shop.command("dead-letters", "discard", "2", "--reason", "test data")
    assert state() == "settled"
    pay(shop, -1)
    eventually(lambda: len(shop.letters()) == 3)
    eventually(lambda: state() == "open")


def test_a_choice_of_nothing_is_refused(shop: Road) -> None:
    """A letter that does not exist is named, a filter that finds none says so, and nothing is asked. (D5)"""
    for verb in ("replay", "discard"):
        for choice, sentence in (
            (["1", "77"], "there is no dead letter 77"),
            (["--task", "crm.other"], "No open letter is chosen"),
        ):
            done = shop.command("dead-letters", verb, *choice, "--reason", "typo")
            assert (done.returncode, sentence in done.stderr) == (1, True), done.stderr
    assert shop.letter(1)["state"] == "open"
