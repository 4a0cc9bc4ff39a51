"""The models of devices in the cluster: their rates, how many there are and are free, and what they suit."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from controlplane.queries.devices import present
from controlplane.queries.topology import links_of
from scheduler.core.model.lifecycle import Health, NodeState
from scheduler.core.resources.speed import PRIOR, unmeasured

USABLE: Final = (Health.OK, Health.DEGRADED)
# Kinds of stages, without their special cases of a precision.
STAGES: Final = tuple(kind for kind in PRIOR if " " not in kind)
# A model suits a kind of stage if it is at least this share as fast as the fastest model of the cluster.
SUITS_FROM: Final = 0.5
MOST_LINKS: Final = 8
# What is read of each device, of which there may be tens of thousands.
READ: Final = (
    "kind", "vendor", "model", "health", "capacity_milli", "claimed_milli", "memory_bytes", "simulated", "features",
    "links", "node_id", "node__state",
)  # fmt: skip


class StageSpeed(msgspec.Struct, frozen=True):
    """How fast the scheduler takes stages of this ``kind`` to be on a model; a reference device has speed 1.

    ``is_declared`` tells that it follows from the model's declared rates; otherwise it is assumed for the whole kind of
    device. Speeds that were measured since come before both. ``suits``: no model of the cluster is more than twice as
    fast.
    """

    kind: str
    speed: float
    is_declared: bool
    suits: bool


class Link(msgspec.Struct, frozen=True):
    """A kind of link that devices of a model report; ``gbps`` is the fastest in GB/s, null if none tells it."""

    type: str
    gbps: float | None


class Hardware(msgspec.Struct, frozen=True):
    """A model of device. ``rates`` are its declared dense peak rates by precision, in TFLOPS or TOPS as named;
    ``memory_gbps`` its memory bandwidth in GB/s, ``watts`` its board power, ``per_watt`` the rates for a watt. What is
    not declared is missing or null. ``count`` devices are there, ``usable`` of them healthy on ready nodes, and
    ``free`` of these not claimed at all; capacities are in thousandths of a device, or of a core."""

    kind: str
    vendor: str
    model: str
    count: int
    usable: int
    free: int
    nodes: int
    simulated: int
    capacity_milli: int
    claimed_milli: int
    memory_bytes: int
    rates: dict[str, float]
    memory_gbps: float | None
    watts: float | None
    per_watt: dict[str, float]
    links: list[Link]
    speeds: list[StageSpeed]


class HardwareList(msgspec.Struct, frozen=True):
    """The models of the cluster, accelerators before CPUs; every signed-in user sees them."""

    results: list[Hardware]


def hardware() -> HardwareList:
    """Every model of which a node reports a device."""
    groups: dict[tuple[str, str, str], list[Any]] = defaultdict(list)
    for device in present().order_by("kind", "vendor", "model").values_list(*READ, named=True):
        groups[device.kind, device.vendor, device.model].append(device)
    speeds = {key: _speeds(key[0], _features(devices)) for key, devices in groups.items()}
    best = {kind: max(found[kind][0] for found in speeds.values()) for kind in STAGES} if speeds else {}
    found = [_model(devices, speeds[key], best) for key, devices in groups.items()]
    return HardwareList(sorted(found, key=lambda one: (one.kind == "cpu", one.kind, one.vendor, one.model)))


def _features(devices: Sequence[Any]) -> dict[str, float]:
    """What devices of a model declare: where they differ, the least of it, which none falls short of."""
    found: dict[str, float] = {}
    for device in devices:
        for name, value in device.features.items():
            if isinstance(value, int | float) and not isinstance(value, bool) and value > 0:
                found[name] = min(float(value), found.get(name, float(value)))
    return found


def _speeds(kind: str, features: Mapping[str, float]) -> dict[str, tuple[float, bool]]:
    return {stage: unmeasured(stage, "", kind, features) for stage in STAGES}


def _model(devices: Sequence[Any], speeds: Mapping[str, tuple[float, bool]], best: Mapping[str, float]) -> Hardware:
    first, features = devices[0], _features(devices)
    usable = [one for one in devices if one.health in USABLE and one.node__state == NodeState.READY]
    rates = {name: value for name, value in sorted(features.items()) if name.endswith(("_tflops", "_tops"))}
    watts = features.get("watts")
    return Hardware(
        kind=first.kind,
        vendor=first.vendor,
        model=first.model,
        count=len(devices),
        usable=len(usable),
        free=sum(one.claimed_milli == 0 for one in usable),
        nodes=len({one.node_id for one in devices}),
        simulated=sum(one.simulated for one in devices),
        capacity_milli=sum(one.capacity_milli for one in devices),
        claimed_milli=sum(one.claimed_milli for one in devices),
        memory_bytes=min(one.memory_bytes for one in devices),
        rates=rates,
        memory_gbps=features.get("memory_gbps"),
        watts=watts,
        per_watt={name: round(value / watts, 3) for name, value in rates.items()} if watts else {},
        links=_links(devices),
        speeds=[
            StageSpeed(kind, round(speed, 4), is_declared, speed >= SUITS_FROM * best[kind])
            for kind, (speed, is_declared) in speeds.items()
        ],
    )


def _links(devices: Sequence[Any]) -> list[Link]:
    fastest: dict[str, float | None] = {}
    for link in (link for device in devices for link in links_of(device, {})):
        told = [rate for rate in (fastest.get(link.type), link.gbps) if rate is not None]
        fastest[link.type] = max(told, default=None)
    return [Link(kind, gbps) for kind, gbps in sorted(fastest.items())][:MOST_LINKS]
