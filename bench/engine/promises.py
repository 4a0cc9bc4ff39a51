"""What a promised start is worth: a busy Philly under three profiles, with bursts of urgent jobs in between.

Load 1.25 on 88 nodes of 8 GPUs, each virtual cluster with its nodes as nominal quota, the timetable planned with
durations that were learned from finished jobs only. A *promise* is the first range that a job of the trace was given;
it is *kept* when the job began by the end of that range, and its *width* is the end less the beginning. The profile
dynamic promises nothing: what counts is the range in which it expects a job to start when the job is seen first.

A *burst* is fifty urgent single-GPU jobs at once, in the busiest hour of each day. A thin stream of such jobs, one each
minute, tells what they wait normally before it and whether that is so again after it.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from bench.engine import philly
from scheduler.core.model.types import Quota
from scheduler.core.world.service import width
from scheduler.profiles import named
from scheduler.sim.cluster import cluster
from scheduler.sim.learned import LearningWorld
from scheduler.sim.store import StageRecord
from scheduler.sim.traces import Arrival
from scheduler.sim.world import Chance

SORTS: Final = ("static", "dynamic", "hybrid")
KEYS: Final = tuple(
    f"{what}_{sort}_{unit}"
    for what, unit in (("promises_kept", "pct"), ("promise_width", "s"), ("burst_recovery", "s"))
    for sort in SORTS
)
LOAD: Final = 1.25
GPUS: Final = 88 * philly.GPUS
DAY_S: Final = 86_400.0
# Jobs come for so many days of the compressed month, and one more is lived.
DAYS: Final = 5
# A start that comes so little after the end of a range is a matter of rounding.
STILL_S: Final = 1.0

BURST: Final = 50
URGENT: Final = 1000
# The thin stream runs so long before and after a burst.
BEFORE_S: Final = 2 * 3600.0
AFTER_S: Final = 4 * 3600.0
EVERY_S: Final = 60.0
BURST_JOB_S: Final = 1_800.0
STREAM_JOB_S: Final = 300.0
# Waits are looked at so often after a burst.
TICK_S: Final = 1.0
CALM_S: Final = 600.0


@dataclass(frozen=True, slots=True)
class Range:
    """When a job was said to start, and when that was said."""

    made_at: float
    low_at: float
    high_at: float


@dataclass(frozen=True, slots=True)
class Kept:
    """Of the jobs that did not start at once, ``given_pct`` were given a range. Of those, ``kept_pct`` began by its end
    and ``inside_pct`` neither after nor before it. ``width_s`` and ``ahead_s`` are medians: how wide it was, and how
    far from the moment in which it was given it began."""

    waited: int
    given_pct: float
    kept_pct: float
    inside_pct: float
    width_s: float
    ahead_s: float


class Watched(LearningWorld):
    """Notes the first range that each job was given. Where the profile gives none, it is what the engine expects of a
    job that has just come."""

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self.ranges: dict[str, Range] = {}
        self._came: list[str] = []

    def _arrive(self, stage: Any) -> None:
        super()._arrive(stage)
        self._came.append(stage.id)

    def _cycle(self) -> None:
        super()._cycle()
        came, self._came = self._came, []
        if self._profile.timetable != "none":
            return
        for name in came:
            expected = self._planner.expects(name)
            if expected is not None and self.store.starts is not None:
                self.store.starts.announce(self.store.entries[name].stage, expected)
                self.ranges[name] = Range(self.now, expected.low_at, expected.high_at)


def measure(traces: Path, progress: Callable[[int, int], None]) -> dict[str, float]:
    """The three profiles on the same days."""
    jobs, clusters = philly.read(traces, LOAD)
    jobs = [one for one in jobs if one.submit_s < DAYS * DAY_S]
    bursts, until_s = busiest(jobs), (DAYS + 1) * DAY_S
    found: dict[str, float] = {}
    print(f"\n  {len(jobs):,} jobs of {DAYS} days; no dice: no seed")
    print(
        f"  {'':>8}{'waited':>8}{'given %':>9}{'kept %':>8}{'inside %':>10}{'width s':>9}{'ahead s':>9}"
        f"{'normal s':>10}{'recovery s':>12}{'busy %':>8}{'CPU s':>7}"
    )
    for sort in SORTS:
        began = time.process_time()
        everything = [*jobs, *urgent(bursts, sorted(clusters))]
        entries, ranges = live(sort, everything, clusters, until_s, progress)
        own = [entry for entry in entries if not entry.stage.id.startswith("urgent")]
        kept = judge(own, ranges, until_s)
        normal_s, back_s = recovery(entries, bursts)
        found[f"promises_kept_{sort}_pct"] = kept.kept_pct
        found[f"promise_width_{sort}_s"] = kept.width_s
        found[f"burst_recovery_{sort}_s"] = back_s
        print(
            f"\r  {sort:>8}{kept.waited:>8}{kept.given_pct:>9.1f}{kept.kept_pct:>8.1f}{kept.inside_pct:>10.1f}"
            f"{kept.width_s:>9.0f}{kept.ahead_s:>9.0f}{normal_s:>10.1f}{back_s:>12.0f}{_busy(entries, until_s):>8.1f}"
            f"{time.process_time() - began:>7.0f}",
            flush=True,
        )
    return {key: found[key] for key in KEYS}


def live(
    sort: str,
    jobs: Iterable[Arrival],
    clusters: Mapping[str, int],
    until_s: float,
    progress: Callable[[int, int], None],
) -> tuple[Sequence[StageRecord], Mapping[str, Range]]:
    """What became of the jobs by ``until_s`` under the profile ``sort``, and the first range that each was given."""
    world = Watched(
        cluster(f"{sum(clusters.values())}x{philly.GPUS}"),
        jobs,
        named(sort),
        chance=Chance(stop_s=1.0, saves_on_stop=True),
        quotas=tuple(
            Quota(name, "gpu", nodes * philly.GPUS * 1000, cohort="all") for name, nodes in sorted(clusters.items())
        ),
        weights={name: float(nodes) for name, nodes in clusters.items()},
    )
    entries = world.run(progress, until=until_s).entries
    promised = {
        entry.stage.id: Range(entry.promised.made_at, entry.promised.start_at, entry.promised.late_at)
        for entry in entries
        if entry.promised is not None
    }
    return entries, {**world.ranges, **promised}


def busiest(jobs: Sequence[Arrival]) -> list[float]:
    """The hour of each full day at whose end most GPUs would be in use if nobody ever waited; the first day, on which
    the cluster fills, is left out."""
    came = np.array([one.submit_s for one in jobs])
    ends = came + np.array([one.duration_s for one in jobs])
    size = np.array([one.gpus * one.nodes for one in jobs])
    found = []
    for day in range(1, int(came.max() // DAY_S)):
        hours = [day * DAY_S + hour * 3600.0 for hour in range(24)]
        found.append(max(hours, key=lambda at: float(size[(came <= at) & (ends > at)].sum())))
    return found


def urgent(bursts: Sequence[float], projects: Sequence[str]) -> list[Arrival]:
    """The bursts and the thin stream around each; projects take turns."""
    found = []
    for number, at in enumerate(bursts):
        steps = int((BEFORE_S + AFTER_S) / EVERY_S)
        stream = [(f"urgent-stream-{number:02}", at - BEFORE_S + step * EVERY_S, STREAM_JOB_S) for step in range(steps)]
        burst = [(f"urgent-burst-{number:02}", at, BURST_JOB_S)] * BURST
        for place, (name, submit_s, duration_s) in enumerate([*stream, *burst]):
            found.append(
                Arrival(
                    f"{name}-{place:04}",
                    submit_s,
                    duration_s,
                    1,
                    project=projects[place % len(projects)],
                    priority=URGENT,
                    name=name.rpartition("-")[0],
                )
            )
    return found


def judge(entries: Iterable[StageRecord], ranges: Mapping[str, Range], until_s: float) -> Kept:
    """How the ranges had turned out by then; those that were still open are left out. A job that began in the moment in
    which it came did not wait."""
    waited = [one for one in entries if one.started_at is None or one.started_at > one.stage.submitted_at]
    said = [(one.started_at, ranges.get(one.stage.id)) for one in waited]
    given = [(at, one) for at, one in said if one is not None and (at is not None or one.high_at <= until_s)]
    in_time = [at is not None and at <= said.high_at + STILL_S for at, said in given]
    inside = [at is not None and said.low_at - STILL_S <= at <= said.high_at + STILL_S for at, said in given]
    return Kept(
        len(waited),
        _percent(sum(one is not None for _, one in said), len(waited)),
        _percent(sum(in_time), len(given)),
        _percent(sum(inside), len(given)),
        statistics.median([said.high_at - said.low_at for _, said in given]) if given else 0.0,
        statistics.median([said.low_at - said.made_at for _, said in given]) if given else 0.0,
    )


def recovery(entries: Iterable[StageRecord], bursts: Sequence[float]) -> tuple[float, float]:
    """What an urgent job waits normally, and how long after a burst it is so again: the means over the bursts.

    The normal is the mean wait until the burst of those that came before it. At each moment the mean is taken over the
    urgent jobs that wait, as long as they have waited so far, and over those that began in the last minute. It is back
    where it was as soon as it does not exceed the normal by more than a second (what it takes to stop somebody) for ten
    minutes; a day is the most that is waited for that.
    """
    normal, back = [], []
    for number, at in enumerate(bursts):
        mine = [one for one in entries if one.stage.id.startswith("urgent") and f"-{number:02}-" in one.stage.id]
        came = np.array([one.stage.submitted_at for one in mine])
        began = np.array([np.inf if one.started_at is None else one.started_at for one in mine])
        before = came < at
        normal.append(float((np.minimum(began, at) - came)[before].mean()))
        last, tick = at, at
        while tick <= min(last + CALM_S, at + DAY_S):
            if _mean_wait(came, began, tick) > normal[-1] + STILL_S:
                last = tick
            tick += TICK_S
        back.append(last - at)
    return statistics.fmean(normal), statistics.fmean(back)


def _mean_wait(came: np.ndarray, began: np.ndarray, now: float) -> float:
    near = (came <= now) & (began > now - EVERY_S)
    return float((np.minimum(began, now) - came)[near].mean()) if near.any() else 0.0


def _busy(entries: Iterable[StageRecord], until_s: float) -> float:
    """Percent of all GPU time until then that was held."""
    held_s = 0.0
    for one in entries:
        running_s = 0.0 if one.running is None else until_s - one.running.started_at
        held_s += one.busy_device_s + running_s * width(one.stage)
    return 100.0 * held_s / (until_s * GPUS)


def _percent(part: int, whole: int) -> float:
    return round(100.0 * part / whole, 2) if whole else 0.0
