"""The installation's keys in a backup, encrypted with a passphrase, because backup and keys together decrypt
everything.

The key is derived from the passphrase by scrypt and used with AES-256-GCM. The parameters of scrypt make one guess cost
128 MiB.
"""

from __future__ import annotations

import base64
import os
from pathlib import Path
from typing import Any, Final

import msgspec
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.scrypt import Scrypt
from django.conf import settings

from controlplane.backup.manifest import BackupUnusable

_N, _R, _P = 2**17, 8, 1
_ABOUT: Final = b"switchyard keys 1"
LEAST_PASSPHRASE: Final = 12


class _Sealed(msgspec.Struct):
    salt: str
    nonce: str
    sealed: str


def passphrase(file: Path) -> bytes:
    """Read a passphrase from a file that only its owner can read. Raises :class:`BackupUnusable`."""
    try:
        if file.stat().st_mode & 0o077:
            raise BackupUnusable(f"others can read {file}; give it mode 0600")
        found = file.read_bytes().strip()
    except OSError as error:
        raise BackupUnusable(f"{file} cannot be read: {error.strerror}") from None
    if len(found) < LEAST_PASSPHRASE:
        raise BackupUnusable(f"{file} holds {len(found)} characters; a passphrase has at least {LEAST_PASSPHRASE}")
    return found


def files() -> dict[str, Path]:
    """Return the files of this installation's keys, by the variable that names each."""
    found = {"YARD_SECRETS_KEY_FILE": settings.SECRETS_KEY_FILE}
    if signing := os.environ.get("YARD_SECRET_KEY_FILE"):
        found["YARD_SECRET_KEY_FILE"] = Path(signing)
    return found


def seal(keys: dict[str, bytes], secret: bytes) -> bytes:
    """Encrypt the keys."""
    salt, nonce = os.urandom(16), os.urandom(12)
    text = msgspec.json.encode({name: base64.b64encode(key).decode() for name, key in keys.items()})
    sealed = AESGCM(_derive(secret, salt)).encrypt(nonce, text, _ABOUT)
    return msgspec.json.encode(_Sealed(*(base64.b64encode(each).decode() for each in (salt, nonce, sealed))))


def unseal(content: bytes, secret: bytes) -> dict[str, bytes]:
    """Decrypt the keys of a file. Raises :class:`BackupUnusable`."""
    try:
        told = msgspec.json.decode(content, type=_Sealed)
        salt, nonce, sealed = (base64.b64decode(each) for each in (told.salt, told.nonce, told.sealed))
        found: dict[str, Any] = msgspec.json.decode(AESGCM(_derive(secret, salt)).decrypt(nonce, sealed, _ABOUT))
    except InvalidTag:
        raise BackupUnusable("the passphrase is not the one that the keys were sealed with") from None
    except (ValueError, msgspec.DecodeError) as error:
        raise BackupUnusable(f"the sealed keys cannot be read: {error}") from None
    return {name: base64.b64decode(key) for name, key in found.items()}


def _derive(secret: bytes, salt: bytes) -> bytes:
    return Scrypt(salt=salt, length=32, n=_N, r=_R, p=_P).derive(secret)
