"""How late promised starts came recently, from the snapshot; the range of the next promise is computed from it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from scheduler.core.model.types import Stage
from scheduler.core.world.service import width

PromiseClass = tuple[str, str]
# A gang of this many devices waits for whole nodes, and waits otherwise than one device.
WIDE: Final = 8.0


def promise_class(stage: Stage) -> PromiseClass:
    """Return the class of promises to compare with: the pool, and whether one device, several or whole nodes are
    requested."""
    devices = width(stage)
    return stage.pool, "one" if devices <= 1.0 else "some" if devices < WIDE else "many"


def everybody(pool: str) -> PromiseClass:
    """Return the class of all promises of a pool."""
    return pool, ""


def slack_s(known: Mapping[PromiseClass, float], stage: Stage) -> float | None:
    """Return the delay that nine of ten promises like this one stayed below; ``None`` if too few are known."""
    if not known:
        return None
    return known.get(promise_class(stage), known.get(everybody(stage.pool)))
