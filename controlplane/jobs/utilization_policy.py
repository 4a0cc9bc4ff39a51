"""Reads ``utilization_policy`` of a stage: what happens if it holds accelerators and hardly uses them."""

from __future__ import annotations

import re
from typing import Any, Final

from django.utils.translation import gettext as _

from controlplane.jobs.section import Section
from controlplane.jobs.values import Unacceptable, choice, duration, shown

ACTIONS: Final = ("notify", "give_back", "stop")
SHORTEST_S: Final = 300.0
LONGEST_S: Final = 86_400.0
_PERCENT: Final = re.compile(r"\s*([0-9]{1,3}(?:\.[0-9]{1,3})?)\s*%\s*")


def read(section: Section) -> dict[str, Any]:
    """Return the policy as it is stored in the request of a stage; empty without one."""
    if not section.has("utilization_policy"):
        return {}
    part = Section(
        section.values["utilization_policy"],
        section.at("utilization_policy"),
        section.refusals,
        ("min", "window", "action"),
    )
    policy = {
        "min": part.read("min", _share, 0.1),
        "window_s": part.read("window", duration(SHORTEST_S, LONGEST_S), 1800.0),
        "action": part.read("action", choice(*ACTIONS), "notify"),
    }
    return {"utilization_policy": policy}


def _share(value: object) -> float:
    found = _PERCENT.fullmatch(value) if isinstance(value, str) else None
    percent = float(found[1]) if found else 0.0
    if not 1 <= percent <= 100:
        detail = _("must be a share from 1% to 100%, such as 10%, not {value}").format(value=shown(value))
        raise Unacceptable(detail, "out_of_range")
    return round(percent / 100, 5)
