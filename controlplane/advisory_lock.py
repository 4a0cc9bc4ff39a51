"""Locks of the database: their keys, and one that a worker holds at a time and leaves with its connection."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from enum import UNIQUE, IntEnum, verify

from django.db import connection


@verify(UNIQUE)
class LockKey(IntEnum):
    """What each lock is for. No two have the same number: whoever plans a reservation must not wait for the worker
    that leads, which keeps its lock for as long as it lives."""

    CYCLE = 0x59415244
    LEADER = 0x59415245
    RESERVATIONS = 0x59415246
    # With the number of a row, so apart from those before.
    SUBMITS = 0x59415247
    SIMULATIONS = 0x51AB1A7E
    SITES = 7_140
    PROVIDERS = 7_114


@contextmanager
def advisory_lock(kind: int, number: int) -> Iterator[bool]:
    """Hold the lock of the row ``number`` of a kind, if no other worker does; yields whether it is held."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_try_advisory_lock(%s, %s)", [kind, number])
        is_mine = bool(cursor.fetchone()[0])
    try:
        yield is_mine
    finally:
        if is_mine:
            with connection.cursor() as cursor:
                cursor.execute("SELECT pg_advisory_unlock(%s, %s)", [kind, number])
