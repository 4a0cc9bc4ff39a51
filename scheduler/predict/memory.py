"""How much memory a stage will need: peaks of those like it, to warn before it runs out and to suggest a smaller share.

A peak that was cut off by the end of the memory is evidence of at least that much; the share it was given is then a
lower bound, as the elapsed time of a running stage is one of its duration.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Final, Literal

from scheduler.predict.finished import Asked, Finished

# Fewer peaks than this say nothing about the next one.
ENOUGH: Final = 3
RECENT: Final = 100
# Advice leaves so much above the largest peak, and is given in steps of so much.
_ROOM: Final = 1.2
_STEP_BYTES: Final = 256 * 2**20
# A share is worth making smaller where at least half of it was never used.
_MUCH: Final = 0.5


@dataclass(frozen=True, slots=True)
class MemoryAdvice:
    """``verdict``: *tight* where a stage like this has run out of memory or came near its end; *generous* where half of
    what is asked for was never used; *fits* otherwise. ``suggested_bytes`` is what would do, with room to spare."""

    verdict: Literal["tight", "fits", "generous"]
    largest_bytes: int
    suggested_bytes: int
    seen: int
    ran_out: int


class Peaks:
    """The memory of finished stages by family. ``learn`` is told in order of time."""

    def __init__(self) -> None:
        self._peaks: dict[tuple[str, ...], deque[tuple[int, bool]]] = {}

    def learn(self, one: Finished) -> None:
        """Take in a finished stage, completed or out of memory; one whose peak nobody measured says nothing."""
        peak = max(one.peak_bytes, one.asked_bytes if one.out_of_memory else 0)
        if peak > 0:
            known = self._peaks.setdefault(_like(one.asked), deque(maxlen=RECENT))
            known.append((peak, one.out_of_memory))

    def advise(self, asked: Asked, asked_bytes: int) -> MemoryAdvice | None:
        """What to say of a stage that asks for ``asked_bytes``; ``None`` where too few like it were measured."""
        known = self._peaks.get(_like(asked), ())
        ran_out = [peak for peak, out in known if out]
        if len(known) < ENOUGH and not ran_out:
            return None
        largest = max(peak for peak, _ in known)
        # Who ran out needs more than it had; nobody knows how much.
        wanted = max(_ROOM * largest, 2.0 * max(ran_out)) if ran_out and max(ran_out) == largest else _ROOM * largest
        suggested = -(-int(wanted) // _STEP_BYTES) * _STEP_BYTES
        if asked_bytes < largest * 1.05 or any(asked_bytes <= peak for peak in ran_out):
            verdict: Literal["tight", "fits", "generous"] = "tight"
        else:
            verdict = "generous" if largest <= _MUCH * asked_bytes and suggested < asked_bytes else "fits"
        return MemoryAdvice(verdict, largest, suggested, len(known), len(ran_out))


def _like(asked: Asked) -> tuple[str, ...]:
    """Peaks do not depend on the time limit: the family without its request."""
    return asked.family[:4]
