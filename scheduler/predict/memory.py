"""Predicts the memory of a stage from peaks of similar ones, to warn before it runs out and to suggest a smaller
request.

A peak that ended out of memory is a lower bound, as the elapsed time of a running stage is one of its duration.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Final, Literal

from scheduler.predict.finished import Asked, Finished

# Fewer peaks than this give no advice.
ENOUGH: Final = 3
RECENT: Final = 100
# The margin of suggestions above the largest peak, and their step.
_ROOM: Final = 1.2
_STEP_BYTES: Final = 256 * 2**20
# A smaller request is suggested if at least half of it was never used.
_MUCH: Final = 0.5


@dataclass(frozen=True, slots=True)
class MemoryAdvice:
    """``verdict``: *tight* if a similar stage has run out of memory or nearly did; *generous* if half of the request
    was never used; *fits* otherwise. ``suggested_bytes`` would suffice, with a margin."""

    verdict: Literal["tight", "fits", "generous"]
    largest_bytes: int
    suggested_bytes: int
    seen: int
    ran_out: int


class Peaks:
    """The memory of finished stages by family. ``learn`` is called in order of time."""

    def __init__(self) -> None:
        self._peaks: dict[tuple[str, ...], deque[tuple[int, bool]]] = {}

    def learn(self, one: Finished) -> None:
        """Learn from a finished stage, completed or out of memory; one without a measured peak is ignored."""
        peak = max(one.peak_bytes, one.asked_bytes if one.out_of_memory else 0)
        if peak > 0:
            known = self._peaks.setdefault(_like(one.asked), deque(maxlen=RECENT))
            known.append((peak, one.out_of_memory))

    def advise(self, asked: Asked, asked_bytes: int) -> MemoryAdvice | None:
        """Return advice on a stage that asks for ``asked_bytes``; ``None`` if too few similar ones were measured."""
        known = self._peaks.get(_like(asked), ())
        ran_out = [peak for peak, out in known if out]
        if len(known) < ENOUGH and not ran_out:
            return None
        largest = max(peak for peak, _ in known)
        # A stage that ran out needs more than it had; how much is unknown.
        wanted = max(_ROOM * largest, 2.0 * max(ran_out)) if ran_out and max(ran_out) == largest else _ROOM * largest
        suggested = -(-int(wanted) // _STEP_BYTES) * _STEP_BYTES
        if asked_bytes < largest * 1.05 or any(asked_bytes <= peak for peak in ran_out):
            verdict: Literal["tight", "fits", "generous"] = "tight"
        else:
            verdict = "generous" if largest <= _MUCH * asked_bytes and suggested < asked_bytes else "fits"
        return MemoryAdvice(verdict, largest, suggested, len(known), len(ran_out))


def _like(asked: Asked) -> tuple[str, ...]:
    """Return the family without its request, because peaks do not depend on the time limit."""
    return asked.family[:4]
