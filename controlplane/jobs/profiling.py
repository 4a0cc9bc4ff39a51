"""Reads ``profiling`` of a stage: the tools with which those who may act on the job may profile it while it runs."""

from __future__ import annotations

from typing import Any, Final

from django.utils.translation import gettext as _

from controlplane.jobs.section import Section
from controlplane.jobs.values import nearest, shown

TOOLS: Final = ("py-spy", "torch")


def read(section: Section) -> dict[str, Any]:
    """Return the allowed tools as they are stored in the request of a stage; empty if none is allowed."""
    if not section.has("profiling"):
        return {}
    part = Section(section.values["profiling"], section.at("profiling"), section.refusals, ("allow",))
    allowed: set[str] = set()
    for index, each in enumerate(part.each("allow", len(TOOLS))):
        if each in TOOLS:
            allowed.add(each)
        else:
            said = _("names no tool {tool}; {others}").format(tool=shown(each), others=nearest(str(each), TOOLS))
            part.refuse(f"/allow/{index}", said, "unknown_value")
    return {"profiling": sorted(allowed)} if allowed else {}
