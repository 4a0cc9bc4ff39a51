"""How much of a GPU cluster can be given out before no pod fits: openb (Alibaba), by placement policy.

The protocol is the published simulator's (Weng et al., ATC 2023): all pods in random order, then pods drawn from them
again until what arrived asks for 130 % of the GPUs; each is placed when it comes or never; nobody leaves. Nodes bear
their names in random order, because the first by name is taken among equals. One plan of the engine over a queue in
that order is exactly this: it walks the queue once, and nothing is given back meanwhile.

How often the pods of the trace ask for what is known to the policies as the typical workload, as in the paper; which
pods come, and when, is not. No policy may turn a pod away that fits.
"""

from __future__ import annotations

import statistics
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np

from scheduler.core.matching.workload import most_frequent
from scheduler.core.model.profile import Profile
from scheduler.core.model.types import Estimate, Node, Pool, Snapshot, Stage, Typical
from scheduler.core.planning.engine import Planner
from scheduler.policies import build
from scheduler.profiles import named
from scheduler.sim.traces import openb

SPECIALISTS: Final = ("openb_random_pct", "openb_bestfit_pct", "openb_fgd_pct", "openb_own_pct")
DEFAULT: Final = "default"
# The shipped default less FGD, in points, at each of :data:`MARKS`.
KEYS: tuple[str, ...] = (*SPECIALISTS, *(f"default_openb_minus_fgd_{mark}_pt" for mark in (95, 100, 130)))
POLICIES: Final[Mapping[str, tuple[str, Mapping[str, Any]]]] = {
    "openb_random_pct": ("random", {}),
    "openb_bestfit_pct": ("best_fit", {}),
    "openb_fgd_pct": ("fragmentation", {}),
    "openb_own_pct": ("leftover", {}),
}
# Published with the simulator, workload "default", mean of seeds 42 to 51, at 95, 100 and 130 % arrived demand.
PUBLISHED: Final[Mapping[str, tuple[float, float, float]]] = {
    "openb_random_pct": (85.72, 86.30, 87.47),
    "openb_bestfit_pct": (92.82, 92.86, 93.08),
    "openb_fgd_pct": (94.90, 95.23, 95.39),
}
SEEDS: Final = tuple(range(42, 52))
DEMAND: Final = 1.3
MARKS: Final = (0.95, 1.0, DEMAND)


@dataclass(frozen=True, slots=True)
class Course:
    """What one run came to: the share of all GPUs in use, in percent, at each of :data:`MARKS`."""

    percent: tuple[float, ...]
    wall_s: float


def measure(traces: Path, progress: Callable[[int, int], None]) -> dict[str, float]:
    """Percent of all GPUs in use at 130 % arrived demand, mean over the seeds, for each policy."""
    files = [traces / "openb" / name for name in ("openb_node_list_gpu_node.csv", "openb_pod_list_default.csv.gz")]
    if missing := [str(one) for one in files if not one.is_file()]:
        raise SystemExit(f"{missing[0]} is not there; docs/engine/placement.md says where the trace comes from")
    machines, pods = openb.nodes(files[0]), openb.pods(files[1])
    courses: dict[str, list[Course]] = {key: [] for key in (*SPECIALISTS, DEFAULT)}
    for seed in SEEDS:
        world = arrange(machines, pods, seed)
        for key in courses:
            courses[key].append(place(world, _profile(key, seed)))
            progress(sum(map(len, courses.values())), len(SEEDS) * len(courses))
    print(_table(courses))
    found = {key: round(statistics.mean(one.percent[-1] for one in courses[key]), 2) for key in SPECIALISTS}
    default, fgd = (
        [statistics.mean(one.percent[i] for one in courses[key]) for i in range(len(MARKS))]
        for key in (DEFAULT, "openb_fgd_pct")
    )
    leads = (round(ours - theirs, 2) for ours, theirs in zip(default, fgd, strict=True))
    return {**found, **dict(zip(KEYS[len(SPECIALISTS) :], leads, strict=True))}


def _profile(key: str, seed: int) -> Profile:
    """One policy alone, or the default as it is shipped."""
    if key == DEFAULT:
        return named("hybrid")
    name, params = POLICIES[key]
    return Profile(name, ((build(name, {**params, **({"seed": seed} if name == "random" else {})}), 1.0),))


