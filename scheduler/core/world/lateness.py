"""How late promised starts came of late, as the snapshot says it: what the range of the next promise is made from."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from scheduler.core.model.types import Stage
from scheduler.core.world.service import width

PromiseClass = tuple[str, str]
# A gang of this many devices waits for whole nodes, and waits otherwise than one device.
WIDE: Final = 8.0


def promise_class(stage: Stage) -> PromiseClass:
    """Stages whose promises are alike: the pool, and whether one device, some, or whole nodes are asked for."""
    devices = width(stage)
    return stage.pool, "one" if devices <= 1.0 else "some" if devices < WIDE else "many"


def everybody(pool: str) -> PromiseClass:
    """All promises of a pool together."""
    return pool, ""


def slack_s(known: Mapping[PromiseClass, float], stage: Stage) -> float | None:
    """By how much nine of ten promises like this one were exceeded at most; ``None`` where too few are known."""
    if not known:
        return None
    return known.get(promise_class(stage), known.get(everybody(stage.pool)))
