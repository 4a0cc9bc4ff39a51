"""The use of a project: device time weighted by the charge of the devices, which decays with age.

The database and the simulator keep the same account. It is exact at any time: between two changes of the holdings, use
grows at a steady rate while all of it decays.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Final

# After so long, use counts half.
HALF_LIFE_S: Final = 7 * 86_400.0


@dataclass(frozen=True, slots=True)
class Usage:
    """``amount`` device-seconds ``as_of`` a time (seconds since the epoch), growing by ``rate`` devices since."""

    amount: float = 0.0
    as_of: float = 0.0
    rate: float = 0.0
    half_life_s: float = HALF_LIFE_S

    def at(self, now: float) -> float:
        """The use at ``now``, which is not before ``as_of``."""
        span_s = max(now - self.as_of, 0.0)
        return self.amount * math.exp2(-span_s / self.half_life_s) + self.rate * self._held(span_s)

    def changed(self, at: float, by: float) -> Usage:
        """Return the account after the holdings grew ``by`` so many devices since ``at``, whether that was recorded
        before or not."""
        if at < self.as_of:
            return replace(self, amount=self.amount + by * self._held(self.as_of - at), rate=self.rate + by)
        return replace(self, amount=self.at(at), as_of=at, rate=self.rate + by)

    def _held(self, span_s: float) -> float:
        """What holding one device for ``span_s`` up to now counts."""
        return self.half_life_s / math.log(2) * -math.expm1(-math.log(2) * span_s / self.half_life_s)
