"""Finds Moore Threads GPUs through the library MTML, which reports uuid and watts, else through ``mthreads-gmi``.

Format: Moore Threads, "MT GPU management (mthreads-gmi)"; its table has bars between the columns and no frame.
"""

from __future__ import annotations

import re
from typing import Any

from agents.devices.card import (
    MIB,
    Card,
    Condition,
    UnreadableOutput,
    narrow_link,
    number,
    numeral,
    pci_address,
    positive,
    ratio,
    scaled,
)
from agents.devices.cards import CardProbe, Maker
from agents.devices.readers import mtml
from agents.devices.readers.smi import ToolSource
from agents.devices.readers.source import LibrarySource
from agents.devices.readers.table import whole
from agents.devices.readers.tool import Tool
from agents.devices.vendors import ProbedHost
from agents.devices.visible import Visible

VENDOR = "mthreads"
PCI_VENDOR = "0x1ed5"
LIBRARY = "MTML"
# Variables: MUSA SDK documentation (MUSA) and the MT container toolkit (MTHREADS).
VISIBLE = Visible(("MUSA_VISIBLE_DEVICES", "MTHREADS_VISIBLE_DEVICES"))
_FIRST = re.compile(r"(\d+)\s+(\S.*?)\s*\|\s*(\S+)\s*\|\s*(\S+)\s+(\d+)\s*MiB\s*\(\s*(\d+)\s*MiB\s*\)")
_SECOND = re.compile(r"(\d+)x\s*\(\s*(\d+)x\s*\)\s*\|\s*(\S+)")


def library_card(told: dict[str, Any], host: ProbedHost) -> Card:
    """Make a card from the answer of MTML's reader; its link's width comes from the kernel."""
    if error := told.get("error"):
        broken = Condition("MTML_ERROR", "UNHEALTHY", str(error)[:200])
        return Card(index=int(told["index"]), conditions=(broken,))
    pci = pci_address(told.get("pci"))
    place = f"sys/bus/pci/devices/{pci or 'none'}"
    lanes = [positive(host.text(f"{place}/{which}_link_width")) for which in ("current", "max")]
    clock = positive(told.get("clock_mhz"))
    uuid = re.fullmatch(r"(?:GPU-)?([0-9a-fA-F-]{8,64})", str(told.get("uuid") or ""))
    return Card(
        index=int(told["index"]),
        model=str(told.get("name") or "Moore Threads GPU"),
        uuid=f"MTT-{uuid[1].lower()}" if uuid else "",
        pci=pci,
        memory_bytes=scaled(told.get("memory_bytes"), 1),
        memory_used_bytes=scaled(told.get("memory_used_bytes"), 1),
        utilisation=ratio(told.get("use_percent")),
        power_w=positive(told.get("power_w")),
        temperature_c=number(told.get("temperature_c")),
        clock_hz=clock * 1e6 if clock is not None else None,
        conditions=narrow_link(*(int(one) if one else None for one in lanes)),
        attributes={"driver": str(told["driver"])} if told.get("driver") else {},
    )


def parse(text: str) -> list[Card]:
    """Parse the table. Each device has a line with its name and memory, and one with the link's width and the
    temperature."""
    lines = [line.strip() for line in whole(text).splitlines() if line.strip()]
    if not lines or set(lines[-1]) - set("+-="):
        raise UnreadableOutput("its table breaks off")
    driver = re.search(r"Driver Version:\s*(\S+)", text[:2000])
    cards = []
    for at, line in enumerate(lines[:-1]):
        first = _FIRST.match(line)
        if first is None:
            continue
        second = _SECOND.search(lines[at + 1])
        if second is None:
            raise UnreadableOutput(f"the line after device {first[1]} tells no link and no temperature")
        cards.append(
            Card(
                index=numeral(first[1]),
                model=first[2],
                pci=pci_address(first[3]),
                utilisation=ratio(first[4]),
                memory_used_bytes=scaled(first[5], MIB),
                memory_bytes=scaled(first[6], MIB),
                temperature_c=number(second[3]),
                conditions=narrow_link(numeral(second[1]), numeral(second[2])),
                attributes={"driver": driver[1]} if driver else {},
            )
        )
    if not cards:
        raise UnreadableOutput("its table has no device")
    return cards


def probe(host: ProbedHost) -> CardProbe:
    source = ToolSource(Tool("mthreads-gmi", ("/usr/bin",)), ((),), lambda answers: parse(answers[0]))
    library = LibrarySource(
        LIBRARY,
        "agents.devices.readers.mtml",
        mtml.NAMES,
        library_card,
        pci_vendor=PCI_VENDOR,
        folders=mtml.FOLDERS,
    )
    return CardProbe(host, Maker(VENDOR, "gpu"), (library, source))
