"""Finds Intel GPUs through Level Zero's system management, else ``xpu-smi`` for its list and one line of its dump each,
else sysfs.

Formats: Intel XPU Manager, "xpu-smi discovery -j" and "dump" (columns are known by their header); Linux i915 sysfs.
"""

from __future__ import annotations

import csv
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from agents.devices.card import (
    MIB,
    Card,
    Condition,
    Health,
    UnreadableOutput,
    narrow_link,
    number,
    pci_address,
    positive,
    ratio,
    scaled,
)
from agents.devices.cards import CardProbe, Maker
from agents.devices.readers import levelzero, rocm
from agents.devices.readers.smi import ToolSource
from agents.devices.readers.source import LibrarySource
from agents.devices.readers.table import whole
from agents.devices.readers.tool import Tool
from agents.devices.vendors import ProbedHost
from agents.devices.visible import Visible
from agents.ends import clause
from agents.notes import NoteText

VENDOR = "intel"
PCI_VENDOR = "0x8086"
# Variables: oneAPI Level Zero specification, "environment variables". Cards are counted here, of which some have two
# tiles; with the hierarchy FLAT, the runtime's default, the mask would count tiles.
VISIBLE = Visible(("ZE_AFFINITY_MASK",), along={"ZE_FLAT_DEVICE_HIERARCHY": "COMPOSITE"})
LIBRARY = "Level Zero"
# zes_freq_throttle_reason_flag_t, zes_mem_health_t
_THROTTLES = (
    (0x01, "power cap"),
    (0x02, "power cap (burst)"),
    (0x04, "current limit"),
    (0x08, "heat"),
    (0x10, "supply"),
)
_MEMORY: dict[int, tuple[Health, str]] = {
    2: ("DEGRADED", "degraded"),
    3: ("UNHEALTHY", "critical"),
    4: ("UNHEALTHY", "to be replaced"),
}
# Utilisation, power, frequency, core and memory temperature, memory in per cent and in MiB; all devices, once.
_DUMP = ("dump", "-d", "-1", "-m", "0,1,2,3,4,5,18", "-n", "1")


def sysman_card(told: dict[str, Any], host: ProbedHost) -> Card:
    """Make a card from the answer of Level Zero's reader."""
    if error := told.get("error"):
        broken = Condition("LEVEL_ZERO_ERROR", "UNHEALTHY", str(error)[:200])
        return Card(index=int(told["index"]), conditions=(broken,))
    now, most = _lanes(told.get("pcie")), _lanes(told.get("pcie_max"))
    clock = positive(told.get("clock_mhz"))
    use = positive(told.get("utilisation"))
    attributes = {
        "driver": str(told.get("driver") or ""),
        "tiles": str(told["tiles"]) if (told.get("tiles") or 0) > 1 else "",
        "pcie": f"gen{now[0]} x{now[1]}" if now else "",
        "pcie_max": f"gen{most[0]} x{most[1]}" if most else "",
    }
    return Card(
        index=int(told["index"]),
        model=str(told.get("name") or ""),
        pci=pci_address(told.get("pci")),
        memory_bytes=scaled(told.get("memory_bytes"), 1),
        memory_used_bytes=scaled(told.get("memory_used_bytes"), 1),
        utilisation=round(min(use, 1.0), 4) if use is not None else None,
        power_w=positive(told.get("power_w")),
        energy_j=positive(told.get("energy_j")),
        temperature_c=number(told.get("temperature_c")),
        clock_hz=clock * 1e6 if clock is not None else None,
        throttled=", ".join(name for bit, name in _THROTTLES if int(told.get("throttle") or 0) & bit),
        conditions=_conditions(told) + (narrow_link(now[1], most[1]) if now and most else ()),
        attributes={name: value for name, value in attributes.items() if value},
    )


def _lanes(pair: Any) -> tuple[int, int] | None:
    """Return generation and lanes of a link; None if either is unknown, which the library reports as -1."""
    known = isinstance(pair, list) and len(pair) == 2 and all(isinstance(one, int) and 0 < one < 65 for one in pair)
    return (pair[0], pair[1]) if known else None


def _conditions(told: dict[str, Any]) -> tuple[Condition, ...]:
    found: list[Condition] = []
    if told.get("reset"):
        found.append(Condition("RESET_NEEDED", "UNHEALTHY", NoteText(clause("ResetNeeded"))))
    if ill := _MEMORY.get(int(told.get("memory_health") or 0)):
        found.append(Condition("MEMORY_HEALTH", ill[0], NoteText(clause("MemoryHealth", health=ill[1]))))
    return tuple(found)


def parse_discovery(text: str) -> list[Card]:
    """Parse the physical GPUs of ``xpu-smi discovery -j``; virtual functions are parts of them."""
    content = rocm.after_warnings(text)
    listed = content.get("device_list") if isinstance(content, dict) else None
    if not isinstance(listed, list):
        raise UnreadableOutput("its JSON has no device_list")
    cards = [_listed(entry) for entry in listed if isinstance(entry, dict) and _is_gpu(entry)]
    if not cards:
        raise UnreadableOutput("its JSON names no GPU")
    return cards


