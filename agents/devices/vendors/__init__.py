"""Probes find the devices of a host and sample them; a folder scan finds the probes, and one test suite checks them.

A module of this folder is a probe if it has a function ``probe(host)`` that returns a :class:`Probe`, or ``probes``
that returns several by name. With ``VENDOR`` and ``VISIBLE`` it also declares the variables that restrict that vendor's
runtime to devices. Absence is no error: a host without a vendor's tool or library has no devices of that vendor. What
is there but broken becomes a note.
"""

from __future__ import annotations

import hashlib
import importlib
import pkgutil
import platform
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from agents.decode import digits
from agents.protocol import Device, DeviceClaim, DeviceError, DeviceSample

if TYPE_CHECKING:
    from agents.devices.instances import Instances
    from agents.devices.vendors.command import Command


@dataclass(frozen=True, slots=True)
class ProbedHost:
    """Where a probe looks. ``name`` is the agent's: two agents on one machine have different devices.

    ``commands`` are the administrator's own probes. ``instances`` creates partitions, if this agent may.
    """

    name: str
    root: Path = Path("/")
    commands: tuple[Command, ...] = ()
    instances: Instances | None = None

    def text(self, path: str | Path) -> str:
        """Return the content of a file below the root, stripped; empty if it cannot be read."""
        try:
            return (self.root / path).read_text().strip()
        except (OSError, UnicodeDecodeError, ValueError):
            return ""

    @property
    def machine(self) -> str:
        """Return twelve digits that stay the same for this agent on this machine."""
        machine = self.text("etc/machine-id") or self.text("var/lib/dbus/machine-id") or platform.node()
        return hashlib.sha256(f"{machine}/{self.name}".encode()).hexdigest()[:12]

    def numa(self, pci: str | None) -> int | None:
        """Return the NUMA node of a PCI address; None if the kernel does not report it."""
        text = self.text(f"sys/bus/pci/devices/{pci}/numa_node") if pci else ""
        return digits(text)

    def pci_vendors(self) -> set[str]:
        """Return the vendor numbers of all PCI devices, such as ``0x10de``."""
        folder = self.root / "sys/bus/pci/devices"
        try:
            return {self.text(entry / "vendor") for entry in folder.iterdir()}
        except OSError:
            return set()


class Probe(Protocol):
    """One source of devices. Every method may block for some seconds and is called off the loop, one at a time.

    A ``prompt`` one reads memory and files only, and shares a thread with others. ``period_s`` is the useful sampling
    interval.
    """

    @property
    def prompt(self) -> bool:
        """See above."""

    @property
    def period_s(self) -> float:
        """See above."""

    def discover(self) -> list[Device]:
        """Return the present devices, in a stable order; never raises."""

    def sample(self, claims: list[DeviceClaim]) -> list[DeviceSample]:
        """Return one sample per device. ``claims`` are those of live parts; only a simulation uses them."""

    def errors(self) -> list[DeviceError]:
        """Return faults of single devices as of the last call of the two above."""

    def notes(self) -> list[str]:
        """Return sentences on what is there but does not work, as of the last call of the other methods."""

    def news(self) -> bool:
        """Whether the last sample saw something that the last ``discover`` did not: discover again."""

    def memory_by_process(self) -> dict[str, dict[int, int]]:
        """Return the bytes in use by device and pid as of the last sample, for devices that report that."""

    def close(self) -> None:
        """Release all resources. Called once."""


def discover(host: ProbedHost) -> dict[str, Probe]:
    """Return every probe of this folder for real hardware, by the name of its module or by its own."""
    found: dict[str, Probe] = {}
    for entry in sorted(pkgutil.iter_modules(__path__), key=lambda entry: entry.name):
        module = importlib.import_module(f"{__name__}.{entry.name}")
        if hasattr(module, "probe"):
            found[entry.name] = module.probe(host)
        elif hasattr(module, "probes"):
            found.update(module.probes(host))
    return found
