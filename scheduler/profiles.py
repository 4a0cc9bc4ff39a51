"""The built-in profiles: lists of policies with weights, and how far each plans ahead. Data, not code."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import fields, replace
from functools import cache
from typing import Any, Final

from scheduler import policies
from scheduler.core.model.profile import Profile
from scheduler.core.model.sentences import _, said
from scheduler.core.model.types import Pool

# Within a class, fair share moves a stage by at most two hundred points, and so does an approaching deadline; the least
# step between two classes is a thousand.
_ORDER: Final[dict[str, Any]] = {
    "priority": {"weight": 1000.0},
    "fair_share": {"weight": 200.0},
    "deadline": {"weight": 200.0},
}
# A device that no request can use any more counts 10. Cached inputs on a node count two of them, adjacent devices half
# a one; none outweighs a device that is about to fail. Among equal places the fullest is taken.
_WHERE: Final[dict[str, Any]] = {
    "leftover": {"weight": 10.0},
    "pack": {"weight": 0.001},
    "conditions": {"weight": 1000.0},
    "locality": {"weight": 20.0},
    "topology": {"weight": 5.0},
}
_PLACE: Final[dict[str, Any]] = {"quota": {}, "user_limit": {}, "gang": {}, **_WHERE, "alternatives": {}}
_EVICT: Final[dict[str, Any]] = {"elastic": {}, "reclaim": {}, "preempt": {}, "cycle_guard": {}}

PROFILES: Final[Mapping[str, Mapping[str, Any]]] = {
    # Each stage gets a reservation once, by the high quantile of all durations, and keeps it.
    "static": {
        "policies": {**_ORDER, **_PLACE, "backfill": {}},
        "timetable": "keep",
        "plan_with": "p90",
        "start_early": False,
    },
    # No reservations: at each event the best stage that can start does.
    "dynamic": {
        "policies": {**_ORDER, **_PLACE, **_EVICT},
        "timetable": "none",
    },
    # A timetable that is updated while the cluster changes.
    "hybrid": {
        "policies": {**_ORDER, **_PLACE, "hot_nodes": {"weight": 1000.0}, "backfill": {}, **_EVICT, "overtake": {}},
        "timetable": "repair",
        "plan_with": "p50",
        "start_early": True,
        "depth": 100,
        "repair_depth": 8,
    },
    # EASY backfill: in the order of submission, only the head of the queue has a reservation.
    "easy": {
        "policies": {"fifo": {"strict": False}, **_PLACE, "backfill": {}},
        "timetable": "repair",
        "horizon_s": 31 * 86_400.0,
        "depth": 1,
    },
    # The same with a reservation for every stage.
    "conservative": {
        "policies": {"fifo": {"strict": False}, **_PLACE, "backfill": {}},
        "timetable": "repair",
        "horizon_s": 31 * 86_400.0,
        "depth": 1000,
    },
    # Running and waiting stages share time: within a class, the stage with the least service goes first. One that has
    # just started runs for five minutes at least, and none is stopped unless that gains more than it costs.
    "turns": {
        "policies": {
            "priority": {"guarantee": 0.0, "weight": 1e9},
            "attained_service": {"thresholds": (3_600.0, 28_800.0)},
            **_PLACE,
            "min_runtime": {"least_s": 300.0},
            "preempt": {},
        },
        "timetable": "none",
        "rotates": "event",
    },
    # The baseline of every comparison.
    "fifo": {
        "policies": {"fifo": {}, **_PLACE},
        "timetable": "none",
    },
}
DEFAULT: Final = "hybrid"
MOST_WEIGHT: Final = 1e9
# The ranges of a profile's numbers; those with an integer bound are integers.
RANGES: Final[Mapping[str, tuple[float, float]]] = {
    "horizon_s": (1.0, 366 * 86_400.0),
    "depth": (0, 1_000_000),
    "repair_depth": (0, 1_000_000),
    "drift": (0.0, 1.0),
}


@cache
def named(name: str) -> Profile:
    """Return the profile called ``name``; raises ``ValueError`` that lists the existing ones."""
    if name not in PROFILES:
        raise ValueError(_('there is no profile "{name}"; there are {all}').format(name=name, all=", ".join(PROFILES)))
    return load(name, PROFILES[name])


def of(pools: Iterable[Pool]) -> dict[str, Profile]:
    """Return the profile of each of these pools, by the pool's name."""
    return {pool.name: named(pool.profile) for pool in pools}


