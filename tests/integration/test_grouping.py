"""Letters in their groups, on both databases."""

from __future__ import annotations

import json
import threading
from datetime import timedelta
from typing import Any

import pytest
import sqlalchemy as sa

from consumers import groups
from consumers.alert_config import AlertConfig
from consumers.alert_rules import AlertRules, Kind
from consumers.alerts import alerts
from consumers.audit import Act, audit_of
from consumers.database import open_database, reading, transaction
from consumers.dead_letters import Filter, dead_letters
from consumers.filing import Filing
from consumers.fingerprints import Fingerprint
from consumers.group_state import GroupState
from consumers.groups import GroupStateError, Ignore, NoSuchGroupError, failure_groups
from consumers.inserting import Arrival
from consumers.refiling import refile
from consumers.regroup import regroup
from consumers.replay import discard, select
from consumers.storing import store
from tests.integration.letters import NOW, arrival, groups_in, later

ACT = Act(actor="alice", reason="fixed in 1.4.1")


def _kinds(engine: sa.Engine) -> list[str]:
    with reading(engine) as connection:
        return list(connection.execute(sa.select(alerts.c.kind).order_by(alerts.c.id)).scalars())


def _facts(engine: sa.Engine) -> dict[str, object]:
    with reading(engine) as connection:
        newest = connection.execute(sa.select(alerts.c.payload).order_by(alerts.c.id.desc()).limit(1)).scalar_one()
        return dict(json.loads(newest))


def test_letters_of_one_failure_are_one_group(engine: sa.Engine) -> None:
    """A group counts its letters, and knows since when, from where and by which release (D4)."""
    store(engine, [arrival(f"order {number} was declined") for number in range(3)], now=NOW)
    store(
        engine,
        [
            arrival("order 99 was declined", queue="crm", died_at=later(hours=2), note={"release": "1.4.1"}),
            arrival("order 99 has no lines"),
        ],
        now=later(hours=2),
    )
    [declined, no_lines] = groups_in(engine)
    assert declined["title"] == "GatewayError: order <n> was declined"
    assert (declined["letters"], no_lines["letters"]) == (4, 1)
    assert (declined["first_seen_at"], declined["last_seen_at"]) == (NOW, later(hours=2))
    assert json.loads(declined["queues"]) == ["payments", "crm"]
    assert json.loads(declined["releases"]) == ["1.4.0", "1.4.1"]
    with reading(engine) as connection:
        members = connection.execute(
            sa.select(dead_letters.c.group_id, sa.func.count()).group_by(dead_letters.c.group_id).order_by("group_id")
        ).all()
        assert members == [(declined["id"], 4), (no_lines["id"], 1)]
        hours = groups.hours_of(connection, [declined["id"]], since=NOW - timedelta(hours=1))
    assert list(hours[declined["id"]].values()) == [3, 1]


def test_without_a_note_queue_and_reason_make_the_group(engine: sa.Engine) -> None:
    """What no worker saw is grouped by the broker's words (D4)."""
    store(engine, [arrival(reason="delivery_limit") for _ in range(2)] + [arrival(reason="expired")], now=NOW)
    assert {group["title"]: group["letters"] for group in groups_in(engine)} == {
        "delivery_limit: payments.charge_customer from payments": 2,
        "expired: payments.charge_customer from payments": 1,
    }


def test_a_redelivery_is_not_counted(engine: sa.Engine) -> None:
    """A death that is stored already counts once (D4)."""
    one = arrival("declined")
    filing = Filing()
    store(engine, [one], now=NOW, filing=filing)
    store(engine, [one, arrival("declined")], now=NOW, filing=filing)
    [group] = groups_in(engine)
    assert group["letters"] == 2


def test_a_failed_transaction_counts_nothing(engine: sa.Engine) -> None:
    """Letter, group and alert are one transaction: a batch that is refused leaves none of them (D4)."""
    filing = Filing()
    bad = arrival("declined", task_id="x" * 300 if engine.dialect.name == "postgresql" else None)
    refused = Arrival(letter=bad.letter, note=bad.note)
    store(engine, [refused, arrival("declined"), arrival("declined")], now=NOW, filing=filing)
    total = sum(group["letters"] for group in groups_in(engine))
    with reading(engine) as connection:
        assert connection.execute(sa.select(sa.func.count()).select_from(dead_letters)).scalar_one() == total == 3


def test_the_first_letter_of_a_group_speaks(engine: sa.Engine) -> None:
    """One alert for a new group, in the same transaction, with a masked sample (D4)."""
    store(engine, [arrival("declined"), arrival("declined")], now=NOW)
    store(engine, [arrival("declined")], now=NOW)
    assert _kinds(engine) == ["first_occurrence"]
    facts = _facts(engine)
    assert "4111111111111111" not in json.dumps(facts)
    assert facts["letter"]["kwargs"] == '{"card_number": "***"}'  # type: ignore[index]
    assert facts["command"] == "dead-letters groups show 1"


def test_a_letter_after_the_settling_is_a_regression(engine: sa.Engine) -> None:
    """It opens the group and says whom it contradicts: who, when, and at which release (D4)."""
    store(engine, [arrival("declined")], now=NOW)
    with transaction(engine) as connection:
        groups.settle(connection, 1, ACT, now=later(hours=1))
    store(engine, [arrival("declined", died_at=later(minutes=5))], now=later(hours=2))
    assert groups_in(engine)[0]["state"] == GroupState.SETTLED
    store(engine, [arrival("declined", died_at=later(hours=3))], now=later(hours=3))
    [group] = groups_in(engine)
    assert (group["state"], group["regressions"], group["letters"]) == (GroupState.OPEN, 1, 3)
    assert _kinds(engine) == ["first_occurrence", "regression"]
    assert _facts(engine)["contradicts"] == {
        "by": "alice",
        "at": later(hours=1).isoformat(),
        "reason": "fixed in 1.4.1",
        "release": "1.4.0",
    }
    with transaction(engine) as connection:
        groups.settle(connection, 1, ACT, now=later(hours=4), release="1.5")
    store(engine, [arrival("declined", died_at=later(hours=5))], now=later(hours=5))
    assert _kinds(engine) == ["first_occurrence", "regression", "regression"]


def test_a_letter_that_comes_back_is_counted_apart(engine: sa.Engine) -> None:
    """A failed replay is one of the group's letters, and told from new ones (D6)."""
    store(engine, [arrival("declined")], now=NOW)
    store(engine, [arrival("declined", replay_key="replay-1"), arrival("declined")], now=NOW)
    [group] = groups_in(engine)
    assert (group["letters"], group["returned"]) == (3, 1)


def test_an_ignored_group_is_counted_in_silence_and_then_speaks(engine: sa.Engine) -> None:
    """Ignoring for n more letters ends with an alert (D4)."""
    store(engine, [arrival("declined")], now=NOW)
    with transaction(engine) as connection:
        groups.ignore(connection, 1, ACT, Ignore(more=2), now=NOW)
    store(engine, [arrival("declined"), arrival("declined")], now=NOW)
    assert _kinds(engine) == ["first_occurrence"]
    store(engine, [arrival("declined")], now=NOW)
    assert _kinds(engine) == ["first_occurrence", "ignored_no_longer"]
    assert groups_in(engine)[0]["state"] == GroupState.OPEN


def test_what_people_do_to_groups_is_audited(engine: sa.Engine) -> None:
    """Who, why and when stand in the log, and what is impossible is refused (D5)."""
    store(engine, [arrival("declined")], now=NOW)
    with transaction(engine) as connection:
        groups.settle(connection, 1, ACT, now=NOW)
        groups.reopen(connection, 1, Act(actor="bob", reason="not yet"), now=NOW)
        groups.mute(connection, 1, ACT, now=NOW, lasting=timedelta(hours=1))
        with pytest.raises(GroupStateError):
            groups.reopen(connection, 1, ACT, now=NOW)
        with pytest.raises(NoSuchGroupError):
            groups.settle(connection, 99, ACT, now=NOW)
        done = [(act["actor"], act["action"], act["reason"]) for act in audit_of(connection, group_id=1)]
    assert done == [
        ("alice", "settle_group", "fixed in 1.4.1"),
        ("bob", "reopen_group", "not yet"),
        ("alice", "mute_group", "fixed in 1.4.1"),
    ]


