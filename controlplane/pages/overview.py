"""The overview of the cluster: its devices and load, the queue, and signs that need attention.

The page consists of three snapshots that its readers share: the map of devices is the same for all users, holders and
the queue are per audience, and the plan is slow to compute and changes slowly. A change is sent to open pages as the
parts that differ.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Final

import msgspec
from django.conf import settings
from django.contrib.auth.decorators import login_required
from django.http import Http404, HttpRequest, HttpResponse
from django.template.loader import render_to_string
from django.utils import timezone
from django.utils.safestring import mark_safe
from django.utils.translation import gettext as _

from controlplane.accounts.models import User
from controlplane.fleet import models as fleet
from controlplane.jobs.held_idle import held_idle_lately
from controlplane.jobs.models import Job
from controlplane.pages.shell import page, reader
from controlplane.pages.timeline import chart, fitted
from controlplane.pools.models import Pool
from controlplane.queries import capacity_history, checklist, device_map, gangs, loads, timeline
from controlplane.queries import overview as found
from controlplane.queries.attention import HeldDevice, attention
from controlplane.queries.device_map import METRICS, UNITS, Facet, Metric, SeenDevice
from controlplane.queries.devices import last_measured
from controlplane.queries.reading import API, Representation, redacted
from controlplane.queries.snapshots import Parts, Shared, TopicSource

# With more devices the grid of links is left out; the chart and the table remain.
MOST_LINKS = 1500
MOST_RUNNING = 12
MOST_GROUPS = 50
CELL, TALLEST = 20, 620
LEVELS = {"critical": "failed", "warning": "warn", "note": "pending"}
GANTT = ("-5400", "5400")
# As many nodes as the panel has room for.
GANTT_NODES: Final = 16
COUNTED: Final = ("COMPLETED", "FAILED", "CANCELLED")


def _html(name: str, values: Mapping[str, Any]) -> str:
    """A panel of the page as a part: its HTML, as JSON."""
    return json.dumps(render_to_string(f"parts/overview_{name}.html", dict(values)))


def _make_map(user: User, metric: Metric = "utilisation") -> Parts:
    """A metric of each device: the same for all users."""
    devices = device_map.seen(device_map.nodes_now(), held_idle_lately())
    facets = device_map.facets(devices)
    profiles = dict(Pool.objects.values_list("name", "profile"))
    parts = {
        "layout": json.dumps(_layout(facets)),
        "html:overview-tiles": _html(
            "tiles", {"tiles": _tiles(redacted(user, found.tiles(devices, is_folded=True)), devices)}
        ),
        "html:overview-head": _html(
            "head",
            {
                "nodes": fleet.Node.objects.count(),
                "accelerators": sum(device.kind != "cpu" for device in devices),
                "profile": profiles.get("default") or next(iter(profiles.values()), ""),
                "simulated": any(device.simulated for device in devices),
            },
        ),
    }
    for number, facet in enumerate(facets):
        parts[f"levels:{_facet_id(number)}"] = json.dumps(device_map.levels(facet, metric))
        parts[f"tops:{_facet_id(number)}"] = json.dumps(device_map.top(facet, metric))
        parts[f"shares:{_facet_id(number)}"] = json.dumps(device_map.shares(facet))
    return parts


def _make_work(user: User) -> Parts:
    """Holders, queue and signs, as this user's audience may see them."""
    states = device_map.nodes_now()
    devices = device_map.seen(states, held_idle_lately(), is_measured=False)
    held, projects = device_map.holders(user)
    odd = {device.id: device.state for device in devices if device.state in {"unhealthy", "held_idle"}}
    rows = fleet.Device.objects.in_bulk(list(odd))
    holds = [HeldDevice(row, odd[key], held[key] if held.get(key, 0) > 0 else None) for key, row in rows.items()]
    signs, sign_count = attention(list(fleet.Node.objects.all()), holds, user)
    since = timezone.now() - timedelta(days=1)
    ended = {state: Job.objects.filter(submitted_at__gte=since, state=state).count() for state in COUNTED}
    running, running_count = found.running(user, MOST_RUNNING)
    queue = found.queue(user)
    shown = [{**redacted(user, sign), "look": LEVELS.get(sign.level, "pending")} for sign in signs]
    parts = {
        "projects": json.dumps(sorted(projects.items())),
        "html:panel-attention": _html("attention", {"attention": shown, "attention_count": sign_count}),
        "html:panel-queue": _html(
            "queue", {"queue": redacted(user, queue), "running_count": running_count, "ended": ended}
        ),
        "html:panel-running": _html(
            "running", {"running": [redacted(user, one) for one in running], "running_count": running_count}
        ),
    }
    for number, facet in enumerate(device_map.facets(devices)):
        parts[f"holders:{_facet_id(number)}"] = json.dumps(device_map.held_by(facet, held))
    return parts


