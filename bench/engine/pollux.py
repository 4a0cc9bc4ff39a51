"""How long elastic trainings take on 16 nodes of 4 T4: the workloads of Pollux, counted as its simulator counts.

Every 60 s the sizes of all stages are decided by ``scheduler.core.resources.elastic`` and their places by the engine; a
stage that is started, moved or resized stands still for 30 s. Throughput and statistical efficiency are the measured
ones.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

import numpy as np
from scipy.interpolate import LinearNDInterpolator

from scheduler.core.model.lifecycle import State
from scheduler.core.model.types import Alternative, Ask, Estimate, Placement, Running, Snapshot, Stage
from scheduler.core.planning import engine
from scheduler.core.resources.elastic import Elastic, ScalingCurve, Sizing, allot
from scheduler.predict.durations import Durations
from scheduler.predict.finished import Asked, Finished
from scheduler.profiles import load
from scheduler.sim.cluster import cluster
from scheduler.sim.traces import TraceColumn, TraceTable, read_table

KEYS: tuple[str, ...] = ("pollux_hybrid_s", "pollux_blind_s")
WORKLOADS: Final = (1, 3, 5, 6)
# Published averages of these four workloads at load 1.0, in seconds.
PUBLISHED: Final = {"Pollux": 2_349.0, "Tiresias, tuned jobs": 3_330.0, "Optimus, oracle": 4_747.0}
NODES, GPUS = 16, 4
ROUND_S, RESTART_S = 60, 30.0
EPOCHS: Final = {"bert": 2, "cifar10": 100, "ncf": 10, "imagenet": 90, "deepspeech2": 80, "yolov3": 50}
MOST_LOCAL: Final = {"yolov3": 8}
# One device and one batch size, as in the published runs of every policy.
FIXED: Final = {"ncf": 32_768}
SIZES: Final = (1, 2, 3, *range(GPUS, NODES * GPUS + 1, GPUS))
SIZING: Final = Sizing(urgency=0.3, settle_s=180.0)
PROFILE: Final[dict[str, Any]] = {"policies": {"priority": {}, "gang": {}, "pack": {}}, "timetable": "none"}

_TIMES: Final = (
    TraceColumn("local_bsz", "whole"),
    TraceColumn("step_time", "number"),
    TraceColumn("sync_time", "number"),
)
_PLACES: Final = (TraceColumn("placement"), *_TIMES)
_SCALES: Final = (TraceColumn("num_nodes", "whole"), TraceColumn("num_replicas", "whole"), *_TIMES)
_EPOCHS: Final = tuple(
    TraceColumn(name, "number", most=1e300) for name in ("progress", "iteration", "grad_sqr", "grad_var")
)
_JOBS: Final = (
    TraceColumn("name"),
    TraceColumn("time", "number"),
    TraceColumn("application"),
    TraceColumn("num_replicas", "whole"),
)


class Application:
    """What was measured of one application: step times by placement and batch, progress and gradients by epoch."""

    def __init__(self, folder: Path) -> None:
        self.name = folder.name
        self.epochs = EPOCHS[self.name]
        tables = {int(path.stem.split("-")[1]): read_table(path, _EPOCHS) for path in folder.glob("validation-*.csv")}
        self.batches = sorted(tables)
        ordered = [tables[batch] for batch in self.batches]
        self.goals = np.min([self._column(table, "progress") for table in ordered], axis=0)
        self._square = np.array([self._column(table, "grad_sqr") for table in ordered])
        self._variance = np.array([self._column(table, "grad_var") for table in ordered])
        places = read_table(folder / "placements.csv", _PLACES, repeats=True).rows
        self.least_local = min(row["local_bsz"] for row in places)
        self.most_local = MOST_LOCAL.get(self.name) or max(row["local_bsz"] for row in places)
        self._exact: dict[str, list[tuple[int, float, float]]] = {}
        for row in places:
            known = self._exact.setdefault(row["placement"], [])
            known.append((row["local_bsz"], row["step_time"], row["sync_time"]))
        points = [
            (len(name), sum(map(int, name)), *one) for name, found in sorted(self._exact.items()) for one in found
        ]
        grouped: dict[tuple[int, int, int], list[tuple[float, float]]] = {}
        for nodes, replicas, local, step, sync in points:
            grouped.setdefault((nodes, replicas, local), []).append((step, sync))
        means = [(*key, *np.mean(found, axis=0)) for key, found in sorted(grouped.items())]
        means += [
            tuple(row[name] for name in ("num_nodes", "num_replicas", "local_bsz", "step_time", "sync_time"))
            for row in read_table(folder / "scalability.csv", _SCALES, repeats=True).rows
        ]
        table = np.array(means, dtype=float)
        self._between = LinearNDInterpolator(table[:, :3], table[:, 3:])
        self.step_times = cache(self._step_times)
        self.best = cache(self._best)
        self.curve = cache(self._curve)

    def _column(self, table: TraceTable, name: str) -> list[float]:
        return [row[name] for row in table.rows[: self.epochs]]

    def _step_times(self, size: int, local: int) -> tuple[float, float]:
        """Seconds of one step and of the synchronisation in it, on ``size`` devices of as few nodes as possible."""
        place = str(GPUS) * (size // GPUS) + (str(size % GPUS) if size % GPUS else "")
        known = self._exact.get(place)
        if known:
            local_, step, sync = zip(*sorted(known), strict=True)
            return float(np.interp(local, local_, step)), float(np.interp(local, local_, sync))
        step, sync = self._between([len(place), size, local])[0]
        return float(step), float(sync)

    def gain(self, batch: float, epoch: int) -> float:
        """Progress of one step of this batch, in steps of the smallest (McCandlish et al. 2018, as used by Pollux)."""
        square = float(np.interp(batch, self.batches, self._square[:, epoch]))
        variance = float(np.interp(batch, self.batches, self._variance[:, epoch]))
        scale = batch / self.batches[0]
        return (variance + square) / (variance / scale + square)

    def _best(self, size: int, epoch: int) -> float:
        """The best rate of progress on so many devices over all batch sizes, 0 where the stage cannot have the size."""
        if self.name in FIXED:
            return self._rate(size, FIXED[self.name], epoch) if size == 1 else 0.0
        tries = np.unique(np.geomspace(self.batches[0], self.batches[-1], 24).round())
        return max((self._rate(size, int(batch), epoch) for batch in tries), default=0.0)

    def _curve(self, epoch: int) -> ScalingCurve:
        """The rate of progress at each size, relative to one device."""
        rates = {size: self.best(size, epoch) for size in SIZES}
        return ScalingCurve({size: rate / self.alone(epoch) for size, rate in rates.items() if rate > 0})

    def alone(self, epoch: int) -> float:
        """The rate of progress on one device, or for each of the fewest that it can have."""
        least: int = next(size for size in SIZES if self.best(size, epoch) > 0)
        return float(self.best(least, epoch) / least)

    def _rate(self, size: int, batch: int, epoch: int) -> float:
        local = math.ceil(batch / size - 1e-8)
        parts = math.ceil(local / self.most_local - 1e-8)
        if size == 1 and batch > self.batches[0]:
            parts = max(parts, 2)  # one device alone needs two gradients to see their variance
        local = min(math.ceil(local / parts - 1e-8), self.batches[-1] // (size * parts))
        if local < self.least_local:
            return 0.0
        step, sync = self.step_times(size, local)
        total = step + (parts - 1) * (step - sync)
        rate = self.gain(size * local * parts, epoch) / total if total > 0 else 0.0  # NaN: nothing was measured
        return float(rate)


@dataclass(slots=True)
class Training:
    """One stage: where it stands, what it holds, and since when."""

    name: str
    application: Application
    submitted_at: float
    number: int
    progress: float = 0.0
    epoch: int = 0
    placement: Placement | None = None
    size: int = 0
    resized_at: float = 0.0
    stands_until: float = 0.0
    ended_at: float | None = None
    restarts: int = -1

    def advance(self, now: float, until: float) -> None:
        """Live from ``now`` until then, or until the last epoch is done; whole seconds at each epoch's end."""
        at = max(now, self.stands_until)
        while self.size and at < until and self.ended_at is None:
            rate = self.application.best(self.size, self.epoch)
            goal = float(self.application.goals[self.epoch])
            if self.progress + rate * (until - at) < goal:
                self.progress += rate * (until - at)
                return
            at += round((goal - self.progress) / rate)
            self.progress, self.epoch = goal, self.epoch + 1
            if self.epoch == self.application.epochs:
                self.ended_at = at


