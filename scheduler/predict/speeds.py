"""The measured speeds of device models, from the same work done on several."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Final

import numpy as np

from scheduler.predict.finished import Finished, family

# A model needs so many runs.
ENOUGH: Final = 5
# Shorter runs measure how fast a process starts, not how fast a device is.
LEAST_S: Final = 5.0
# A measured speed differs from the assumed one by at most this factor.
MOST: Final = 20.0
# A new value within this ratio of the used one counts as the same.
SAME: Final = 0.15


def speeds(finished: Iterable[Finished]) -> Mapping[tuple[str, str], float]:
    """Return measured relative speeds by (stage kind, device model).

    Only families that finished often enough on two models or more are used, and another declared time is another
    family, because programs share names. In each, the model with the most runs keeps its assumed speed; the others
    follow from the ratio of median run times; families vote by their number of runs.
    """
    runs: dict[tuple[str, str, str, float], dict[str, list[Finished]]] = defaultdict(lambda: defaultdict(list))
    for one in finished:
        if one.model and one.ran_s >= LEAST_S:
            runs[one.project, family(one.name), one.kind, one.expected_s or 0.0][one.model].append(one)
    votes: dict[tuple[str, str], list[tuple[float, int]]] = defaultdict(list)
    for (_, _, kind, _), by_model in sorted(runs.items()):
        known = {model: some for model, some in sorted(by_model.items()) if len(some) >= ENOUGH}
        if len(known) < 2:
            continue
        base = max(known, key=lambda model: (len(known[model]), model))
        base_s = float(np.median([one.ran_s for one in known[base]]))
        base_speed = float(np.median([one.speed for one in known[base]]))
        for model, some in known.items():
            ratio = base_s / float(np.median([one.ran_s for one in some]))
            taken = float(np.median([one.speed for one in some]))
            votes[kind, model].append((min(max(base_speed * ratio, taken / MOST), taken * MOST), len(some)))
    return {
        key: round(sum(rate * count for rate, count in cast) / sum(count for _, count in cast), 6)
        for key, cast in sorted(votes.items())
    }


def settled(
    used: Mapping[tuple[str, str], float], found: Mapping[tuple[str, str], float]
) -> Mapping[tuple[str, str], float]:
    """Return ``found``, but with the ``used`` value where it differs little, because any change recomputes all work."""
    return {
        key: used[key] if key in used and abs(rate / used[key] - 1.0) <= SAME else rate for key, rate in found.items()
    }
