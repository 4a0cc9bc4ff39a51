"""Live balancing: a mixed fleet on which other work comes and goes. By how much is the mean response shorter where new
starts keep away from hot nodes and running stages leave them, than without that policy?

Worlds are made from a seed. The profile is *hybrid* as it is shipped, once whole and once without ``hot_nodes``.
"""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Final

from scheduler.policies.hot_nodes import HotNodes
from scheduler.profiles import named
from scheduler.sim.cluster import cluster
from scheduler.sim.drifting import Drift, DriftingWorld
from scheduler.sim.metrics import Metrics
from scheduler.sim.metrics import measure as figures
from scheduler.sim.traces import Arrival
from scheduler.sim.world import Chance

NEEDS_NO_TRACES: Final = True
KEYS: tuple[str, ...] = ("balance_live_gain_pct", "balance_live_worst_pct", "balance_live_moves_per_100")
SEEDS: Final = (1, 2, 3, 4, 5)
FLEET: Final = "12x4:A100,8x8:T4,4x0"
CORES: Final = 32
DAY_S: Final = 86_400.0
# A third of the nodes, others from time to time, has up to four times more to do than it can.
HOT_SHARE: Final = 0.35
HOT_LOAD: Final = (1.5, 4.0)
CALM_LOAD: Final = (0.0, 0.25)
STAYS_S: Final = 7_200.0
STAGES: Final = 700


def drifts(seed: int, nodes: list[str], days: float = 1.5) -> list[Drift]:
    """The work of others on these nodes: each stays calm or hot for two hours on average."""
    dice, found = random.Random(1_000 + seed), list[Drift]()
    for node in nodes:
        at = 0.0
        while at < days * DAY_S:
            low, high = HOT_LOAD if dice.random() < HOT_SHARE else CALM_LOAD
            found.append(Drift(at, node, dice.uniform(low, high)))
            at += dice.expovariate(1.0 / STAYS_S)
    return found


def arrivals(seed: int) -> list[Arrival]:
    """Stages of a minute to some hours on CPUs and up to four GPUs, over a day."""
    dice, found = random.Random(seed), list[Arrival]()
    for number in range(STAGES):
        gpus = dice.choice((0, 1, 1, 1, 2, 4))
        found.append(
            Arrival(
                id=f"{number:04}",
                submit_s=dice.uniform(0.0, DAY_S),
                duration_s=min(max(math.exp(dice.gauss(math.log(3_600.0), 1.0)), 60.0), 8 * 3_600.0),
                gpus=gpus,
                cpus=max(4, 4 * gpus),
                kind="train" if gpus else "preprocess",
                project=dice.choice(("lab", "shop")),
            )
        )
    return found


def live(seed: int, *, balanced: bool) -> tuple[Metrics, int]:
    """What became of the stages of one world, and how many were moved."""
    profile = named("hybrid")
    kept = tuple(one for one in profile.policies if not isinstance(one[0], HotNodes))
    if len(kept) == len(profile.policies):
        raise SystemExit("profile hybrid as shipped has no policy hot_nodes")
    nodes = cluster(FLEET, CORES)
    world = DriftingWorld(
        nodes,
        arrivals(seed),
        profile if balanced else replace(profile, policies=kept),
        drifts(seed, [node.id for node in nodes]),
        chance=Chance(checkpoint_s=600.0),
    )
    lived = world.run()
    return figures(lived), sum(max(entry.attempts - 1 - entry.preemptions, 0) for entry in lived.entries)


def measure(traces: Path, progress: Callable[[int, int], None]) -> dict[str, float]:
    """The gain in mean response over the seeds, its worst, and how many stages were moved."""
    print(f"\n  {'seed':>6}{'with s':>10}{'without s':>11}{'gain %':>8}{'moves':>7}")
    gains, moved = [], 0
    for seed in SEEDS:
        (whole, moves), (without, _) = live(seed, balanced=True), live(seed, balanced=False)
        gains.append(100.0 * (1.0 - whole.jct_avg_s / without.jct_avg_s))
        moved += moves
        print(f"  {seed:>6}{whole.jct_avg_s:>10.0f}{without.jct_avg_s:>11.0f}{gains[-1]:>8.1f}{moves:>7}", flush=True)
    shares = (statistics.fmean(gains), min(gains), 100.0 * moved / (len(SEEDS) * STAGES))
    return {key: round(value, 2) for key, value in zip(KEYS, shares, strict=True)}
