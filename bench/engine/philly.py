"""A month of Philly: virtual clusters that own their nodes against one hybrid cluster that lends and takes back.

2 to 29 October 2017, 88 nodes of 8 GPUs, arrivals compressed by the load. *Static*: each virtual cluster is a cluster
of its own, first come first served, filled up greedily by whoever fits. *Hybrid*: one cluster, each virtual cluster
with its nodes as nominal quota, borrowing and reclaim, the timetable planned with durations that were learned from
finished jobs only. A job that is stopped saves its work and pays 7, 30 or 60 s by its size when it starts again.
"""

from __future__ import annotations

import resource
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from scheduler.core.model.types import Quota
from scheduler.profiles import PROFILES, load, named
from scheduler.sim.cluster import cluster
from scheduler.sim.learned import LearningWorld
from scheduler.sim.store import StageRecord
from scheduler.sim.traces import philly
from scheduler.sim.traces.arrival import Arrival
from scheduler.sim.world import Chance, SimulatedWorld

LOADS: Final = (1.0, 1.25, 1.4, 1.6)
# At this load it is counted how many promises of the whole month are kept.
KEPT_AT: Final = 1.25
BY_KEY: Final = True
KEYS: Final = (
    *(
        f"philly_{load}_{sort}_{what}"
        for load in LOADS
        for sort in ("static", "hybrid")
        for what in ("alloc_pct", "jct_s")
    ),
    # The hybrid of this bench is the shipped default.
    *(f"default_philly_{load}_{what}" for load in LOADS for what in ("alloc_pct", "jct_s")),
    "default_promises_kept_pct",
    "philly_1.6_worst_vc_ratio",
    "philly_1.6_lost_pct",
    "month_s",
)
# Allocation and average time to completion of one restatement with a shared cluster, for comparison.
POOLED: Final[Mapping[float, tuple[float, float]]] = {
    1.0: (71.8, 11_341),
    1.25: (83.8, 14_610),
    1.4: (88.6, 18_657),
    1.6: (91.9, 30_600),
}
GPUS: Final = 8
# The quotas of the published file are four times the nodes that were really there.
QUARTER: Final = 4
STATIC: Final[Mapping[str, Any]] = {
    "policies": {"fifo": {"strict": False}, "gang": {}, "pack": {}},
    "timetable": "none",
}


@dataclass(frozen=True, slots=True)
class Month:
    """What became of a month: percent of all GPU time until the last arrival that was held, average seconds to
    completion in all and by virtual cluster, percent of the held GPU time that was lost to stops, seconds of CPU, and
    percent of promised starts that were kept."""

    alloc_pct: float
    jct_s: float
    by_cluster: Mapping[str, float]
    lost_pct: float
    preemptions: int
    cpu_s: float
    kept_pct: float


def measure(traces: Path, progress: Callable[[int, int], None], keys: Sequence[str] = KEYS) -> dict[str, float]:
    """Every load that a wanted key is about, under both regimes; prints the sweep and each virtual cluster's own times
    against static."""
    loads = [one for one in LOADS if any(f"philly_{one}_" in key for key in keys)]
    if "default_promises_kept_pct" in keys and KEPT_AT not in loads:
        loads.append(KEPT_AT)
    if "month_s" in keys and 1.0 not in loads:
        loads.insert(0, 1.0)
    found: dict[str, float] = {}
    head = f"{'load':>5}{'':>9}{'allocated %':>13}{'pooled':>8}{'JCT s':>9}{'pooled':>8}"
    lines = [f"{head}{'lost %':>8}{'stops':>7}{'CPU s':>7}"]
    for step, load_factor in enumerate(loads):
        jobs, clusters = read(traces, load_factor)
        static = _static(jobs, clusters)
        progress(2 * step + 1, 2 * len(loads))
        hybrid = _hybrid(jobs, clusters)
        progress(2 * step + 2, 2 * len(loads))
        for sort, month in (("static", static), ("hybrid", hybrid)):
            found[f"philly_{load_factor}_{sort}_alloc_pct"] = month.alloc_pct
            found[f"philly_{load_factor}_{sort}_jct_s"] = month.jct_s
            pooled = POOLED[load_factor] if sort == "hybrid" else ("", "")
            lines.append(
                f"{load_factor:>5}{sort:>9}{month.alloc_pct:>13.1f}{pooled[0]:>8}{month.jct_s:>9.0f}{pooled[1]:>8}"
                f"{month.lost_pct:>8.2f}{month.preemptions:>7}{month.cpu_s:>7.0f}"
            )
        found[f"default_philly_{load_factor}_alloc_pct"] = hybrid.alloc_pct
        found[f"default_philly_{load_factor}_jct_s"] = hybrid.jct_s
        if load_factor == KEPT_AT:
            found["default_promises_kept_pct"] = hybrid.kept_pct
        ratios = {name: hybrid.by_cluster[name] / static.by_cluster[name] for name in static.by_cluster}
        lines.append("      " + ", ".join(f"{name} {ratio:.2f}" for name, ratio in sorted(ratios.items())))
        if load_factor == 1.0:
            found["month_s"] = hybrid.cpu_s
        if load_factor == 1.6:
            found["philly_1.6_worst_vc_ratio"] = max(ratios.values())
            found["philly_1.6_lost_pct"] = hybrid.lost_pct
    print("\n" + "\n".join(lines), flush=True)
    return found