def test_a_storm_of_different_groups_is_capped(engine: sa.Engine) -> None:
    """Of many new groups at once only some speak; the rest is counted for the summary (D4)."""
    filing = Filing(AlertConfig(rules=AlertRules(storm_cap=10)))
    words = [f"failure {'abcdefghij'[n // 10]}{'abcdefghij'[n % 10]}x" for n in range(50)]
    store(engine, [arrival(word) for word in words], now=NOW, filing=filing)
    store(engine, [arrival("one more failure")], now=NOW, filing=filing)
    assert len(groups_in(engine)) == 51
    assert _kinds(engine) == ["first_occurrence"] * 10
    store(engine, [arrival("a later failure")], now=later(minutes=10), filing=filing)
    assert len(_kinds(engine)) == 11


def test_several_drains_count_at_once(engine: sa.Engine) -> None:
    """Four writers with the same groups in different orders lose nothing and never deadlock (D4)."""
    words = [f"failure {'abcdefghij'[number]}" for number in range(10)]
    problems: list[BaseException] = []

    def drain(number: int) -> None:
        own = open_database(engine.url.render_as_string(hide_password=False))
        filing = Filing()
        try:
            for batch in range(12):
                order = words[number:] + words[:number] if batch % 2 else list(reversed(words))
                store(own, [arrival(word) for word in order for _ in range(3)], now=NOW, filing=filing)
        except BaseException as error:  # noqa: BLE001, RUF100, any problem of a thread is the test's
            problems.append(error)
        finally:
            own.dispose()

    threads = [threading.Thread(target=drain, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert problems == []
    assert [group["letters"] for group in groups_in(engine)] == [4 * 12 * 3] * 10
    assert _kinds(engine).count("first_occurrence") == 10


def test_a_group_settled_by_itself_is_opened_by_any_letter(engine: sa.Engine) -> None:
    """One that died before and came after has to be seen, and is no regression; one that died after is (D4, D6)."""
    store(engine, [arrival("declined", died_at=later(hours=1)) for _ in range(2)], now=later(hours=1))
    discard(engine, ACT, [1], now=later(hours=2))
    assert groups_in(engine)[0]["state"] == GroupState.OPEN
    discard(engine, ACT, [2], now=later(hours=2))
    assert groups_in(engine)[0]["state"] == GroupState.SETTLED
    store(engine, [arrival("declined", died_at=NOW)], now=later(hours=3))
    assert (groups_in(engine)[0]["state"], _kinds(engine)) == (GroupState.OPEN, [Kind.FIRST_OCCURRENCE])
    discard(engine, ACT, [3], now=later(hours=4))
    store(engine, [arrival("declined", died_at=later(hours=5))], now=later(hours=5))
    assert (groups_in(engine)[0]["state"], _kinds(engine)[-1]) == (GroupState.OPEN, Kind.REGRESSION)
    with reading(engine) as connection:
        acts = [(row["action"], row["actor"], row["reason"]) for row in audit_of(connection, group_id=1)]
    assert acts == [("settle_group", ACT.actor, ACT.reason)] * 2


def test_groups_that_settle_while_letters_come_hide_none(engine: sa.Engine) -> None:
    """Two drains and two people at once: no deadlock, and a group with an open letter is open (D4, D6)."""
    drains = [threading.Thread(target=_store_many, args=(engine,)) for _ in range(2)]
    over = threading.Event()
    people = [threading.Thread(target=_discard_all, args=(engine, over)) for _ in range(2)]
    for thread in (*drains, *people):
        thread.start()
    for drain in drains:
        drain.join()
    over.set()
    for person in people:
        person.join()
    store(engine, [arrival("failure a", died_at=NOW)], now=later(hours=1))
    found = {group["id"]: group for group in groups_in(engine)}
    assert sum(group["letters"] for group in found.values()) == 2 * 20 * 6 + 1
    with reading(engine) as connection:
        c = dead_letters.c
        hidden = sa.select(c.group_id).where(
            c.state == "open", c.group_id.not_in([g for g in found if _is_open(found[g])])
        )
        assert list(connection.execute(hidden)) == []
    _discard_open(engine)
    assert {group["state"] for group in groups_in(engine)} == {GroupState.SETTLED}


def _store_many(engine: sa.Engine) -> None:
    for _ in range(20):
        store(engine, [arrival(f"failure {word}", died_at=NOW) for word in "abcabc"], now=later(minutes=1))


def _discard_all(engine: sa.Engine, over: threading.Event) -> None:
    while not over.is_set():
        _discard_open(engine)


def _discard_open(engine: sa.Engine) -> None:
    discard(engine, ACT, select(engine, Filter()), now=later(minutes=2))


def _is_open(group: dict[str, Any]) -> bool:
    return bool(group["state"] == GroupState.OPEN)


def test_hostile_notes_make_groups_too(engine: sa.Engine) -> None:
    """NUL, surrogates, megabytes and wrong types in a note hold nothing up (D4)."""
    store(
        engine,
        [
            arrival("a\x00b\ud800", note={"error_type": "x\x00\ud800" * 999, "fingerprint": None}),
            arrival("b" * 2_000_000, note={"traceback": 'File "' * 100_000}),
            arrival("c", note={"fingerprint": "own\x00" * 9999}),
            arrival("d", note={"release": "\x00" * 500}),
        ],
        now=NOW,
    )
    assert sum(group["letters"] for group in groups_in(engine)) == 4


def test_better_rules_move_letters_and_keep_what_people_said(
    engine: sa.Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Regrouping shows first, then moves; a settled group stays settled, and a running drain follows (D4)."""
    filing = Filing()
    with monkeypatch.context() as patch:
        patch.setattr(
            "consumers.fingerprints.Remembered.of_error",
            lambda _self, _task, _type, message, _traceback: Fingerprint(
                version=0, digest=f"old-{message}"[:32], title="old"
            ),
        )
        store(engine, [arrival("order 1 declined"), arrival("order 2 declined")], now=NOW, filing=filing)
    with transaction(engine) as connection:
        groups.settle(connection, 1, ACT, now=later(minutes=1))
        connection.execute(failure_groups.update().values(rules_version=0))
    shown = regroup(engine, None, now=NOW)
    assert [(move.from_group, move.letters) for move in shown.told()] == [(1, 1), (2, 1)]
    assert len(groups_in(engine)) == 2
    regroup(engine, ACT, now=later(minutes=2))
    [first, second, new] = groups_in(engine)
    assert (first["state"], second["state"]) == (GroupState.MERGED, GroupState.MERGED)
    assert (new["state"], new["state_by"], new["letters"]) == (GroupState.SETTLED, "alice", 2)
    assert new["title"] == "GatewayError: order <n> declined"
    with monkeypatch.context() as patch:
        patch.setattr(
            "consumers.fingerprints.Remembered.of_error",
            lambda _self, _task, _type, message, _traceback: Fingerprint(
                version=0, digest=f"old-{message}"[:32], title="old"
            ),
        )
        store(engine, [arrival("order 1 declined", died_at=NOW)], now=later(minutes=3), filing=filing)
    with reading(engine) as connection:
        assert set(connection.execute(sa.select(dead_letters.c.group_id)).scalars()) == {new["id"]}
        assert groups.get(connection, 1)["letters"] == 3
    assert regroup(engine, None, now=NOW).told() == []


def test_a_note_that_comes_late_moves_the_letter(engine: sa.Engine) -> None:
    """While Redis was away the broker's words made the group; the note puts its letter where it belongs (D4)."""
    filing = Filing()
    store(engine, [arrival(), arrival(), arrival("order 1 was declined")], now=NOW, filing=filing)
    with transaction(engine) as connection:
        for letter_id, message in ((1, "order 2 was declined"), (2, "no such customer")):
            values = {"error_type": "shop.GatewayError", "error_message": message, "traceback": ""}
            connection.execute(dead_letters.update().where(dead_letters.c.id == letter_id).values(**values))
        filing.committed(refile(connection, filing, [1, 2], now=later(minutes=1)))
    counted = {group["title"]: group["letters"] for group in groups_in(engine)}
    assert counted == {
        "rejected: payments.charge_customer from payments": 0,
        "GatewayError: order <n> was declined": 2,
        "GatewayError: no such customer": 1,
    }
    assert _kinds(engine) == ["first_occurrence"] * 3
    with reading(engine) as connection:
        assert len(groups.page(connection)) == 2


def test_letters_from_before_groups_are_grouped(engine: sa.Engine) -> None:
    """Regrouping takes in what was stored by an earlier version (D4)."""
    store(engine, [arrival("order 1 declined"), arrival("order 2 declined"), arrival()], now=NOW)
    with transaction(engine) as connection:
        connection.execute(dead_letters.update().values(group_id=None))
        connection.execute(failure_groups.delete())
    regroup(engine, ACT, now=NOW)
    assert sorted(group["letters"] for group in groups_in(engine)) == [1, 2]
    assert Kind.FIRST_OCCURRENCE.value in _kinds(engine)
