"""The commands of broker-topology as a person meets them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from broker_topology.__main__ import main
from sandbox.processes import free_port

ROOT = Path(__file__).parent.parent.parent
COMMANDS = sorted(main.commands)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_examples_and_a_line_in_the_reference(command: str) -> None:
    """``--help`` shows how a command is used, and the reference has it (D3)."""
    shown = CliRunner().invoke(main, [command, "--help"])
    assert shown.exit_code == 0
    assert f"broker-topology {command}" in shown.output.partition("Examples:")[2]
    reference = (ROOT / "docs" / "reference" / "broker-topology.md").read_text()
    assert f"`{command} " in reference or f" {command} " in reference


@pytest.mark.parametrize("command", ["plan", "deploy", "verify", "migrate"])
def test_a_broker_that_is_down_is_one_sentence(command: str, tmp_path: Path) -> None:
    """Each command on a broker ends alike where there is none: one sentence, exit code 2, no password (D3)."""
    url = f"amqp://guest:secret-word@127.0.0.1:{free_port()}/"
    result = CliRunner().invoke(
        main, [command, str(ROOT / "definitions.json"), "--url", url], env={"HOME": str(tmp_path)}
    )
    assert result.exit_code == 2, result.output
    assert "cannot be reached" in result.stderr
    assert len(result.stderr.splitlines()) == 1
    assert "secret-word" not in result.output


def test_an_import_opens_no_connection_and_needs_no_environment() -> None:
    """Importing every room of the ground floor touches neither network nor environment (D3)."""
    script = (
        "import importlib, os, pkgutil, socket, sys\n"
        "def refuse(*_): raise RuntimeError('a connection')\n"
        "socket.socket.connect = refuse\n"
        "os.environ.clear()\n"
        "import broker_topology\n"
        "for room in pkgutil.walk_packages(broker_topology.__path__, 'broker_topology.'):\n"
        "    if not room.name.endswith('__main__'): importlib.import_module(room.name)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_dead_letters_starts_without_what_few_starts_need() -> None:
    """Alembic, Apprise and Celery's app are long to import, and large in a drain that runs for months (D1)."""
    script = (
        "import sys, consumers.__main__\n"
        "print(sorted({'alembic', 'apprise', 'celery.app', 'kombu.transport', 'psycopg'} & set(sys.modules)))"
    )
    loaded = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=ROOT)
    assert loaded.stdout == "[]\n"
