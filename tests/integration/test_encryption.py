"""Content encrypted at rest: nothing to read in the database, nothing lost, and all of it there with the key."""

from __future__ import annotations

import json
import pickle
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import alembic.command
import pytest
import redis
import sqlalchemy as sa
from click.testing import CliRunner, Result
from cryptography.fernet import Fernet

from broker_topology.notes import FailureNote, failure_note_key
from broker_topology.raw_headers import RawHeader
from consumers import alerts, dead_letters, finding, groups, late_notes, showing
from consumers.__main__ import main
from consumers.alert_config import AlertConfig, ChannelConfig
from consumers.database import alembic_config, metadata, open_database, reading, transaction, upgrade
from consumers.dead_letters import Filter, UnsearchableError
from consumers.failure_notes import FailureNotes
from consumers.filing import Filing
from consumers.inserting import Arrival
from consumers.keyring import Keyring, SealedError, key_id
from consumers.letters import Letter, read_letter
from consumers.masking import read_masking
from consumers.publisher import Publisher
from consumers.regroup import regroup
from consumers.replay import ReplayOptions, begin, run, select
from consumers.storing import store
from sandbox.processes import eventually
from tests.conftest import DEFINITIONS, VirtualHost
from tests.integration.hostile_messages import CATALOGUE
from tests.integration.letters import NOW, arrival, letter
from tests.integration.mailroom import (
    DEAD_LETTER_QUEUE,
    TOPOLOGY,
    WORK_QUEUE,
    depth,
    draining,
    let_die,
    long,
    publish,
    raw_properties,
    rows,
    stored_rows,
    take,
    task_headers,
)
from tests.integration.test_hostile_messages import delivery
from tests.integration.test_replay import ACT, now

NEW, OLD = Fernet.generate_key().decode(), Fernet.generate_key().decode()
MARK = "marzipan"
"""A word that stands in every part of a message."""
BODY = json.dumps([[MARK], {"note": MARK}, {"chain": None}]).encode()


def with_keys(engine: sa.Engine, *keys: str, sealing: bool = True) -> sa.Engine:
    """The same database, opened with keys."""
    return engine.execution_options(keyring=Keyring(keys, sealing=sealing))


def everything(engine: sa.Engine) -> str:
    """Each value of each table, as whoever steals the database reads it."""
    found = []
    with engine.connect() as connection:
        for table in metadata.sorted_tables:
            for row in connection.execute(sa.text(f"SELECT * FROM {table.name}")):
                found += [
                    bytes(value).decode("latin-1") if isinstance(value, bytes | memoryview) else str(value)
                    for value in row
                ]
    return "\n".join(found)


def stored(engine: sa.Engine, *texts: str) -> list[int]:
    """Letters that died of these errors, by their ids."""
    arrivals = [arrival(text, body=text.encode() * 3, args=json.dumps([text]), kwargs="{}") for text in texts]
    return [new.letter_id for new in store(engine, arrivals, now=NOW).new]


def command(engine: sa.Engine, *arguments: str, keys: Sequence[str] = (), **environment: str) -> Result:
    """Run a command as a person does, with keys in the environment."""
    url = engine.url.render_as_string(hide_password=False)
    env = {"DATABASE_URL": url, "ENCRYPTION_KEYS": ",".join(keys), "COLUMNS": "300", **environment}
    return CliRunner().invoke(main, arguments, env=env, catch_exceptions=False)


