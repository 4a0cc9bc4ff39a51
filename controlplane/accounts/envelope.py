"""Envelope encryption: each value has a data key of its own, and the data key is kept wrapped beside it."""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from typing import Final

from django.utils.translation import gettext as _

from controlplane.accounts.cipher import KEY_BYTES, decrypt, encrypt
from controlplane.accounts.keys import KeyUnavailable, wrapper

FORMAT: Final = b"switchyard secret 1\0"


@dataclass(frozen=True, slots=True)
class Envelope:
    """An encrypted value and its wrapped data key. ``key_id`` names the key that wrapped it."""

    ciphertext: bytes
    wrapped_key: bytes
    key_id: str


def seal(content: bytes, context: str) -> Envelope:
    """Encrypts ``content`` so that it opens with the same ``context`` only: AES-256-GCM, which also finds whatever was
    changed. Raises :class:`KeyUnavailable`."""
    data_key, bound = secrets.token_bytes(KEY_BYTES), FORMAT + context.encode()
    key_id, wrapped = wrapper().wrap(data_key, bound)
    return Envelope(encrypt(data_key, content, bound), wrapped, key_id)


def unseal(envelope: Envelope, context: str) -> bytes:
    """The content. Raises :class:`KeyUnavailable` where the key is missing, or the envelope is another's or damaged."""
    bound = FORMAT + context.encode()
    data_key = wrapper().unwrap(envelope.key_id, envelope.wrapped_key, bound)
    try:
        return decrypt(data_key, envelope.ciphertext, bound)
    except ValueError:
        raise KeyUnavailable(_("what is kept of it is damaged, or was kept for something else")) from None


def check(envelope: Envelope, context: str) -> None:
    """Raises :class:`KeyUnavailable` where its key is missing; what it holds is not decrypted."""
    wrapper().unwrap(envelope.key_id, envelope.wrapped_key, FORMAT + context.encode())


def rewrap(envelope: Envelope, context: str) -> Envelope:
    """The same content under the newest key: only the data key is wrapped anew."""
    bound = FORMAT + context.encode()
    key_id, wrapped = wrapper().wrap(wrapper().unwrap(envelope.key_id, envelope.wrapped_key, bound), bound)
    return Envelope(envelope.ciphertext, wrapped, key_id)
