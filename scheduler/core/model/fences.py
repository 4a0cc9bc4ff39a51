"""Fences: for how long devices that were freed for a stage are kept for it. One rule, live and simulated."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

# The stage needs a moment to be placed once the last of what was freed for it is free.
FENCE_S: Final = 120.0


def until(now: float, stop_by: Iterable[float]) -> float:
    """How long devices freed for a stage are kept for it, where others that were told to stop for it have until
    ``stop_by``: no part of what it needs is given away while it waits for the rest."""
    return max([now, *stop_by]) + FENCE_S
