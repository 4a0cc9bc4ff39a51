"""How long jobs take on a cluster of three generations of GPUs, and how much more of them it can take when they are
balanced: Gavel's generator, counted in rounds as its published simulator counts.
"""

from __future__ import annotations

import math
import random
import resource
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import numpy as np

from scheduler.core.model.profile import Profile
from scheduler.policies.max_min import solver
from scheduler.profiles import load, named
from scheduler.sim.cluster import cluster
from scheduler.sim.learned import LearningWorld
from scheduler.sim.traces.arrival import Arrival
from scheduler.sim.traces.gavel import throughputs
from scheduler.sim.world import Chance, SimulatedWorld

KEYS: tuple[str, ...] = (
    "gavel_fifo_h",
    "gavel_fifo_het_h",
    "gavel_las_h",
    "gavel_las_het_h",
    "gavel_hybrid_h",
    "balance_gain_pct",
    "default_gavel_h",
)
# Published (figure 8 of the paper) at 3.2 jobs/h: average hours to completion.
PUBLISHED: Final[Mapping[str, float]] = {
    "gavel_fifo_h": 22.21,
    "gavel_fifo_het_h": 15.95,
    "gavel_las_h": 23.59,
    "gavel_las_het_h": 16.08,
}
NODES: Final = "9x4:V100,9x4:P100,9x4:K80"
# The order in which the published generator lists its types of job, each with batch sizes from small to large.
FAMILIES: Final = ("ResNet-18", "ResNet-50", "Transformer", "LM", "Recommendation", "A3C", "CycleGAN")
RATE: Final = 3.2
SEEDS: Final = (0, 1, 2)
FIRST, LAST = 4_000, 5_000
# Cycles are so far apart, under every policy: the published simulator works its allocations out anew no sooner than
# after 1,920 s. A job that comes meanwhile waits, and a device whose job has ended is idle.
EVERY_S: Final = 1_800.0
ROUND_S: Final = 360.0
# Policies that ignore speeds deal all devices out anew in each round; here every tenth round, which is quicker to live.
BLIND_ROUND_S: Final = 3_600.0
# The largest average that counts as sustained, and rates on both sides of where it is crossed, some of the paper's.
LIMIT_H: Final = 30.0
SWEEP: Final[Mapping[str, Sequence[float]]] = {
    "gavel_fifo_h": (4.0, 4.4, 4.8),
    "gavel_hybrid_h": (4.8, 5.6, 6.0),
}
GAIN: Final = "balance_gain_pct"
# A run may be about some of the keys only, see :func:`measure`.
BY_KEY: Final = True
# More arrivals than ever needed until the measured ones have ended.
MOST: Final = 40_000
_TURNS: Final[Mapping[str, Any]] = {"timetable": "none", "rotates": "event"}
PROFILES: Final[Mapping[str, Mapping[str, Any]]] = {
    "gavel_fifo_h": {
        "policies": {"fifo": {"strict": False}, "deal": {"round_s": BLIND_ROUND_S}, "gang": {}},
        "timetable": "none",
        "rotates": BLIND_ROUND_S,
    },
    "gavel_fifo_het_h": {"policies": {"fifo": {"strict": False}, "gang": {}, "heterogeneity": {}}, **_TURNS},
    "gavel_las_h": {
        "policies": {"max_min": {"heterogeneous": False, "round_s": BLIND_ROUND_S}, "gang": {}},
        "timetable": "none",
        "rotates": BLIND_ROUND_S,
    },
    "gavel_las_het_h": {"policies": {"max_min": {}, "gang": {}}, "timetable": "none", "rotates": ROUND_S},
    "gavel_hybrid_h": {"policies": {"balance": {}, "gang": {}}, **_TURNS},
}


class Measured(SimulatedWorld):
    """A world that ends when the last of the measured stages has ended."""

    open: set[str]

    def _complete(self, name: str, epoch: int) -> None:
        super()._complete(name, epoch)
        if self.store.entries[name].ended_at is not None:
            self.open.discard(name)
            if not self.open:
                self.stop()


