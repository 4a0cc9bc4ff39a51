"""Shared answers: a result that is slow to compute is reused for a while by everybody who may see the same."""

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

# What took less is found anew each time; what took longer is given again for so many times as long, up to a bound.
QUICK_S: Final = 0.05
REST: Final = 10.0
MOST_S: Final = 10.0
# Whether an answer is a slow one is remembered for so long, and whoever finds it is waited for so long.
SLOW_FOR_S: Final = 300
PATIENCE_S: Final = 5.0
LOOK_S: Final = 0.01


def shared(name: str, user: User, find: Callable[[], Answer], kind: type[Answer]) -> Answer:
    """What ``find`` finds for everybody who sees what this user sees, in this language; ``name`` says all else that it
    depends on. Without Redis it is found anew."""
    try:
        key = _key(name, user)
        is_slow = cache.get(f"{key}:slow") is not None
        if is_slow and (known := _known_or_mine(key)) is not None:
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


def _known_or_mine(key: str) -> str | None:
    """The answer once somebody has found it; None where it is this one's turn to find it."""
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
