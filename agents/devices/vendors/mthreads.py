"""Finds Moore Threads GPUs through ``mthreads-gmi``.

Format: Moore Threads, "MT GPU management (mthreads-gmi)"; its table has bars between the columns and no frame.
"""

from __future__ import annotations

import re

from agents.devices.card import MIB, Card, Unreadable, narrow_link, number, numeral, pci_address, ratio, scaled
from agents.devices.cards import CardProbe, Maker
from agents.devices.readers.smi import ToolSource
from agents.devices.readers.table import whole
from agents.devices.readers.tool import Tool
from agents.devices.vendors import Host
from agents.devices.visible import Visible

VENDOR = "mthreads"
# Variables: MUSA SDK documentation (MUSA) and the MT container toolkit (MTHREADS).
VISIBLE = Visible(("MUSA_VISIBLE_DEVICES", "MTHREADS_VISIBLE_DEVICES"))
_FIRST = re.compile(r"(\d+)\s+(\S.*?)\s*\|\s*(\S+)\s*\|\s*(\S+)\s+(\d+)\s*MiB\s*\(\s*(\d+)\s*MiB\s*\)")
_SECOND = re.compile(r"(\d+)x\s*\(\s*(\d+)x\s*\)\s*\|\s*(\S+)")


def parse(text: str) -> list[Card]:
    """Each device has a line with its name and memory, and below it one with the link's width and the temperature."""
    lines = [line.strip() for line in whole(text).splitlines() if line.strip()]
    if not lines or set(lines[-1]) - set("+-="):
        raise Unreadable("its table breaks off")
    driver = re.search(r"Driver Version:\s*(\S+)", text[:2000])
    cards = []
    for at, line in enumerate(lines[:-1]):
        first = _FIRST.match(line)
        if first is None:
            continue
        second = _SECOND.search(lines[at + 1])
        if second is None:
            raise Unreadable(f"the line after device {first[1]} tells no link and no temperature")
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
        raise Unreadable("its table has no device")
    return cards


def probe(host: Host) -> CardProbe:
    source = ToolSource(Tool("mthreads-gmi", ("/usr/bin",)), ((),), lambda answers: parse(answers[0]))
    return CardProbe(host, Maker(VENDOR, "gpu"), (source,))