def test_nothing_of_a_message_can_be_read_in_the_database(
    deployed: VirtualHost, redis_url: str, engine: sa.Engine
) -> None:
    """Body, headers, arguments, failure note, group and alert of a real death; with the key all is there (D1)."""
    note = FailureNote(
        reason="failed", error_type="shop.Refused", error_message=f"{MARK} is refused", failed_at=now(),
        traceback=f"Traceback ... {MARK}",
    )  # fmt: skip
    with redis.Redis.from_url(redis_url) as client:
        client.set(failure_note_key("t-1", 0), note.to_json())
    headers = [*task_headers(task_id="t-1"), (b"customer", long(MARK.encode()))]
    messages = [
        (raw_properties(headers), BODY),
        (raw_properties(task_headers(task_id="t-2"), content_type=b"marzipan/plain"), pickle.dumps([MARK])),
    ]
    publish(deployed.url, messages, exchange="work", routing_key=WORK_QUEUE)
    let_die(deployed.url, 2)
    sealed = with_keys(engine, NEW)
    with draining(deployed.url, sealed, redis_url=redis_url):
        found = stored_rows(engine, 2)
    assert MARK not in everything(engine)
    assert {row["key_id"] for row in found} == {key_id(NEW)}
    assert all(row["encrypted"] and row["queue"] == WORK_QUEUE and row["reason"] == "rejected" for row in found)
    with reading(sealed) as connection:
        first, second = (dead_letters.get(connection, row["id"]) for row in sorted(found, key=lambda r: r["task_id"]))
        assert any(MARK in group["title"] for group in groups.page(connection))
    assert (first["body"], second["body"]) == (BODY, pickle.dumps([MARK]))
    assert (first["args"], first["error_message"]) == (f'["{MARK}"]', f"{MARK} is refused")
    assert MARK in first["traceback"]
    assert RawHeader.parse(first["properties"]).text("customer") == MARK
    assert MARK in second["decode_problem"]


def test_hostile_messages_are_sealed_and_opened_to_the_byte(engine: sa.Engine) -> None:
    """The whole catalogue: each a row that is opened as it came, shown and listed (D1, D2)."""
    sealed = with_keys(engine, NEW)
    letters = [read_letter(delivery(hostile), now=NOW, unroutable=False) for hostile in CATALOGUE]
    new = store(sealed, [Arrival(letter=one) for one in letters], now=NOW).new
    assert len(new) == len(CATALOGUE)
    with reading(sealed) as connection:
        for one in new:
            row = dead_letters.get(connection, one.letter_id)
            came = one.arrival.letter
            assert (row["body"], row["properties"]) == (came.body, came.properties)
            assert (row["args"], row["kwargs"], row["decode_problem"]) == (
                came.args,
                came.kwargs,
                came.decode_problem,
            )
            assert showing.as_json(showing.described(row))


def test_an_alert_is_sent_as_ever_and_waits_encrypted(engine: sa.Engine) -> None:
    """The outbox has nothing to read; who has no key any more still says that there is something (D1, D4)."""
    config = AlertConfig(channels=(ChannelConfig(name="hook", url="http://127.0.0.1:9/"),))
    sealed = with_keys(engine, NEW)
    store(sealed, [arrival(f"{MARK} a", args=f'["{MARK}"]')], now=NOW, filing=Filing(config))
    assert MARK not in everything(engine)
    with sealed.connect() as connection:
        (delivery,) = alerts.claim(connection, "hook", now=now(), limit=5)
    assert delivery.facts["letter"]["args"] == f'["{MARK}"]'
    assert MARK in delivery.facts["group"]["title"]
    with with_keys(engine, OLD).connect() as connection:
        (delivery,) = alerts.claim(connection, "hook", now=now(), limit=5)
    assert "encrypted" in delivery.facts["note"]


