"""Fences: for how long devices that were freed for a stage are kept for it. One rule, live and simulated."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

# Time to place the stage once the last device freed for it is free.
FENCE_S: Final = 120.0


def until(now: float, stop_by: Iterable[float]) -> float:
    """Return until when devices freed for a stage are fenced for it, if others that were asked to stop for it have
    until ``stop_by``: none of them is allocated to others while the stage waits for the rest."""
    return max([now, *stop_by]) + FENCE_S
