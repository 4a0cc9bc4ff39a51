"""Finds AMD GPUs through the library of AMD SMI or the older one of ROCm SMI, else ``amd-smi`` with JSON, else
``rocm-smi``, else the kernel driver's sysfs.

Formats: ROCm/amdsmi, amdsmi_cli/README.md; ROCm/rocm_smi_lib, python_smi_tools; Linux, Documentation/gpu/amdgpu.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from agents.devices.card import (
    MIB,
    Card,
    Condition,
    UnreadableOutput,
    memory_errors,
    narrow_link,
    number,
    numeral,
    pci_address,
    positive,
    ratio,
    scaled,
)
from agents.devices.cards import CardProbe, Maker
from agents.devices.readers import amdsmi, kfd, rocm
from agents.devices.readers.smi import ToolSource
from agents.devices.readers.source import LibrarySource
from agents.devices.readers.table import whole
from agents.devices.readers.tool import Tool
from agents.devices.vendors import ProbedHost
from agents.devices.visible import Visible

VENDOR = "amd"
PCI_VENDOR = "0x1002"
LIBRARY = "AMD's management library"
# Variables: ROCm documentation, "GPU isolation techniques"; uuids and numbers may be mixed. HIP counts within what ROCR
# leaves; unless set itself, it reads CUDA's variable, which is empty here.
VISIBLE = Visible(("ROCR_VISIBLE_DEVICES",), by="uuid", uuid_prefix="GPU-", none="", within=("HIP_VISIBLE_DEVICES",))
_ROCM = ("/opt/rocm/bin",)
_STATIC = ("static", "--asic", "--bus", "--vram", "--driver", "--numa", "--json")
_METRIC = ("metric", "--usage", "--mem-usage", "--power", "--temperature", "--clock", "--pcie", "--ecc", "--json")
_ROCM_SMI = (
    *("--showproductname", "--showuniqueid", "--showbus", "--showmeminfo", "vram", "--showuse", "--showpower"),
    *("--showtemp", "--showclocks", "--showdriverversion", "--showtoponuma", "--json"),
)


def library_card(told: dict[str, Any], host: ProbedHost) -> Card:
    """Make a card from the answer of the library's reader; the number that names it is the kernel's."""
    if error := told.get("error"):
        broken = Condition("AMD_SMI_ERROR", "UNHEALTHY", str(error)[:200])
        return Card(index=int(told["index"]), conditions=(broken,))
    pci = pci_address(told.get("pci"))
    clock, heat = positive(told.get("clock_mhz")), number(told.get("temperature_c"))
    counts = told.get("ecc")
    counts = counts if isinstance(counts, list) and len(counts) == 2 else [None, None]
    errors, conditions = memory_errors(*counts)
    names = ("partition", "memory_partition")
    model = str(told.get("name") or "AMD GPU")
    place = f"sys/bus/pci/devices/{pci or 'none'}"
    link = {name: host.text(f"{place}/{name}_link_width") for name in ("current", "max")}
    uuid = _uuid(host.text(f"{place}/unique_id"))
    if uuid and _known(told.get("partition")) not in ("", "SPX"):
        # Partitions of one card share its number, so the runtime could not tell them apart.
        uuid = f"{uuid.replace('GPU', 'part')}-{int(told['index'])}"
    return Card(
        index=int(told["index"]),
        model=model,
        uuid=uuid,
        pci=pci,
        memory_bytes=scaled(told.get("memory_bytes"), 1),
        memory_used_bytes=scaled(told.get("memory_used_bytes"), 1),
        utilisation=ratio(told.get("use_percent")),
        power_w=positive(told.get("power_w")),
        energy_j=positive(told.get("energy_j")),
        temperature_c=heat if heat is not None and -60 < heat < 250 else None,
        clock_hz=clock * 1e6 if clock is not None and clock < 60_000 else None,
        conditions=conditions + _narrow(model, link["current"], link["max"]),
        attributes={**{name: _known(told[name]) for name in names if _known(told.get(name))}, **errors},
    )


def _narrow(model: str, width: object, widest: object) -> tuple[Condition, ...]:
    """Return the condition of a narrow link. Graphics cards narrow an idle link to save power; accelerators of the
    Instinct line never do."""
    widths = (positive(width), positive(widest))
    steady = "instinct" in model.lower() or re.search(r"\bMI\d", model)
    return narrow_link(int(widths[0]), int(widths[1])) if steady and widths[0] and widths[1] else ()


def _uuid(unique: str) -> str:
    """Return the runtime's spelling of the number that the kernel reports."""
    return f"GPU-{unique.lower():0>16}" if re.fullmatch(r"[0-9a-fA-F]{1,16}", unique) else ""