def load(name: str, spec: Mapping[str, Any], *, live: bool = False) -> Profile:
    """Build a profile from data: ``policies`` maps names to parameters (each with a ``weight``), the rest are the
    fields of :class:`Profile`; their order does not matter. ``live`` allows only policies for pools. Raises
    ``ValueError`` for an unknown word, with a list of the known ones."""
    allowed = [one.name for one in fields(Profile) if one.name not in ("name", "policies")]
    chosen = spec.get("policies", {}) if isinstance(spec, Mapping) else None
    if not isinstance(chosen, Mapping) or not all(isinstance(one, Mapping) for one in chosen.values()):
        raise ValueError(
            _(
                'profile "{name}" must be a mapping of settings; its policies map names to mappings of parameters'
            ).format(name=name)
        )
    for word in spec:
        if word != "policies" and word not in allowed:
            raise ValueError(
                _('profile "{name}" has no setting "{word}"; it takes policies, {allowed}').format(
                    name=name, word=word, allowed=", ".join(allowed)
                )
            )
    choices = {"timetable": ("none", "keep", "repair"), "plan_with": ("p50", "p90")}
    for word, values in choices.items():
        if word in spec and spec[word] not in values:
            raise ValueError(
                _('profile "{name}" sets {word} to "{value}"; it must be one of {allowed}').format(
                    name=name, word=word, value=spec[word], allowed=", ".join(values)
                )
            )
    _check_turns(name, spec)
    built = []
    for policy, given in sorted(chosen.items(), key=lambda one: str(one[0])):
        params = dict(given)
        weight = params.pop("weight", 1.0)
        if isinstance(weight, bool) or not isinstance(weight, (int, float)) or not 0 <= weight <= MOST_WEIGHT:
            raise ValueError(
                _(
                    'profile "{name}": the weight of "{policy}" must be a number from 0 to {most:g}, not {weight!r}'
                ).format(name=name, policy=policy, most=MOST_WEIGHT, weight=weight)
            )
        try:
            built.append((policies.build(policy, params, live=live), float(weight)))
        except ValueError as error:
            raise ValueError(_('profile "{name}": {fault}').format(name=name, fault=said(error))) from None
    rest = {word: value for word, value in spec.items() if word != "policies"}
    for word, (least, most) in RANGES.items():
        value = rest.get(word, least)
        kind = (int,) if isinstance(least, int) else (int, float)
        if isinstance(value, bool) or not isinstance(value, kind) or not least <= value <= most:
            raise ValueError(
                _('profile "{name}" sets {word} to {value!r}; it must be a number from {least:g} to {most:g}').format(
                    name=name, word=word, value=value, least=least, most=most
                )
            )
    if not isinstance(rest.get("start_early", True), bool):
        raise ValueError(
            _('profile "{name}" sets start_early to {value!r}; it must be true or false').format(
                name=name, value=rest["start_early"]
            )
        )
    return replace(Profile(name, tuple(built)), **rest)


def _check_turns(name: str, spec: Mapping[str, Any]) -> None:
    """Raise ``ValueError`` if ``rotates`` is no way of time sharing, or does not go with the timetable."""
    rotates = spec.get("rotates", "none")
    is_round = isinstance(rotates, (int, float)) and not isinstance(rotates, bool) and 1 <= rotates <= 604_800
    if rotates not in ("none", "event") and not is_round:
        raise ValueError(
            _(
                'profile "{name}" sets rotates to {value!r}; it must be none, event, or a round of 1 to 604800 seconds'
            ).format(name=name, value=rotates)
        )
    if rotates != "none" and spec.get("timetable", "none") != "none":
        raise ValueError(
            _('profile "{name}" rotates, so nothing can be promised: its timetable must be none').format(name=name)
        )
