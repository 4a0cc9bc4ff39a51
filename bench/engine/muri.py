"""How long jobs take on 64 GPUs that they share in time: Muri's trace 3, counted as its published simulator counts."""

from __future__ import annotations

import random
import resource
import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from bench.engine.charged import ChargedWorld
from scheduler.core.model.profile import Profile
from scheduler.profiles import load, named
from scheduler.sim.cluster import cluster
from scheduler.sim.learned import LearningWorld
from scheduler.sim.traces import muri
from scheduler.sim.traces.arrival import Arrival
from scheduler.sim.world import Chance

KEYS: tuple[str, ...] = (
    "muri_srtf_s",
    "muri_srsf_s",
    "muri_las_s",
    "muri_hybrid_blind_s",
    "muri_hybrid_predicted_s",
    "default_muri_blind_s",
    "default_muri_predicted_s",
)
# Published with the simulator for this trace: average time from submission to completion, in seconds.
PUBLISHED: Final[Mapping[str, float]] = {"muri_srtf_s": 193_081.8, "muri_srsf_s": 185_021.9, "muri_las_s": 347_213.2}
NODES: Final = "8x8"
# Each job is this much longer than its iterations, and loses so many seconds in each interval between two events.
LONGER: Final = 1.015
CHARGE_S: Final[Mapping[str, float]] = {
    "vgg16": 7.0,
    "vgg19": 7.0,
    "resnet18": 4.0,
    "shufflenet_v2_x1_0": 4.0,
    "bert": 10.0,
    "gpt2": 10.0,
    "a2c": 38.0,
    "dqn": 5.0,
}
# Published as one to eight seconds more on many GPUs: the least of it is taken for all.
CHARGE_MANY_S: Final = 1.0
ERROR: Final = (0.5, 1.5)
SEEDS: Final = (1, 2, 3, 4, 5)
_CLASSIC: Final[Mapping[str, Any]] = {"timetable": "none", "rotates": "event"}
PROFILES: Final[Mapping[str, Mapping[str, Any]]] = {
    "muri_srtf_s": {"policies": {"oracle_remaining_time": {}, "pack": {}}, **_CLASSIC},
    "muri_srsf_s": {"policies": {"oracle_remaining_service": {}, "pack": {}}, **_CLASSIC},
    "muri_las_s": {"policies": {"attained_service": {}, "pack": {}}, **_CLASSIC},
    "muri_hybrid_blind_s": {"policies": {"foreground": {}, "pack": {}}, **_CLASSIC},
    "muri_hybrid_predicted_s": {"policies": {"shortest_predicted": {"breadth": 0.8}, "pack": {}}, **_CLASSIC},
}


class BlindWorld(ChargedWorld, LearningWorld):
    """A charged world in which nothing is known of lengths but what jobs that have finished tell."""


@dataclass(frozen=True, slots=True)
class Course:
    """One life of the trace: the average time to completion, the makespan, events, preemptions and seconds of CPU."""

    average_s: float
    makespan_s: float
    cycles: int
    preemptions: int
    cpu_s: float


def live(arrivals: list[Arrival], profile: Profile, sort: type[ChargedWorld] = ChargedWorld) -> Course:
    """The trace under a profile; all arrivals must complete."""
    began = resource.getrusage(resource.RUSAGE_SELF).ru_utime
    world = sort(cluster(NODES), arrivals, profile, chance=Chance(stop_s=0.0, saves_on_stop=True))
    world.charges = {one.id: CHARGE_S.get(one.name, 10.0) + CHARGE_MANY_S * (one.gpus > 1) for one in arrivals}
    lived = world.run()
    times = [(entry.ended_at or 0.0) - entry.stage.submitted_at for entry in lived.entries if entry.ended_at]
    if len(times) != len(arrivals):
        raise RuntimeError(f"{len(arrivals) - len(times)} of {len(arrivals)} jobs never completed")
    preemptions = sum(entry.preemptions for entry in lived.entries)
    cpu_s = resource.getrusage(resource.RUSAGE_SELF).ru_utime - began
    return Course(statistics.fmean(times), lived.ended_at - lived.began_at, lived.cycles, preemptions, cpu_s)


def trace(traces: Path) -> list[Arrival]:
    """The jobs with the lengths that the published simulator gives them."""
    read = muri.read(traces / "muri" / "trace3.csv.gz")
    return [replace(one, duration_s=one.duration_s * LONGER) for one in read]


def predicted(arrivals: list[Arrival], seed: int) -> list[Arrival]:
    """The same with a prediction each: the truth times a number drawn evenly from :data:`ERROR`."""
    dice = random.Random(seed)
    return [replace(one, expected_s=one.duration_s * dice.uniform(*ERROR)) for one in arrivals]


def measure(traces: Path, progress: Callable[[int, int], None]) -> dict[str, float]:
    """Average seconds to completion under each policy and under the shipped default; where lengths are predicted, the
    mean over the seeds of the predictions."""
    arrivals, default = trace(traces), named("hybrid")
    guesses = [(f"seed {seed}", predicted(arrivals, seed)) for seed in SEEDS]
    specialists = {key: load("bench", spec) for key, spec in PROFILES.items()}
    lives = [
        *((key, "", arrivals, specialists[key], ChargedWorld) for key in KEYS[:4]),
        *((KEYS[4], label, jobs, specialists[KEYS[4]], ChargedWorld) for label, jobs in guesses),
        ("default_muri_blind_s", "", arrivals, default, BlindWorld),
        *(("default_muri_predicted_s", label, jobs, default, ChargedWorld) for label, jobs in guesses),
    ]
    found: dict[str, list[Course]] = {}
    print(f"\n  {'':32}{'average s':>12}{'makespan s':>13}{'stops':>7}{'cycles':>8}{'CPU s':>7}")
    for done, (key, label, jobs, profile, sort) in enumerate(lives):
        progress(done, len(lives))
        course = live(jobs, profile, sort)
        found.setdefault(key, []).append(course)
        print(
            f"\r  {key + ' ' + label:32}{course.average_s:>12,.0f}{course.makespan_s:>13,.0f}"
            f"{course.preemptions:>7}{course.cycles:>8}{course.cpu_s:>7.0f}",
            flush=True,
        )
    progress(len(lives), len(lives))
    figures = {key: statistics.fmean(course.average_s for course in courses) for key, courses in found.items()}
    print("\n  srtf and srsf are oracles: they know how long each job will run.")
    for key, published in PUBLISHED.items():
        print(f"  {key}: {100 * (figures[key] / published - 1):+.2f} % of the published {published:,.1f}")
    blind, guessed = figures["muri_hybrid_blind_s"], figures["muri_hybrid_predicted_s"]
    print(f"  blind: {100 * (1 - blind / figures['muri_las_s']):.1f} % better than our own las")
    print(f"  predicted: {100 * (guessed / figures['muri_srsf_s'] - 1):+.1f} % of our own srsf")
    return figures
