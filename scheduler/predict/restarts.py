"""Predicts the restart time of a stage from earlier restarts."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import Final

from scheduler.core.model.types import RESTART_S

# Only the newest are used, because images get cached and models grow.
RECENT: Final = 5


def restart_s(took_s: Sequence[float]) -> float:
    """Return the median of the newest restarts, oldest first, so that one on a slow node does not decide; the default
    without any."""
    newest = [max(0.0, one) for one in took_s[-RECENT:]]
    return round(median(newest), 3) if newest else RESTART_S