def read_static(text: str) -> list[Card]:
    """Parse the output of ``amd-smi static``, as JSON or text."""
    entries = _entries(text) if re.search(r"^\s*[\[{]", text, re.MULTILINE) else _sections(text)
    return [_static_card(entry) for entry in entries]


def read_metric(text: str) -> list[Card]:
    """Parse the output of ``amd-smi metric --json``."""
    return [_metric_card(entry) for entry in _entries(text)]


def join(answers: list[str]) -> list[Card]:
    """Join static facts and measurements by the tool's own number."""
    measured = {card.index: card for card in read_metric(answers[1])}
    cards = []
    for card in read_static(answers[0]):
        now = measured.get(card.index)
        cards.append(card if now is None else _merge(card, now))
    return cards


def _merge(card: Card, now: Card) -> Card:
    narrow = _narrow(card.model, now.attributes.get("pcie_width"), card.attributes.get("pcie_width_max"))
    return replace(
        card,
        memory_bytes=card.memory_bytes or now.memory_bytes,
        memory_used_bytes=now.memory_used_bytes,
        utilisation=now.utilisation,
        power_w=now.power_w,
        temperature_c=now.temperature_c,
        clock_hz=now.clock_hz,
        conditions=card.conditions + now.conditions + narrow,
        attributes={**card.attributes, **now.attributes},
    )


def _entries(text: str) -> list[dict[str, Any]]:
    """Return the list of GPUs, which newer tools wrap into ``{"gpu_data": [...]}``."""
    content = rocm.after_warnings(text)
    if isinstance(content, dict):
        content = content.get("gpu_data")
    if not isinstance(content, list):
        raise UnreadableOutput("its JSON is no list of GPUs")
    entries = [entry for entry in content if isinstance(entry, dict) and positive(entry.get("gpu")) is not None]
    if not entries:
        raise UnreadableOutput("its JSON names no GPU")
    return entries


def _sections(text: str) -> list[dict[str, Any]]:
    """Return the GPUs of the text form: ``GPU: 0`` and, below it, indented names and values."""
    entries: list[dict[str, Any]] = []
    open_sections: list[tuple[int, dict[str, Any]]] = []
    for line in whole(text).splitlines():
        name, colon, value = line.strip().partition(":")
        depth = len(line) - len(line.lstrip())
        if not colon:
            continue
        if depth == 0:
            entry: dict[str, Any] = {"gpu": value.strip()}
            if name == "GPU":
                entries.append(entry)
            open_sections = [(0, entry)]
            continue
        while open_sections and open_sections[-1][0] >= depth:
            open_sections.pop()
        if not open_sections:
            continue
        within = open_sections[-1][1]
        if value.strip():
            within.setdefault(name.lower(), value.strip())
        else:
            inner: dict[str, Any] = {}
            within.setdefault(name.lower(), inner)
            open_sections.append((depth, inner))
    if not entries:
        raise UnreadableOutput("its answer names no GPU")
    return entries


def _at(entry: Any, *path: str) -> Any:
    """Return the value at a path; for a quantity its number."""
    for step in path:
        entry = entry.get(step) if isinstance(entry, dict) else None
    return entry.get("value") if isinstance(entry, dict) else entry


def _known(value: Any) -> str:
    word = str(value or "").strip()
    return "" if word.upper() in ("", "N/A", "NONE") else word


def _static_card(entry: dict[str, Any]) -> Card:
    serial = re.fullmatch(r"0x([0-9a-f]{1,16})", _known(_at(entry, "asic", "asic_serial")), re.IGNORECASE)
    numa = positive(_at(entry, "numa", "node"))
    attributes = {
        "driver": _known(_at(entry, "driver", "version")),
        "arch": _known(_at(entry, "asic", "target_graphics_version")),
        "pcie_width_max": _known(_at(entry, "bus", "max_pcie_width")),
        "partition": _known(_at(entry, "partition", "compute_partition")),
    }
    return Card(
        index=int(positive(entry["gpu"]) or 0),
        model=_known(_at(entry, "asic", "market_name")),
        uuid=f"GPU-{numeral(serial[1], 16):016x}" if serial and numeral(serial[1], 16) else "",
        pci=pci_address(_at(entry, "bus", "bdf")),
        numa=int(numa) if numa is not None else None,
        memory_bytes=scaled(_at(entry, "vram", "size"), MIB),
        attributes={name: value for name, value in attributes.items() if value},
    )


