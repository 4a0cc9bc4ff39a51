"""Metrics of a simulated world, by which profiles are compared."""

from __future__ import annotations

from dataclasses import asdict, dataclass

import numpy as np

from scheduler.core.model.lifecycle import State
from scheduler.sim.world import Lived


@dataclass(frozen=True, slots=True)
class Metrics:
    """Times in seconds. JCT is from submission to the end of completed stages; wait is until their first start.

    ``utilisation`` is the share of accelerator time between the first submission and the last end that was held;
    ``promises_kept`` the share of promised stages that started by the end of their first range (``None`` without
    promises); ``jain`` is Jain's index of the projects' mean slowdowns, 1 is fair.
    """

    completed: int
    failed: int
    unfinished: int
    jct_avg_s: float
    jct_median_s: float
    jct_p95_s: float
    jct_p99_s: float
    wait_avg_s: float
    wait_median_s: float
    wait_p95_s: float
    wait_p99_s: float
    makespan_s: float
    utilisation: float
    preemptions: int
    lost_device_s: float
    promised: int
    promises_kept: float | None
    jain: float
    slowdown_max: float
    cycles: int

    def figures(self) -> dict[str, float | int | None]:
        return asdict(self)


def measure(lived: Lived) -> Metrics:
    """Compute the metrics of a world. Empty worlds give zeros."""
    done = [entry for entry in lived.entries if entry.state is State.COMPLETED]
    jct = _array([(entry.ended_at or 0.0) - entry.stage.submitted_at for entry in done])
    wait = _array([(entry.started_at or 0.0) - entry.stage.submitted_at for entry in done])
    span = lived.ended_at - lived.began_at
    busy = sum(entry.busy_device_s for entry in lived.entries)
    promised = [entry for entry in done if entry.promised is not None]
    kept = sum(
        e.started_at is not None and e.promised is not None and e.started_at <= e.promised.late_at + 1 for e in promised
    )
    slowdowns: dict[str, list[float]] = {}
    for entry, total, waited in zip(done, jct, wait, strict=True):
        slowdowns.setdefault(entry.stage.project, []).append(float(total) / max(float(total - waited), 1.0))
    means = [float(np.mean(values)) for _, values in sorted(slowdowns.items())]
    return Metrics(
        completed=len(done),
        failed=sum(entry.state in (State.FAILED, State.CANCELLED) for entry in lived.entries),
        unfinished=sum(entry.ended_at is None for entry in lived.entries),
        **{f"jct_{name}_s": value for name, value in _spread(jct).items()},
        **{f"wait_{name}_s": value for name, value in _spread(wait).items()},
        makespan_s=round(span, 3),
        utilisation=round(busy / (span * lived.devices), 6) if span > 0 and lived.devices else 0.0,
        preemptions=sum(entry.preemptions for entry in lived.entries),
        lost_device_s=round(sum(entry.lost_device_s for entry in lived.entries), 3),
        promised=len(promised),
        promises_kept=round(kept / len(promised), 6) if promised else None,
        jain=round(sum(means) ** 2 / (len(means) * sum(m * m for m in means)), 6) if means else 1.0,
        slowdown_max=round(max((max(values) for values in slowdowns.values()), default=1.0), 3),
        cycles=lived.cycles,
    )


def _array(values: list[float]) -> np.ndarray:
    return np.array(values, dtype=float)


def _spread(values: np.ndarray) -> dict[str, float]:
    if not len(values):
        return dict.fromkeys(("avg", "median", "p95", "p99"), 0.0)
    median, p95, p99 = np.quantile(values, [0.5, 0.95, 0.99])
    found = {"avg": values.mean(), "median": median, "p95": p95, "p99": p99}
    return {name: round(float(value), 3) for name, value in found.items()}
