"""Two projects of one weight, and old work of a low class beside new of a high one, under the default as it is shipped.

*Gap*: eight GPUs, 32 jobs of an hour and one GPU from each project, the second project a second after the first; the
largest difference of what the two received at any moment while both had work, in hours of all GPUs. *Thrash*: a queue
of long *low* jobs that is four days old when *high* jobs of an hour begin to come every half hour; how many stops there
were for each hundred starts. A stopped job begins anew.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from scheduler.profiles import named
from scheduler.sim.cluster import cluster
from scheduler.sim.store import StageRecord
from scheduler.sim.traces import Arrival
from scheduler.sim.world import SimulatedWorld

KEYS: Final = ("fair_gap_jobs", "thrash_per_100")
NEEDS_NO_TRACES: Final = True
PROFILE: Final = "hybrid"
GPUS, HOUR, DAY = 8, 3_600.0, 86_400.0


def measure(traces: Path, progress: Callable[[int, int], None]) -> dict[str, float]:
    """Both figures; prints when the second project first began, and how long *high* and *low* waited."""
    came = [Arrival(f"{who}{i:02}", at, HOUR, 1, who) for who, at in (("a", 0.0), ("b", 1.0)) for i in range(32)]
    equal = _live(came)
    progress(1, 2)
    came = [Arrival(f"low{i:03}", float(i), 10 * HOUR, 1, "a", priority=250) for i in range(120)]
    came += [Arrival(f"high{i:03}", 4 * DAY + 1800.0 * i, HOUR, 1, "b", priority=750) for i in range(100)]
    mixed = _live(came)
    progress(2, 2)
    stops = sum(one.preemptions for one in mixed)
    first = min(_began(one) for one in equal if one.stage.project == "b")
    waits = {
        name: [_began(one) - one.stage.submitted_at for one in mixed if one.stage.priority == value]
        for name, value in (("high", 750), ("low", 250))
    }
    print(f"\nthe second project began after {first / HOUR:.2f} h; of {len(mixed) + stops} starts {stops} were stopped")
    for name, some in waits.items():
        print(f"{name} waited {statistics.fmean(some):.0f} s on average, {max(some):.0f} s at most", flush=True)
    return {"fair_gap_jobs": gap(equal), "thrash_per_100": 100.0 * stops / (len(mixed) + stops)}


def gap(entries: Sequence[StageRecord]) -> float:
    """The largest difference of received device time while both projects had work to begin, in hours of all GPUs."""
    busy = min(max(_began(one) for one in entries if one.stage.project == name) for name in ("a", "b"))
    times = sorted({at for one in entries for at in (_began(one), _began(one) + HOUR) if at <= busy})
    return max(abs(_received(entries, "a", at) - _received(entries, "b", at)) for at in times) / (GPUS * HOUR)


def _received(entries: Sequence[StageRecord], project: str, until: float) -> float:
    mine = (one for one in entries if one.stage.project == project)
    return sum(min(max(until - _began(one), 0.0), HOUR) for one in mine)


def _began(entry: StageRecord) -> float:
    if entry.started_at is None:
        raise RuntimeError(f"{entry.stage.id} never began")
    return entry.started_at


def _live(came: Sequence[Arrival]) -> tuple[StageRecord, ...]:
    return SimulatedWorld(cluster(f"1x{GPUS}"), came, named(PROFILE)).run().entries
