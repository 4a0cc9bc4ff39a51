"""The garbage collector stands still while many objects are made that all live on: it would look through them again and
again and find nothing."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator


@contextlib.contextmanager
def uncollected() -> Iterator[None]:
    """Run the body, or the decorated function, without cyclic garbage collection."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def keep_all() -> None:
    """Look no more through what lives now when garbage is collected, until this is called again: it is millions of
    objects that live on, and a pass through all of them takes seconds."""
    gc.unfreeze()
    gc.freeze()
