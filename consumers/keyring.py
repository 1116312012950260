"""The keys that content is encrypted with at rest: the newest one seals, every one opens what it sealed.

A sealed value is a Fernet token (AES-128 in CBC mode, with an HMAC): https://github.com/fernet/spec. Beside it stands
the id of its key, so that a key that is missing can be named.
"""

from __future__ import annotations

import hashlib
import importlib
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar

from broker_topology.errors import ConfigurationError

_KEY = re.compile(r"[A-Za-z0-9_-]{43}=")
Content = TypeVar("Content", str, bytes)


class SealedError(ConfigurationError):
    """Content is encrypted, and the keys at hand do not open it."""


class Keyring:
    """Keys, newest first. Without any, nothing is sealed; with ``sealing=False`` they only open."""

    def __init__(self, keys: Sequence[str] = (), *, sealing: bool = True) -> None:
        """Raises ConfigurationError for what is no key; it says which one, and never what it is."""
        self._fernets: dict[str, Any] = {}
        for number, key in enumerate(keys, 1):
            # Fernet itself overlooks what stands behind the padding: a key with a slip in it would be another key.
            if not _KEY.fullmatch(key):
                raise ConfigurationError(
                    f"encryption key {number} of {len(keys)} is no Fernet key: 32 bytes in URL-safe base64"
                )
            self._fernets[key_id(key)] = _fernet().Fernet(key)
        self.sealing_key_id: str | None = next(iter(self._fernets), None) if sealing else None
        """The key that seals; None where what is stored now stays clear."""

    @property
    def key_ids(self) -> tuple[str, ...]:
        """The keys that open, newest first."""
        return tuple(self._fernets)

    def seal(self, content: Content, *, key: str) -> Content:
        """A token of a key that is at hand, as text for text and as bytes for bytes."""
        fernet = self._fernets[key]
        if isinstance(content, str):
            return str(fernet.encrypt(content.encode()), "ascii")
        token: bytes = fernet.encrypt(bytes(content))
        return token

    def open(self, key: str, token: Content) -> Content:
        """What was sealed with a key. Raises SealedError."""
        fernet = self._fernets.get(key)
        if fernet is None:
            raise SealedError(no_such_key(key))
        try:
            content: bytes = fernet.decrypt(token if isinstance(token, str) else bytes(token))
            return content.decode() if isinstance(token, str) else content
        except _fernet().InvalidToken:
            raise SealedError(f"its content was changed since it was encrypted: key {key} does not open it") from None


NO_KEYS = Keyring()


def no_such_key(key: str) -> str:
    """The sentence for a key that is not at hand."""
    return f"its content is encrypted with key {key}, which is not among ENCRYPTION_KEYS"


def key_id(key: str) -> str:
    """What a key is known by in the database: nothing leads back from it."""
    return hashlib.blake2b(key.encode(), digest_size=6, person=b"dlo key id").hexdigest()


def read_keyring(keys: str | None, file: Path | None, *, encrypt: bool | None) -> Keyring:
    """The keys from a text or a file: separated by commas, spaces or lines, newest first.

    ``encrypt`` None means: where there are keys. Raises ConfigurationError.
    """
    if keys and file:
        raise ConfigurationError("set ENCRYPTION_KEYS or ENCRYPTION_KEYS_FILE, not both")
    if file:
        try:
            keys = file.read_text("ascii")
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigurationError(f"ENCRYPTION_KEYS_FILE cannot be read: {type(error).__name__}") from error
        if not keys.strip(" ,\r\n\t"):
            raise ConfigurationError("ENCRYPTION_KEYS_FILE has no key in it")
    found = (keys or "").replace(",", " ").split()
    if encrypt and not found:
        raise ConfigurationError("ENCRYPT_LETTERS is on, but there is no key: set ENCRYPTION_KEYS")
    if len(set(found)) < len(found):
        raise ConfigurationError("the same encryption key is given twice")
    return Keyring(found, sealing=encrypt is not False)


def _fernet() -> Any:
    try:
        return importlib.import_module("cryptography.fernet")
    except ModuleNotFoundError as error:
        raise ConfigurationError(f"{error.name} is missing: pip install 'dead-letter-office[encryption]'") from error
