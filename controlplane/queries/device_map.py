"""The devices of the cluster as a map of node x device: one byte each for its load, or why the load is unknown.

Every signed-in user sees all devices and their load, so these are read once for all users; the holders are read per
audience. Devices of one kind and model form a facet, because nodes have different numbers of them.
"""

from __future__ import annotations

import base64
import math
import uuid
from array import array
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import timedelta
from functools import lru_cache
from typing import Final, Literal

import msgspec
from django.db import connection
from django.utils import timezone

from controlplane.accounts import permissions
from controlplane.accounts.models import User
from controlplane.fleet import models as fleet
from controlplane.jobs.models import Claim
from controlplane.natural import natural_key
from controlplane.queries.overview import state_of
from scheduler.core.model.lifecycle import NodeState

# A byte up to 100 is a utilisation in percent; higher ones tell why there is none, the last that there is no device.
MARKS: Final = {"free": 201, "idle": 202, "bad": 203, "na": 204, "drain": 205}
NO_DEVICE: Final = 255
# Values used instead of a job's number: no holder, and a holder whose job the reader may not see.
NOBODY, ANOTHER = 0, -1
# Older measurements do not describe the present load.
FRESH: Final = timedelta(seconds=60)
_COLUMNS: Final = "d.node_id, d.id, d.kind, d.model, d.index, d.claimed_milli, d.capacity_milli, d.health, d.simulated"
_DEVICES: Final = f"SELECT {_COLUMNS}, NULL, NULL, NULL, NULL FROM fleet_device d WHERE d.present"
_MEASURED: Final = f"""
SELECT {_COLUMNS}, s.utilisation, s.memory_used_bytes::float8 / nullif(d.memory_bytes, 0), s.power_w,
    s.temperature_c
FROM fleet_device d LEFT JOIN LATERAL (
    SELECT utilisation, memory_used_bytes, power_w, temperature_c FROM fleet_device_sample
    WHERE device_id = d.id AND at > %s ORDER BY at DESC LIMIT 1) s ON true
WHERE d.present
"""
Metric = Literal["utilisation", "allocated", "memory", "power", "temperature"]
METRICS: Final[tuple[Metric, ...]] = ("utilisation", "allocated", "memory", "power", "temperature")
# The units of the metrics; of all but power 100 is full, and power has no bound that all vendors tell.
UNITS: Final[dict[Metric, str]] = {"power": "W", "temperature": "°C"}
_natural = lru_cache(maxsize=20_000)(natural_key)


class SeenDevice(msgspec.Struct, frozen=True):
    """A device as every user sees it; ``state`` is that of the overview's map, ``memory`` the used share of it."""

    node: str
    id: uuid.UUID
    kind: str
    model: str
    index: int
    milli: int
    capacity: int
    state: str
    simulated: bool
    u: float | None
    memory: float | None = None
    power_w: float | None = None
    temperature_c: float | None = None

    def value(self, metric: Metric) -> float | None:
        """The device's value in the metric's unit; None if it is unknown."""
        share: float | None
        match metric:
            case "allocated":
                share = self.milli / self.capacity if self.capacity else None
            case "power":
                return self.power_w
            case "temperature":
                return self.temperature_c
            case "memory":
                share = self.memory
            case _:
                share = self.u
        return None if share is None else 100 * share


@dataclass(frozen=True, slots=True)
class Facet:
    """The devices of one kind and model, by row and column."""

    kind: str
    model: str
    names: list[str]
    columns: int
    devices: list[SeenDevice]

    def places(self) -> list[int]:
        """Return the cell index of each device, row by row."""
        rows = {name: row for row, name in enumerate(self.names)}
        return [rows[device.node] * self.columns + device.index for device in self.devices]


def seen(
    nodes: Iterable[tuple[uuid.UUID, str, str]], idle: set[uuid.UUID], *, is_measured: bool = True
) -> list[SeenDevice]:
    """Return the present devices of these nodes, each given by id, name and state; with their newest measurements if
    wanted."""
    known = {node_id: (name, NodeState(state)) for node_id, name, state in nodes}
    with connection.cursor() as cursor:
        if is_measured:
            cursor.execute(_MEASURED, [timezone.now() - FRESH])
        else:
            cursor.execute(_DEVICES)
        rows = cursor.fetchall()
    found = []
    for node_id, device_id, kind, model, index, milli, capacity, health, simulated, *measured in rows:
        if (node := known.get(node_id)) is None:
            continue  # it joined since
        state = state_of(node[1], health, milli, is_idle=device_id in idle)
        found.append(SeenDevice(node[0], device_id, kind, model, index, milli, capacity, state, simulated, *measured))
    return found


