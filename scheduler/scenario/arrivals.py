"""Generates traces: Poisson arrivals, lognormal durations, a mix of widths, a daily rhythm.

The shapes follow studies of GPU clusters (Jeon et al., ATC 2019; Hu et al., SC 2021): many short and narrow jobs, few
long and wide ones that take most of the device time.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping
from typing import Any, Final

from scheduler.core.model.clauses import clause
from scheduler.core.model.sentences import _
from scheduler.sim.traces import Arrival, Trace, generic

KEYS: Final = ("jobs", "per_hour", "median_s", "sigma", "widths", "projects", "daily", "seed")
WIDTHS: Final = {0.5: 0.1, 1: 0.5, 2: 0.15, 4: 0.13, 8: 0.1, 16: 0.02}
PEAK: Final = 0.6
MOST_WIDTHS: Final = 100
WIDEST: Final = 16_384
MOST_PROJECTS: Final = 1_000


def generate(asked: Mapping[str, Any], most: float = math.inf) -> Trace:
    """Generate ``jobs`` stages at ``per_hour`` on average. ``widths`` maps devices to their share of all stages (above
    eight they are whole nodes of eight); with ``daily`` twice as many arrive by day as by night. Raises
    ``ValueError``."""
    jobs = int(_number(asked, "jobs", 200, 1, 1e6))
    if jobs > most:
        raise ValueError(_("generate.jobs is {jobs:,}; at most {most:,.0f}").format(jobs=jobs, most=most))
    per_hour = _number(asked, "per_hour", 30.0, 0.01, 1e6)
    median_s, sigma = _number(asked, "median_s", 1200.0, 1, 1e7), _number(asked, "sigma", 1.4, 0, 4)
    widths, projects = _widths(asked.get("widths") or WIDTHS), _projects(asked.get("projects"))
    dice = random.Random(int(_number(asked, "seed", 0, 0, 2**31)))
    at, found = 0.0, []
    for number in range(1, jobs + 1):
        rate = per_hour / 3600
        if asked.get("daily"):
            rate *= 1 + PEAK * math.sin(2 * math.pi * at / 86_400 - math.pi / 2)
        at += dice.expovariate(rate)
        (width,) = dice.choices(list(widths), list(widths.values()))
        nodes = max(1, math.ceil(width / 8)) if width > 8 else 1
        duration = min(generic.YEARS_S, max(10.0, median_s * math.exp(dice.gauss(0.0, sigma))))
        found.append(
            Arrival(
                id=f"made-{number:06}",
                submit_s=round(at, 3),
                duration_s=round(duration, 3),
                gpus=width / nodes if width <= 8 else 8.0,
                project=projects[dice.randrange(len(projects))],
                user=f"user{dice.randrange(12):02}",
                nodes=nodes,
                limit_s=float(math.ceil(duration * dice.choice((1.2, 2.0, 4.0)) / 600) * 600),
            )
        )
    return Trace(tuple(found), ((clause("MadeUp"),),))


def _widths(value: Any) -> dict[float, float]:
    """Parse numbers of devices with their shares; raises ``ValueError``."""
    wrong = ValueError(
        _(
            "generate.widths must map up to {most} numbers of devices, each at most {widest:,}, to shares, such as "
            "{{1: 0.7, 8: 0.3}}"
        ).format(most=MOST_WIDTHS, widest=WIDEST)
    )
    if not isinstance(value, Mapping) or len(value) > MOST_WIDTHS:
        raise wrong
    try:
        widths = {float(width): float(share) for width, share in value.items()}
    except (TypeError, ValueError, OverflowError):
        raise wrong from None
    if not all(0 <= width <= WIDEST and 0 <= share <= 1e9 for width, share in widths.items()) or not sum(
        widths.values()
    ):
        raise wrong
    return widths


def _projects(value: Any) -> list[str]:
    """Parse names of projects; raises ``ValueError``."""
    names = value or ["vision", "speech", "language"]
    if not isinstance(names, list | tuple) or len(names) > MOST_PROJECTS:
        raise ValueError(_("generate.projects must be a list of up to {most:,} names").format(most=MOST_PROJECTS))
    if not all(isinstance(name, str) and 0 < len(name) <= 100 and name.isprintable() for name in names):
        raise ValueError(_("generate.projects must hold names of 1 to 100 printable characters"))
    return list(names)


def _number(asked: Mapping[str, Any], key: str, default: float, least: float, most: float) -> float:
    value = asked.get(key, default)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not least <= value <= most:
        raise ValueError(
            _("generate.{key} must be a number from {least:g} to {most:g}, not {value!r}").format(
                key=key, least=least, most=most, value=value
            )
        )
    return float(value)
