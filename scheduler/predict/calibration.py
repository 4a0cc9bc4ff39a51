"""Calibrates quantiles: nine of ten stages end by their P90, whatever errors the model has.

Adaptive conformal inference (Gibbs and Candès, NeurIPS 2021): after each observed run time the band of its family
moves, up by much if it lay above, down by little if it lay below, so that in the long run the share holds. Each family
has bands of its own, because run times of others do not tell how reliable its quantiles are.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Final

# How far one observation moves the logarithm of the band's factor.
_RATE: Final = 0.15
# The largest useful factor of a band.
_MOST: Final = math.log(50.0)
# An observation within this ratio of the middle lies neither above nor below it.
_TIE: Final = 0.05
# The largest factor on the P90 of families without finished stages; it is never lowered.
_MOST_NEW: Final = 3.0
# The share inside is of about so many observations; before any, it is taken to be the nominal one.
_MEMORY: Final = 50.0
_PRIOR: Final = 5.0


@dataclass(slots=True)
class Band:
    """The factor on one quantile of one family, and the share of run times below it."""

    share: float
    shift: float = 0.0
    inside: float = 0.0
    seen: float = 0.0

    @property
    def factor(self) -> float:
        return math.exp(self.shift)

    @property
    def reliability(self) -> float:
        """Return the share of recent run times inside, between 0 and 1."""
        return (self.inside + _PRIOR * self.share) / (self.seen + _PRIOR)

    def observe(self, raw_s: float, true_s: float) -> None:
        """Learn from one run time; ``raw_s`` is the quantile as the model gave it."""
        if self.share == 0.5 and abs(true_s - raw_s * self.factor) <= _TIE * true_s:
            return
        hit = true_s <= raw_s * self.factor * (1.0 + 1e-9)
        fade = 1.0 - 1.0 / _MEMORY
        self.inside, self.seen = self.inside * fade + hit, self.seen * fade + 1.0
        step = _RATE * ((self.share - 1.0) if hit else self.share)
        self.shift = min(max(self.shift + step, -_MOST), _MOST)


@dataclass(slots=True)
class Calibration:
    """The bands of P50 and P90 by family, and that of the P90 of new families."""

    _bands: dict[tuple[str, ...], tuple[Band, Band]] = field(default_factory=dict)
    _new: Band = field(default_factory=lambda: Band(0.9))

    def bands(self, family: tuple[str, ...]) -> tuple[Band, Band]:
        """Return the bands of P50 and of P90; new ones for an unobserved family."""
        return self._bands.get(family) or (Band(0.5), Band(0.9))

    def observe(self, family: tuple[str, ...], p50_s: float, p90_s: float, true_s: float) -> None:
        """Learn from a stage that ended; the quantiles are those of the model when it was submitted."""
        middle, upper = self._bands.setdefault(family, (Band(0.5), Band(0.9)))
        middle.observe(p50_s, true_s)
        upper.observe(p90_s, true_s)

    @property
    def newcomers(self) -> float:
        """Return the factor on the P90 of a family without finished stages."""
        return min(max(self._new.factor, 1.0), _MOST_NEW)

    def observe_first(self, p90_s: float, true_s: float) -> None:
        """Learn from the first finished stage of a family."""
        self._new.observe(p90_s, true_s)
