"""The metrics of this host's devices as text for Prometheus, from what the agent has measured anyway."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from typing import Final, NamedTuple

from agents import VERSION
from agents.devices.card import USABLE
from agents.protocol import Device, DeviceError, DeviceSample

# Older measurements do not describe the present.
FRESH_S: Final = 60.0
# One process may stand for many simulated nodes.
MOST_DEVICES: Final = 4_096
MIB: Final = 2**20
_DEVICE: Final = ("node", "device", "uuid", "vendor", "kind", "model")


class AgentMetric(NamedTuple):
    """A metric of the agent; a counter's name ends in ``_total``."""

    name: str
    kind: str
    help: str
    labels: tuple[str, ...] = _DEVICE


METRICS: Final = (
    AgentMetric("switchyard_agent_build_info", "gauge", "The version of this agent.", ("node", "version")),
    AgentMetric("switchyard_agent_parts", "gauge", "Parts of stages that run here.", ("node",)),
    AgentMetric("switchyard_device_utilization_ratio", "gauge", "The newest measurement, 0 to 1."),
    AgentMetric("switchyard_device_memory_used_bytes", "gauge", "Memory in use."),
    AgentMetric("switchyard_device_memory_total_bytes", "gauge", "All its memory."),
    AgentMetric("switchyard_device_power_watts", "gauge", "The power that it draws."),
    AgentMetric("switchyard_device_temperature_celsius", "gauge", "Its temperature."),
    AgentMetric("switchyard_device_clock_hertz", "gauge", "The clock of its cores."),
    AgentMetric("switchyard_device_energy_joules_total", "counter", "The hardware's own counter of energy."),
    AgentMetric("switchyard_device_health", "gauge", "1 where the agent finds it OK or DEGRADED."),
    AgentMetric("switchyard_device_allocated", "gauge", "1 where a part holds it or a share of it."),
    AgentMetric("switchyard_device_throttled", "gauge", "1 for each reason for a reduced clock.", (*_DEVICE, "reason")),
    AgentMetric("switchyard_device_fault", "gauge", "1 for each fault that it has.", (*_DEVICE, "code")),
)


class Native(NamedTuple):
    """A name under which a vendor's own exporter tells the same, and how it is reckoned from ours."""

    name: str
    kind: str
    of: Callable[[Device, DeviceSample], float | None]


def _scaled(value: float | None, by: float) -> float | None:
    return None if value is None else value * by


# As dcgm-exporter and npu-exporter call and measure them, so that dashboards made for these go on. Only devices that
# their vendor's library measured have them, never simulated ones.
NATIVE: Final[Mapping[str, tuple[Native, ...]]] = {
    "nvidia": (
        Native("DCGM_FI_DEV_GPU_UTIL", "gauge", lambda d, s: _scaled(s.utilisation, 100)),
        Native("DCGM_FI_DEV_FB_USED", "gauge", lambda d, s: _scaled(s.memory_used_bytes, 1 / MIB)),
        Native(
            "DCGM_FI_DEV_FB_FREE",
            "gauge",
            lambda d, s: None if s.memory_used_bytes is None else max(0, d.memory_bytes - s.memory_used_bytes) / MIB,
        ),
        Native("DCGM_FI_DEV_POWER_USAGE", "gauge", lambda d, s: s.power_w),
        Native("DCGM_FI_DEV_GPU_TEMP", "gauge", lambda d, s: s.temperature_c),
        Native("DCGM_FI_DEV_SM_CLOCK", "gauge", lambda d, s: _scaled(s.clock_hz, 1e-6)),
        Native("DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", "counter", lambda d, s: _scaled(s.energy_j, 1000)),
    ),
    "huawei": (
        Native("npu_chip_info_utilization", "gauge", lambda d, s: _scaled(s.utilisation, 100)),
        Native("npu_chip_info_hbm_used_memory", "gauge", lambda d, s: _scaled(s.memory_used_bytes, 1 / MIB)),
        Native("npu_chip_info_hbm_total_memory", "gauge", lambda d, s: d.memory_bytes / MIB or None),
        Native("npu_chip_info_power", "gauge", lambda d, s: s.power_w),
        Native("npu_chip_info_temperature", "gauge", lambda d, s: s.temperature_c),
        Native("npu_chip_info_health_status", "gauge", lambda d, s: float(d.health in USABLE)),
    ),
}


