"""Pauses of Python's cyclic garbage collector while many long-lived objects are made, which it would scan again and
again."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator


@contextlib.contextmanager
def uncollected() -> Iterator[None]:
    """Context manager and decorator that disables cyclic garbage collection."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def keep_all() -> None:
    """Exclude all objects that exist now from cyclic garbage collection, until the next call.

    A cluster's state is millions of long-lived objects; a full collection would take seconds.
    """
    gc.unfreeze()
    gc.freeze()
