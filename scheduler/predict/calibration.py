"""Keeps a promise about shares: nine of ten stages end by their P90, whatever the model behind it got wrong.

Adaptive conformal inference (Gibbs and Candès, NeurIPS 2021): after each truth the band of its family is moved, up by
much where the truth lay above it, down by little where it lay below, so that in the long run the share holds. Nobody's
band is moved by others: what strangers took says nothing of how far a family's own quantiles may be trusted.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Final

# How far one truth moves the logarithm of the band's factor.
_RATE: Final = 0.15
# Beyond this a band says nothing any more.
_MOST: Final = math.log(50.0)
# A truth as near to the middle as this lies neither above nor below it.
_TIE: Final = 0.05
# So far may the P90 of those of whom nothing like them has ended be raised; it is never lowered.
_MOST_NEW: Final = 3.0
# The share inside is that of about so many truths; before any, it is taken to be what was promised.
_MEMORY: Final = 50.0
_PRIOR: Final = 5.0


@dataclass(slots=True)
class Band:
    """The factor on one quantile of one family, and the share of truths that lay below it."""

    share: float
    shift: float = 0.0
    inside: float = 0.0
    seen: float = 0.0

    @property
    def factor(self) -> float:
        return math.exp(self.shift)

    @property
    def reliability(self) -> float:
        """The share of truths of late that lay inside, between 0 and 1."""
        return (self.inside + _PRIOR * self.share) / (self.seen + _PRIOR)

    def observe(self, raw_s: float, true_s: float) -> None:
        """Learn from one truth; ``raw_s`` is the quantile as the model gave it."""
        if self.share == 0.5 and abs(true_s - raw_s * self.factor) <= _TIE * true_s:
            return
        hit = true_s <= raw_s * self.factor * (1.0 + 1e-9)
        fade = 1.0 - 1.0 / _MEMORY
        self.inside, self.seen = self.inside * fade + hit, self.seen * fade + 1.0
        step = _RATE * ((self.share - 1.0) if hit else self.share)
        self.shift = min(max(self.shift + step, -_MOST), _MOST)


@dataclass(slots=True)
class Calibration:
    """The bands of P50 and P90 by family, and that of the P90 of families that were new."""

    _bands: dict[tuple[str, ...], tuple[Band, Band]] = field(default_factory=dict)
    _new: Band = field(default_factory=lambda: Band(0.9))

    def bands(self, family: tuple[str, ...]) -> tuple[Band, Band]:
        """The bands of P50 and of P90; a family of which nothing was observed begins at none."""
        return self._bands.get(family) or (Band(0.5), Band(0.9))

    def observe(self, family: tuple[str, ...], p50_s: float, p90_s: float, true_s: float) -> None:
        """Learn from a stage that ended; the quantiles are those that the model gave when it was submitted."""
        middle, upper = self._bands.setdefault(family, (Band(0.5), Band(0.9)))
        middle.observe(p50_s, true_s)
        upper.observe(p90_s, true_s)

    @property
    def newcomers(self) -> float:
        """By what the P90 of a family is multiplied of which nothing has ended."""
        return min(max(self._new.factor, 1.0), _MOST_NEW)

    def meet(self, p90_s: float, true_s: float) -> None:
        """Learn from the first stage of a family that ended."""
        self._new.observe(p90_s, true_s)