class NodeReading(NamedTuple):
    """One node as its agent sees it. ``newest`` are its last samples by uuid, with when they were taken."""

    node: str
    devices: Iterable[Device]
    newest: Mapping[str, tuple[float, DeviceSample]]
    held: frozenset[str]
    errors: Iterable[DeviceError]
    parts: int


class MetricsText:
    """The lines of one scrape, those of a metric together."""

    def __init__(self) -> None:
        self._lines: dict[str, list[str]] = defaultdict(list)
        self._kinds: dict[str, tuple[str, str]] = {one.name: (one.kind, one.help) for one in METRICS}

    def add(self, name: str, labels: Mapping[str, str], value: float | None, kind: str = "") -> None:
        """Add one series; nothing is said of what is unknown."""
        if value is None:
            return
        if kind:
            self._kinds.setdefault(name, (kind, "As the vendor's exporter tells it."))
        told = ",".join(f'{key}="{_escaped(each)}"' for key, each in labels.items())
        self._lines[name].append(f"{name}{{{told}}} {value!r}")

    def text(self) -> str:
        """Return everything in Prometheus' text format."""
        lines = []
        for name, (kind, says) in self._kinds.items():
            if name in self._lines:
                lines += [f"# HELP {name} {says}", f"# TYPE {name} {kind}", *self._lines[name]]
        return "\n".join([*lines, ""])


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')


def told(nodes: Iterable[NodeReading], now: float | None = None) -> str:
    """Return the metrics of these nodes as text; ``now`` is a time of the monotonic clock."""
    now = time.monotonic() if now is None else now
    page, left = MetricsText(), MOST_DEVICES
    for seen in nodes:
        page.add("switchyard_agent_build_info", {"node": seen.node, "version": VERSION}, 1)
        page.add("switchyard_agent_parts", {"node": seen.node}, seen.parts)
        faults: dict[str, set[str]] = defaultdict(set)
        for error in seen.errors:
            faults[error.uuid].add(error.code)
        for device in seen.devices:
            if left == 0:
                break
            left -= 1
            at, sample = seen.newest.get(device.uuid, (now, DeviceSample(device.uuid, 0.0)))
            if now - at > FRESH_S:
                sample = DeviceSample(device.uuid, 0.0)
            _add(page, seen, device, sample, faults[device.uuid])
    return page.text()


def _add(page: MetricsText, seen: NodeReading, device: Device, sample: DeviceSample, faults: set[str]) -> None:
    labels = {
        "node": seen.node, "device": str(device.index), "uuid": device.uuid, "vendor": device.vendor,
        "kind": device.kind, "model": device.model,
    }  # fmt: skip
    values = {
        "utilization_ratio": sample.utilisation,
        "memory_used_bytes": sample.memory_used_bytes,
        "memory_total_bytes": device.memory_bytes or None,
        "power_watts": sample.power_w,
        "temperature_celsius": sample.temperature_c,
        "clock_hertz": sample.clock_hz,
        "energy_joules_total": sample.energy_j,
        "health": float(device.health in USABLE),
        "allocated": float(device.uuid in seen.held),
    }
    for name, value in values.items():
        page.add(f"switchyard_device_{name}", labels, value)
    for reason in sorted(filter(None, (one.strip() for one in sample.throttled.split(",")))):
        page.add("switchyard_device_throttled", {**labels, "reason": reason}, 1)
    for code in sorted(faults):
        page.add("switchyard_device_fault", {**labels, "code": code}, 1)
    if device.simulated or device.kind == "cpu":
        return
    native = _native_labels(seen.node, device)
    for one in NATIVE.get(device.vendor.lower(), ()):
        page.add(one.name, native, one.of(device, sample), one.kind)


def _native_labels(node: str, device: Device) -> dict[str, str]:
    if device.vendor.lower() == "nvidia":
        return {
            "gpu": str(device.index), "UUID": device.uuid, "pci_bus_id": device.pci or "",
            "device": f"nvidia{device.index}", "modelName": device.model, "Hostname": node,
        }  # fmt: skip
    return {"id": str(device.index), "model_name": device.model, "pcie_bus_info": device.pci or "", "node": node}
