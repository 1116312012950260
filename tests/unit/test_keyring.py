"""Keys of encryption at rest: read, refused, and what they seal and open."""

from __future__ import annotations

import base64
import sys
from pathlib import Path
from typing import Any

import pytest
from cryptography.fernet import Fernet

from broker_topology.errors import ConfigurationError
from consumers.keyring import Keyring, SealedError, key_id, read_keyring

# Always the same, for they name tests: several processes of pytest must collect the same ones.
NEW, OLD = (base64.urlsafe_b64encode(bytes([number]) * 32).decode() for number in (1, 2))


@pytest.mark.parametrize("content", ["", "text ü", b"", b"\x00\xff bytes" * 1000])
def test_what_is_sealed_is_opened_to_the_byte(content: Any) -> None:
    """Text stays text and bytes stay bytes; any Fernet opens the token (D1)."""
    keyring = Keyring([NEW, OLD])
    token = keyring.seal(content, key=key_id(NEW))
    assert type(token) is type(content)
    assert keyring.open(key_id(NEW), token) == content
    plain = content.encode() if isinstance(content, str) else content
    assert Fernet(NEW).decrypt(token) == plain


def test_the_newest_key_seals_and_every_key_opens() -> None:
    """An older key opens what it sealed; with sealing off all of them only open (D1)."""
    token = Keyring([OLD]).seal("x", key=key_id(OLD))
    assert Keyring([NEW, OLD]).sealing_key_id == key_id(NEW)
    assert Keyring([NEW, OLD]).open(key_id(OLD), token) == "x"
    assert Keyring([NEW], sealing=False).sealing_key_id is None
    assert Keyring().sealing_key_id is None


def test_a_key_that_is_missing_and_content_that_was_changed_are_told_apart() -> None:
    """By the id of the key, which does not lead back to it (D1)."""
    token = Keyring([OLD]).seal(b"x", key=key_id(OLD))
    with pytest.raises(SealedError, match=f"key {key_id(OLD)}, which is not among"):
        Keyring([NEW]).open(key_id(OLD), token)
    with pytest.raises(SealedError, match="was changed"):
        Keyring([OLD]).open(key_id(OLD), token[:-4] + b"AAA=")
    assert key_id(OLD) not in OLD


@pytest.mark.parametrize("text", [f"{NEW},{OLD}", f" {NEW} , {OLD}\n", f"{NEW}\n{OLD}\n"])
def test_keys_come_from_a_text_or_a_file(text: str, tmp_path: Path) -> None:
    """Separated by commas, spaces or lines, the newest first (D1)."""
    file = tmp_path / "keys"
    file.write_text(text)
    for keyring in (read_keyring(text, None, encrypt=None), read_keyring(None, file, encrypt=True)):
        assert keyring.key_ids == (key_id(NEW), key_id(OLD))
        assert keyring.sealing_key_id == key_id(NEW)
    assert read_keyring(text, None, encrypt=False).sealing_key_id is None
    assert read_keyring(None, None, encrypt=None).key_ids == ()


@pytest.mark.parametrize(
    ("keys", "file", "encrypt", "words"),
    [
        (f"{NEW},{OLD[:-2]}", None, None, "encryption key 2 of 2 is no Fernet key"),
        (f"{NEW}oops", None, None, "encryption key 1 of 1 is no Fernet key"),
        ("secret", None, None, "encryption key 1 of 1 is no Fernet key"),
        ("sécret", None, None, "encryption key 1 of 1 is no Fernet key"),
        (f"{NEW},{NEW}", None, None, "given twice"),
        (None, None, True, "there is no key"),
        (NEW, "keys", None, "not both"),
        (None, "missing", None, "cannot be read"),
        (None, "empty", None, "has no key in it"),
    ],
)
def test_wrong_keys_are_refused_without_being_told(
    tmp_path: Path, keys: str | None, file: str | None, encrypt: bool | None, words: str
) -> None:
    """Which of them and why, in one sentence, and nothing of the key itself (D1)."""
    (tmp_path / "empty").write_text("\n")
    with pytest.raises(ConfigurationError, match=words) as caught:
        read_keyring(keys, tmp_path / file if file else None, encrypt=encrypt)
    for key in (keys or "").split(","):
        assert not key or key not in str(caught.value)
    assert caught.value.__cause__ is None or "cannot be read" in words


def test_without_the_library_it_is_said_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever encrypts nothing needs no cryptography (D1)."""
    monkeypatch.setitem(sys.modules, "cryptography.fernet", None)
    assert read_keyring(None, None, encrypt=None).key_ids == ()
    with pytest.raises(ConfigurationError, match="pip install"):
        read_keyring(NEW, None, encrypt=None)
