"""Simulations: the request of one, its progress, and its results as table and plots."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

from django.contrib.auth.decorators import login_required
from django.http import HttpRequest, HttpResponse
from django.utils.translation import gettext as _

from controlplane.pages.shell import page, reader, title_of
from controlplane.pools.models import profile_names
from controlplane.queries import simulations
from controlplane.queries.reading import cursor_of, seen
from controlplane.simulations.service import LIMITS
from scheduler.profiles import DEFAULT

# Simulated time begins at an arbitrary midnight.
MIDNIGHT = datetime(2000, 1, 1)  # noqa: DTZ001  drawn as it stands, in no zone
LAST_S = 7_000 * 365 * 86_400.0
PER_PAGE = 50
LOOK = {"WAITING": "pending", "RUNNING": "running", "DONE": "completed", "FAILED": "failed", "CANCELLED": "cancelled"}
MOST_CURVES = 8
# Pixels of a track in a lane of nodes, and of a line of text.
ROW, LINE = 9, 14


def _figures() -> tuple[tuple[str, str, str], ...]:
    """The figures of the table: their key, title, and format."""
    return (
        ("wait_avg_s", _("Mean wait"), "span"),
        ("wait_median_s", _("Median wait"), "span"),
        ("wait_p95_s", _("Wait, P95"), "span"),
        ("jct_avg_s", _("Mean time to completion"), "span"),
        ("jct_p95_s", _("Time to completion, P95"), "span"),
        ("makespan_s", _("Makespan"), "span"),
        ("utilisation", _("Accelerators held"), "percent"),
        ("preemptions", _("Preemptions"), "number"),
        ("lost_device_s", _("Device time lost"), "span"),
        ("promises_kept", _("Promises kept"), "percent"),
        ("jain", _("Fairness (Jain)"), "number"),
        ("slowdown_max", _("Largest slowdown"), "number"),
        ("completed", _("Completed"), "number"),
        ("failed", _("Failed"), "number"),
    )


@login_required
def show(request: HttpRequest) -> HttpResponse:
    asked = {"cursor": request.GET["cursor"]} if request.GET.get("cursor") else {}
    answer = simulations.page(reader(request), {**asked, "limit": str(PER_PAGE)})
    return page(
        request,
        "simulations.html",
        {
            "simulations": [{**one, "look": LOOK[one["phase"]]} for one in answer.body["results"]],
            "next": cursor_of(answer.body.get("next")),
            "previous": cursor_of(answer.body.get("previous")),
            "profiles": [{"name": name, "on": name in {DEFAULT, "fifo"}} for name in profile_names()],
            "limits": {"stages": f"{LIMITS.arrivals:,}", "devices": f"{LIMITS.devices:,}", "worlds": LIMITS.cells},
        },
        place="simulations",
        topics=[answer],
        every_s=2,
        crumbs=[(title_of("simulations"), "")],
    )


@login_required
def one(request: HttpRequest, number: int) -> HttpResponse:
    answer = seen(reader(request), f"/simulations/{number}", simulations.one(reader(request), number))
    body = answer.body
    result, row = body["result"], body["simulation"]
    return page(
        request,
        "simulation.html",
        {
            "row": {**row, "look": LOOK[row["phase"]]},
            "is_open": row["phase"] in {"WAITING", "RUNNING"},
            "scenario": body["scenario"],
            "result": result,
            **(_drawn(result) if result else {}),
        },
        place="simulations",
        topics=[answer],
        every_s=1,
        crumbs=[(title_of("simulations"), "/simulations"), (row["name"], "")],
    )


def _drawn(result: Mapping[str, Any]) -> dict[str, Any]:
    """Tables and charts of a result."""
    rows = result["summary"]
    loads = list(dict.fromkeys(row["load"] for row in rows))
    shown = [cell for cell in result["cells"] if cell["gantt"]]
    curves = shown[:MOST_CURVES]
    return {
        "tables": [_table(rows, load) for load in loads],
        "many_loads": len(loads) > 1,
        "waits": _lines(curves, loads, "wait", 1 / 60),
        "used": _lines(curves, loads, "utilisation", 1 / 3600),
        "sweep": _sweep(rows, loads),
        "projects": [_projects(shown, load) for load in loads],
        "gantts": [
            {"title": _name(cell, loads), "id": f"chart-gantt-{number}", "chart": _gantt(cell["gantt"])}
            for number, cell in enumerate(shown[:6])
        ],
    }


def _name(cell: Mapping[str, Any], loads: list[float]) -> str:
    return f"{cell['profile']} ×{cell['load']:g}" if len(loads) > 1 else str(cell["profile"])


def _table(rows: list[Mapping[str, Any]], load: float) -> dict[str, Any]:
    columns = [row for row in rows if row["load"] == load]
    lines = []
    for key, title, how in _figures():
        cells = [
            {
                "profile": column["profile"],
                "value": column["figures"].get(key),
                "spread": column["spread"].get(key),
                "many": column["seeds"] > 1,
            }
            for column in columns
        ]
        if any(cell["value"] is not None for cell in cells):
            lines.append({"title": title, "how": how, "cells": cells})
    return {"load": f"{load:g}", "profiles": [column["profile"] for column in columns], "lines": lines}


def _lines(cells: list[Mapping[str, Any]], loads: list[float], what: str, scale: float) -> dict[str, Any]:
    return {
        "x_kind": "number",
        "zero": True,
        "series": [
            {"name": _name(cell, loads), "x": [x * scale for x in cell[what]["x"]], "y": cell[what]["y"]}
            for cell in cells
            if cell[what]["x"]
        ],
    }


def _sweep(rows: list[Mapping[str, Any]], loads: list[float]) -> dict[str, Any]:
    names = list(dict.fromkeys(row["profile"] for row in rows))
    series = []
    for name in names[:MOST_CURVES]:
        own = {row["load"]: row["figures"]["wait_avg_s"] / 60 for row in rows if row["profile"] == name}
        series.append({"name": name, "x": sorted(loads), "y": [own[load] for load in sorted(loads)]})
    return {"x_kind": "number", "zero": True, "series": series}


def _projects(cells: list[Mapping[str, Any]], load: float) -> dict[str, Any]:
    own = [cell for cell in cells if cell["load"] == load]
    names = sorted({row["project"] for cell in own for row in cell["projects"]})[:20]
    by = [(cell["profile"], {row["project"]: row for row in cell["projects"]}) for cell in own]
    return {
        "load": f"{load:g}",
        "profiles": [cell["profile"] for cell in own],
        "rows": [{"project": name, "cells": [(profile, found.get(name)) for profile, found in by]} for name in names],
    }


def _gantt(found: Mapping[str, Any]) -> dict[str, Any]:
    """Bars by node; overlapping ones of one node share its lane in tracks."""
    lanes = found["lanes"]
    items: list[dict[str, Any]] = []
    most = 1
    for number, lane in enumerate(lanes):
        ends: list[float] = []
        placed = []
        for bar in sorted((bar for bar in found["bars"] if bar["lane"] == lane), key=lambda bar: bar["from"]):
            track = next((i for i, end in enumerate(ends) if end <= bar["from"]), len(ends))
            ends[track : track + 1] = [bar["to"]]
            placed.append((bar, track))
        most = max(most, len(ends))
        height = 1 / max(1, len(ends))
        for bar, track in placed:
            items.append(
                {
                    "lane": round(number + track * height, 3),
                    "h": round(height, 3),
                    "s": "MINE" if bar["done"] else "PREEMPTED",
                    "from": _at(bar["from"]),
                    "to": _at(bar["to"]),
                    # A label needs the height of a line.
                    "t": bar["stage"] if height * ROW * most >= LINE else "",
                    "tip": f"{bar['stage']} · {bar['project']} · {bar['devices']} · {lane}",
                    "on": lane,
                    "href": "",
                }
            )
    return {
        "lanes": lanes,
        "at": list(range(len(lanes))),
        "rows": len(lanes),
        "items": items,
        "tight": True,
        "bands": [],
        "from": _at(0.0),
        "to": _at(found["span_s"]),
        "height": 46 + max(60, min(1200, ROW * most * len(lanes))),
        "cut": found["cut"],
        "nodes": max(found.get("nodes", 0), len(lanes)),
    }


def _at(seconds: float) -> str:
    # Stages behind years of work may end after the last possible date: they are drawn at it.
    return (MIDNIGHT + timedelta(seconds=min(seconds, LAST_S))).isoformat(timespec="seconds")
