"""The models of devices in the cluster: what they declare, how many are free, and what they suit."""

from __future__ import annotations

from django.contrib.auth.decorators import login_required
from django.http import HttpRequest, HttpResponse

from controlplane.pages.shell import page, reader, title_of
from controlplane.queries import hardware
from controlplane.queries.reading import seen


@login_required
def show(request: HttpRequest) -> HttpResponse:
    answer = seen(reader(request), "/hardware", hardware.hardware())
    models = answer.body["results"]
    return page(
        request,
        "hardware.html",
        {
            "models": [{**model, "cores": model["kind"] == "cpu", "rates": _rates(model)} for model in models],
            "stages": hardware.STAGES,
        },
        place="hardware",
        topics=[answer],
        every_s=10,
        crumbs=[(title_of("hardware"), "")],
    )


def _rates(model: dict[str, dict[str, float]]) -> list[tuple[str, str, float, float | None]]:
    """Each declared rate: its precision, its unit, and the rate alone and for a watt."""
    found = []
    for name, value in model["rates"].items():
        precision, _, unit = name.rpartition("_")
        found.append((precision, unit.upper(), value, model["per_watt"].get(name)))
    return found
