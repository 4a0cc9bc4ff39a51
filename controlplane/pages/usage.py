"""Usage: who used which devices for how long by day, what was lost, what it costs, and fair share."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import date, timedelta
from typing import Any
from urllib.parse import urlencode

from django.contrib.auth.decorators import login_required
from django.http import HttpRequest, HttpResponse
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from controlplane.pages.shell import page, reader, title_of
from controlplane.queries import usage
from controlplane.queries.reading import API

# Of one job one asks who submitted it, and for which project.
COLUMNS = {"job": "job,project,user"}
RANGES = {"7d": 7, "30d": 30, "90d": 90, "365d": 365}
GROUPS = {
    "project": gettext_lazy("Project"),
    "user": gettext_lazy("User"),
    "job": gettext_lazy("Job"),
    "model": gettext_lazy("Model"),
    "pool": gettext_lazy("Pool"),
}
# A chart with more layers could not be told apart.
MOST_LAYERS = 7
MOST_LINES = 200
MOST_JOBS = 100


def _chart(found: usage.UsageReport, kind: str) -> dict[str, Any]:
    """Device-hours of a kind by day, a layer for each of the projects that used most, and one for all others."""
    days = [found.from_day + timedelta(days=n) for n in range((found.to_day - found.from_day).days + 1)]
    hours: dict[str, dict[date | None, float]] = defaultdict(lambda: defaultdict(float))
    for row in found.results:
        if row.kind == kind:
            hours[row.project or ""][row.day] += row.allocated_device_s / 3600
    names = sorted(hours, key=lambda name: -sum(hours[name].values()))
    if len(names) > MOST_LAYERS + 1:
        rest: dict[date | None, float] = defaultdict(float)
        for name in names[MOST_LAYERS:]:
            for day, amount in hours[name].items():
                rest[day] += amount
        hours[_("other projects")] = rest
        names = [*names[:MOST_LAYERS], _("other projects")]
    series = [{"name": name, "y": [round(hours[name][day], 3) for day in days]} for name in names]
    return {"x": [day.isoformat() for day in days], "series": series, "unit": "h"}


def _line(row: usage.UsageRow, group: str) -> dict[str, Any]:
    """A row of the table: its name, hours, and what became of them as shares of 1."""
    held = row.allocated_device_s or 1.0
    return {
        "name": getattr(row, group) or row.kind,
        "job": row.job,
        "job_name": row.job_name,
        "of": " · ".join(filter(None, (row.project, row.user))) if row.job else "",
        "kind": row.kind,
        "hours": row.allocated_device_s,
        "busy": row.busy_device_s / held,
        "idle": row.idle_device_s / held,
        "unknown": row.unknown_device_s / held,
        "preempted": row.lost_preempted_device_s,
        "failed": row.lost_failed_device_s,
        "attempts": row.attempts,
        "energy_j": row.energy_j,
        "co2_g": row.co2_g,
        "cost": row.cost,
        "unpriced": row.unpriced_device_s,
    }


def _chosen(request: HttpRequest, name: str, known: Mapping[str, Any] | Sequence[str], usual: str) -> str:
    """The value of a parameter if it is a known one."""
    value = request.GET.get(name, "")
    return value if value in known else usual


@login_required
def show(request: HttpRequest) -> HttpResponse:
    user = reader(request)
    group = _chosen(request, "by", GROUPS, "project")
    spans = {name: days for name, days in RANGES.items() if group != "job" or days <= usage.LONGEST_BY_JOB.days}
    span = _chosen(request, "range", spans, "30d")
    names = usage.project_names(user)
    project = _chosen(request, "project", names, "")
    today = usage.asked().last
    days = {"from": (today - timedelta(days=RANGES[span] - 1)).isoformat(), "to": today.isoformat()}
    by_day = usage.usage(user, usage.asked(days["from"], days["to"], "day,project", project))
    by = COLUMNS.get(group, group)
    rows = usage.usage(user, usage.asked(days["from"], days["to"], by, project, MOST_JOBS))
    told = [*rows.results, *rows.rest]
    kinds = sorted({row.kind for row in told}, key=lambda kind: (kind == "cpu", kind))
    kind = _chosen(request, "kind", kinds, kinds[0] if kinds else "")
    lines = [_line(row, group) for row in rows.results]
    asked = {**days, "by": by if group == "job" else f"day,{group}", "format": "csv"}
    asked |= {"project": project} if project else {}
    asked |= {"limit": str(usage.MOST_JOBS)} if group == "job" else {}  # the page shows fewer
    jobs = len({row.job for row in rows.results}) if group == "job" else 0
    return page(
        request,
        "usage.html",
        {
            "span": span,
            "ranges": [(name, days * 86_400) for name, days in spans.items()],
            "group": group,
            "groups": GROUPS,
            "title": GROUPS[group],
            "project": project,
            "projects": names,
            "kind": kind,
            "kinds": kinds,
            "chart": _chart(by_day, kind),
            "lines": lines[: len(lines) if jobs else MOST_LINES],
            "rest": [_line(row, group) for row in rows.rest],
            "job_count": rows.job_count or 0,
            "jobs": jobs,
            "others": (rows.job_count or 0) - jobs,
            "line_count": len(lines),
            "has_cost": any(row.cost is not None for row in told),
            "has_energy": any(row.energy_j is not None for row in told),
            "has_co2": any(row.co2_g is not None for row in told),
            "found": rows,
            "shares": rows.shares,
            "most_share": max((max(share.target, share.received) for share in rows.shares), default=1.0),
            "csv": f"{API}/usage?{urlencode(asked)}",
        },
        place="usage",
        crumbs=[(title_of("usage"), "")],
    )
