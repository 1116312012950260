"""Databases that stop taking letters, each in a way of its own, and take them again."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import sqlalchemy as sa

from consumers.database import open_database, require_schema


@dataclass(frozen=True, slots=True, kw_only=True)
class Outage:
    """One database with the schema of the dead letters, and how it goes away."""

    url: str
    """What the drain is told."""
    words: str
    """What has to be among the reasons of ``/readyz``."""
    begin: Callable[[], object]
    end: Callable[[], object]
    count_url: str = ""
    """Where rows can be counted even during the outage; empty where they cannot."""


@contextlib.contextmanager
def sqlite_full(folder: Path, _request: pytest.FixtureRequest) -> Iterator[Outage]:
    """A SQLite file on a disk that another file fills."""
    with _small_disk(folder / "disk") as disk:
        url = _with_schema(f"sqlite:///{disk}/letters.db")
        filler = disk / "filler"
        yield Outage(url=url, words="full", begin=lambda: _fill(filler), end=filler.unlink, count_url=url)


@contextlib.contextmanager
def sqlite_locked(folder: Path, _request: pytest.FixtureRequest) -> Iterator[Outage]:
    """A SQLite file that another process has locked."""
    url = _with_schema(f"sqlite:///{folder}/letters.db")
    blocker = open_database(url)
    connection = blocker.connect().execution_options(writes=True)
    yield Outage(url=url, words="database", begin=connection.begin, end=connection.rollback, count_url=url)
    connection.close()
    blocker.dispose()


@contextlib.contextmanager
def sqlite_read_only(folder: Path, _request: pytest.FixtureRequest) -> Iterator[Outage]:
    """A SQLite file on a disk that the kernel turns read-only after an error, and that is mounted anew."""
    _only_for_root()
    image, disk = folder / "image", folder / "disk"
    with image.open("wb") as file:
        file.truncate(64 * 2**20)
    _run("mkfs.ext4", "-q", image)
    disk.mkdir()
    devices = []

    def mount() -> None:
        # A device of its own each time: the kernel would give back the disk that it gave up.
        devices.append(_run("losetup", "--find", "--show", image).strip())
        _run("mount", devices[-1], disk)

    def mount_again() -> None:
        _run("umount", "--lazy", disk)
        mount()

    mount()
    try:
        url = _with_schema(f"sqlite:///{disk}/letters.db")
        yield Outage(
            url=url, words="database", begin=lambda: _run("mount", "-o", "remount,abort", disk), end=mount_again
        )
    finally:
        _run("umount", "--lazy", disk)
        for device in devices:
            _run("losetup", "--detach", device)


@contextlib.contextmanager
def postgresql_full(_folder: Path, request: pytest.FixtureRequest) -> Iterator[Outage]:
    """A database on a disk of its own that another table fills."""
    url = sa.make_url(request.getfixturevalue("postgresql_url"))
    name = f"small_{uuid.uuid4().hex[:12]}"
    with _disk_of_postgres(name) as disk:
        _admin(url, f"CREATE TABLESPACE {name} LOCATION '{disk}'", f"CREATE DATABASE {name} TABLESPACE {name}")
        own = url.set(database=name)
        text = own.render_as_string(hide_password=False)
        _with_schema(text)

        def fill() -> None:
            _admin(own, "CREATE TABLE filler (body text)", "ALTER TABLE filler ALTER body SET STORAGE PLAIN")
            for kilobytes in (512, 8, 1):
                with contextlib.suppress(sa.exc.OperationalError):
                    while True:
                        _admin(
                            own, f"INSERT INTO filler SELECT repeat('x', 900) FROM generate_series(1, {kilobytes})"
                        )

        yield Outage(
            url=text,
            words="No space left",
            begin=fill,
            end=lambda: _admin(own, "DROP TABLE filler"),
            count_url=text,
        )
        _admin(url, f"DROP DATABASE {name} WITH (FORCE)", f"DROP TABLESPACE {name}")


@contextlib.contextmanager
def postgresql_locked(_folder: Path, request: pytest.FixtureRequest) -> Iterator[Outage]:
    """A table that somebody else has locked."""
    url = _with_schema(request.getfixturevalue("postgresql_url"))
    blocker = open_database(url)
    connection = blocker.connect()
    yield Outage(
        url=url,
        words="database",
        begin=lambda: connection.execute(sa.text("LOCK TABLE dead_letters IN ACCESS EXCLUSIVE MODE")),
        end=connection.rollback,
    )
    connection.close()
    blocker.dispose()


@contextlib.contextmanager
def postgresql_read_only(_folder: Path, request: pytest.FixtureRequest) -> Iterator[Outage]:
    """A server that takes connections and refuses to write, as a standby does."""
    url = sa.make_url(_with_schema(request.getfixturevalue("postgresql_url")))
    setting = f"ALTER DATABASE {url.database} SET default_transaction_read_only"
    yield Outage(
        url=url.render_as_string(hide_password=False),
        words="read-only transaction",
        begin=lambda: _admin(url, f"{setting} = on", _END_SESSIONS),
        end=lambda: _admin(url, "SET default_transaction_read_only = off", f"{setting} = off", _END_SESSIONS),
        count_url=url.render_as_string(hide_password=False),
    )


@contextlib.contextmanager
def postgresql_without_connections(_folder: Path, request: pytest.FixtureRequest) -> Iterator[Outage]:
    """A server that has no connection left for the drain."""
    url = sa.make_url(_with_schema(request.getfixturevalue("postgresql_url")))
    role = f"drain_{uuid.uuid4().hex[:12]}"
    _admin(
        url,
        f"CREATE ROLE {role} LOGIN PASSWORD 'drain'",
        f"GRANT ALL ON ALL TABLES IN SCHEMA public TO {role}",
        f"GRANT ALL ON ALL SEQUENCES IN SCHEMA public TO {role}",
    )
    yield Outage(
        url=url.set(username=role, password="drain").render_as_string(hide_password=False),
        words="too many connections",
        begin=lambda: _admin(url, f"ALTER ROLE {role} CONNECTION LIMIT 0", _END_SESSIONS),
        end=lambda: _admin(url, f"ALTER ROLE {role} CONNECTION LIMIT -1"),
        count_url=url.render_as_string(hide_password=False),
    )
    _admin(url, f"DROP OWNED BY {role}", f"DROP ROLE {role}")


@contextlib.contextmanager
def postgresql_stopped(_folder: Path, request: pytest.FixtureRequest) -> Iterator[Outage]:
    """A server that crashes and is away for 30 s."""
    server = request.getfixturevalue("own_postgresql")
    url = _with_schema(server.url)

    def start_after_a_while() -> None:
        time.sleep(30)  # how long it is away is the point
        server.start()

    yield Outage(url=url, words="connection", begin=server.kill, end=start_after_a_while)


_END_SESSIONS = (
    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() "
    "AND pid <> pg_backend_pid()"
)


def _with_schema(url: str) -> str:
    engine = open_database(url)
    require_schema(engine, auto_upgrade=True)
    engine.dispose()
    return url


def _admin(url: sa.URL, *statements: str) -> None:
    engine = sa.create_engine(url, isolation_level="AUTOCOMMIT")
    try:
        with engine.connect() as connection:
            for statement in statements:
                connection.exec_driver_sql(statement)
    finally:
        engine.dispose()


@contextlib.contextmanager
def _disk_of_postgres(name: str) -> Iterator[Path]:
    """A small disk where a server that does not run as root can reach it."""
    with tempfile.TemporaryDirectory(prefix="office-") as folder:
        Path(folder).chmod(0o755)
        with _small_disk(Path(folder) / name) as disk:
            shutil.chown(disk, "postgres")
            yield disk


@contextlib.contextmanager
def _small_disk(folder: Path) -> Iterator[Path]:
    _only_for_root()
    folder.mkdir()
    _run("mount", "-t", "tmpfs", "-o", "size=32m", "tmpfs", folder)
    try:
        yield folder
    finally:
        _run("umount", "--lazy", folder)


def _fill(filler: Path) -> None:
    with filler.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(bytes(4096))


def _only_for_root() -> None:
    if os.getuid() != 0:
        if os.environ.get("CI"):
            pytest.fail("only root can mount a disk")
        pytest.skip("only root can mount a disk")


def _run(*command: str | Path) -> str:
    return subprocess.run([str(part) for part in command], check=True, capture_output=True, text=True).stdout