def _make_plan(user: User) -> Parts:
    """The recent and planned holders of each device."""
    body = redacted(user, timeline.between(user, *GANTT))
    accelerators = fleet.Device.objects.filter(present=True).exclude(kind="cpu").count()
    drawn = chart(fitted(body), only_used=True, most=GANTT_NODES)
    return {
        "html:panel-gantt": _html("gantt", {"gantt": drawn, "accelerators": accelerators}),
        "html:panel-gangs": _html("gangs", {"gangs": gangs.gangs()}),
    }


def _make_loads(user: User, metric: Metric, by: loads.Group) -> Parts:
    """A metric by groups, as this user may see them."""
    body = loads.found(user, metric, by)
    most = max((row.most or 0 for row in body.results), default=0) if metric == "power" else 100
    rows = [{"row": row, "share": (row.mean or 0) / (most or 1)} for row in body.results[:MOST_GROUPS]]
    counts = {"count": len(body.results), "group": loads.group_title(by)}
    return {"html:overview-loads": _html("loads", {"rows": rows, "loads": body, **counts})}


def _make_history(user: User, within: str) -> Parts:
    """Accelerators that were there and allocated, or cores where there are none, and the stages that waited."""
    body = capacity_history.capacity_history(within, timezone.now())
    shown = [kind for kind in body.kinds if kind.kind != "cpu"] or body.kinds
    at = [round(each.timestamp() * 1000) for each in body.at]

    def summed(each: Iterable[list[float]]) -> list[float]:
        return [round(sum(values), 2) for values in zip(*each, strict=True)]

    devices = [
        {"name": _("there"), "x": at, "y": summed(kind.capacity for kind in shown)},
        {"name": _("allocated"), "x": at, "y": summed(kind.allocated for kind in shown), "is_area": True},
    ]
    waiting = [{"name": _("waiting"), "x": at, "y": body.waiting, "is_area": True}]
    over_time = {"x_kind": "time", "zero": True}
    charts = {"capacity": over_time | {"series": devices}, "waiting": over_time | {"series": waiting}}
    return {
        "html:overview-history": _html(
            "history", {**charts, "cores": shown == body.kinds and bool(shown), "hour": within == "week"}
        )
    }


FACTS: Final = ("facts",)
MAPS: Final = {
    metric: TopicSource(
        f"/overview/map{'' if metric == 'utilisation' else f'-{metric}'}",
        partial(_make_map, metric=metric),
        ("samples", "facts"),
        is_for_all=True,
    )
    for metric in METRICS
}
LOADS: Final = {
    (metric, by): TopicSource(
        f"/overview/loads-{metric}-{by}",
        partial(_make_loads, metric=metric, by=by),
        ("samples", "facts"),
        is_for_all=by != "project",  # whose project it is, not everybody may see
        every_s=2.0,
    )
    for metric in METRICS
    for by in loads.GROUPS
}
HISTORY: Final = {
    within: TopicSource(
        f"/overview/history-{within}", partial(_make_history, within=within), FACTS, is_for_all=True, every_s=30.0
    )
    for within in capacity_history.RANGES
}
WORK: Final = TopicSource("/overview/work", _make_work, FACTS, every_s=2.0)
PLAN: Final = TopicSource("/overview/plan", _make_plan, FACTS, every_s=10.0)
SOURCES: Final = (*MAPS.values(), *LOADS.values(), *HISTORY.values(), WORK, PLAN)


def _facet_id(number: int) -> str:
    return f"chart-heat-{number}"


def _layout(facets: list[Facet]) -> list[dict[str, Any]]:
    """The layout of the map, which changes with the fleet only: nodes, columns, and which are simulated."""
    made = []
    for number, facet in enumerate(facets):
        simulated = {device.node for device in facet.devices if device.simulated}
        made.append(
            {
                "id": _facet_id(number),
                "kind": facet.kind,
                "model": facet.model,
                "rows": facet.names,
                "columns": facet.columns,
                "simulated": [row for row, name in enumerate(facet.names) if name in simulated],
            }
        )
    return made


