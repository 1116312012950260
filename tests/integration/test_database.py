"""The schema of the dead letters: made by migrations, equal to the models, refused when unknown."""

from __future__ import annotations

import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext

from broker_topology.errors import ConfigurationError
from consumers import audit, database, dead_letters, finding, replays
from consumers.database import (
    SchemaError,
    head_revision,
    metadata,
    open_database,
    require_schema,
    schema_revision,
    upgrade,
)
from tests.conftest import DEFINITIONS


def run(database_url: str, *arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "consumers", *arguments],
        env={"DATABASE_URL": database_url, "TOPOLOGY_FILE": str(DEFINITIONS), "PATH": "", "COLUMNS": "200"},
        capture_output=True,
        text=True,
        cwd=cwd,
        check=False,
    )


def test_the_migrations_make_what_the_models_declare(engine: sa.Engine) -> None:
    """No table, column or index differs (D1)."""
    assert {audit.audit_log.name, replays.replays.name, dead_letters.dead_letters.name} <= set(metadata.tables)
    with engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True})
        assert compare_metadata(context, metadata) == []


def test_rows_survive_the_way_from_the_first_revision(database_url: str) -> None:
    """A letter stored under revision 0001 is there, unchanged, under the newest (D1)."""
    engine = open_database(database_url)
    upgrade(engine, "0001")
    values = {"now": datetime.now(UTC).replace(tzinfo=None).isoformat(" ")}
    with engine.begin() as connection:
        connection.execute(
            sa.text(
                "INSERT INTO dead_letters (identity, state_at, stored_at, died_at, drained_queue, queue, exchange, "
                "routing_key, reason, body_bytes, body, properties) VALUES ('i', :now, :now, :now, 'd', 'q', 'e', "
                "'k', 'rejected', 1, '\\x00', '\\x00')".replace(
                    "'\\x00'", "x'00'" if "sqlite" in database_url else "'\\x00'"
                )
            ),
            values,
        )
    upgrade(engine)
    assert schema_revision(engine) == head_revision()
    with database.reading(engine) as connection:
        (letter,) = finding.find(connection, dead_letters.Filter(), limit=10).letters
    assert (letter["identity"], letter["state"], letter["reason"]) == ("i", "open", "rejected")
    engine.dispose()


def test_an_unknown_schema_is_refused_with_the_command_to_run(postgresql_url: str, tmp_path: Path) -> None:
    """PostgreSQL is never upgraded unasked; a newer schema is said to be newer (D1)."""
    refused = run(postgresql_url, "drain", cwd=tmp_path)
    assert refused.returncode == 78
    assert "dead-letters db upgrade" in refused.stderr
    assert "Traceback" not in refused.stderr
    assert "now" in run(postgresql_url, "db", "upgrade", cwd=tmp_path).stdout
    assert "already" in run(postgresql_url, "db", "upgrade", cwd=tmp_path).stdout
    engine = open_database(postgresql_url)
    with engine.begin() as connection:
        connection.execute(sa.text("UPDATE alembic_version SET version_num = '9999'"))
    with pytest.raises(SchemaError, match="newer than this version"):
        require_schema(engine)
    engine.dispose()


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["list"], 0, "No dead letters."),
        (["show", "7"], 1, "there is no dead letter 7"),
        (["discard", "7", "--reason", " "], 1, "a reason is required"),
        (["replay", "--reason", "x"], 2, "say which letters"),
        (["replays"], 0, "No replays."),
        (["purge", "--settled", "--older-than", "90d"], 0, "0 letters would go"),
        (["purge", "--settled", "--older-than", "soon"], 2, "no duration"),
        (["config"], 0, "DATABASE_URL"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_each_command_says_what_is_wrong_in_one_sentence(
    tmp_path: Path, arguments: list[str], code: int, words: str
) -> None:
    """Exit codes and errors are for scripts and people alike, never a traceback (D5)."""
    done = run(f"sqlite:///{tmp_path}/letters.db", *arguments, cwd=tmp_path)
    assert done.returncode == code, done.stderr
    assert words in done.stdout + done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("sqlite://", "names no file"),
        ("sqlite:///:memory:", "names no file"),
        ("mysql://127.0.0.1/letters", "names mysql"),
        ("letters.db", "is not a database address"),
    ],
)
def test_an_address_that_cannot_serve_is_refused(url: str, words: str) -> None:
    """A wrong DATABASE_URL is a configuration error in words (D1)."""
    with pytest.raises(ConfigurationError, match=words):
        open_database(url)


def test_the_connection_that_was_used_last_is_used_next(engine: sa.Engine) -> None:
    """Taken in turn, each connection of a drain grows by the pages and statements of what it stores (D1)."""
    first, last = engine.connect(), engine.connect()
    driver = last.connection.driver_connection
    first.close()
    last.close()
    with engine.connect() as following:
        assert following.connection.driver_connection is driver


def test_passwords_are_never_shown(tmp_path: Path) -> None:
    """`config` hides them, and so does an error (D1)."""
    shown = run("postgresql://ann:s3cret@127.0.0.1:1/letters", "config", cwd=tmp_path)
    failed = run("postgresql://ann:s3cret@127.0.0.1:1/letters", "list", cwd=tmp_path)
    assert "s3cret" not in shown.stdout + shown.stderr + failed.stdout + failed.stderr
    assert failed.returncode == 75