def _is_gpu(entry: dict[str, Any]) -> bool:
    usual = {"device_type": "GPU", "device_function_type": "physical"}
    return all(entry.get(name, value) == value for name, value in usual.items())


def _listed(entry: dict[str, Any]) -> Card:
    index = positive(entry.get("device_id"))
    if index is None:
        raise UnreadableOutput("an entry of its device_list has no device_id")
    return Card(
        index=int(index),
        model=str(entry.get("device_name") or ""),
        # Its uuid is made of its model and its place on the bus, so hosts of the same build share it.
        uuid="",
        pci=pci_address(entry.get("pci_bdf_address")),
        memory_bytes=scaled(entry.get("memory_physical_size_byte"), 1),
        attributes={"driver": str(entry["driver_version"])} if entry.get("driver_version") else {},
    )


def parse_dump(text: str) -> list[Card]:
    """Parse the newest line of each device of ``xpu-smi dump``."""
    rows = [[field.strip() for field in row] for row in csv.reader(whole(text).splitlines()) if row]
    begin = next((at for at, row in enumerate(rows) if "DeviceId" in row), None)
    if begin is None or begin + 1 == len(rows):
        raise UnreadableOutput("its dump has no line below its header")
    names = rows[begin]
    newest: dict[int, Card] = {}
    for row in rows[begin + 1 :]:
        if len(row) != len(names):
            raise UnreadableOutput("a line of its dump has not as many fields as its header")
        card = _dumped(dict(zip(names, row, strict=True)))
        newest[card.index] = card
    return [newest[index] for index in sorted(newest)]


def _dumped(row: dict[str, str]) -> Card:
    index = positive(row["DeviceId"])
    if index is None:
        raise UnreadableOutput("a line of its dump has no DeviceId")
    clock = positive(row.get("GPU Frequency (MHz)"))
    return Card(
        index=int(index),
        utilisation=ratio(row.get("GPU Utilization (%)")),
        power_w=positive(row.get("GPU Power (W)")),
        temperature_c=number(row.get("GPU Core Temperature (Celsius Degree)")),
        memory_used_bytes=scaled(row.get("GPU Memory Used (MiB)"), MIB),
        clock_hz=clock * 1e6 if clock is not None else None,
    )


def join(answers: list[str]) -> list[Card]:
    """Join the list and the measurements."""
    measured = {card.index: card for card in parse_dump(answers[1])}
    cards = []
    for card in parse_discovery(answers[0]):
        now = measured.get(card.index, card)
        cards.append(
            replace(
                card,
                utilisation=now.utilisation,
                power_w=now.power_w,
                temperature_c=now.temperature_c,
                memory_used_bytes=now.memory_used_bytes,
                clock_hz=now.clock_hz,
            )
        )
    return cards


@dataclass(frozen=True, slots=True)
class IntelSysfs:
    """Cards with memory of their own below ``/sys/class/drm``: integrated graphics are not accelerators."""

    name: str = "the kernel's i915 driver"
    thorough: bool = True
    period_s: float = 1.0

    def present(self, host: ProbedHost) -> bool:
        return bool(self._folders(host))

    @staticmethod
    def _folders(host: ProbedHost) -> list[Path]:
        cards = [card for card in (host.root / "sys/class/drm").glob("card[0-9]*") if card.name[4:].isdigit()]
        mine = [card for card in cards if host.text(card / "device/vendor") == PCI_VENDOR]
        return sorted(
            (card for card in mine if (card / "lmem_total_bytes").exists()), key=lambda card: int(card.name[4:])
        )

    def look(self, host: ProbedHost, deadline_s: float) -> list[Card]:
        return [self._card(host, index, folder) for index, folder in enumerate(self._folders(host))]

    @staticmethod
    def _card(host: ProbedHost, index: int, folder: Path) -> Card:
        total, free = (scaled(host.text(folder / f"lmem_{what}_bytes"), 1) for what in ("total", "avail"))
        clock = positive(host.text(folder / "gt_act_freq_mhz"))
        return Card(
            index=index,
            model=f"Intel GPU {host.text(folder / 'device/device')}",
            pci=pci_address((folder / "device").resolve().name),
            memory_bytes=total,
            memory_used_bytes=total - free if total is not None and free is not None and free <= total else None,
            clock_hz=clock * 1e6 if clock is not None else None,
        )

    def sample(self, host: ProbedHost, deadline_s: float) -> list[Card]:
        return self.look(host, deadline_s)

    def close(self) -> None:
        """Nothing to release."""


def probe(host: ProbedHost) -> CardProbe:
    questions = (("discovery", "-j"), _DUMP)
    xpu_smi = ToolSource(
        Tool("xpu-smi"), questions, join, (_DUMP,), lambda answers: parse_dump(answers[0]), pci_vendor=PCI_VENDOR
    )
    sysman = LibrarySource(
        LIBRARY, "agents.devices.readers.levelzero", levelzero.NAMES, sysman_card, pci_vendor=PCI_VENDOR
    )
    return CardProbe(host, Maker(VENDOR, "gpu"), (sysman, xpu_smi, IntelSysfs()))
