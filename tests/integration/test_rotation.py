"""Keys that change: old rows follow in small steps, cut off or not, and nothing is lost on the way."""

from __future__ import annotations

import json

import pytest
import sqlalchemy as sa

from consumers import dead_letters, rotation
from consumers.audit import audit_log
from consumers.database import reading, transaction
from consumers.keyring import key_id
from consumers.replays import replay_items, replays
from consumers.rotation import Rotation, rotate, survey
from consumers.sealing import keyring_of, sealed
from consumers.storing import store
from tests.integration.letters import NOW, arrival
from tests.integration.mailroom import rows
from tests.integration.test_encryption import MARK, NEW, OLD, command, everything, stored, with_keys
from tests.integration.test_replay import ACT, now


def bodies(engine: sa.Engine) -> list[bytes]:
    """The content of every letter, opened."""
    with reading(engine) as connection:
        return [dead_letters.get(connection, row["id"])["body"] for row in rows(engine)]


def keys_of(engine: sa.Engine) -> set[str | None]:
    """The keys that letters, groups and alerts have."""
    with engine.connect() as connection:
        return {
            key
            for table in ("dead_letters", "failure_groups", "alerts")
            for key in connection.execute(sa.text(f"SELECT key_id FROM {table}")).scalars()
        }


def test_rows_follow_every_change_of_the_keys(engine: sa.Engine) -> None:
    """Turned on, rotated, turned off: each time every row follows, and every letter is what it was (D1)."""
    texts = [f"{MARK} {number}" for number in range(30)]
    stored(engine, *texts)
    expected = bodies(engine)
    for keys, sealing, reached in (
        ((OLD,), True, key_id(OLD)),
        ((NEW, OLD), True, key_id(NEW)),
        ((OLD, NEW), False, None),
    ):
        opened = with_keys(engine, *keys, sealing=sealing)
        assert survey(opened).waiting.total() > 30
        done = rotate(opened, ACT, clock=now)
        assert (done.to, done.unopened_rows, done.done) == (reached, 0, done.waiting.total())
        assert keys_of(engine) == {reached}
        assert {row["encrypted"] for row in rows(engine)} == {reached is not None}
        assert bodies(opened) == expected
        assert (MARK in everything(engine)) == (reached is None)
        assert survey(opened).waiting.total() == 0