def _charts(parts: Mapping[str, Any], unit: str) -> list[dict[str, Any]]:
    """The maps to draw, from the parts of both snapshots."""
    charts = []
    for facet in parts["layout"]:
        names, columns = facet["rows"], facet["columns"]
        width = round(20 + 6.3 * min(13, max(map(len, names)))) + min(640, CELL * columns)
        chart = {**facet, "width": width, "height": min(TALLEST, CELL * len(names)) + 22}
        chart |= {what: parts.get(f"{what}:{facet['id']}", "") for what in ("levels", "tops", "shares", "holders")}
        chart["unit"] = unit
        chart["projects"] = parts.get("projects", [])
        size = f"{len(names)} × {columns}"
        charts.append(
            {
                "id": facet["id"],
                "kind": facet["kind"],
                "model": facet["model"] or facet["kind"],
                "size": size,
                "chart": chart,
            }
        )
    return charts


def _tiles(tiles: Iterable[Mapping[str, Any]], devices: Iterable[SeenDevice]) -> list[dict[str, Any]]:
    """The tiles with the shares of their bars; those whose use is not measured now, with when it last was."""
    shown = []
    for tile in sorted(tiles, key=lambda tile: tile["kind"] == "cpu"):
        total = tile["total"] or 1
        used = tile["allocated"] * (tile["used_mean"] or 0)
        sick = tile["total"] - tile["healthy"] - tile["offline"]
        shown.append(
            {
                **tile,
                "measured_at": _last_measured(tile, devices),
                "used_share": used / total,
                "idle_share": (tile["allocated"] - used) / total,
                "off_share": (tile["total"] - tile["healthy"]) / total,
                "free_share": max(0.0, (tile["healthy"] - tile["allocated"]) / total),
                "sick": sick,
            }
        )
    return shown


def _last_measured(tile: Mapping[str, Any], devices: Iterable[SeenDevice]) -> datetime | None:
    if not tile["allocated"] or tile["used_mean"] is not None:
        return None
    is_one = tile["kind"] == "cpu"  # all models of CPUs have one tile
    return last_measured(
        device.id
        for device in devices
        if device.kind == tile["kind"]
        and device.simulated == tile["simulated"]
        and (is_one or device.model == tile["model"])
    )


@login_required
def show(request: HttpRequest) -> HttpResponse:
    """The page: ``metric`` of devices, grouped ``by`` node (the map) or otherwise, and the ``history`` of a range."""
    user = reader(request)
    parts: dict[str, Any] = {}
    cursors: dict[str, str] = {}
    metric = next((each for each in METRICS if each == request.GET.get("metric")), METRICS[0])
    by = next((each for each in loads.GROUPS if each == request.GET.get("by")), loads.GROUPS[0])
    within = request.GET.get("history", "day")
    within = within if within in HISTORY else "day"
    groups = [] if by == "node" else [LOADS[metric, by]]
    for source in (MAPS[metric], WORK, PLAN, HISTORY[within], *groups):
        snapshot = Shared.of(source, user).now()
        parts |= {name: msgspec.json.decode(part) for name, part in snapshot.parts.items()}
        cursors[source.topic] = snapshot.cursor
    steps = checklist.checklist(user)
    devices = sum(len(facet["rows"]) * facet["columns"] for facet in parts["layout"])
    panels = {name.rpartition("-")[2]: mark_safe(text) for name, text in parts.items() if name.startswith("html:")}
    return page(
        request,
        "overview.html",
        {
            "parts": panels,
            "facets": [] if groups else _charts(parts, UNITS.get(metric, "%")),
            "empty": not parts["layout"],
            "links": devices <= MOST_LINKS,
            "cursors": cursors,
            "metric": metric,
            "metrics": [(each, loads.title(each)) for each in METRICS],
            "metric_title": loads.title(metric),
            "unit": UNITS.get(metric, "%"),
            "by": by,
            "groups": [(each, loads.group_title(each)) for each in loads.GROUPS],
            "within": within,
            "checklist": steps,
            "steps_done": sum(step.is_done for step in steps),
            "address": settings.AGENTS_URL,
        },
        place="overview",
        # The panels have topics of their own; only the first steps need the whole page.
        topics=[Representation(f"{API}/{of}?limit=1", "", None) for of in ("nodes", "jobs") if steps],
        every_s=5,
        crumbs=[(_("Overview"), "")],
    )


@login_required
def updates(request: HttpRequest, name: str) -> HttpResponse:
    """The changes since a cursor, for a page without a socket, which polls every few seconds."""
    source = next((source for source in SOURCES if source.topic == f"/overview/{name}"), None)
    if source is None:
        raise Http404(_("There is nothing at {path}, or you may not see it.").format(path=request.path))
    deltas = Shared.of(source, reader(request)).poll(request.GET.get("since", "")[:100])
    response = HttpResponse(msgspec.json.encode({"deltas": deltas}), content_type="application/json")
    response["Cache-Control"] = "no-store"
    return response