class Foresight:
    """What is known of work that is not done: how much an application needs, from those of it that have completed."""

    def __init__(self, *, is_blind: bool = False) -> None:
        self._is_blind = is_blind
        self._durations = Durations()
        self._known: dict[str, float | None] = {}
        self._largest: dict[str, int] = {}

    def ran(self, one: Training) -> None:
        """A size that was run is known from then on, for every training of the application; where it is blind for this
        one training."""
        self._largest[self._of(one)] = max(self._largest.get(self._of(one), 0), one.size)

    def explored(self, one: Training) -> int:
        """Up to which size the curve of a training may be trusted: twice the largest that was run, as the published
        policy does for each training by itself."""
        return max(2 * self._largest.get(self._of(one), 0), 1)

    def _of(self, one: Training) -> str:
        return one.name if self._is_blind else one.application.name

    def learn(self, one: Training) -> None:
        """Work is progress, in steps of the smallest batch: the same at every size."""
        name = one.application.name
        self._durations.learn(Finished("bench", name, "train", one.progress, ended_at=one.ended_at or 0.0))
        self._known.pop(name, None)

    def work(self, name: str, now: float) -> float | None:
        """The predicted work of an application in all; ``None`` before any of it has completed, and where what has
        completed says nothing."""
        if self._is_blind:
            return None
        if name not in self._known:
            said = self._durations.predict(Asked("bench", name, "train"), now)
            self._known[name] = said.likely_s if said.own else None
        return self._known[name]