def test_a_rotation_that_was_cut_off_goes_on(engine: sa.Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Half of the rows have the old key and half the new one: all are read, and the next run does the rest (D1)."""
    monkeypatch.setattr(rotation, "BATCH_ROWS", 7)
    both = with_keys(engine, NEW, OLD)
    stored(with_keys(engine, OLD), *(f"{MARK} {number}" for number in range(30)))
    expected = bodies(both)

    def cut(at: Rotation) -> None:
        if at.done > 10:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        rotate(both, ACT, clock=now, watch=cut)
    assert {row["key_id"] for row in rows(engine)} == {key_id(OLD), key_id(NEW)}
    assert bodies(both) == expected
    # Letters come meanwhile, from a drain that has only the old key yet.
    stored(with_keys(engine, OLD), "late")
    assert survey(both).waiting["dead_letters", key_id(OLD)] == 30 - 14 + 1
    rotate(both, ACT, clock=now)
    assert keys_of(engine) == {key_id(NEW)}
    assert bodies(with_keys(engine, NEW)) == [*expected, b"late" * 3]


def test_edited_letters_of_a_replay_follow_too(engine: sa.Engine) -> None:
    """What a person made of a letter is content as the letter is; rows without it have no key (D1, D5)."""
    (letter_id,) = stored(engine, "one")
    old = with_keys(engine, OLD)
    with transaction(old) as connection:
        replay_id = connection.execute(
            replays.insert()
            .values(created_at=NOW, actor="ann", reason="x", state="running", state_at=NOW, total=2)
            .returning(replays.c.id)
        ).scalar_one()
        item = {"replay_id": replay_id, "letter_id": letter_id, "state": "waiting"}
        edit = sealed(keyring_of(connection), "replay_items", {"edited_body": MARK.encode()})
        connection.execute(replay_items.insert().values(key="a", **item, **edit))
        connection.execute(replay_items.insert().values(key="b", **item))
    assert MARK not in everything(engine)
    rotate(with_keys(engine, NEW, OLD), ACT, clock=now)
    with engine.connect() as connection:
        found = connection.execute(sa.select(replay_items).order_by(replay_items.c.key)).all()
    assert [row.key_id for row in found] == [key_id(NEW), None]
    assert with_keys(engine, NEW).get_execution_options()["keyring"].open(key_id(NEW), found[0].edited_body) == (
        MARK.encode()
    )


def test_what_cannot_be_opened_stays_as_it_is(engine: sa.Engine) -> None:
    """A lost key or a changed token: the others follow, these are named, and the command exits with 1 (D1)."""
    lost, changed, good = stored(with_keys(engine, OLD), "lost", "changed", "good")
    rotate(with_keys(engine, NEW, OLD), ACT, clock=now)
    with transaction(engine) as connection:
        c = dead_letters.dead_letters.c
        connection.execute(dead_letters.dead_letters.update().where(c.id == lost).values(key_id="0123456789ab"))
        connection.execute(dead_letters.dead_letters.update().where(c.id == changed).values(body=b"gAAAAA"))
    before = {row["id"]: row for row in rows(engine)}
    done = command(engine, "db", "rotate-keys", "--no-dry-run", "--reason", "x", "--by", "ann", keys=[OLD, NEW])
    assert done.exit_code == 1
    assert f"letter {lost}: its content is encrypted with key 0123456789ab" in done.stderr
    assert f"letter {changed}: its content was changed" in done.stderr
    after = {row["id"]: row for row in rows(engine)}
    assert (after[lost], after[changed]) == (before[lost], before[changed])
    assert after[good]["key_id"] == key_id(OLD)


def test_the_command_only_says_what_it_would_do_unless_told(engine: sa.Engine) -> None:
    """Dry by default, a reason is required, and the audit log has who, why, when and how much (D1, D5)."""
    stored(engine, "one", "two")
    before = everything(engine)
    dry = command(engine, "db", "rotate-keys", keys=[NEW])
    assert (dry.exit_code, everything(engine)) == (0, before)
    assert "dead letters: 2 clear" in dry.output
    assert f"would become encrypted with key {key_id(NEW)}. Nothing was changed" in dry.output
    assert command(engine, "db", "rotate-keys", "--no-dry-run", "--by", "ann", keys=[NEW]).exit_code == 1
    told = ("--no-dry-run", "--reason", "policy", "--by", "ann", "--json")
    done = json.loads(command(engine, "db", "rotate-keys", *told, keys=[NEW]).stdout)
    assert (done["to"], done["done"], done["applied"]) == (
        key_id(NEW),
        sum(one["rows"] for one in done["rows"]),
        True,
    )
    with reading(engine) as connection:
        acts = connection.execute(sa.select(audit_log).where(audit_log.c.action == "rotate_keys")).all()
    assert [(act.actor, act.reason, json.loads(act.details)["stage"]) for act in acts] == [
        ("ann", "policy", "begun"),
        ("ann", "policy", "ended"),
    ]
    assert NEW not in everything(engine)


def test_a_batch_is_bounded_by_its_bytes(engine: sa.Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Large bodies are read a few at a time (D1)."""
    monkeypatch.setattr(rotation, "BATCH_BYTES", 1000)
    store(engine, [arrival("x", body=b"x" * 700) for _ in range(3)], now=NOW)
    steps: list[int] = []
    rotate(with_keys(engine, NEW), ACT, clock=now, watch=lambda at: steps.append(at.done))
    assert steps[:3] == [1, 2, 3]
