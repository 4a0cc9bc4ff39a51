"""The range in which a waiting stage is announced to start, from how earlier announcements turned out.

The timetable gives one time: when the stage starts if everything ahead of it goes as predicted. Half of all runs end
earlier and half later, so one time would be misleading. The range covers the shares of the predicted wait within which
eight of ten comparable waits fell; where too few are known it is wide.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from scheduler.core.model.basis import Basis
from scheduler.core.model.types import Expected, Promise, Stage, Turnout
from scheduler.core.world.lateness import PromiseClass, everybody

# Of a wait expected to be this short no share can be computed.
LEAST_S: Final = 60.0
HORIZONS: Final = (("minutes", 300.0), ("hour", 3_600.0), ("hours", 86_400.0))
# The default range of a pool with few observations: from a tenth of the wait to twice as long.
LOW: Final = 0.1
HIGH: Final = 2.0
# A range is of use that is no wider than so many times the wait, or than this.
WIDEST: Final = 4.0
WIDE_S: Final = 1_800.0
# No range is narrower: nothing is known to the second.
NARROWEST_S: Final = 30.0


def horizon(wait_s: float) -> str:
    """Return the class of waits to compare with, because a start in a minute is predicted better than one tomorrow."""
    return next((name for name, most_s in HORIZONS if wait_s < most_s), "days")


def announced(known: Mapping[PromiseClass, Turnout], stage: Stage, at: float, since: float, late_at: float) -> Expected:
    """Return the range around ``at``, as predicted at ``since``. Until enough is known it ends at ``late_at`` at the
    earliest."""
    wait_s = max(at - since, LEAST_S)
    everyone, past = known.get(everybody(stage.pool), Turnout()), known.get((stage.pool, horizon(wait_s)), Turnout())
    if past.low is None or past.high is None:
        low_at, high_at = since + LOW * (at - since), max(late_at, since + HIGH * wait_s)
    else:
        low_at, high_at = since + past.low * wait_s, since + past.high * wait_s
    low_at = max(min(low_at, at), since)
    high_at = max(high_at, at, low_at + NARROWEST_S)
    useful = high_at - low_at <= max(WIDEST * wait_s, WIDE_S)
    return Expected(
        low_at,
        high_at,
        Basis.AHEAD if useful else Basis.UNEVEN,
        at=at,
        since=since,
        known=useful,
        held=everyone.held,
        seen=everyone.seen,
    )


def of_promise(known: Mapping[PromiseClass, Turnout], stage: Stage, promise: Promise) -> Expected:
    """Return the range of a promised start, as of the time when the promise was made."""
    return announced(known, stage, promise.start_at, promise.made_at, promise.late_at)
