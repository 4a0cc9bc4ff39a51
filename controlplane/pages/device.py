"""One device: what it is, who holds it, what it measured, and who held it before."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

from django.contrib.auth.decorators import login_required
from django.http import HttpRequest, HttpResponse
from django.utils.translation import gettext_lazy as _

from controlplane.accounts.permissions import Permit, may
from controlplane.clauses import in_words
from controlplane.pages import time_range
from controlplane.pages.shell import page, reader, title_of
from controlplane.queries import device_history, devices, topology
from controlplane.queries.cursor import Page, page_of
from controlplane.queries.reading import API, cursor_of, redacted, seen
from scheduler.core.model.lifecycle import Health

PER_PAGE = 50
# Each chart: its name, its title, the unit, and by what stored values are divided.
CHARTS = (
    ("utilisation", _("Utilisation"), "%", 0.01),
    ("memory_used_bytes", _("Memory used"), "GiB", 2**30),
    ("power_w", _("Power"), "W", 1),
    ("temperature_c", _("Temperature"), "°C", 1),
)


@login_required
def show(request: HttpRequest, uuid: str) -> HttpResponse:
    user, row = reader(request), devices.found(uuid)
    place = f"/devices/{quote(uuid, safe='')}"
    answer = seen(user, place, devices.shown([row], user)[0])
    device = answer.body
    name = f"{device['kind']}{device['index']}"
    over = time_range.asked(request, "1h")
    asked = {"cursor": request.GET["claims"]} if request.GET.get("claims") else {}
    path = f"{API}{place}/claims"
    found, links = page_of(device_history.claims_of(row), "-id", path, {"limit": str(PER_PAGE), **asked})
    claims = redacted(user, Page(device_history.shown(found, user), **links))
    errors = [error for error in row.node.conditions.get("device_errors") or [] if error.get("uuid") == row.uuid]
    return page(
        request,
        "device.html",
        {
            "device": device,
            "device_name": name,
            "numa": row.numa,
            "attributes": sorted(row.attributes.items()),
            "features": sorted(row.features.items()),
            "links": topology.links_of(row, _peers(row)),
            "errors": [error_text(error) for error in errors],
            "charts": _charts(device_history.measured(row, over["span_s"])),
            **over,
            "claims": claims["results"],
            "claims_next": cursor_of(claims["next"]),
            "claims_previous": cursor_of(claims["previous"]),
            "is_cordoned": device["health"] == Health.CORDONED,
            "may_operate": may(user, Permit.OPERATE_DEVICES),
            "api": f"{API}{place}",
        },
        place="nodes",
        topics=[answer],
        every_s=5,
        crumbs=[(title_of("nodes"), "/nodes"), (device["node"], f"/nodes/{device['node']}"), (name, "")],
    )


def error_text(error: dict[str, Any]) -> str:
    """An error that a device told its node, as it stands in the node's conditions."""
    return f"{error.get('code', '')} {in_words(str(error.get('detail', '')), error.get('said'))}"


def _peers(row: Any) -> dict[str, str]:
    """The names of the node's devices by their uuid, as links tell their ends."""
    return {one.uuid: f"{one.kind}{one.index}" for one in row.node.devices.filter(present=True)}


def _charts(measured: device_history.DeviceMetrics) -> list[dict[str, Any]]:
    """A chart of each measurement; without content where nothing was measured in this time."""
    found = []
    at = [round(moment.timestamp() * 1000) for moment in measured.at]
    for name, title, unit, scale in CHARTS:
        values = [None if value is None else round(value / scale, 3) for value in getattr(measured, name)]
        known = [i for i, value in enumerate(values) if value is not None]
        drawn = {}
        if known:
            first, last = known[0], known[-1] + 1
            series = [{"name": str(title), "x": at[first:last], "y": values[first:last]}]
            drawn = {"x_kind": "time", "unit": unit, "zero": True, "series": series}
        found.append({"id": f"chart-{name}", "title": title, "unit": unit, "drawn": drawn})
    return found
