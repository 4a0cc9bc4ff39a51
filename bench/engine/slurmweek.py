"""A real week of Slurm: how well run times are foreseen at submission, and how much of what perfect foresight would
bring to backfill that is worth."""

from __future__ import annotations

import heapq
import statistics
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final

from scheduler.core.model.lifecycle import NodeState
from scheduler.core.model.profile import Profile
from scheduler.core.model.types import Device, Node
from scheduler.predict.durations import Durations
from scheduler.predict.finished import Asked, Finished
from scheduler.profiles import PROFILES, load
from scheduler.sim.learned import LearningWorld
from scheduler.sim.traces import Arrival, slurm
from scheduler.sim.world import Lived, SimulatedWorld

KEYS: tuple[str, ...] = ("slurmweek_accuracy", "slurmweek_gap_closed_pct")
FILE: Final = "slurm_week/ub_week_events.csv.gz"
# 87 nodes of 32 cores and 128 of 40, taken as one machine.
CORES: Final = 87 * 32 + 128 * 40
# EASY backfill with the shortest estimate at the head. In the order of submission (profile easy) the truth is worse
# than the limits on this week (docs/engine/prediction.md), so that there is no gap to close.
SHORTEST: Final = load(
    "easy, shortest",
    {**PROFILES["easy"], "policies": {"shortest_predicted": {"breadth": 0.0}, "gang": {}, "pack": {}, "backfill": {}}},
)
# Jobs that wait are predicted anew at most so often, as in the live record.
RENEW_S: Final = 60.0
# Run times below this do not count as shorter: the bound of the bounded slowdown.
TAU_S: Final = 10.0


def accuracy(arrivals: Iterable[Arrival]) -> tuple[float, float]:
    """The mean of min(p, a) / max(p, a) of what is said at submission, where each job starts at once; and the share of
    jobs that ended by their P90. Only jobs that have completed by then are learned from, and the time that others have
    run so far."""
    known, ends, ratios, below = Durations(), list[tuple[float, int, Finished]](), [], []
    for number, one in enumerate(arrivals):
        while ends and ends[0][0] <= one.submit_s:
            known.learn(heapq.heappop(ends)[2])
        asked = Asked(
            project="week",
            name="",
            kind=one.kind,
            user=one.user,
            resources=f"{one.project} {one.name} {one.cpus:g}",
            limit_s=one.expected_s,
        )
        said = known.submit(one.id, asked, one.submit_s)
        known.begin(one.id, one.submit_s)
        ratios.append(min(said.likely_s, one.duration_s) / max(said.likely_s, one.duration_s))
        below.append(one.duration_s <= said.p90_s)
        end = one.submit_s + one.duration_s
        done = Finished("week", "", one.kind, one.duration_s, ended_at=end, user=one.user, id=one.id)
        heapq.heappush(ends, (end, number, done))
    return statistics.fmean(ratios), statistics.fmean(below)


def slowdown(lived: Lived) -> float:
    """The mean bounded slowdown; all jobs must have completed."""
    found = []
    for entry in lived.entries:
        if entry.ended_at is None or entry.started_at is None:
            raise RuntimeError(f"job {entry.stage.id} never completed")
        ran_s = max(entry.ended_at - entry.started_at, TAU_S)
        found.append(max((entry.ended_at - entry.stage.submitted_at) / ran_s, 1.0))
    return statistics.fmean(found)


def machine() -> tuple[Node, ...]:
    """All cores as one CPU device, with memory enough for whatever a job takes."""
    device = Device("machine/cpu", "machine", "cpu", "generic", "CPU", 0, 2**60, CORES * 1000)
    return (Node("machine", "machine", NodeState.READY, ("default",), (device,)),)


def lives(arrivals: list[Arrival], profile: Profile, progress: Callable[[int, int], None]) -> Mapping[str, float]:
    """The mean bounded slowdown under a profile with user limits, with predictions, and with an oracle."""
    found = {}
    for name in ("limits", "predicted", "oracle"):
        began = time.process_time()
        if name == "predicted":
            world: SimulatedWorld = LearningWorld(machine(), arrivals, profile, renew_s=RENEW_S)
        else:
            known = arrivals if name == "limits" else [replace(one, expected_s=one.duration_s) for one in arrivals]
            world = SimulatedWorld(machine(), known, profile)
        found[name] = slowdown(world.run(progress))
        spent_s = time.process_time() - began
        print(f"\r  {profile.name:>14} {name:>10} {found[name]:>9.2f} {spent_s:>6.0f}          ", flush=True)
    return found


def measure(traces: Path, progress: Callable[[int, int], None]) -> dict[str, float]:
    """Accuracy at submission, and the share of the gap between limits and oracle that prediction closes."""
    trace = slurm.read(traces / FILE, one_machine=True)
    for note in trace.notes:
        print(f"\n  {note}", end="")
    share, below = accuracy(trace)
    print(f"\n  accuracy {share:.4f} (user limits 0.120, mean of the user's last two 0.587)")
    print(f"  {below:.1%} ended by their P90")
    print(f"\n  {'order':>14} {'estimates':>10} {'slowdown':>9} {'CPU s':>6}   no dice: no seed")
    found = lives(list(trace), SHORTEST, progress)
    gap = found["limits"] - found["oracle"]
    closed = 100.0 * (found["limits"] - found["predicted"]) / gap if gap > 0 else 0.0
    return {"slurmweek_accuracy": round(share, 4), "slurmweek_gap_closed_pct": round(closed, 1)}