def facets(devices: Iterable[SeenDevice]) -> list[Facet]:
    """Accelerators first, the most numerous first."""
    groups: dict[tuple[str, str], list[SeenDevice]] = defaultdict(list)
    for device in devices:
        groups[device.kind, device.model].append(device)
    order = sorted(groups, key=lambda key: (key[0] == "cpu", -len(groups[key]), key))
    made = []
    for key in order:
        group = groups[key]
        names = sorted({device.node for device in group}, key=_natural)
        made.append(Facet(*key, names, max(device.index for device in group) + 1, group))
    return made


def mark_of(device: SeenDevice, metric: Metric = "utilisation") -> str:
    """The reason why a cell shows no value; empty if it shows one."""
    is_known = device.value(metric) is not None
    match device.state:
        case "unhealthy":
            return "bad"
        case "offline":
            return "na"
        case "draining" if not (device.milli and is_known):
            return "drain"
        case "free" if metric in {"utilisation", "allocated"}:
            return "free"
        case "held_idle" if metric == "utilisation":
            return "idle"
    return "" if is_known else "na"


def top(facet: Facet, metric: Metric) -> int:
    """The value that the darkest colour stands for: 100, or of power the next hundred above the highest."""
    if metric != "power":
        return 100
    return 100 * max(1, math.ceil(max((device.power_w or 0 for device in facet.devices), default=0) / 100))


def levels(facet: Facet, metric: Metric = "utilisation") -> str:
    """Return a byte for each cell, in base64: the value as a percentage of ``top``, or a mark."""
    cells = bytearray([NO_DEVICE]) * (len(facet.names) * facet.columns)
    most = top(facet, metric)
    for place, device in zip(facet.places(), facet.devices, strict=True):
        mark = mark_of(device, metric)
        cells[place] = MARKS[mark] if mark else max(0, min(100, round(100 * (device.value(metric) or 0) / most)))
    return base64.b64encode(cells).decode()


def shares(facet: Facet) -> str:
    """Return the claimed percentage of each device, a byte each, in base64."""
    cells = bytearray(len(facet.names) * facet.columns)
    for place, device in zip(facet.places(), facet.devices, strict=True):
        cells[place] = min(100, round(100 * device.milli / device.capacity)) if device.capacity else 0
    return base64.b64encode(cells).decode()


def holders(user: User) -> tuple[dict[uuid.UUID, int], dict[int, str]]:
    """Return the job that holds most of each device, and the projects of these jobs, as far as the user may see
    them."""
    sees = permissions.sight(user)
    job = "part__attempt__stage__job__"
    columns = ("device_id", "milli", f"{job}number", f"{job}user_id", f"{job}project_id", f"{job}project__name")
    most: dict[uuid.UUID, int] = {}
    held: dict[uuid.UUID, int] = {}
    projects: dict[int, str] = {}
    claims = Claim.objects.filter(closed_at=None).order_by("id").values_list(*columns)
    for device_id, milli, number, owner_id, project_id, project in claims:
        if milli <= most.get(device_id, -1):
            continue
        most[device_id] = milli
        if sees(owner_id, project_id):
            held[device_id], projects[number] = number, project
        else:
            held[device_id] = ANOTHER
    return held, projects


def held_by(facet: Facet, held: dict[uuid.UUID, int]) -> str:
    """Return the number of the job that holds each cell, four bytes each, little-endian, in base64."""
    cells = array("i", [NOBODY]) * (len(facet.names) * facet.columns)
    for place, device in zip(facet.places(), facet.devices, strict=True):
        cells[place] = held.get(device.id, NOBODY)
    return base64.b64encode(cells.tobytes()).decode()


def nodes_now() -> list[tuple[uuid.UUID, str, str]]:
    """The id, the name and the state of each node."""
    return list(fleet.Node.objects.values_list("id", "name", "state"))