class Unforeseen(Measured, LearningWorld):
    """The same where nothing is known of lengths but what jobs that have ended tell."""


@dataclass(frozen=True, slots=True)
class Course:
    """One life: the average time to completion of the measured jobs, stops, cycles and seconds of CPU."""

    average_h: float
    cycles: int
    preemptions: int
    cpu_s: float


def jobs(speeds: Mapping[str, Mapping[str, float]], rate: float, seed: int, count: int = MOST) -> list[Arrival]:
    """Poisson arrivals at ``rate`` per hour: a type at random, and a length on a V100 of 60 x 10^U(1.5, 3) s (four of
    five) or 60 x 10^U(3, 4) s. The dice are thrown as the published generator throws them, so that the same seed gives
    the very jobs that the published averages are about."""
    dice, gaps = random.Random(seed + 2), random.Random(seed + 3)
    types = sorted(speeds, key=lambda name: next(i for i, family in enumerate(FAMILIES) if name.startswith(family)))
    now, found = 0.0, []
    for number in range(count):
        dice.random()  # would decide how many GPUs; here each job has one
        span = (3.0, 4.0) if dice.random() >= 0.8 else (1.5, 3.0)
        length_s = 60 * 10 ** dice.uniform(*span)
        found.append(Arrival(f"g{number:05}", now, length_s, 1, kind=dice.choice(types), cpus=0.5))
        now -= math.log(1.0 - gaps.random()) * 3600 / rate
    return found


def live(
    speeds: Mapping[str, Mapping[str, float]],
    profile: Profile,
    rate: float,
    seed: int,
    first: int = FIRST,
    last: int = LAST,
    sort: type[Measured] = Measured,
) -> Course:
    """The average time to completion of jobs ``first`` to ``last`` in hours."""
    began = resource.getrusage(resource.RUSAGE_SELF).ru_utime
    arrivals = jobs(speeds, rate, seed, min(MOST, last + int(rate * 2_000)))
    table = {(kind, model): of[model] / of["V100"] for kind, of in speeds.items() for model in of}
    chance = Chance(stop_s=0.0, saves_on_stop=True)
    world = sort(cluster(NODES), arrivals, profile, chance=chance, speeds=table, every_s=EVERY_S)
    world.open = {one.id for one in arrivals[first:last]}
    lived = world.run()
    measured = {one.id for one in arrivals[first:last]}
    times = [
        entry.ended_at - entry.stage.submitted_at
        for entry in lived.entries
        if entry.stage.id in measured and entry.ended_at is not None
    ]
    if len(times) != len(measured):
        raise RuntimeError(f"{len(measured) - len(times)} measured jobs never ended")
    preemptions = sum(entry.preemptions for entry in lived.entries)
    cpu_s = resource.getrusage(resource.RUSAGE_SELF).ru_utime - began
    return Course(statistics.fmean(times) / 3600, lived.cycles, preemptions, cpu_s)


def sustained(rates: Sequence[float], hours: Sequence[float], limit_h: float = LIMIT_H) -> float:
    """The largest rate at which the average is ``limit_h``, between the rates that were lived; the last of them where
    even that stays below. Raises ``ValueError`` where already the first is above."""
    if hours[0] > limit_h:
        raise ValueError(f"{hours[0]:.1f} h at {rates[0]:g} jobs/h is above {limit_h:g} h: begin with a lower rate")
    for (low, at_low), (high, at_high) in pairwise(zip(rates, hours, strict=True)):
        if at_high > limit_h:
            return low + (high - low) * (limit_h - at_low) / (at_high - at_low)
    return rates[-1]


def without_rivals_h(speeds: Mapping[str, Mapping[str, float]], rate: float, seed: int) -> float:
    """The average time of the measured jobs if each had the fastest device for itself at once: nothing is better."""
    measured = jobs(speeds, rate, seed, LAST)[FIRST:LAST]
    best = {kind: max(of.values()) / of["V100"] for kind, of in speeds.items()}
    return statistics.fmean(one.duration_s / best[one.kind] for one in measured) / 3600


