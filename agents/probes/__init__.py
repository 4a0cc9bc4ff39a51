"""Probes find the devices of a host and sample them; a folder scan finds the probes, and one suite judges them.

A module of this folder is a probe when it has a function ``probe(host)`` that answers a :class:`Probe`. Absence is no
error: a host without a vendor's library has no devices of that vendor. What is there but broken becomes a note.
"""

from __future__ import annotations

import importlib
import pkgutil
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from agents.protocol import Device, DeviceClaim, DeviceError, DeviceSample


@dataclass(frozen=True, slots=True)
class Host:
    """Where a probe looks. ``name`` is the agent's: two agents of one machine have different devices."""

    name: str
    root: Path = Path("/")


class Probe(Protocol):
    """One source of devices. Every method may block for some seconds and is called off the loop, one at a time."""

    def discover(self) -> list[Device]:
        """The devices that are there now, in a stable order; never raises."""

    def sample(self, claims: list[DeviceClaim]) -> list[DeviceSample]:
        """One measurement per device. ``claims`` is what live parts hold; only a simulation needs to know."""

    def errors(self) -> list[DeviceError]:
        """Faults of single devices since the last call."""

    def notes(self) -> list[str]:
        """Sentences on what is there but does not work, as of the last call of the other methods."""

    def close(self) -> None:
        """Give everything back. Called once."""


def discover(host: Host) -> dict[str, Probe]:
    """Every probe of this folder that looks at real hardware, by the name of its module."""
    found: dict[str, Probe] = {}
    for module in sorted(pkgutil.iter_modules(__path__), key=lambda entry: entry.name):
        make = getattr(importlib.import_module(f"{__name__}.{module.name}"), "probe", None)
        if make is not None:
            found[module.name] = make(host)
    return found
