"""What becomes of a queued call after a delivery. Pure.

A call ends: with its result, with an answer that another try would not change, or with its last try. A delivery that
reached no replica is no try, but a call does not wait for ever.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

FIRST_PAUSE_S: Final = 1.0
LONGEST_PAUSE_S: Final = 300.0
# A call that no replica took in this time is given up.
LONGEST_WAIT_S: Final = 24 * 3_600.0


@dataclass(frozen=True, slots=True)
class CallVerdict:
    """How a call stands now; one that is QUEUED is due after ``pause_s``."""

    state: str
    tries: int
    pause_s: float = 0.0


def after(status: int, tries: int, takes: int, most: int, age_s: float) -> CallVerdict:
    """Return what becomes of a call that ended with ``status``, 0 if nobody ran it.

    ``tries`` failed before, ``takes`` deliveries were begun with this one, ``most`` tries are made.
    """
    if 200 <= status < 300:
        return CallVerdict("DONE", tries)
    if 400 <= status < 500:
        # The event, or the size of the result: it would be the same again.
        return CallVerdict("DEAD", tries + 1)
    if status:
        tries += 1
        return CallVerdict("DEAD", tries) if tries >= most else CallVerdict("QUEUED", tries, pause_s(tries))
    if age_s >= LONGEST_WAIT_S:
        return CallVerdict("DEAD", tries)
    return CallVerdict("QUEUED", tries, pause_s(takes))


def pause_s(count: int) -> float:
    """Return how long to wait after so many failures, in seconds: twice as long each time, within a bound."""
    return min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2.0 ** min(max(0, count - 1), 20))


def lost(tries: int, takes: int, most: int, age_s: float) -> CallVerdict:
    """Return what becomes of a call whose router told nothing in time: it may have run, so that was a try."""
    return after(500, tries, takes, most, age_s)
