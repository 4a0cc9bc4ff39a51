"""The topology of the cluster: its nodes below their switches, racks or pools, drawn on the server."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, Final

import msgspec
from django.contrib.auth.decorators import login_required
from django.http import HttpRequest, HttpResponse
from django.template.loader import render_to_string
from django.utils.safestring import mark_safe
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from controlplane.pages.shell import page, reader, title_of
from controlplane.queries import domains, gangs, pools
from controlplane.queries.domains import LOOKS, Domain, PlacedNode
from controlplane.queries.reading import seen
from controlplane.queries.shared import shared

# Pixels: a row, a cell and the space from one to the next, where names and cells begin, and the head of a domain.
ROW, CELL, STEP, NAME, NAMED, HEAD = 16, 10, 13, 16, 92, 26
PER_ROW: Final = 16
# With more nodes than this a tab asks more rarely for the drawing.
FEW: Final = 128
TITLES: Final = {
    "free": gettext_lazy("free"),
    "part": gettext_lazy("partly allocated"),
    "busy": gettext_lazy("allocated"),
    "idle": gettext_lazy("held idle"),
    "drain": gettext_lazy("draining"),
    "bad": gettext_lazy("unhealthy"),
    "na": gettext_lazy("no data"),
}
# What stands inside the outline of a cell, so that no state is told by its colour alone.
_MARKS: Final = {
    "part": "m0 5h10v5h-10z",
    "busy": "h10v10h-10z",
    "idle": "m3 3h4v4h-4z",
    "drain": "m0 10h10v-10z",
    "bad": "m2 2l6 6m0 -6l-6 6",
    "na": "m2 5h6",
}


def cells(looks: Sequence[str], x: float, y: float) -> list[dict[str, str]]:
    """The outlines and marks of these devices as paths, one for each look, in rows of 16 that begin at ``x``, ``y``."""
    paths: dict[str, list[str]] = {}
    for at, look in enumerate(looks):
        start = f"M{x + STEP * (at % PER_ROW):g} {y + ROW * (at // PER_ROW):g}"
        paths.setdefault(look, []).append(start)
    return [
        {
            "look": look,
            "outline": "".join(f"{start}h10v10h-10z" for start in starts),
            "mark": "".join(start + _MARKS[look] for start in starts) if look in _MARKS else "",
        }
        for look, starts in paths.items()
    ]


def counted(looks: Iterable[str]) -> str:
    """How many devices are in which state, in words."""
    counts = Counter(looks)
    return ", ".join(f"{counts[look]} {TITLES[look]}" for look in LOOKS if counts[look])


def legend(looks: Iterable[str] = LOOKS) -> list[dict[str, Any]]:
    """Each of these looks with its cell and its name."""
    return [{"cells": cells([look], 1, 1), "title": TITLES[look]} for look in LOOKS if look in set(looks)]


def _node(node: PlacedNode, y: int) -> dict[str, Any]:
    looks = [domains.look(device) for device in node.devices]
    return {
        "name": node.name,
        "state": node.state,
        "y": y,
        "middle": y + CELL // 2,
        "cells": cells(looks, NAMED, y),
        "told": counted(looks),
        "gbps": node.gbps,
    }


def _drawn(domain: Domain) -> dict[str, Any]:
    """A domain: its head, and below it a line to each node with its devices."""
    y, nodes = HEAD + 6, []
    for node in domain.nodes:
        nodes.append(_node(node, y))
        y += ROW * max(1, -(-len(node.devices) // PER_ROW))
    columns = min(PER_ROW, max((len(node.devices) for node in domain.nodes), default=0))
    speeds = {node.gbps for node in domain.nodes}
    return {
        "name": domain.name,
        "nodes": nodes,
        "gbps": speeds.pop() if len(speeds) == 1 else None,
        "width": max(180, NAMED + STEP * columns),
        "height": y + 2,
        "last": nodes[-1]["middle"],
        "told": counted(domains.look(device) for node in domain.nodes for device in node.devices),
    }


class _Drawing(msgspec.Struct):
    """The live part of the page, which is the same for everybody; ``shown`` of ``count`` nodes are on it."""

    html: str
    shown: int
    count: int


def _drawing(pool: str, by: str) -> _Drawing:
    found = domains.found(pool, by)
    sections: dict[str, list[dict[str, Any]]] = {}
    for domain in found.domains:
        sections.setdefault(domain.above, []).append(_drawn(domain))
    shown = sum(len(domain.nodes) for domain in found.domains)
    values = {
        "sections": sections.items(),
        "legend": legend(),
        "links": found.links,
        "pool": pool,
        "shown": shown,
        "count": found.count,
    }
    html = "".join([render_to_string("parts/topology_drawing.html", values)])  # a plain string, for the cache
    return _Drawing(html, shown, found.count)


@login_required
def show(request: HttpRequest) -> HttpResponse:
    pool, by = request.GET.get("pool", "")[:63], "pool" if request.GET.get("by") == "pool" else ""
    user = reader(request)
    drawing = shared(f"topology {by} {pool}", user, lambda: _drawing(pool, by), _Drawing)
    # What fits changes as soon as a device is taken or given back.
    changing = seen(user, "/overview/gangs", {"results": gangs.gangs()})
    return page(
        request,
        "topology.html",
        {
            "drawn": mark_safe(drawing.html),
            "pool": pool,
            "by": by,
            "pools": pools.names(),
            "shown": drawing.shown,
            "count": drawing.count,
        },
        place="nodes",
        topics=[changing],
        every_s=5 if drawing.shown <= FEW else 30,
        crumbs=[(title_of("nodes"), "/nodes"), (_("Topology"), "")],
    )
