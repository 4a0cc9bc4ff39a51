"""Envelope encryption: each value has a data key of its own, which is stored beside it, encrypted ("wrapped")."""

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
    """Encrypt ``content`` with AES-256-GCM, bound to ``context``; modifications are detected. Raises
    :class:`KeyUnavailable`."""
    data_key, bound = secrets.token_bytes(KEY_BYTES), FORMAT + context.encode()
    key_id, wrapped = wrapper().wrap(data_key, bound)
    return Envelope(encrypt(data_key, content, bound), wrapped, key_id)


def unseal(envelope: Envelope, context: str) -> bytes:
    """Decrypt the content. Raises :class:`KeyUnavailable` if the key is missing, the context differs, or the envelope
    is damaged."""
    bound = FORMAT + context.encode()
    data_key = wrapper().unwrap(envelope.key_id, envelope.wrapped_key, bound)
    try:
        return decrypt(data_key, envelope.ciphertext, bound)
    except ValueError:
        raise KeyUnavailable(_("what is kept of it is damaged, or was kept for something else")) from None


def check(envelope: Envelope, context: str) -> None:
    """Raise :class:`KeyUnavailable` if its key is missing; the content is not decrypted."""
    wrapper().unwrap(envelope.key_id, envelope.wrapped_key, FORMAT + context.encode())


def rewrap(envelope: Envelope, context: str) -> Envelope:
    """Wrap the data key with the newest key; the content stays the same."""
    bound = FORMAT + context.encode()
    key_id, wrapped = wrapper().wrap(wrapper().unwrap(envelope.key_id, envelope.wrapped_key, bound), bound)
    return Envelope(envelope.ciphertext, wrapped, key_id)
