"""docs/quickstart.md does what it says."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from sandbox.processes import eventually
from sandbox.road import BIN, ROOT, Road
from sandbox.services import OutsideServices
from tests.conftest import VirtualHost

PAGE = ROOT / "docs" / "quickstart.md"


def test_the_quickstart_can_be_followed(
    vhost: VirtualHost, redis_url: str, services: OutsideServices, tmp_path: Path
) -> None:
    """Every command of the page succeeds, and the story ends with one invoice. (I1, D1, D5)"""
    reader = Road(
        folder=tmp_path,
        amqp_url=vhost.url,
        management_url=vhost.management_url,
        redis_url=redis_url,
        database_url=f"sqlite:///{tmp_path}/dead-letters.db",
        definitions=tmp_path / "definitions.json",
        services=services,
        task_modules="",
        more_environment={"PATH": f"{BIN}:/usr/bin:/bin", "COLUMNS": "118"},
    )
    text = PAGE.read_text()
    (program,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    (tmp_path / "shop.py").write_text(program)
    try:
        for command in commands(text):
            if command.endswith(" &"):
                start(reader, command.removesuffix(" &").split())
            elif command in EXPECTED:
                eventually(partial(shows, reader, command, EXPECTED[command]), what=f"the outcome of {command}")
            else:
                run(reader, command)
        eventually(lambda: reader.depth("billing") == 0)
    finally:
        reader.stop()
    assert (tmp_path / "invoices.txt").read_text() == "ada@example.org 4200\n"


def run(reader: Road, command: str) -> str:
    """Type a command into a shell; returns what it prints."""
    done = subprocess.run(
        ["bash", "-c", command],
        env=reader.environment,
        cwd=reader.folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
    return done.stdout


def shows(reader: Road, command: str, expected: str) -> bool:
    """Whether a command shows what the page promises."""
    return expected in run(reader, command)


def start(reader: Road, command: list[str]) -> None:
    """Leave a command running; a worker is waited for."""
    process = reader.start(command[0], command)
    if command[0] == "celery":
        process.until_ready(lambda: " ready." in process.output())


EXPECTED = {
    "dead-letters list": "there is no customer ada",
    "dead-letters list --state settled": "billing.invoice",
    "dead-letters replays show 1": "customer added",
}
"""What is awaited where a page's reader would look again."""


def commands(text: str) -> Iterator[str]:
    """The commands of a page, but for those that set up the reader's environment."""
    for block in re.findall(r"```console\n(.*?)```", text, re.DOTALL):
        for line in block.splitlines():
            if line.startswith("$ ") and not line.startswith(("$ pip ", "$ export ")):
                yield line.removeprefix("$ ")
