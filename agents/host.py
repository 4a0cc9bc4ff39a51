"""What a host is and has: the inventory of a report, gathered from the probes off the loop."""

from __future__ import annotations

import hashlib
import os
import platform
import socket
from dataclasses import dataclass, field
from urllib.parse import urlsplit

import msgspec
import psutil

from agents.probes import Probe
from agents.protocol import Conditions, Device, DeviceClaim, DeviceError, DeviceSample, Inventory

_encode = msgspec.json.Encoder(order="deterministic").encode


def address_towards(url: str) -> str:
    """The address of this host as others on the way to the control plane see it."""
    host = urlsplit(url).hostname or "127.0.0.1"
    try:
        family, _, _, _, target = socket.getaddrinfo(host, 9, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect(target)
            return str(probe.getsockname()[0])
    except OSError:
        return "127.0.0.1"


def _system() -> str:
    try:
        return platform.freedesktop_os_release().get("PRETTY_NAME", platform.system())
    except OSError:
        return platform.system()


@dataclass
class HostView:
    """One node's probes and what they last told. ``look`` and ``sample`` block and run off the loop, one at a time."""

    name: str
    probes: dict[str, Probe]
    isolation: str
    runs_as: str
    address: str
    labels: dict[str, str] = field(default_factory=dict)
    simulated: bool = False
    inventory: Inventory | None = None
    hash: str = ""
    device_errors: list[DeviceError] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def look(self) -> bool:
        """Discover devices again; true when the inventory differs from the one before."""
        devices: list[Device] = [device for probe in self.probes.values() for device in probe.discover()]
        cpu = [device for device in devices if device.kind == "cpu"]
        cores = sum(device.capacity_milli for device in cpu) // 1000 if self.simulated else os.cpu_count() or 1
        memory = sum(device.memory_bytes for device in cpu) if self.simulated else psutil.virtual_memory().total
        self.inventory = Inventory(
            hostname=self.name if self.simulated else platform.node(),
            os=_system(),
            arch=platform.machine(),
            cpus=cores,
            memory_bytes=memory,
            isolation=self.isolation,
            runs_as=self.runs_as,
            address=self.address,
            simulated=self.simulated,
            labels=self.labels,
            devices=devices,
        )
        before, self.hash = self.hash, hashlib.sha256(_encode(self.inventory)).hexdigest()[:16]
        self._hear()
        return before != self.hash

    def sample(self, claims: list[DeviceClaim]) -> list[DeviceSample]:
        samples = [sample for probe in self.probes.values() for sample in probe.sample(claims)]
        self._hear()
        return samples

    def _hear(self) -> None:
        self.device_errors = [error for probe in self.probes.values() for error in probe.errors()]
        self.notes = [note for probe in self.probes.values() for note in probe.notes()]

    def conditions(self, disk_pressure: bool) -> Conditions:
        return Conditions(disk_pressure=disk_pressure, device_errors=self.device_errors, notes=self.notes)

    def close(self) -> None:
        for probe in self.probes.values():
            probe.close()
