"""How long a stage takes to start again, from how long it took before."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import Final

from scheduler.core.model.types import RESTART_S

# Only so many of the newest count: images get cached, and models grow.
RECENT: Final = 5


def restart_s(took_s: Sequence[float]) -> float:
    """The middle of the newest restarts, oldest first, so that one on a slow node does not set the price; what is
    assumed of everybody where there was none."""
    newest = [max(0.0, one) for one in took_s[-RECENT:]]
    return round(median(newest), 3) if newest else RESTART_S
