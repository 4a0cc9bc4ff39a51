"""AES-256-GCM: a ciphertext decrypts only with the same key and the same context, and only unmodified."""

from __future__ import annotations

import secrets
from typing import Final

KEY_BYTES: Final = 32
_NONCE_BYTES: Final = 12


def encrypt(key: bytes, content: bytes, context: bytes) -> bytes:
    """Encrypt the content; returns a random nonce and the ciphertext."""
    # Imported late: most processes encrypt nothing, and the import takes four megabytes.
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    nonce = secrets.token_bytes(_NONCE_BYTES)
    return nonce + AESGCM(key).encrypt(nonce, content, context)


def decrypt(key: bytes, encrypted: bytes, context: bytes) -> bytes:
    """Decrypt the result of :func:`encrypt`. Raises ValueError for another key or context, or a modified ciphertext."""
    from cryptography.exceptions import InvalidTag
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    try:
        return AESGCM(key).decrypt(encrypted[:_NONCE_BYTES], encrypted[_NONCE_BYTES:], context)
    except InvalidTag:
        raise ValueError("it does not open with this key and context") from None
