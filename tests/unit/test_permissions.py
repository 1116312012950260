"""Users with no more rights than their role needs, as definitions."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import stat
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from broker_topology.__main__ import main
from broker_topology.edit import new_definitions
from broker_topology.permissions import NOTHING, Role, password_hash, rights
from broker_topology.topology import parse_topology, read_topology

DEFINITIONS = Path(__file__).parent.parent.parent / "definitions.json"
ENVIRONMENT = {f"{role.upper()}_PASSWORD": f"secret of the {role}" for role in Role}


def test_passwords_are_salted_hashes() -> None:
    """A hash is RabbitMQ's: base64 of salt and SHA-256 of salt and password, and never twice the same (D3)."""
    raw = base64.b64decode(password_hash("test12", bytes.fromhex("908dc60a")))
    assert raw == bytes.fromhex("908dc60a") + hashlib.sha256(bytes.fromhex("908dc60a") + b"test12").digest()
    assert password_hash("test12") != password_hash("test12")


def test_the_definitions_hold_no_password() -> None:
    """Passwords come from the environment, and only their hashes go out (D3)."""
    result = CliRunner().invoke(main, ["permissions", str(DEFINITIONS), "--prefix", "office-"], env=ENVIRONMENT)
    assert result.exit_code == 0
    assert "secret of" not in result.output
    definitions = json.loads(result.stdout)
    names = ["office-deployer", "office-publisher", "office-worker", "office-drain"]
    assert [user["name"] for user in definitions["users"]] == names
    assert [permission["user"] for permission in definitions["permissions"]] == names


def test_generated_passwords_go_into_a_file_of_ones_own(tmp_path: Path) -> None:
    """What is not in the environment is generated into a new file that nobody else can read (D3)."""
    secrets = tmp_path / "passwords.env"
    some = dict(list(ENVIRONMENT.items())[:2]) | dict.fromkeys(list(ENVIRONMENT)[2:], "")
    refused = CliRunner().invoke(main, ["permissions", str(DEFINITIONS)], env=some)
    assert refused.exit_code == 2
    assert "WORKER_PASSWORD, DRAIN_PASSWORD not set" in refused.stderr
    arguments = ["permissions", str(DEFINITIONS), "--secrets", str(secrets)]
    result = CliRunner().invoke(main, arguments, env=some)
    assert result.exit_code == 0
    assert stat.S_IMODE(secrets.stat().st_mode) == 0o600
    generated = dict(line.split("=", 1) for line in secrets.read_text().splitlines())
    assert generated.keys() == {"WORKER_PASSWORD", "DRAIN_PASSWORD"}
    assert all(len(password) >= 32 and password not in result.output for password in generated.values())
    again = CliRunner().invoke(main, arguments, env=some)
    assert again.exit_code == 2
    assert "File exists" in again.stderr


def test_rights_are_explained() -> None:
    """``--explain`` prints each pattern with its reasons (D3)."""
    result = CliRunner().invoke(main, ["permissions", str(DEFINITIONS), "--explain"])
    assert result.exit_code == 0
    for own in rights(read_topology(DEFINITIONS)):
        assert own.read in result.output
        assert all(sentence in result.output for sentence in own.why)


@pytest.mark.parametrize(
    ("role", "may", "may_not"),
    [
        (Role.PUBLISHER, {"write": ["work", "celery_delayed_27"]}, {"write": ["payments", "dead-letters"]}),
        (Role.WORKER, {"read": ["payments"]}, {"read": ["dead-letters"], "configure": ["payments", "work"]}),
        (Role.DRAIN, {"read": ["dead-letters"], "write": ["work"]}, {"read": ["payments"], "write": ["payments"]}),
        (Role.DEPLOYER, {"configure": ["payments"]}, {"configure": ["other"]}),
    ],
)
def test_each_role_may_do_its_work_and_no_more(
    role: Role, may: dict[str, list[str]], may_not: dict[str, list[str]]
) -> None:
    """The patterns match what a role needs, whole names only (D3)."""
    [own] = [own for own in rights(read_topology(DEFINITIONS)) if own.role is role]
    for right, names in may.items():
        for name in names:
            assert re.search(getattr(own, right), name), (right, name)
            assert not re.search(getattr(own, right), f"{name}-more")
    for right, names in may_not.items():
        for name in names:
            assert not re.search(getattr(own, right), name), (right, name)


@settings(deadline=None)
@given(st.lists(st.text("ab.*|()[]\\^$+?{}-_ ", min_size=1, max_size=9), min_size=1, max_size=3, unique=True))
def test_names_are_taken_literally(names: list[str]) -> None:
    """A name with signs of regular expressions opens no other name (D3)."""
    # Queues are bound by their names, which must differ in their ends and hold no wildcard.
    assume(not any("*" in one.split(".") or one.endswith(f".{other}") for one in names for other in names))
    [worker] = [own for own in rights(parse_topology(new_definitions(tuple(names)))) if own.role is Role.WORKER]
    for name in names:
        assert re.search(worker.read, name)
        assert not re.search(worker.read, f"x{name}x") or f"x{name}x" in names
    assert re.search(NOTHING, "anything") is None
