"""Shared answers: a slow result is reused for a while by all users who may see the same."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from typing import Final, TypeVar

import msgspec
from django.core.cache import cache
from django.utils import translation
from redis.exceptions import RedisError

from controlplane.accounts import permissions
from controlplane.accounts.models import User

Answer = TypeVar("Answer")

# A faster result is computed each time; a slower one is reused for this multiple of its duration, up to a bound.
QUICK_S: Final = 0.05
REST: Final = 10.0
MOST_S: Final = 10.0
# How long it is remembered that a result is slow, and how long others wait for the one who computes it.
SLOW_FOR_S: Final = 300
PATIENCE_S: Final = 5.0
LOOK_S: Final = 0.01


def shared(name: str, user: User, find: Callable[[], Answer], kind: type[Answer]) -> Answer:
    """Return the result of ``find``, shared by all users with the same permissions and language.

    ``name`` identifies everything else on which it depends. Without Redis it is computed each time.
    """
    try:
        key = _key(name, user)
        is_slow = cache.get(f"{key}:slow") is not None
        if is_slow and (known := _stored_or_claimed(key)) is not None:
            return msgspec.json.decode(known, type=kind)
    except RedisError:
        return find()
    began = time.monotonic()
    answer = find()
    took_s = time.monotonic() - began
    try:
        if took_s > QUICK_S:
            cache.set(f"{key}:slow", 1, SLOW_FOR_S)
            cache.set(key, msgspec.json.encode(answer).decode(), max(1, round(min(MOST_S, took_s * REST))))
        cache.delete(f"{key}:finding")
    except RedisError:
        pass
    return answer


def _stored_or_claimed(key: str) -> str | None:
    """Return the stored result, waiting for another process that computes it; None if this process is to compute it."""
    until = time.monotonic() + PATIENCE_S
    while time.monotonic() < until:
        if (known := cache.get(key)) is not None:
            return str(known)
        if cache.add(f"{key}:finding", 1, round(PATIENCE_S)):
            return None
        time.sleep(LOOK_S)
    return None


def _key(name: str, user: User) -> str:
    seen = msgspec.json.encode([name, permissions.audience(user), translation.get_language()])
    return f"shared:{hashlib.sha256(seen).hexdigest()}"
