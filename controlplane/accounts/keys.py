"""The keys that wrap data keys. They are outside the database, so the database alone decrypts nothing."""

from __future__ import annotations

import base64
import binascii
import hashlib
import os
import secrets
import tempfile
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Final, Protocol

from django.conf import settings
from django.utils.module_loading import import_string
from django.utils.translation import gettext as _

from controlplane.accounts.cipher import KEY_BYTES, decrypt, encrypt

LARGEST_FILE: Final = 64 * 1024


class KeyUnavailable(Exception):
    """Raised if there is no key to wrap or unwrap with; the message is for the user."""


class KeyWrapper(Protocol):
    """Wraps data keys. A key management service replaces the file by a class with these methods, whose dotted path is
    in ``YARD_SECRETS_KEY_WRAPPER``."""

    def newest(self) -> str:
        """The id of the key that wraps now."""

    def wrap(self, data_key: bytes, context: bytes) -> tuple[str, bytes]:
        """Return the id of the key and the wrapped data key, bound to the context. Raises :class:`KeyUnavailable`."""

    def unwrap(self, key_id: str, wrapped: bytes, context: bytes) -> bytes:
        """Return the data key. Raises :class:`KeyUnavailable` if that key is missing or wrong."""


class KeyFile:
    """Keys in the file ``YARD_SECRETS_KEY_FILE``: 32 random bytes in base64 on a line each, newest first.

    The first wraps, all unwrap. A key's id is derived from the key, so ids cannot be mixed up. The file is read again
    when it changes.
    """

    def __init__(self) -> None:
        self._keys: Mapping[str, bytes] = {}
        self._seen: tuple[str, int, int, int] | None = None

    def newest(self) -> str:
        return next(iter(self._current()))

    def wrap(self, data_key: bytes, context: bytes) -> tuple[str, bytes]:
        key_id, key = next(iter(self._current().items()))
        return key_id, encrypt(key, data_key, context)

    def unwrap(self, key_id: str, wrapped: bytes, context: bytes) -> bytes:
        key = self._current().get(key_id)
        if key is None:
            said = _(
                "the server has no key {key} in the file of YARD_SECRETS_KEY_FILE; whoever runs it can put it back"
            )
            raise KeyUnavailable(said.format(key=key_id))
        try:
            return decrypt(key, wrapped, context)
        except ValueError:
            raise KeyUnavailable(_("the server's key {key} does not open it").format(key=key_id)) from None

    def _current(self) -> Mapping[str, bytes]:
        path = settings.SECRETS_KEY_FILE
        try:
            found = path.stat()
            seen = (str(path), found.st_ino, found.st_mtime_ns, found.st_size)
            if seen != self._seen:
                self._keys, self._seen = read_keys(path), seen
        except OSError as error:
            said = _("the server cannot read its keys for secrets ({path}: {error}); YARD_SECRETS_KEY_FILE names them")
            raise KeyUnavailable(said.format(path=path, error=error.strerror)) from None
        return self._keys


def read_keys(path: Path) -> dict[str, bytes]:
    """Read the keys of a file by their ids, in its order. Raises OSError, and :class:`KeyUnavailable` for an invalid
    file."""
    with path.open("rb") as file:
        lines = file.read(LARGEST_FILE).split(b"\n")
    keys: dict[str, bytes] = {}
    for number, line in enumerate(lines, 1):
        if not (text := line.strip()) or text.startswith(b"#"):
            continue
        try:
            key = base64.b64decode(text, validate=True)
        except binascii.Error:
            key = b""
        if len(key) != KEY_BYTES:
            said = _("line {line} of {path} is no key: it must be 32 random bytes in base64")
            raise KeyUnavailable(said.format(line=number, path=path))
        keys[id_of(key)] = key
    if not keys:
        said = _("there is no key in {path}; manage.py rotate_secrets_key --add makes one")
        raise KeyUnavailable(said.format(path=path))
    return keys


def id_of(key: bytes) -> str:
    """Return the id of a key: a digest that reveals nothing about it."""
    return hashlib.sha256(b"switchyard key id\0" + key).hexdigest()[:16]


def add_key(path: Path) -> str:
    """Put a new key at the top of the file, which is created if missing; return its id.

    The file is replaced atomically, and its owner stays the same.
    """
    key = secrets.token_bytes(KEY_BYTES)
    before = path.read_bytes() if path.exists() else b""
    owner = path.stat() if before else None
    handle, draft = tempfile.mkstemp(prefix=f".{path.name}-", dir=path.parent)  # mkstemp makes it 0600
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(base64.b64encode(key) + b"\n" + before)
            if owner is not None:
                os.fchmod(handle, owner.st_mode & 0o640)
                os.fchown(handle, owner.st_uid, owner.st_gid)
            file.flush()
            os.fsync(handle)
        os.replace(draft, path)
    except BaseException:
        Path(draft).unlink(missing_ok=True)
        raise
    return id_of(key)


@cache
def wrapper() -> KeyWrapper:
    """Return the wrapper of the settings."""
    made: KeyWrapper = import_string(settings.SECRETS_KEY_WRAPPER)()
    return made