def read(traces: Path, load_factor: float) -> tuple[list[Arrival], dict[str, int]]:
    """The month at a load, and the nodes of each virtual cluster."""
    trace = philly.read(traces / "philly" / "philly_jobs.csv.gz", first_day="2017-10-02", last_day="2017-10-29")
    owned = philly.virtual_clusters(traces / "philly" / "helios_philly_vc_nodes.csv.gz")
    jobs = [replace(one, submit_s=one.submit_s / load_factor) for one in trace]
    return jobs, {name: nodes // QUARTER for name, nodes in owned.items()}


def again_s(gpus: float) -> float:
    """What a restart costs."""
    return 7.0 if gpus <= 1 else 30.0 if gpus <= GPUS else 60.0


def _static(jobs: Sequence[Arrival], clusters: Mapping[str, int]) -> Month:
    began, entries = _cpu_s(), list[StageRecord]()
    for name, nodes in sorted(clusters.items()):
        mine = [one for one in jobs if one.project == name]
        world = SimulatedWorld(cluster(f"{nodes}x{GPUS}"), mine, load("static", STATIC))
        entries += world.run().entries
    return _month(jobs, entries, sum(clusters.values()), _cpu_s() - began)


def _hybrid(jobs: Sequence[Arrival], clusters: Mapping[str, int], **more: Any) -> Month:
    began = _cpu_s()
    world = LearningWorld(
        cluster(f"{sum(clusters.values())}x{GPUS}"),
        jobs,
        load("hybrid", {**PROFILES["hybrid"], **more}) if more else named("hybrid"),
        chance=Chance(stop_s=1.0, saves_on_stop=True),
        quotas=tuple(Quota(name, "gpu", nodes * GPUS * 1000, cohort="all") for name, nodes in sorted(clusters.items())),
        weights={name: float(nodes) for name, nodes in clusters.items()},
    )
    return _month(jobs, world.run().entries, sum(clusters.values()), _cpu_s() - began)


def _month(jobs: Sequence[Arrival], entries: Sequence[StageRecord], nodes: int, cpu_s: float) -> Month:
    """The figures; restarts are charged to the job's own time and to what was lost."""
    end = max(one.submit_s for one in jobs)
    begin = min(one.submit_s for one in jobs)
    size = {one.id: one.gpus * one.nodes for one in jobs}
    held = lost = 0.0
    times: dict[str, list[float]] = {}
    for entry in entries:
        if entry.ended_at is None or entry.started_at is None:
            raise RuntimeError(f"{entry.stage.id} never ended")
        charge = entry.preemptions * again_s(size[entry.stage.id])
        times.setdefault(entry.stage.project, []).append(entry.ended_at + charge - entry.stage.submitted_at)
        held += entry.busy_device_s * _share_until(entry, end)
        lost += entry.lost_device_s + charge * size[entry.stage.id]
    everything = [one for some in times.values() for one in some]
    return Month(
        100.0 * held / ((end - begin) * nodes * GPUS),
        statistics.fmean(everything),
        {name: statistics.fmean(some) for name, some in times.items()},
        100.0 * lost / sum(entry.busy_device_s for entry in entries),
        sum(entry.preemptions for entry in entries),
        cpu_s,
        _kept_pct(entries),
    )


def _kept_pct(entries: Sequence[StageRecord]) -> float:
    """Of the stages that were promised a start, how many began by the end of the first range that they were given."""
    promised = [one for one in entries if one.promised is not None and one.started_at is not None]
    kept = sum((one.started_at or 0.0) <= one.promised.late_at + 1.0 for one in promised if one.promised)
    return 100.0 * kept / len(promised) if promised else 100.0


def _share_until(entry: StageRecord, end: float) -> float:
    """The share of what a stage held that lies before ``end``."""
    began, ended = entry.started_at or 0.0, entry.ended_at or 0.0
    return max(0.0, min(ended, end) - began) / max(ended - began, 1e-9)


def _cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime
