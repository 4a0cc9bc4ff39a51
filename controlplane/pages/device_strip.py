"""The chart of a node's devices over time: a row for each device, coloured by one measurement."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from django.http import HttpRequest
from django.utils.translation import gettext_lazy as _

from controlplane.queries.metrics import DeviceSeries
from controlplane.queries.node_history import NodeSeries

MEASURES: Final = {
    "utilisation": _("Utilisation"),
    "memory": _("Memory"),
    "power": _("Power"),
    "temperature": _("Temperature"),
}
"""What can be shown of devices, by the name in the address."""

# A measurement holds until the next one is due: gaps of so many steps are bridged, longer ones stay gaps.
HOLD: Final = 4
# The height of a row and of the axis below, in pixels.
ROW, AXIS = 17, 30


def measure_of(request: HttpRequest) -> str:
    """The measurement that is asked for, or utilisation."""
    asked = request.GET.get("metric", "")
    return asked if asked in MEASURES else "utilisation"


def strip(found: NodeSeries, measure: str) -> dict[str, Any]:
    """The content of a chart of kind ``strip``; empty if nothing was measured."""
    each = [(device, _of(device, measure)) for device in found.devices]
    shown = [(device, values) for device, values in each if any(value is not None for value in values)]
    if not shown:
        return {}
    first = min(next(i for i, value in enumerate(values) if value is not None) for _device, values in shown)
    z = [_held(values)[first:] for _device, values in shown]
    percent = measure in {"utilisation", "memory"}
    return {
        "rows": [f"{device.kind}{device.index}" for device, _values in shown],
        "x": [round(moment.timestamp() * 1000) for moment in found.at[first:]],
        "z": z,
        "unit": "%" if percent else {"power": "W", "temperature": "°C"}[measure],
        "max": 100 if percent else max(1.0, *(value for row in z for value in row if value is not None)),
        "height": max(96, len(shown) * ROW + AXIS),
    }


def _of(device: DeviceSeries, measure: str) -> list[float | None]:
    if measure == "utilisation":
        return _scaled(device.utilisation, 100)
    if measure == "memory":
        return _scaled(device.memory_used_bytes, 100 / device.memory_bytes) if device.memory_bytes else []
    return device.power_w if measure == "power" else device.temperature_c


def _scaled(values: Sequence[float | None], by: float) -> list[float | None]:
    return [None if value is None else round(value * by, 2) for value in values]


def _held(values: Sequence[float | None]) -> list[float | None]:
    """The values with short gaps filled by the value before."""
    held: list[float | None] = []
    last, age = None, 0
    for value in values:
        last, age = (value, 0) if value is not None else (last, age + 1)
        held.append(last if age <= HOLD else None)
    return held
