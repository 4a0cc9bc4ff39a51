"""How many expected starts held: the small yard of the engine's benches on a real stack, sped up.

Its stages, with the times that its people declare, come to 8 simulated devices; what runs on them is ``sleep``. The
range that REST and ``yard why`` show first of a stage that waits is compared with its real start. Stages last a 120th
and come within a 288th of the time, so that more of them wait than in the yard itself. A stage that was stopped and
waits again does not count: it had started before.
"""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass, replace

from bench.engine.smallyard import STILL_S, arrivals
from bench.figures import Figures, moment
from bench.stack import Bench, fresh_stack
from scheduler.sim.traces import Arrival

SAMPLES, SEED = 200, 1
FASTER_RUNS, FASTER_DAYS = 120, 288
PAUSE_S = 0.25


@dataclass(frozen=True, slots=True)
class Told:
    """The range that was shown first, when it was asked for, and the start, in seconds since the epoch."""

    asked: float
    low: float
    high: float
    started: float = 0.0

    @property
    def held(self) -> bool:
        return self.low - STILL_S <= self.started <= self.high + STILL_S


def measure(samples: int = SAMPLES) -> Figures:
    """Return ``expected_in_range_pct`` over so many stages that waited, were told a range, and have started."""
    with fresh_stack("1xdgx-h100") as bench:
        told, waited = _lived(bench, samples)
    width_s = statistics.median(one.high - one.low for one in told)
    late = sum(one.started > one.high + STILL_S for one in told)
    return Figures(
        {"expected_in_range_pct": 100 * statistics.fmean(one.held for one in told), "expected_samples": len(told)},
        [
            f"{waited} stages were seen waiting, {len(told)} of them with a range of {width_s:.0f} s (median)",
            f"{late} started later than that",
        ],
    )


def _lived(bench: Bench, samples: int) -> tuple[list[Told], int]:
    """Submit the yard's stages when they are due; return the ranges of those that have started, and how many waited."""
    due = arrivals(SEED)
    waiting: set[int] = set()
    seen: set[int] = set()
    told: dict[int, Told] = {}
    done: dict[int, Told] = {}
    began = time.monotonic()
    fair: list[Told] = []
    while due or waiting:
        now = (time.monotonic() - began) * FASTER_DAYS
        while due and due[0].submit_s <= now:
            bench.client.jobs.submit(_spec(due.pop(0)))
        jobs = {job.number: job for job in bench.client.jobs.list(state="PENDING")}
        waiting = {number for number, job in jobs.items() if job["started_at"] is None}
        seen |= waiting
        for number in waiting - told.keys():
            asked = time.time()
            stages = bench.client.jobs.why(number)["stages"]  # none where it has started meanwhile
            if stages and (shown := stages[0]["expected_start"]):
                told[number] = Told(asked, moment(shown["low_at"]), moment(shown["high_at"]))
        for number in told.keys() - waiting - done.keys():
            started = moment(bench.client.jobs.get(number)["started_at"])
            done[number] = replace(told[number], started=started)
        # One that started between the list and the question was told a range for its next start.
        fair = [one for one in done.values() if one.started >= one.asked]
        if len(fair) >= samples:
            break
        time.sleep(PAUSE_S)
    return fair, len(seen)


def _spec(one: Arrival) -> dict[str, object]:
    spec: dict[str, object] = {
        "name": f"{one.user}-{one.name}",
        "pool": "simulated",
        "command": ["sleep", f"{one.duration_s / FASTER_RUNS:.2f}"],
        "devices": {"kind": "gpu", "count": one.gpus},
        "cpus": 0.1,
        "memory": "64MiB",
        "time_limit": "1h",
    }
    if one.expected_s:
        spec["expected"] = max(0.1, round(one.expected_s / FASTER_RUNS, 1))
    return spec