def live(
    path: Path, applications: dict[str, Application], sizing: Sizing = SIZING, *, is_blind: bool = False
) -> tuple[list[Training], float]:
    """One workload under elastic sizes; all trainings complete. Also the share of device time that was held.

    Who ``is_blind`` does not know how much work is left (as much as was done is taken to be left to do), and knows of
    each training only the sizes that it ran at itself."""
    jobs = read_table(path, _JOBS, key="name").rows
    everybody = [
        Training(row["name"], applications[row["application"]], row["time"], number)
        for number, row in enumerate(jobs, 1)
    ]
    foresight, profile, nodes = Foresight(is_blind=is_blind), load("elastic", PROFILE), cluster(f"{NODES}x{GPUS}")
    now, held = 0.0, 0.0
    while any(one.ended_at is None for one in everybody):
        now += ROUND_S
        here = [one for one in everybody if one.submitted_at <= now - ROUND_S and one.ended_at is None]
        for one in here:
            held += one.size * ROUND_S
            one.advance(now - ROUND_S, now)
            if one.ended_at is not None:
                one.size, one.placement = 0, None
                foresight.learn(one)
        here = [one for one in everybody if one.submitted_at <= now and one.ended_at is None]
        wanted = allot([_elastic(one, foresight, now) for one in here], NODES * GPUS, sizing)
        changed = [one for one in here if wanted[one.name] != one.size]
        if changed:
            _place(here, wanted, profile, nodes, foresight, now)
    return everybody, held / (now * NODES * GPUS)


def _elastic(one: Training, foresight: Foresight, now: float) -> Elastic:
    work, alone = foresight.work(one.application.name, now), one.application.alone(one.epoch)
    return Elastic(
        id=one.name,
        curve=one.application.curve(one.epoch),
        size=one.size,
        left_s=None if work is None else max(work - one.progress, 0.02 * work) / alone,
        done_s=one.progress / alone,
        since_s=now - one.resized_at,
        restart_s=RESTART_S,
        explored=foresight.explored(one),
    )


