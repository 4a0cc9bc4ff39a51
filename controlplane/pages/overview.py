"""The cluster at a glance: what there is, how busy it is, what waits, and what wants a person."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from datetime import timedelta
from typing import Any

from django.contrib.auth.decorators import login_required
from django.http import HttpRequest, HttpResponse
from django.utils.translation import gettext as _

from controlplane.natural import natural_key
from controlplane.pages.gantt import moment
from controlplane.pages.shell import page, reader
from controlplane.pages.timeline import chart
from controlplane.queries import overview, timeline
from controlplane.queries.reading import seen, told

# Beyond this many devices the grid of links is left out; the chart and the table stay.
MOST_LINKS = 1500
MOST_RUNNING = 12
CELL, TALLEST = 20, 620
LEVELS = {"critical": "failed", "warning": "warn", "note": "pending"}
# What is no measurement is a mark: which one, by the state of the device.
MARKS = {"free": "free", "held_idle": "idle", "unhealthy": "bad", "offline": "na"}
LEAST = timedelta(minutes=4)
GANTT = ("-5400", "5400")


def _mark(device: Mapping[str, Any]) -> str:
    """The mark of a cell, or empty where its colour is its utilisation."""
    if device["state"] == "draining":
        return "" if device["milli"] and device["u"] is not None else "drain"
    if device["state"] in MARKS:
        return MARKS[device["state"]]
    return "" if device["u"] is not None else "na"


def _tip(node: str, device: Mapping[str, Any], mark: str) -> str:
    """What the read-out says of a device."""
    words = {
        "free": _("free"),
        "idle": _("held, idle"),
        "bad": _("unhealthy"),
        "na": _("no data"),
        "drain": _("draining"),
    }
    used = words[mark] if mark else f"{device['u'] * 100:.0f} %"
    share = device["milli"] / device["capacity"] if device["capacity"] else 0
    claimed = _("{share} allocated").format(share=f"{share:.0%}") if 0 < share < 1 else ""
    holder = (
        f"#{device['job']} {device['project'] or ''}"
        if device["job"]
        else _("another project")
        if device["milli"]
        else ""
    )
    name = f"{node} {device['kind']}{device['index']}"
    return " · ".join(
        word
        for word in (name, device["model"], used, claimed, holder, _("simulated") if device["simulated"] else "")
        if word
    )


def facets(nodes: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """One map of node × device per kind and model, because their widths differ: accelerators first."""
    groups: dict[tuple[str, str], dict[str, list[Mapping[str, Any]]]] = defaultdict(dict)
    for node in nodes:
        for device in node["devices"]:
            groups[device["kind"], device["model"]].setdefault(node["name"], []).append(device)
    order = sorted(groups, key=lambda key: (key[0] == "cpu", -sum(map(len, groups[key].values())), key))
    states = {node["name"]: node["state"] for node in nodes}
    return [_facet(number, *key, groups[key], states) for number, key in enumerate(order)]


def _facet(
    number: int, kind: str, model: str, rows: Mapping[str, list[Mapping[str, Any]]], states: Mapping[str, str]
) -> dict[str, Any]:
    names = sorted(rows, key=natural_key)
    columns = max(device["index"] for devices in rows.values() for device in devices) + 1
    z: list[list[float | None]] = [[None] * columns for _name in names]
    tips = [[""] * columns for _name in names]
    hrefs = [[""] * columns for _name in names]
    marks, cells = [], []
    for row, name in enumerate(names):
        line = []
        for device in rows[name]:
            column, mark = device["index"], _mark(device)
            href = f"/jobs/{device['job']}" if device["job"] else f"/nodes/{name}#{device['kind']}{device['index']}"
            tips[row][column], hrefs[row][column] = _tip(name, device, mark), href
            if mark:
                marks.append([row, column, mark])
            else:
                z[row][column] = round(device["u"] * 100, 1)
            level = mark or str(min(9, int(device["u"] * 10)))
            line.append({"u": level, "href": href, "tip": tips[row][column]})
        cells.append({"node": name, "warn": states[name] != "READY", "cells": line})
    height = min(TALLEST, CELL * len(names)) + 22
    drawn = {
        "rows": names,
        "columns": columns,
        "z": z,
        "tips": tips,
        "hrefs": hrefs,
        "marks": marks,
        "height": height,
        "width": round(20 + 6.3 * min(13, max(map(len, names)))) + min(640, CELL * columns),
    }
    return {
        "id": f"chart-heat-{number}",
        "kind": kind,
        "model": model or kind,
        "chart": drawn,
        "rows": cells,
        "size": f"{len(names)} × {columns}",
        "means": _mean(z),
    }


def _mean(z: list[list[float | None]]) -> str:
    """One sentence that says what the map shows."""
    known = [value for row in z for value in row if value is not None]
    total = sum(len(row) for row in z)
    mean = sum(known) / len(known) if known else 0
    return _("{busy} of {total} at work, {mean} on average").format(busy=len(known), total=total, mean=f"{mean:.0f} %")


def _tiles(tiles: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    shown = []
    for tile in sorted(tiles, key=lambda tile: tile["kind"] == "cpu"):
        total = tile["total"] or 1
        used = tile["allocated"] * (tile["used_mean"] or 0)
        sick = tile["total"] - tile["healthy"] - tile["offline"]
        shown.append(
            {
                **tile,
                "used_share": used / total,
                "idle_share": (tile["allocated"] - used) / total,
                "off_share": (tile["total"] - tile["healthy"]) / total,
                "free_share": max(0.0, (tile["healthy"] - tile["allocated"]) / total),
                "sick": sick,
            }
        )
    return shown


def _near(body: Mapping[str, Any]) -> dict[str, Any]:
    """The timeline, cut to where something is: a yard of a minute's age shows that minute, not an empty hour."""
    now, segments = moment(body["now"]), body["segments"]
    first = min((moment(segment["start_at"]) for segment in segments), default=now)
    ends = (segment["end_at"] or segment["expected_end_at"] for segment in segments)
    last = max((moment(end) for end in ends if end), default=now)
    begin = max(moment(body["from_at"]), min(first, now - LEAST) - LEAST / 10)
    end = min(moment(body["to_at"]), max(last, now + (now - begin) * 0.15))
    return {**body, "from_at": begin.isoformat(), "to_at": end.isoformat()}


@login_required
def show(request: HttpRequest) -> HttpResponse:
    answer = seen(reader(request), "/overview", overview.now(reader(request)))
    now = answer.body
    near = told(reader(request), timeline.between(reader(request), *GANTT))
    devices = sum(len(node["devices"]) for node in now["nodes"])
    accelerators = sum(1 for node in now["nodes"] for device in node["devices"] if device["kind"] != "cpu")
    attention = [{**sign, "look": LEVELS.get(sign["level"], "pending")} for sign in now["attention"]]
    jobs = now["counts"]["jobs"]
    return page(
        request,
        "overview.html",
        {
            "now": now,
            "tiles": _tiles(now["tiles"]),
            "facets": facets(now["nodes"]),
            "links": devices <= MOST_LINKS,
            "devices": devices,
            "accelerators": accelerators,
            "attention": attention,
            "running": now["running"][:MOST_RUNNING],
            "gantt": chart(_near(near), only_used=True, row=15, tallest=420),
            "ended": {state: jobs.get(state, 0) for state in ("COMPLETED", "FAILED", "CANCELLED")},
            "simulated": any(node["simulated"] for node in now["nodes"]),
        },
        place="overview",
        topics=[answer],
        every_s=3,
        crumbs=[(_("Overview"), "")],
    )