def test_a_death_is_known_again(deployed: VirtualHost, engine: sa.Engine) -> None:
    """A redelivery after a kill is one row, across a change of keys, with an id and without (D1)."""
    messages = [(raw_properties(task_headers(task_id="t-1")), BODY), (raw_properties(None), b"no id")]
    publish(deployed.url, messages, exchange="work", routing_key=WORK_QUEUE)
    let_die(deployed.url, 2)
    eventually(lambda: depth(deployed.url, DEAD_LETTER_QUEUE) == 2)
    died = [(raw, body) for raw, body, _ in take(deployed.url, DEAD_LETTER_QUEUE, ack=False) if body == BODY]
    with draining(deployed.url, with_keys(engine, OLD)):
        stored_rows(engine, 2)
    publish(deployed.url, died, exchange="dead-letters", routing_key=WORK_QUEUE)
    with draining(deployed.url, with_keys(engine, NEW, OLD)):
        eventually(lambda: depth(deployed.url, DEAD_LETTER_QUEUE) == 0)
    assert len(stored_rows(engine, 2)) == 2
    # What has no id is recognised by its content, which is counted among what was stored lately.
    copies = [
        arrival(identity=f"copy-{number}", content_hash="h", redelivered=bool(number), task_id=None)
        for number in range(2)
    ]
    assert len(store(with_keys(engine, NEW), copies[:1], now=NOW).new) == 1
    assert store(with_keys(engine, OLD), copies[1:], now=NOW).known == 1


def test_a_replay_sends_the_original_bytes(deployed: VirtualHost, engine: sa.Engine) -> None:
    """With the key; without it nothing is claimed, and one that was cut off waits for the key (D5)."""
    publish(deployed.url, [(raw_properties(task_headers()), BODY)], exchange="work", routing_key=WORK_QUEUE)
    let_die(deployed.url, 1)
    sealed = with_keys(engine, NEW)
    with draining(deployed.url, sealed):
        (row,) = stored_rows(engine, 1)
    with pytest.raises(SealedError, match=f"letter {row['id']}: .* key {key_id(NEW)}"):
        begin(with_keys(engine, OLD), ACT, [row["id"]], now=now())
    assert rows(engine)[0]["state"] == "open"
    report = begin(sealed, ACT, [row["id"]], now=now(), options=ReplayOptions())
    with Publisher(deployed.url) as publisher:
        with pytest.raises(SealedError):
            run(with_keys(engine, OLD), publisher, TOPOLOGY, report, clock=now)
        assert rows(engine)[0]["state"] == "replaying"
        assert run(sealed, publisher, TOPOLOGY, report, clock=now).published == [row["id"]]
    ((_, body, _),) = take(deployed.url, WORK_QUEUE)
    assert body == BODY


def test_a_late_note_is_sealed_with_the_key_of_its_letter(redis_url: str, engine: sa.Engine) -> None:
    """Also after the newest key has changed; a letter whose key is away waits and holds up nobody (D1, D2)."""
    waiting: list[tuple[sa.Engine, Letter]] = [
        (with_keys(engine, OLD), letter(task_id="old", note_task_id="old")),
        (with_keys(engine, NEW), letter(task_id="new", note_task_id="new")),
        (engine, letter(task_id="clear", note_task_id="clear")),
    ]
    note = FailureNote(reason="failed", error_type="shop.Refused", error_message=MARK, failed_at=NOW)
    with redis.Redis.from_url(redis_url) as client:
        for opened, one in waiting:
            key = failure_note_key(str(one.note_task_id), 0)
            client.set(key, note.to_json())
            store(opened, [Arrival(letter=one, note_key=key)], now=NOW)
    notes = FailureNotes(redis_url)
    assert late_notes.complete(with_keys(engine, NEW), notes, Filing(), now=NOW) == 2
    assert late_notes.complete(with_keys(engine, NEW, OLD), notes, Filing(), now=NOW) == 1
    notes.close()
    with reading(with_keys(engine, NEW, OLD)) as connection:
        found = finding.find(connection, Filter(), limit=10).letters
    assert [row["key_id"] for row in found] == [None, key_id(NEW), key_id(OLD)]
    assert {(row["error_message"], row["note_key"], row["group_id"]) for row in found} == {
        (MARK, None, found[0]["group_id"])
    }
    assert [row["error_message"] for row in rows(engine) if row["key_id"] is None] == [MARK]
    assert MARK not in "".join(row["error_message"] for row in rows(engine) if row["key_id"])


