"""How long a stage will run: quantiles of what like it took before, and how fast each sort of device proved to be.

Pure functions over finished records; who keeps the records is not their business.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

from scheduler.core.types import Estimate

# Fewer finished stages than this say nothing about the next one.
ENOUGH: Final = 5
# Only the newest of each family count: code changes.
RECENT: Final = 200
DEFAULT_LIMIT_S: Final = 86_400.0
_NUMBERS: Final = re.compile(r"[\d._-]+$|\d+")


@dataclass(frozen=True, slots=True)
class Finished:
    """A stage that completed: ``ran_s`` on a device of ``model`` whose relative speed was taken to be ``speed``."""

    project: str
    name: str
    kind: str
    ran_s: float
    model: str = ""
    speed: float = 1.0
    ended_at: float = 0.0


def family(name: str) -> str:
    """The name without its numbers: ``sweep-017`` and ``sweep-018`` are one family."""
    return _NUMBERS.sub("", name.lower()).strip(" -_.") or name.lower()


class Durations:
    """Finished stages by family, ready to be asked. Build one per refresh; it never changes."""

    def __init__(self, finished: Iterable[Finished]) -> None:
        self._work: dict[tuple[str, ...], list[float]] = defaultdict(list)
        for one in sorted(finished, key=lambda one: (one.ended_at, one.project, one.name, one.ran_s)):
            work_s = one.ran_s * one.speed
            self._work[one.project, family(one.name), one.kind].append(work_s)
            self._work[one.project, one.kind].append(work_s)

    def estimate(
        self,
        project: str,
        name: str,
        kind: str,
        *,
        expected_s: float | None = None,
        limit_s: float | None = None,
        default_limit_s: float = DEFAULT_LIMIT_S,
    ) -> Estimate:
        """P50 and P90 of the work on a device of speed 1, from the nearest relatives that finished often enough; else
        from what the user expects; else from the declared limit."""
        for key, label in (
            ((project, family(name), kind), f"{family(name)} in {project}"),
            ((project, kind), f"{kind} in {project}"),
        ):
            past = self._work.get(key, [])[-RECENT:]
            if len(past) >= ENOUGH:
                p50, p90 = np.quantile(past, [0.5, 0.9])
                return Estimate(round(float(p50), 3), round(float(p90), 3), f"{len(past)} finished stages like {label}")
        return declared(expected_s, limit_s, default_limit_s)


def declared(expected_s: float | None, limit_s: float | None, default_limit_s: float = DEFAULT_LIMIT_S) -> Estimate:
    """The estimate before any history: P50 is what the user expects (P90 half as much again), or three tenths of the
    limit (P90 all of it)."""
    limit = limit_s if limit_s is not None else default_limit_s
    if expected_s is not None:
        p90 = 1.5 * expected_s if limit_s is None else min(1.5 * expected_s, limit_s)
        return Estimate(min(expected_s, p90), p90, "expected duration", declared=True)
    basis = "declared limits" if limit_s is not None else "default limit of the pool"
    return Estimate(0.3 * limit, limit, basis, declared=True)


def speeds(finished: Iterable[Finished]) -> Mapping[tuple[str, str], float]:
    """Measured relative speeds by (stage kind, device model).

    Only families that finished often enough on two models or more tell them apart. In each, the model with the most
    runs keeps the speed it was taken to have; the others follow from the ratio of median run times; families vote by
    their number of runs.
    """
    runs: dict[tuple[str, str, str], dict[str, list[Finished]]] = defaultdict(lambda: defaultdict(list))
    for one in finished:
        if one.model and one.ran_s > 0:
            runs[one.project, family(one.name), one.kind][one.model].append(one)
    votes: dict[tuple[str, str], list[tuple[float, int]]] = defaultdict(list)
    for (_, _, kind), by_model in sorted(runs.items()):
        known = {model: some for model, some in sorted(by_model.items()) if len(some) >= ENOUGH}
        if len(known) < 2:
            continue
        base = max(known, key=lambda model: (len(known[model]), model))
        base_s = float(np.median([one.ran_s for one in known[base]]))
        base_speed = float(np.median([one.speed for one in known[base]]))
        for model, some in known.items():
            ratio = base_s / float(np.median([one.ran_s for one in some]))
            votes[kind, model].append((base_speed * ratio, len(some)))
    return {
        key: round(sum(rate * count for rate, count in cast) / sum(count for _, count in cast), 6)
        for key, cast in sorted(votes.items())
    }
