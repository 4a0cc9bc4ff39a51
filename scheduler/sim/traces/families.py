"""Families of generated workloads: a file has the parameters of one, and the same seed gives the same jobs.

A row of CSV or JSON lines with the columns of :class:`WorkloadFamily`, all but ``single_share``, ``tail`` and
``bound_share`` optional, describes one workload on the cluster :data:`FLEET`. Shares and load are met exactly, to the
job and to the second, so that two workloads that differ in one parameter differ in nothing else.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import NormalDist
from typing import Final

from scheduler.core.model.clauses import clause
from scheduler.core.model.sentences import _
from scheduler.sim.traces.arrival import Arrival, Trace
from scheduler.sim.traces.table import TraceColumn, TraceError, read_table

# 64 devices. Jobs that need one model are divided among models in proportion to their devices.
FLEET: Final = "6x8:H100,2x8:A100"
MODELS: Final = {"H100": 48, "A100": 16}
DEVICES: Final = sum(MODELS.values())
# Devices of a job that asks for several, with frequencies; 16 are two nodes of eight.
WIDE: Final = {2: 0.35, 4: 0.3, 8: 0.25, 16: 0.1}
MEDIAN_S: Final = 1_200.0
SHORTEST_S, LONGEST_S = 10.0, 14 * 86_400.0
# Shares of the variance of the logarithm of a run time: by user, by burst, and by chance.
OWED: Final = (0.4, 0.4, 0.2)
USERS: Final = 8
# Declared limits, in hours; longer ones are whole days.
LIMITS_H: Final = (1, 2, 4, 8, 12, 24)
# A limit exceeds the longest run of its burst by a factor between these.
SLACK: Final = (1.1, 8.0)

COLUMNS: Final = (
    TraceColumn("single_share", "number", most=1.0),
    TraceColumn("tail", "number", most=4.0),
    TraceColumn("bound_share", "number", most=1.0),
    TraceColumn("burst", "number", required=False, default=1.0, least=1.0, most=1_000.0),
    TraceColumn("load", "number", required=False, default=1.0, least=0.01, most=100.0),
    TraceColumn("jobs", "whole", required=False, default=300, least=2, most=100_000),
    TraceColumn("projects", "whole", required=False, default=3, least=1, most=1_000),
    TraceColumn("seed", "whole", required=False, default=0, most=2**31),
)


@dataclass(frozen=True, slots=True)
class WorkloadFamily:
    """The parameters of a workload.

    ``single_share`` of the jobs ask for one device, ``bound_share`` for one model; run times are lognormal with a sigma
    of ``tail`` (0.5 is light, 2.5 heavy); ``burst`` jobs on average are submitted at once by one user and are alike;
    ``load`` is the work of all jobs divided by what :data:`FLEET` can do until the last of them arrives.
    """

    single_share: float
    tail: float
    bound_share: float
    burst: float = 1.0
    load: float = 1.0
    jobs: int = 300
    projects: int = 3


def read(source: str | Path | Iterable[str]) -> Trace:
    """Return the workload that the one row of a file describes. Raises :class:`TraceError`."""
    rows = read_table(source, COLUMNS).rows
    if len(rows) != 1:
        raise TraceError(0, "", _("has {rows} rows; a family is one row").format(rows=len(rows)))
    traits = dict(rows[0].values)
    seed = traits.pop("seed")
    return Trace(tuple(generate(WorkloadFamily(**traits), seed)), ((clause("MadeUp"),),))


def generate(family: WorkloadFamily, seed: int) -> list[Arrival]:
    """Return the jobs of a workload in order of submission."""
    dice = random.Random(seed)
    bursts = _bursts(family, dice)
    users = [dice.randrange(family.projects * USERS) for _burst in bursts]
    durations = _durations(family, bursts, users, dice)
    single = _chosen(bursts, round(family.single_share * family.jobs), dice)
    bound = _chosen(bursts, round(family.bound_share * family.jobs), dice)
    starts = sorted(dice.random() for _burst in bursts)
    found = []
    for number, (burst, user, start) in enumerate(zip(bursts, users, starts, strict=True)):
        (wide,) = dice.choices(list(WIDE), list(WIDE.values()))
        (model,) = dice.choices(list(MODELS), list(MODELS.values()))
        limit_s = _limit_s(max(durations[job] for job in burst) * dice.uniform(*SLACK))
        for place, job in enumerate(burst):
            width = 1 if job in single else wide
            found.append(
                Arrival(
                    id=f"job-{job:06}",
                    submit_s=start * 86_400.0 + place,
                    duration_s=durations[job],
                    gpus=min(width, 8),
                    nodes=max(1, width // 8),
                    project=f"project-{user % family.projects:03}",
                    user=f"user-{user:05}",
                    name=f"run-{number:06}",
                    model=model if job in bound else "",
                    limit_s=limit_s,
                )
            )
    return _loaded(found, family.load)


def _bursts(family: WorkloadFamily, dice: random.Random) -> list[range]:
    """Return numbers of jobs in bursts, whose sizes are geometric."""
    found, at = [], 0
    while at < family.jobs:
        more = 1.0 - 1.0 / family.burst
        size = 1 + (int(math.log(1.0 - dice.random()) / math.log(more)) if more > 0 else 0)
        found.append(range(at, min(at + size, family.jobs)))
        at += size
    return found


def _durations(
    family: WorkloadFamily, bursts: Sequence[range], users: Sequence[int], dice: random.Random
) -> list[float]:
    """Return run times by number of job: jobs of a user and of a burst are similar, and all together are the even
    quantiles of the distribution."""
    by_user = [dice.gauss(0.0, math.sqrt(OWED[0])) for _user in range(family.projects * USERS)]
    shown: list[tuple[float, int]] = []
    for burst, user in zip(bursts, users, strict=True):
        of_burst = by_user[user] + dice.gauss(0.0, math.sqrt(OWED[1]))
        shown += [(of_burst + dice.gauss(0.0, math.sqrt(OWED[2])), job) for job in burst]
    found = [0.0] * family.jobs
    for rank, (_size, job) in enumerate(sorted(shown)):
        duration_s = MEDIAN_S * math.exp(family.tail * NormalDist().inv_cdf((rank + 0.5) / family.jobs))
        found[job] = round(min(max(duration_s, SHORTEST_S), LONGEST_S), 3)
    return found


def _chosen(bursts: Sequence[range], count: int, dice: random.Random) -> set[int]:
    """Return so many jobs, as whole bursts and maybe a part of one."""
    return set([job for burst in dice.sample(bursts, len(bursts)) for job in burst][:count])


def _limit_s(least_s: float) -> float:
    """Return the limit that is declared for such a run time."""
    hours = next((one for one in LIMITS_H if one * 3_600 >= least_s), 24 * math.ceil(least_s / 86_400.0))
    return hours * 3_600.0


def _loaded(jobs: Sequence[Arrival], load: float) -> list[Arrival]:
    """Return the same jobs with submission times scaled so that the load is met."""
    work = sum(one.duration_s * one.gpus * one.nodes for one in jobs)
    pace = work / (load * DEVICES) / max(one.submit_s for one in jobs)
    return sorted((replace(one, submit_s=one.submit_s * pace) for one in jobs), key=lambda one: (one.submit_s, one.id))
