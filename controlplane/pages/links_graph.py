"""The links of one node as a drawing: its devices on a circle by NUMA node, and a line for each link."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final

from controlplane.fleet.links import SWITCHED, THROUGH_HOST
from controlplane.pages.topology import CELL, TITLES, cells

MOST_DEVICES, MOST_LINES = 64, 2_000
# Pixels: the least radius, what a device needs of the circle, and the space for names outside it.
LEAST, EACH, MARGIN = 96, 26, 76
# Switches and the host, to which several devices are linked, stand in the middle.
MOST_SHARED: Final = 8


def _sort(kind: str) -> str:
    """How a line of this kind is drawn: fast links solid, those by a PCIe switch dashed, through the host dotted."""
    return "host" if kind in THROUGH_HOST else "switched" if kind in SWITCHED else "fast"


def graph(near: Mapping[str, Any], looks: Mapping[str, str]) -> dict[str, Any] | None:
    """The drawing of a node's topology as the API tells it, its devices in the order of NUMA nodes; None without links.

    ``looks`` are how devices are drawn, by uuid. Beyond 64 devices or 2,000 lines the rest stands in the table only.
    """
    devices = near["devices"][:MOST_DEVICES]
    if not any(device["links"] for device in devices):
        return None
    radius = max(LEAST, EACH * len(devices) / (2 * math.pi))
    middle = radius + MARGIN
    place = {device["name"]: _on(middle, radius, at / len(devices)) for at, device in enumerate(devices)}
    links = {
        (min(device["name"], link["peer"]), max(device["name"], link["peer"]), link["type"]): link["gbps"]
        for device in devices
        for link in device["links"]
    }
    shared = sorted({name for pair in links for name in pair[:2] if name not in place})[:MOST_SHARED]
    for at, name in enumerate(shared):
        place[name] = (middle, middle + 22 * (at - (len(shared) - 1) / 2))
    lines = [
        {"sort": _sort(kind), "d": f"M{place[a][0]:.0f} {place[a][1]:.0f}L{place[b][0]:.0f} {place[b][1]:.0f}"}
        for a, b, kind in sorted(links, key=lambda link: _sort(link[2]) == "fast")
        if a in place and b in place
    ][:MOST_LINES]
    return {
        "size": round(2 * middle),
        "lines": [
            {"sort": sort, "d": "".join(line["d"] for line in lines if line["sort"] == sort)}
            for sort in ("host", "switched", "fast")
        ],
        "devices": [_device(device, place[device["name"]], middle, looks) for device in devices],
        "shared": [{"name": name, "x": round(place[name][0]), "y": round(place[name][1])} for name in shared],
        "numa": _arcs([device["numa"] for device in devices], middle, radius),
        "kinds": _kinds(links),
    }


def _on(middle: float, radius: float, turn: float) -> tuple[float, float]:
    """The point of the circle after this part of a turn, from the top and clockwise."""
    angle = 2 * math.pi * turn - math.pi / 2
    return middle + radius * math.cos(angle), middle + radius * math.sin(angle)


def _device(
    device: Mapping[str, Any], at: tuple[float, float], middle: float, looks: Mapping[str, str]
) -> dict[str, Any]:
    x, y = at
    side = (x > middle + 1) - (x < middle - 1)
    far = 14 if side else 0
    return {
        "name": device["name"],
        "uuid": device["uuid"],
        "told": str(TITLES[looks.get(device["uuid"], "na")]),
        "cells": cells([looks.get(device["uuid"], "na")], round(x - CELL / 2), round(y - CELL / 2)),
        "x": round(x + far * side),
        "y": round(y + 4 if side else y - 12 if y < middle else y + 20),
        "anchor": {1: "start", 0: "middle", -1: "end"}[side],
    }


def _arcs(numas: list[int | None], middle: float, radius: float) -> list[dict[str, Any]]:
    """An arc around the devices of each NUMA node, with its number in the middle of it."""
    arcs, outer = [], radius + 50
    for numa in sorted({each for each in numas if each is not None}):
        first, count = numas.index(numa), numas.count(numa)
        begin, end = (first - 0.35) / len(numas), (first + count - 0.65) / len(numas)
        (x1, y1), (x2, y2) = _on(middle, outer, begin), _on(middle, outer, end)
        x, y = _on(middle, outer + 14, (begin + end) / 2)
        large = int(end - begin > 0.5)
        arcs.append(
            {
                "d": f"M{x1:.0f} {y1:.0f}A{outer:.0f} {outer:.0f} 0 {large} 1 {x2:.0f} {y2:.0f}",
                "numa": numa,
                "x": round(x),
                "y": round(y + 4),
            }
        )
    return arcs


def _kinds(links: Mapping[tuple[str, str, str], float | None]) -> list[dict[str, Any]]:
    """Each kind of link with its line, the number of its links, and its slowest and fastest in GB/s."""
    kinds: dict[str, list[float | None]] = {}
    for (_a, _b, kind), gbps in links.items():
        kinds.setdefault(kind, []).append(gbps)
    found = []
    for kind, speeds in sorted(kinds.items(), key=lambda one: (_sort(one[0]), one[0])):
        told = [speed for speed in speeds if speed is not None]
        found.append(
            {
                "name": kind,
                "sort": _sort(kind),
                "count": len(speeds),
                "least": min(told, default=None),
                "most": max(told, default=None),
            }
        )
    return found
