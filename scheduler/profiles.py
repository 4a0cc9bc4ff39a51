"""The named profiles: lists of policies with weights, and how far each plans ahead. Data, not code."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from functools import cache
from typing import Any, Final

from scheduler import policies
from scheduler.core.profile import Profile

# Fair share may lift a stage by at most two hundred points: less than one class.
_ORDER: Final[dict[str, Any]] = {"priority": {}, "fair_share": {"weight": 200.0}}
_PLACE: Final[dict[str, Any]] = {"quota": {}, "gang": {}, "pack": {}, "alternatives": {}}

PROFILES: Final[Mapping[str, Mapping[str, Any]]] = {
    # Each stage gets a start and devices once, from the bad case of all durations, and holds on to them.
    "static": {
        "policies": {**_ORDER, **_PLACE, "backfill": {}},
        "timetable": "keep",
        "plan_with": "p90",
        "start_early": False,
    },
    # No promises: at each event the best stage that can start does.
    "dynamic": {
        "policies": {**_ORDER, **_PLACE, "preempt": {}},
        "timetable": "none",
    },
    # A timetable that is kept true while the world moves.
    "hybrid": {
        "policies": {**_ORDER, "firm": {"weight": 200.0}, **_PLACE, "backfill": {}, "preempt": {}},
        "timetable": "repair",
        "plan_with": "p50",
        "start_early": True,
        "depth": 100,
        "repair_depth": 8,
    },
    # The baseline of every comparison.
    "fifo": {
        "policies": {"fifo": {}, **_PLACE},
        "timetable": "none",
    },
}
DEFAULT: Final = "hybrid"


@cache
def named(name: str) -> Profile:
    """The profile called ``name``; raises ``ValueError`` that lists those there are."""
    if name not in PROFILES:
        raise ValueError(f'there is no profile "{name}"; there are {", ".join(PROFILES)}')
    return load(name, PROFILES[name])


def load(name: str, spec: Mapping[str, Any]) -> Profile:
    """A profile from data: ``policies`` maps names to parameters (``weight`` is one of each), the rest are the fields
    of :class:`Profile`. Raises ``ValueError`` for a word that does not exist, with a list of what does."""
    allowed = [one.name for one in fields(Profile) if one.name not in ("name", "policies")]
    for word in spec:
        if word != "policies" and word not in allowed:
            raise ValueError(f'profile "{name}" has no setting "{word}"; it takes policies, {", ".join(allowed)}')
    choices = {"timetable": ("none", "keep", "repair"), "plan_with": ("p50", "p90")}
    for word, values in choices.items():
        if word in spec and spec[word] not in values:
            raise ValueError(f'profile "{name}" sets {word} to "{spec[word]}"; it must be one of {", ".join(values)}')
    built = []
    for policy, params in spec.get("policies", {}).items():
        params = dict(params)
        weight = float(params.pop("weight", 1.0))
        built.append((policies.build(policy, params), weight))
    rest = {word: value for word, value in spec.items() if word != "policies"}
    return replace(Profile(name, tuple(built)), **rest)
