"""A small yard: a handful of people, many small families of stages with declared times that are right, too long, too
short or missing. How well are run times foreseen at submission, and how often does an announced start hold?

Nothing here is large: most families run a few times and never again, many are bursts, and people name commands for
their program. The worlds are made from a seed; the seeds that are reported were never used to choose anything.
"""

from __future__ import annotations

import math
import random
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from scheduler.profiles import named
from scheduler.sim.cluster import cluster
from scheduler.sim.learned import LearningWorld
from scheduler.sim.store import StageRecord
from scheduler.sim.traces import Arrival

NEEDS_NO_TRACES: Final = True
KEYS: tuple[str, ...] = (
    "small_yard_p50_error_pct",
    "small_yard_twice_error_pct",
    "small_yard_p90_held_pct",
    "small_yard_known_pct",
    "small_yard_start_held_pct",
    "small_yard_start_given_pct",
    "small_yard_start_width_s",
)
SEEDS: Final = (1, 2, 3, 4, 5)
NODES: Final = "2x4"
USERS: Final = ("ann", "bob", "cem", "dia", "eve", "fay")
# Programs that commands of many families are named for; other families have names of their own.
PROGRAMS: Final = ("python", "sleep", "bash")
FAMILIES: Final = 90
DAYS_S: Final = 2 * 86_400.0
LIMIT_S: Final = 86_400.0
# How declared times lie, how often, and between which factors on the truth.
DECLARED: Final = (
    ("right", 0.4, 0.8, 1.25),
    ("too long", 0.25, 2.0, 6.0),
    ("too short", 0.15, 0.2, 0.6),
    ("none", 0.2, 0.0, 0.0),
)
# Waiting stages are predicted anew at most so often, as in the live record.
RENEW_S: Final = 60.0
STILL_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class Judged:
    """The figures of one world, in the order of :data:`KEYS`, and how many stages and announced starts they rest on."""

    figures: tuple[float, ...]
    stages: int
    announced: int


def arrivals(seed: int) -> list[Arrival]:
    """The stages of a small yard, in order of submission."""
    dice, found = random.Random(seed), list[Arrival]()
    for number in range(FAMILIES):
        true_s = math.exp(dice.gauss(math.log(420.0), 1.3)) if dice.random() < 0.8 else dice.uniform(0.5, 5.0)
        spread = dice.uniform(0.02, 0.3)
        declared_s = _declared(dice, true_s)
        user, gpus = dice.choice(USERS), dice.choice((1, 1, 1, 2, 2, 4))
        name = dice.choice(PROGRAMS) if dice.random() < 0.3 else f"work-{chr(97 + number % 26)}{chr(97 + number // 26)}"
        runs, at, burst = dice.randint(1, 8), dice.uniform(0.0, DAYS_S), dice.random() < 0.4
        for run in range(runs):
            ran_s = min(max(true_s * math.exp(dice.gauss(0.0, spread)), 0.5), LIMIT_S)
            found.append(
                Arrival(
                    id=f"{number:03}-{run}",
                    submit_s=at,
                    duration_s=ran_s,
                    gpus=gpus,
                    project="lab" if user < "d" else "shop",
                    user=user,
                    name=name,
                    limit_s=LIMIT_S,
                    expected_s=declared_s,
                )
            )
            at += 0.0 if burst else ran_s * dice.uniform(1.0, 2.0) + dice.expovariate(1 / 1_800.0)
    return sorted(found, key=lambda one: (one.submit_s, one.id))


def _declared(dice: random.Random, true_s: float) -> float | None:
    """What its user says of a family, as people say it: in round figures."""
    draw = dice.random()
    for _, share, least, most in DECLARED:
        if draw < share:
            said_s = true_s * dice.uniform(least, most)
            step = 1.0 if said_s < 60.0 else 30.0 if said_s < 600.0 else 300.0
            return max(round(said_s / step) * step, step) if most else None
        draw -= share
    return None


def live(seed: int) -> tuple[LearningWorld, Sequence[StageRecord]]:
    """What became of the stages of one yard."""
    world = LearningWorld(cluster(NODES), arrivals(seed), named("hybrid"), renew_s=RENEW_S)
    return world, world.run().entries


def judge(world: LearningWorld, entries: Sequence[StageRecord]) -> Judged:
    """How predictions at submission and first announced starts turned out."""
    truth = {one.id: one.duration_s for one in arrivals_of(world)}
    off, twice, under, known = [], [], [], 0
    for name, said in world.said.items():
        estimate, true_s = said.estimate, truth[name]
        known += estimate.known
        if estimate.known:
            off.append(_off(estimate.p50_s, true_s))
            under.append(true_s <= estimate.p90_s)
            if said.own >= 2:
                twice.append(off[-1])
    waited = [one for one in entries if one.started_at is not None and one.started_at > one.stage.submitted_at]
    said_so = [(one.announced, one.started_at) for one in waited if one.announced and one.announced.known]
    held = [said.low_at - STILL_S <= began <= said.high_at + STILL_S for said, began in said_so if began is not None]
    figures = (
        100.0 * statistics.median(off),
        100.0 * statistics.median(twice),
        100.0 * statistics.fmean(under),
        100.0 * known / len(world.said),
        100.0 * statistics.fmean(held),
        100.0 * len(held) / len(waited),
        statistics.median(said.high_at - said.low_at for said, _ in said_so),
    )
    return Judged(figures, len(world.said), len(held))


def arrivals_of(world: LearningWorld) -> Sequence[Arrival]:
    """The stages that came to a world."""
    return tuple(world._arrivals)


def _off(said_s: float, true_s: float) -> float:
    """By how much the larger of the two exceeds the smaller."""
    return max(said_s, true_s) / max(min(said_s, true_s), 1.0) - 1.0


def measure(traces: Path, progress: Callable[[int, int], None]) -> dict[str, float]:
    """The mean over the seeds of each figure."""
    heads = ("error %", "twice %", "p90 %", "known %", "held %", "given %", "width s")
    print(f"\n  {'seed':>6}{'stages':>8}{'said':>6}" + "".join(f"{head:>9}" for head in heads) + f"{'CPU s':>7}")
    found = []
    for seed in SEEDS:
        began = time.process_time()
        judged = judge(*live(seed))
        found.append(judged.figures)
        row = "".join(f"{figure:>9.1f}" for figure in judged.figures)
        spent_s = time.process_time() - began
        print(f"  {seed:>6}{judged.stages:>8}{judged.announced:>6}{row}{spent_s:>7.1f}", flush=True)
    return {key: round(statistics.fmean(column), 2) for key, column in zip(KEYS, zip(*found, strict=True), strict=True)}
