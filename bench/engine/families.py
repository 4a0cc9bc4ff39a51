"""The shipped default beside the best of four specialists, on generated families of workloads.

Each family is a set of traits (``scheduler/sim/traces/families.py``). Nobody knows lengths: all five profiles see what
was learned from finished jobs and what users declared. A job that is stopped saves its work, is gone at once, and
works off what its restart costs (7, 30 or 60 s by its size) before it goes on, whoever stopped it.

What is tuned may look at :data:`TUNING`; reported is what comes of :data:`SEEDS`, which nobody tunes on.
"""

from __future__ import annotations

import math
import resource
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from bench.engine.philly import again_s
from scheduler.core.model.lifecycle import Cause
from scheduler.core.model.profile import Profile
from scheduler.core.model.types import Running
from scheduler.profiles import load, named
from scheduler.sim.cluster import cluster
from scheduler.sim.learned import LearningWorld
from scheduler.sim.metrics import measure as metrics
from scheduler.sim.traces.families import FLEET, WorkloadFamily, generate
from scheduler.sim.world import Chance

KEYS: Final = ("families_jct_mean_ratio", "families_jct_worst_ratio", "families_promises_worst_pct")
NEEDS_NO_TRACES: Final = True
TUNING: Final = (1, 2, 3)
SEEDS: Final = (101, 102)
FAMILIES: Final[Mapping[str, WorkloadFamily]] = {
    "light, calm": WorkloadFamily(0.5, 0.5, 0.0, 1.0, 0.7),
    "light, full": WorkloadFamily(0.5, 0.5, 0.2, 5.0, 1.2),
    "wide, heavy": WorkloadFamily(0.2, 2.0, 0.0, 5.0, 1.0),
    "mixed": WorkloadFamily(0.6, 1.5, 0.25, 10.0, 1.0),
    "single, heavy": WorkloadFamily(0.9, 2.5, 0.0, 5.0, 1.3),
    "single, bound": WorkloadFamily(0.8, 1.5, 0.5, 10.0, 1.0),
    "bursts": WorkloadFamily(0.7, 1.5, 0.1, 20.0, 1.0),
    "overloaded": WorkloadFamily(0.5, 2.0, 0.3, 10.0, 1.6),
}
_TURNS: Final[Mapping[str, Any]] = {"timetable": "none", "rotates": "event"}
RIVALS: Final[Mapping[str, Mapping[str, Any]]] = {
    "LAS": {"policies": {"attained_service": {}, "gang": {}, "pack": {}}, **_TURNS},
    "SRPT": {"policies": {"shortest_predicted": {"breadth": 0.0}, "gang": {}, "pack": {}}, **_TURNS},
    "FIFO": {
        "policies": {"fifo": {"strict": False}, "gang": {}, "pack": {}, "backfill": {}},
        "timetable": "repair",
        "horizon_s": 31 * 86_400.0,
        "depth": 1,
    },
    "FGD": {"policies": {"fifo": {"strict": False}, "gang": {}, "fragmentation": {}}, "timetable": "none"},
}


@dataclass(frozen=True, slots=True)
class Course:
    """One life: the average time to completion, percent of promises kept (``None`` without any), stops, CPU seconds."""

    jct_s: float
    kept_pct: float | None
    preemptions: int
    cpu_s: float


class RestartingWorld(LearningWorld):
    """A learning world in which whoever is stopped works off its restart before it goes on."""

    def _kept(self, running: Running, cause: Cause) -> tuple[float, float]:
        done_s, lost_s = super()._kept(running, cause)
        cost_s = again_s(self.store.width(running))
        return done_s - cost_s * self._rate(running), lost_s + cost_s


def live(family: WorkloadFamily, seed: int, profile: Profile) -> Course:
    """One workload under a profile; all jobs must complete."""
    began = resource.getrusage(resource.RUSAGE_SELF).ru_utime
    chance = Chance(stop_s=0.0, saves_on_stop=True)
    found = metrics(RestartingWorld(cluster(FLEET), generate(family, seed), profile, chance=chance).run())
    if found.completed != family.jobs:
        raise RuntimeError(f"{family.jobs - found.completed} of {family.jobs} jobs never completed")
    kept = None if found.promises_kept is None else 100.0 * found.promises_kept
    cpu_s = resource.getrusage(resource.RUSAGE_SELF).ru_utime - began
    return Course(found.jct_avg_s, kept, found.preemptions, cpu_s)


def measure(_traces: Path, progress: Callable[[int, int], None], seeds: Sequence[int] = SEEDS) -> dict[str, float]:
    """Each family under the default and its rivals; a family's ratio is that of the means over the seeds."""
    profiles = {"default": named("hybrid"), **{name: load(name, spec) for name, spec in RIVALS.items()}}
    ratios, kept = [], []
    print(f"\n  average s to completion, mean of seeds {', '.join(map(str, seeds))}")
    print(f"  {'family':<16}" + "".join(f"{name:>10}" for name in profiles) + f"{'ratio':>8}{'kept %':>8}{'CPU s':>7}")
    for done, (title, family) in enumerate(FAMILIES.items()):
        progress(done, len(FAMILIES))
        lives = {name: [live(family, seed, profile) for seed in seeds] for name, profile in profiles.items()}
        jct = {name: statistics.fmean(one.jct_s for one in some) for name, some in lives.items()}
        ratios.append(jct["default"] / min(value for name, value in jct.items() if name != "default"))
        promised = [one.kept_pct for one in lives["default"] if one.kept_pct is not None]
        if promised:
            kept.append(statistics.fmean(promised))
        cpu_s = sum(one.cpu_s for some in lives.values() for one in some)
        print(
            f"\r  {title:<16}"
            + "".join(f"{value:>10,.0f}" for value in jct.values())
            + f"{ratios[-1]:>8.3f}{kept[-1] if promised else math.nan:>8.1f}{cpu_s:>7.0f}",
            flush=True,
        )
    progress(len(FAMILIES), len(FAMILIES))
    return dict(zip(KEYS, (statistics.fmean(ratios), max(ratios), min(kept, default=100.0)), strict=True))