def test_lists_show_what_is_clear_without_the_key(engine: sa.Engine) -> None:
    """List, groups and show work as far as they can, and say in one sentence which key is missing (D1)."""
    (letter_id,) = stored(with_keys(engine, NEW), f"{MARK} is refused")
    for keys, readable in (((NEW,), True), ((), False), ((OLD,), False)):
        listed, grouped = command(engine, "list", keys=keys), command(engine, "groups", keys=keys)
        assert (listed.exit_code, grouped.exit_code) == (0, 0)
        assert (MARK in listed.output, MARK in grouped.output) == (readable, readable)
        assert "payments.charge_customer" in listed.output
        shown = command(engine, "show", str(letter_id), "--json", keys=keys)
        assert (MARK in shown.stdout, shown.exit_code) == (readable, 0 if readable else 1)
        assert json.loads(shown.stdout)["task_name"] == "payments.charge_customer"
        if not readable:
            assert shown.stderr == (
                f"dead-letters: letter {letter_id}: its content is encrypted with key {key_id(NEW)}, "
                "which is not among ENCRYPTION_KEYS\n"
            )


def test_configured_names_and_looks_are_masked_wherever_a_letter_is_shown(engine: sa.Engine) -> None:
    """In show, in list and in the sample of an alert, clear or encrypted; what is stored stays exact (D1, D4)."""
    args, kwargs = '["CUST-17"]', '{"birthday": "1970-01-01", "card_number": "4111111111111111"}'
    one = arrival("CUST-17 is unknown", args=args, kwargs=kwargs)
    config = AlertConfig(channels=(ChannelConfig(name="hook", url="http://127.0.0.1:9/"),))
    filing = Filing(config, read_masking("birthday", r"CUST-\d+"))
    (new,) = store(with_keys(engine, NEW), [one], now=NOW, filing=filing).new
    environment = {"MASK_NAMES": "birthday", "MASK_PATTERN": r"CUST-\d+"}
    shown = command(engine, "show", str(new.letter_id), "--json", keys=[NEW], **environment)
    listed = command(engine, "list", "--json", keys=[NEW], **environment)
    with with_keys(engine, NEW).connect() as connection:
        (delivery,) = alerts.claim(connection, "hook", now=now(), limit=5)
    for text in (shown.stdout, listed.stdout, json.dumps(delivery.facts["letter"], default=str)):
        assert text
        assert not any(secret in text for secret in ("CUST-17", "1970-01-01", "4111111111111111"))
    with reading(with_keys(engine, NEW)) as connection:
        assert dead_letters.get(connection, new.letter_id)["kwargs"] == kwargs
    refused = command(engine, "list", MASK_PATTERN="(")
    assert (refused.exit_code, "MASK_PATTERN is no regular expression" in refused.stderr) == (78, True)


def test_a_search_says_what_it_does_not_look_into(engine: sa.Engine) -> None:
    """Clear letters are found, encrypted ones are counted, and no token matches by chance; acts refuse (D1, D5)."""
    stored(with_keys(engine, NEW), f"{MARK} 1", f"{MARK} 2")
    (clear,) = stored(engine, f"{MARK} 3")
    searched = command(engine, "list", "--search", MARK, "--json", keys=[NEW])
    assert [json.loads(line)["id"] for line in searched.stdout.splitlines()] == [clear]
    assert "encrypted letters: 2 were passed over" in searched.stderr
    assert command(engine, "list", "--search", "gAAAA", "--json", keys=[NEW]).stdout == ""
    with pytest.raises(UnsearchableError):
        select(engine, Filter(search=MARK))
    assert command(engine, "list", "--search", MARK, "--queue", "crm").stderr == ""