def arrange(machines: Sequence[Node], pods: Sequence[openb.Pod], seed: int) -> Snapshot:
    """The world of one run: every pod that will come, in its order, and machines with nothing on them."""
    dice = np.random.default_rng(seed)
    alternatives = {pod: pod.alternatives() for pod in {replace(pod, name="") for pod in pods}}
    capacity = 1000 * sum(device.kind == "gpu" for node in machines for device in node.devices)
    order = [pods[i] for i in dice.permutation(len(pods))]
    arrived = sum(pod.gpu_total_milli for pod in order)
    while True:
        again = pods[int(dice.integers(len(pods)))]
        if arrived + again.gpu_total_milli > DEMAND * capacity:
            break
        order.append(again)
        arrived += again.gpu_total_milli
    ranks = dice.permutation(len(machines))
    named = [_renamed(node, f"{rank:05}-{node.name}") for node, rank in zip(machines, ranks, strict=True)]
    waiting = tuple(_stage(number, alternatives[replace(pod, name="")]) for number, pod in enumerate(order))
    return Snapshot(tuple(named), waiting, pools=(Pool("default", typical=usual(pods)),))


def usual(pods: Sequence[openb.Pod]) -> tuple[Typical, ...]:
    """The typical workload of the trace."""
    asked = Counter(("gpu" if pod.gpus else "cpu", pod.gpus, pod.gpu_milli, pod.cpu_milli) for pod in pods)
    return most_frequent(asked)


def place(world: Snapshot, profile: Profile) -> Course:
    """One run: who got a place, counted as pods arrived."""
    began = time.perf_counter()
    started = {start.stage for start in Planner().plan(world, profile, 0.0).starts}
    wall_s = time.perf_counter() - began
    capacity = 1000 * sum(device.kind == "gpu" for node in world.nodes for device in node.devices)
    arrived = given = 0
    percent: list[float] = []
    for stage in world.waiting:
        asked = sum(ask.count * ask.milli for ask in stage.alternatives[0].asks if ask.kind == "gpu")
        arrived += asked
        given += asked if stage.id in started else 0
        while len(percent) < len(MARKS) - 1 and arrived >= MARKS[len(percent)] * capacity:
            percent.append(100.0 * given / capacity)
    return Course((*percent, 100.0 * given / capacity), wall_s)


def _renamed(node: Node, name: str) -> Node:
    devices = tuple(replace(one, id=f"{name}/{one.id.split('/')[-1]}", node=name) for one in node.devices)
    return replace(node, id=name, name=name, devices=devices)


def _stage(number: int, alternatives: tuple[Any, ...]) -> Stage:
    return Stage(
        id=f"pod-{number:06}",
        job=f"pod-{number:06}",
        number=number,
        name="pod",
        project="openb",
        user="trace",
        pool="default",
        kind="generic",
        priority=500,
        submitted_at=0.0,
        eligible_at=0.0,
        alternatives=alternatives,
        estimate=Estimate(1.0, 1.0),
    )


def _table(courses: Mapping[str, Sequence[Course]]) -> str:
    lines = [
        f"openb: percent of all GPUs in use, mean of seeds {SEEDS[0]} to {SEEDS[-1]}; the typical workload is given",
        f"{'policy':<16}{'arrived 95 %':>14}{'100 %':>8}{'130 %':>8}{'(low - high)':>17}{'published':>11}{'wall s':>8}",
    ]
    for key, runs in courses.items():
        means = [statistics.mean(one.percent[i] for one in runs) for i in range(len(MARKS))]
        ends = [one.percent[-1] for one in runs]
        known = f"{PUBLISHED[key][-1]:.2f}" if key in PUBLISHED else "-"
        lines.append(
            f"{POLICIES[key][0] if key in POLICIES else key:<16}{means[0]:>14.2f}{means[1]:>8.2f}{means[2]:>8.2f}"
            f"{f'({min(ends):.2f} - {max(ends):.2f})':>17}{known:>11}{sum(one.wall_s for one in runs):>8.1f}"
        )
    return "\n".join(lines)
