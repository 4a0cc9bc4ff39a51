"""The nodes with their devices and states, and how a new one joins."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from django.conf import settings
from django.contrib.auth.decorators import login_required
from django.http import HttpRequest, HttpResponse

from controlplane.accounts.permissions import Permit, may
from controlplane.fleet import fuse
from controlplane.pages.shell import page, reader, title_of
from controlplane.queries import nodes as node_rows
from controlplane.queries import pools
from controlplane.queries.reading import cursor_of

FILTERS = ("state", "pool", "q", "cursor")
PER_PAGE = 100


def by_kind(devices: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The devices of a node by kind and model: their number, claims and load."""
    groups: dict[tuple[str, str], dict[str, Any]] = {}
    for device in devices:
        key = (device["kind"], device["model"])
        group = groups.setdefault(
            key, {"kind": key[0], "model": key[1], "count": 0, "capacity": 0, "claimed": 0, "dots": [], "measured": []}
        )
        group["count"] += 1
        group["capacity"] += device["capacity_milli"]
        group["claimed"] += device["claimed_milli"]
        sick = device["health"] not in {"OK", "DEGRADED"}
        group["dots"].append("bad" if sick else "on" if device["claimed_milli"] else "")
        used = (device.get("sample") or {}).get("utilisation")
        if used is not None:
            group["measured"].append((used, device["capacity_milli"]))
    for group in groups.values():
        weight = sum(capacity for _used, capacity in group["measured"])
        group["used"] = sum(used * capacity for used, capacity in group["measured"]) / weight if weight else None
        share = group["claimed"] / group["capacity"] if group["capacity"] else 0.0
        group["share"], group["cores"] = share, group["kind"] == "cpu"
        busy = min(share, group["used"] or 0.0)
        group["busy"], group["idle"] = busy, share - busy
    return sorted(groups.values(), key=lambda group: (group["cores"], group["model"]))


def jobs_on(devices: Iterable[Mapping[str, Any]]) -> list[int]:
    """The numbers of the jobs that hold these devices, as far as the user may see them."""
    return sorted({claim["job"] for device in devices for claim in device["claims"] if claim["job"]})


@login_required
def show(request: HttpRequest) -> HttpResponse:
    asked = {key: request.GET[key] for key in FILTERS if request.GET.get(key)}
    answer = node_rows.page(reader(request), {**asked, "limit": str(PER_PAGE)})
    nodes = [
        {**node, "groups": by_kind(node["devices"]), "jobs": jobs_on(node["devices"])}
        for node in answer.body["results"]
    ]
    return page(
        request,
        "nodes.html",
        {
            "nodes": nodes,
            "asked": asked,
            "may_drain": may(request.user, Permit.OPERATE_NODES),  # type: ignore[arg-type]
            "fuse": fuse.state(),
            "pools": pools.names(),
            "states": ["READY", "JOINING", "DRAINING", "DRAINED", "SUSPECT", "LOST"],
            "next": cursor_of(answer.body.get("next")),
            "previous": cursor_of(answer.body.get("previous")),
            "simulated": any(node["simulated"] for node in nodes),
            "address": settings.AGENTS_URL,
        },
        place="nodes",
        topics=[answer],
        every_s=5,
        crumbs=[(title_of("nodes"), "")],
    )