def test_wrong_keys_stop_the_drain_and_are_never_shown(engine: sa.Engine, tmp_path: Path) -> None:
    """Exit code 78 and one sentence; `config` hides keys and shows their file (D1)."""
    wrong = {"ENCRYPTION_KEYS": NEW + "oops", "TOPOLOGY_FILE": str(DEFINITIONS)}
    refused = command(engine, "drain", **wrong)
    assert (refused.exit_code, refused.stdout) == (78, "")
    assert refused.stderr == ("dead-letters: encryption key 1 of 1 is no Fernet key: 32 bytes in URL-safe base64\n")
    absent = command(engine, "drain", ENCRYPT_LETTERS="true", TOPOLOGY_FILE=str(DEFINITIONS))
    assert (absent.exit_code, "there is no key" in absent.stderr) == (78, True)
    file = tmp_path / "keys"
    for shown in (command(engine, "config", keys=[NEW]), command(engine, "config", "--json", keys=[NEW])):
        assert NEW not in shown.output
        assert "ENCRYPTION_KEYS" in shown.output
    assert str(file) in command(engine, "config", "--json", ENCRYPTION_KEYS_FILE=str(file)).output


def test_regrouping_opens_what_it_reads(engine: sa.Engine) -> None:
    """A dry run finds nothing to move; without the key it refuses in one sentence (D4)."""
    stored(with_keys(engine, NEW), f"{MARK} a", f"{MARK} b")
    assert not regroup(with_keys(engine, OLD, NEW), None, now=now()).moves
    refused = command(engine, "regroup")
    assert (refused.exit_code, "is not among ENCRYPTION_KEYS" in refused.stderr) == (78, True)


def test_a_database_is_taken_down_only_when_nothing_is_encrypted(engine: sa.Engine) -> None:
    """The downgrade would take the names of the keys away: it refuses until all rows are clear (D1)."""

    def downgrade() -> None:
        with engine.begin() as connection:
            config = alembic_config()
            config.attributes["connection"] = connection
            alembic.command.downgrade(config, "0004")

    (letter_id,) = stored(with_keys(engine, NEW), MARK)
    with pytest.raises(RuntimeError, match="decrypt them first"):
        downgrade()
    with transaction(engine) as connection:
        for table in ("dead_letters", "failure_groups", "alerts"):
            connection.execute(sa.text(f"UPDATE {table} SET key_id = NULL"))
    downgrade()
    assert "key_id" not in {column["name"] for column in sa.inspect(engine).get_columns("dead_letters")}
    upgrade(engine)
    assert [row["id"] for row in rows(engine)] == [letter_id]


@pytest.mark.parametrize("revision", ["0001", "0002", "0003", "0004"])
def test_letters_of_every_earlier_revision_are_read_and_encrypted(database_url: str, revision: str) -> None:
    """Stored before there were keys, readable after, and sealed by a rotation (D1)."""
    engine = open_database(database_url)
    upgrade(engine, revision)
    with engine.begin() as connection:
        moment: Any = NOW.replace(tzinfo=None) if engine.dialect.name == "sqlite" else NOW
        values: dict[str, Any] = dict.fromkeys(("drained_queue", "queue", "exchange", "routing_key", "reason"), "x")
        values |= {"identity": "i", "args": f'["{MARK}"]', "body": MARK.encode(), "properties": b"\0\0"}
        values |= dict.fromkeys(("state_at", "stored_at", "died_at"), moment) | {"body_bytes": len(MARK)}
        names = ", ".join(values)
        marks = ", ".join(f":{name}" for name in values)
        connection.execute(sa.text(f"INSERT INTO dead_letters ({names}) VALUES ({marks})"), values)
    upgrade(engine)
    rotated = command(engine, "db", "rotate-keys", "--no-dry-run", "--reason", "policy", "--by", "ann", keys=[NEW])
    assert rotated.exit_code == 0, rotated.output
    assert MARK not in everything(engine)
    with reading(with_keys(engine, NEW)) as connection:
        assert dead_letters.get(connection, 1)["body"] == MARK.encode()
    engine.dispose()