def _place(
    here: list[Training], wanted: dict[str, int], profile: Any, nodes: Any, foresight: Foresight, now: float
) -> None:
    """Let the engine find places for whoever starts or gets another size; who finds none keeps what it had."""
    still = [one for one in here if one.size and wanted[one.name] == one.size]
    moving = [one for one in here if wanted[one.name] != one.size]
    plan = engine.plan(
        Snapshot(
            nodes,
            tuple(_stage(one, wanted[one.name], now) for one in moving if wanted[one.name]),
            tuple(_running(one, now) for one in still),
        ),
        profile,
        now,
    )
    placed = {start.stage: start.placement for start in plan.starts}
    used = {grant.device for one in still for grant in _grants(one.placement)}
    used |= {grant.device for placement in placed.values() for grant in _grants(placement)}
    for one in moving:
        new = placed.get(one.name)
        if new is None and one.placement is not None and wanted[one.name]:
            mine = {grant.device for grant in _grants(one.placement)}
            if not mine & used:
                used |= mine
                continue
        if one.size or new is not None:
            one.resized_at = now
        one.placement, one.size = new, wanted[one.name] if new is not None else 0
        if new is not None:
            one.stands_until, one.restarts = now + RESTART_S, one.restarts + 1
            foresight.ran(one)


def _grants(placement: Placement | None) -> list[Any]:
    return [grant for rank in (placement.grants if placement else ()) for grant in rank if "gpu" in grant.device]


def _stage(one: Training, size: int, now: float) -> Stage:
    return Stage(
        id=one.name,
        job=one.name,
        number=one.number,
        name=one.name,
        project="bench",
        user="bench",
        pool="default",
        kind="train",
        priority=500 + size,  # the large ones first: the small ones fit between them
        submitted_at=one.submitted_at,
        eligible_at=now,
        alternatives=(Alternative(0, (Ask("gpu", min(size, GPUS)), Ask("cpu", 1, 1000))),),
        estimate=Estimate(3600.0, 7200.0),
        nodes=max(1, size // GPUS),
    )


def _running(one: Training, now: float) -> Running:
    assert one.placement is not None, "who holds a size holds a place"
    return Running(
        id=one.name,
        job=one.name,
        number=one.number,
        name=one.name,
        project="bench",
        user="bench",
        pool="default",
        kind="train",
        priority=500,
        state=State.RUNNING,
        attempt=one.name,
        placement=one.placement,
        started_at=min(one.resized_at, now),
        estimate=Estimate(3600.0, 7200.0),
    )


def measure(traces: Path, progress: Callable[[int, int], None]) -> dict[str, float]:
    """The mean over four workloads of the average time from submission to completion."""
    folder = traces / "pollux"
    applications = {name: Application(folder / "traces" / name) for name in sorted(EPOCHS)}
    figures = {}
    for key, is_blind in zip(KEYS, (False, True), strict=True):
        averages = []
        told = "the work left is not known" if is_blind else "the work left is predicted"
        print(f"\n  {told}; no dice: no seed")
        print(f"  {'workload':>8} {'average s':>10} {'restarts':>9} {'held':>6} {'CPU s':>6}")
        for done, number in enumerate(WORKLOADS):
            progress(done + len(WORKLOADS) * is_blind, 2 * len(WORKLOADS))
            began = time.process_time()
            lived, held = live(folder / "workloads" / f"workload-{number}.csv", applications, is_blind=is_blind)
            averages.append(statistics.fmean((one.ended_at or 0.0) - one.submitted_at for one in lived))
            restarts = statistics.fmean(one.restarts for one in lived)
            print(
                f"  {number:>8} {averages[-1]:>10.0f} {restarts:>9.1f} {held:>6.1%} {time.process_time() - began:>6.0f}"
            )
        figures[key] = round(statistics.fmean(averages), 1)
    progress(2 * len(WORKLOADS), 2 * len(WORKLOADS))
    published = "; ".join(f"{who} {value:,.0f} s" for who, value in PUBLISHED.items())
    print(f"\n  means {', '.join(f'{value:,.0f} s' for value in figures.values())}; published: {published}")
    return figures
