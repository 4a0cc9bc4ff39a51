"""AES-256-GCM: what was encrypted opens with the same key and the same context only, and whole."""

from __future__ import annotations

import secrets
from typing import Final

KEY_BYTES: Final = 32
_NONCE_BYTES: Final = 12


def encrypt(key: bytes, content: bytes, context: bytes) -> bytes:
    """A random nonce and the content under it."""
    # Imported late: most processes encrypt nothing, and each would hold four more megabytes.
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    nonce = secrets.token_bytes(_NONCE_BYTES)
    return nonce + AESGCM(key).encrypt(nonce, content, context)


def decrypt(key: bytes, encrypted: bytes, context: bytes) -> bytes:
    """What :func:`encrypt` was given. Raises ValueError for another key or context, and for what was changed."""
    from cryptography.exceptions import InvalidTag
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    try:
        return AESGCM(key).decrypt(encrypted[:_NONCE_BYTES], encrypted[_NONCE_BYTES:], context)
    except InvalidTag:
        raise ValueError("it does not open with this key and context") from None
