"""One node: its devices, its stages, and the actions of staff."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from django.contrib.auth.decorators import login_required
from django.http import HttpRequest, HttpResponse
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from controlplane.accounts.models import User
from controlplane.accounts.permissions import Permit, may
from controlplane.fleet.models import Device, Node
from controlplane.pages import links_graph, time_range
from controlplane.pages.counted import counted
from controlplane.pages.device import error_text
from controlplane.pages.device_strip import MEASURES, measure_of, strip
from controlplane.pages.nodes import by_kind, jobs_on
from controlplane.pages.shell import page, reader, title_of
from controlplane.pages.topology import legend
from controlplane.queries import jobs, node_history, nodes, topology
from controlplane.queries.devices import last_measured
from controlplane.queries.overview import state_of
from controlplane.queries.reading import API, redacted
from controlplane.queries.shared import shared
from controlplane.queries.words import told_texts
from scheduler.core.model.lifecycle import NodeState

MOST_JOBS = 50
MOST_PAST = 15
ISOLATION = {
    "none": _("all stages are one user, who sees and may end all of them"),
    "user": _("a user per project; each sees the others' processes and all devices"),
    "private": _("a user per project, with its own view of the host; memory is watched, not limited by the kernel"),
    "full": _("a user per project, with its own view of the host and limits that the kernel holds"),
}


def _notes(conditions: dict[str, Any]) -> list[str]:
    """Conditions of the node as sentences in the reader's language."""
    notes = told_texts(conditions, "notes")
    unfit = [str(said) for said in conditions.get("unfit") or []]
    if unfit:
        notes.insert(
            0,
            gettext("a check of its operator's fails, and nothing new starts here: {said}").format(
                said="; ".join(unfit)
            ),
        )
    return notes + [f"{error.get('uuid', '')}: {error_text(error)}" for error in conditions.get("device_errors") or []]


def _near(found: list[dict[str, Any]]) -> dict[str, Any] | None:
    """The topology of a node, its devices by NUMA node; None if the node reports no topology, or was removed between
    two reads."""
    measures = ("links", "group", "pcie", "memory_gbps", "busy")
    if not found or all(device[name] in (None, "", []) for device in found[0]["devices"] for name in measures):
        return None
    by_numa = sorted(found[0]["devices"], key=lambda one: (one["numa"] is None, one["numa"] or 0))
    return {**found[0], "devices": by_numa}


def _look(node: dict[str, Any], device: dict[str, Any]) -> str:
    """How a device is drawn, by what the page shows of it."""
    state = state_of(NodeState(node["state"]), device["health"], device["claimed_milli"], is_idle=False)
    if state == "allocated":
        return "busy" if device["claimed_milli"] >= device["capacity_milli"] else "part"
    return {"offline": "na", "unhealthy": "bad", "draining": "drain"}.get(state, state)


def _last_measured(devices: Sequence[Mapping[str, Any]]) -> datetime | None:
    """When these devices were last measured, if nothing was measured of late."""
    if not devices or any(device["sample"] for device in devices):
        return None
    ids = Device.objects.filter(uuid__in=[device["uuid"] for device in devices]).values_list("id", flat=True)
    return last_measured(ids)


def _past(node: Node, user: User) -> list[dict[str, Any]]:
    """The stages that ran here before, with what they held of it in words."""
    past = redacted(user, node_history.stages_of(node, user, MOST_PAST))
    return [{**one, "held": counted(Counter(one["devices"]).elements())} for one in past]


@login_required
def show(request: HttpRequest, name: str) -> HttpResponse:
    user = reader(request)
    answer = nodes.one(user, name)
    node = answer.body
    near = topology.page(user, {"node": node["name"]})
    placed = _near(near.body["results"])
    looks = {device["uuid"]: _look(node, device) for device in node["devices"]}
    numbers = jobs_on(node["devices"])
    row = Node.objects.get(name=node["name"])
    over, measure = time_range.asked(request, "1h"), measure_of(request)
    drawn = shared(
        f"node {row.pk} {measure} {over['span_s']}",
        user,
        lambda: strip(node_history.measured(row, over["span_s"]), measure),
        dict[str, Any],
    )
    found = redacted(user, jobs.shown(jobs.visible(user).filter(number__in=numbers[:MOST_JOBS]).order_by("number")))
    return page(
        request,
        "node.html",
        {
            "node": node,
            "groups": by_kind(node["devices"]),
            "near": placed,
            "graph": placed and links_graph.graph(placed, looks),
            "legend": legend(looks.values()),
            "measured_at": _last_measured(node["devices"]),
            "held_kinds": counted(device["kind"] for device in node["devices"]),
            "jobs": found,
            "past": _past(row, user),
            "over_time": drawn,
            "measures": list(MEASURES.items()),
            "measure": measure,
            **over,
            "job_count": len(numbers),
            "hidden": sum(1 for device in node["devices"] for claim in device["claims"] if not claim["job"]),
            "aside": node["conditions"].get("aside") or [],
            "notes": _notes(node["conditions"]),
            "isolation": ISOLATION.get(node["isolation"], ""),
            "may_drain": may(request.user, Permit.OPERATE_NODES),  # type: ignore[arg-type]
            "drained": node["state"] in {"DRAINING", "DRAINED"},
            "lost": node["state"] == "LOST",
            "api": f"{API}/nodes/{node['name']}",
            "survivors_api": f"{API}/survivors/",
        },
        place="nodes",
        topics=[answer, near],
        every_s=3,
        crumbs=[(title_of("nodes"), "/nodes"), (node["name"], "")],
    )