def ceiling(speeds: Mapping[str, Mapping[str, float]], devices: int = 36) -> float:
    """The most jobs an hour that ``devices`` of each model can work off in the long run, types being equally frequent:
    the linear program in which only the shares of types on models count. Whoever takes in more grows a queue."""
    types, models = sorted(speeds), sorted({model for of in speeds.values() for model in of})
    # Mean length on a V100 in hours: of 10^U(a, b) it is (10^b - 10^a) / ((b - a) ln 10).
    length_h = (0.8 * (10**3 - 10**1.5) / 1.5 + 0.2 * (10**4 - 10**3)) / math.log(10) / 60
    columns = len(types) * len(models)
    upper = np.zeros((len(types) + len(models), columns + 1))
    for t, kind in enumerate(types):
        for m, model in enumerate(models):
            upper[t, t * len(models) + m] = -speeds[kind].get(model, 0.0) / speeds[kind]["V100"]
        upper[t, columns] = length_h / len(types)
    for m in range(len(models)):
        upper[len(types) + m, m : columns : len(models)] = 1.0
    bound = np.array([0.0] * len(types) + [float(devices)] * len(models))
    found = solver().linprog(np.eye(columns + 1)[columns] * -1.0, A_ub=upper, b_ub=bound)
    return float(found.x[columns])


def measure(
    traces: Path, progress: Callable[[int, int], None], keys: Sequence[str] = KEYS, seeds: Sequence[int] = SEEDS
) -> dict[str, float]:
    """Average hours to completion under each policy, mean over the seeds; and how much more work balance takes."""
    speeds = throughputs(traces / "gavel" / "throughputs_isolated.csv")
    points = [(key, RATE) for key in keys if key != GAIN]
    if GAIN in keys:
        points += [(key, rate) for key, rates in SWEEP.items() for rate in rates if (key, rate) not in points]
    print(f"\n  {'':24}{'jobs/h':>8}{'seed':>6}{'average h':>11}{'stops':>9}{'cycles':>9}{'CPU s':>7}")
    found: dict[tuple[str, float], float] = {}
    for done, (key, rate) in enumerate(points):
        is_default = key == "default_gavel_h"
        profile = named("hybrid") if is_default else load("bench", PROFILES[key])
        sort, hours = Unforeseen if is_default else Measured, []
        for i, seed in enumerate(seeds):
            progress(done * len(seeds) + i, len(points) * len(seeds))
            course = live(speeds, profile, rate, seed, sort=sort)
            hours.append(course.average_h)
            print(
                f"\r  {key:24}{rate:>8.2f}{seed:>6}{course.average_h:>11.2f}{course.preemptions:>9}"
                f"{course.cycles:>9}{course.cpu_s:>7.0f}",
                flush=True,
            )
        found[key, rate] = statistics.fmean(hours)
    progress(len(points) * len(seeds), len(points) * len(seeds))
    figures = {key: found[key, RATE] for key in keys if key != GAIN}
    bound = statistics.fmean(without_rivals_h(speeds, RATE, seed) for seed in seeds)
    print(f"\n  alone on the fastest device, without any wait, the measured jobs would take {bound:.2f} h")
    for key, published in PUBLISHED.items():
        if key in figures:
            print(f"  {key}: {100 * (figures[key] / published - 1):+.1f} % of the published {published}")
    if GAIN in keys:
        most = {}
        for key, rates in SWEEP.items():
            hours = [found[key, rate] for rate in rates]
            most[key] = sustained(rates, hours)
            curve = ", ".join(f"{average:.2f} h at {rate:g}" for rate, average in zip(rates, hours, strict=True))
            print(f"  {key}: {curve}; {LIMIT_H:g} h at {most[key]:.2f} jobs/h")
        print(f"  more than {ceiling(speeds):.2f} jobs/h cannot be worked off in the long run, whoever decides")
        figures[GAIN] = 100 * (most["gavel_hybrid_h"] / most["gavel_fifo_h"] - 1)
    return figures
