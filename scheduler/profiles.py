"""The named profiles: lists of policies with weights, and how far each plans ahead. Data, not code."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import fields, replace
from functools import cache
from typing import Any, Final

from scheduler import policies
from scheduler.core.model.profile import Profile
from scheduler.core.model.sentences import _, said
from scheduler.core.model.types import Pool

# Within a class, fair share moves a stage by at most two hundred points, and so does a deadline that comes near; the
# least step between two classes is a thousand.
_ORDER: Final[dict[str, Any]] = {
    "priority": {"weight": 1000.0},
    "fair_share": {"weight": 200.0},
    "deadline": {"weight": 200.0},
}
# A device that nobody will be able to use counts 10. Data that lie on a node are worth two of them, devices side by
# side half a one; none is worth a device that is about to fail. Among equal places the fullest is taken.
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
    # Each stage gets a start and devices once, from the bad case of all durations, and holds on to them.
    "static": {
        "policies": {**_ORDER, **_PLACE, "backfill": {}},
        "timetable": "keep",
        "plan_with": "p90",
        "start_early": False,
    },
    # No promises: at each event the best stage that can start does.
    "dynamic": {
        "policies": {**_ORDER, **_PLACE, **_EVICT},
        "timetable": "none",
    },
    # A timetable that is kept true while the world moves.
    "hybrid": {
        "policies": {**_ORDER, **_PLACE, "hot_nodes": {"weight": 1000.0}, "backfill": {}, **_EVICT, "overtake": {}},
        "timetable": "repair",
        "plan_with": "p50",
        "start_early": True,
        "depth": 100,
        "repair_depth": 8,
    },
    # Backfill as clusters know it: in the order of submission, only the head of the queue is reserved for.
    "easy": {
        "policies": {"fifo": {"strict": False}, **_PLACE, "backfill": {}},
        "timetable": "repair",
        "horizon_s": 31 * 86_400.0,
        "depth": 1,
    },
    # The same with a reservation for everybody.
    "conservative": {
        "policies": {"fifo": {"strict": False}, **_PLACE, "backfill": {}},
        "timetable": "repair",
        "horizon_s": 31 * 86_400.0,
        "depth": 1000,
    },
    # Running and waiting stages take turns: within a class, who has had least goes first. Who has just begun is left
    # alone for five minutes, and nobody is stopped unless that gains what it costs.
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
# What the numbers of a profile may be; those whose least is a whole number are whole.
RANGES: Final[Mapping[str, tuple[float, float]]] = {
    "horizon_s": (1.0, 366 * 86_400.0),
    "depth": (0, 1_000_000),
    "repair_depth": (0, 1_000_000),
    "drift": (0.0, 1.0),
}


@cache
def named(name: str) -> Profile:
    """The profile called ``name``; raises ``ValueError`` that lists those there are."""
    if name not in PROFILES:
        raise ValueError(_('there is no profile "{name}"; there are {all}').format(name=name, all=", ".join(PROFILES)))
    return load(name, PROFILES[name])


def of(pools: Iterable[Pool]) -> dict[str, Profile]:
    """The profile of each of these pools, by the pool's name."""
    return {pool.name: named(pool.profile) for pool in pools}


def load(name: str, spec: Mapping[str, Any], *, live: bool = False) -> Profile:
    """A profile from data: ``policies`` maps names to parameters (``weight`` is one of each), the rest are the fields
    of :class:`Profile`; in which order they are written means nothing. ``live`` allows only policies that a pool may
    have. Raises ``ValueError`` for a word that does not exist, with a list of what does."""
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
    """Raise ``ValueError`` where ``rotates`` is not a way to take turns, or does not go with the timetable."""
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