def _metric_card(entry: dict[str, Any]) -> Card:
    clock = positive(_at(entry, "clock", "gfx_0", "clk"))
    width = _known(_at(entry, "pcie", "width"))
    heat = (number(_known(_at(entry, "temperature", name))) for name in ("hotspot", "edge"))
    errors, ill = memory_errors(
        *(_at(entry, "ecc", f"total_{kind}_count") for kind in ("correctable", "uncorrectable"))
    )
    return Card(
        index=int(positive(entry["gpu"]) or 0),
        memory_bytes=scaled(_at(entry, "mem_usage", "total_vram"), MIB),
        memory_used_bytes=scaled(_at(entry, "mem_usage", "used_vram"), MIB),
        utilisation=ratio(_at(entry, "usage", "gfx_activity")),
        power_w=positive(_at(entry, "power", "socket_power")),
        temperature_c=next((degrees for degrees in heat if degrees is not None), None),
        clock_hz=clock * 1e6 if clock is not None else None,
        conditions=ill,
        attributes={**({"pcie_width": width} if width else {}), **errors},
    )


@dataclass(frozen=True, slots=True)
class AmdSysfs:
    """The sysfs files of the kernel driver amdgpu below ``/sys/class/drm``; costs a few file reads and needs no
    tool."""

    name: str = "the kernel's amdgpu driver"
    thorough: bool = True
    period_s: float = 1.0

    def present(self, host: ProbedHost) -> bool:
        return any(self._folders(host))

    @staticmethod
    def _folders(host: ProbedHost) -> list[Path]:
        cards = (host.root / "sys/class/drm").glob("card[0-9]*")
        found = [card / "device" for card in cards if card.name[4:].isdigit()]
        return sorted(
            (folder for folder in found if (folder / "mem_info_vram_total").exists()), key=lambda path: path.resolve()
        )

    def look(self, host: ProbedHost, deadline_s: float) -> list[Card]:
        return [_sysfs_card(host, index, folder) for index, folder in enumerate(self._folders(host))]

    def sample(self, host: ProbedHost, deadline_s: float) -> list[Card]:
        return self.look(host, deadline_s)

    def close(self) -> None:
        """Nothing to release."""


def _sysfs_card(host: ProbedHost, index: int, folder: Path) -> Card:
    sensors = next(iter(sorted(folder.glob("hwmon/hwmon*"))), folder)

    def text(name: str) -> str:
        return host.text(folder / name)

    def sensor(name: str) -> float | None:
        return positive(host.text(sensors / name))

    power, heat = sensor("power1_average") or sensor("power1_input"), sensor("temp1_input")
    numa = text("numa_node")
    partitions = {"partition": "current_compute_partition", "memory_partition": "current_memory_partition"}
    return Card(
        index=index,
        model=text("product_name") or f"AMD GPU {text('device')}".strip(),
        uuid=_uuid(text("unique_id")),
        pci=pci_address(folder.resolve().name),
        numa=numeral(numa) if numa.isdigit() else None,
        memory_bytes=scaled(text("mem_info_vram_total"), 1),
        memory_used_bytes=scaled(text("mem_info_vram_used"), 1),
        utilisation=ratio(text("gpu_busy_percent")),
        power_w=power / 1e6 if power is not None else None,
        temperature_c=heat / 1000 if heat is not None else None,
        clock_hz=sensor("freq1_input"),
        attributes={name: word for name, file in partitions.items() if (word := _known(text(file)))},
    )


def probe(host: ProbedHost) -> CardProbe:
    library = LibrarySource(
        LIBRARY,
        "agents.devices.readers.amdsmi",
        amdsmi.NAMES + amdsmi.ELDER_NAMES,
        library_card,
        pci_vendor=PCI_VENDOR,
        folders=amdsmi.FOLDERS,
    )
    amd_smi = ToolSource(
        Tool("amd-smi", _ROCM), (_STATIC, _METRIC), join, (_METRIC,), lambda answers: read_metric(answers[0])
    )
    rocm_smi = ToolSource(Tool("rocm-smi", _ROCM), (_ROCM_SMI,), lambda answers: rocm.cards(answers[0]))
    return CardProbe(host, Maker(VENDOR, "gpu", kfd.links), (library, amd_smi, rocm_smi, AmdSysfs()))
