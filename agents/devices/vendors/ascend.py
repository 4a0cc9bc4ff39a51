"""Finds Huawei Ascend NPUs through the library DCMI, else through ``npu-smi info``, whose columns differ between chips
and releases. The partitioning and distances of the chips come from the tool in both cases.

Format: Huawei, "npu-smi command reference" (info; info -t info-vnpu; info -t topo). The runtime's number of a chip is
its place in the table: ids of NPUs need not begin at 0, and a board may have two chips. A partitioned chip lists its
vNPUs, each with its template.
"""

from __future__ import annotations

import re
import time
from dataclasses import dataclass, replace
from typing import Any

from agents.devices.card import (
    MIB,
    Card,
    Condition,
    Health,
    Process,
    UnreadableOutput,
    memory_errors,
    number,
    numeral,
    pci_address,
    positive,
    ratio,
    scaled,
)
from agents.devices.cards import CardProbe, Maker
from agents.devices.readers import dcmi
from agents.devices.readers.library import ReaderSilent
from agents.devices.readers.smi import ToolSource
from agents.devices.readers.source import LibrarySource
from agents.devices.readers.table import Row, devices, header
from agents.devices.readers.tool import Tool
from agents.devices.vendors import ProbedHost
from agents.devices.visible import Visible
from agents.ends import clause
from agents.notes import NoteText
from agents.protocol import Division, Link, Partition

VENDOR = "huawei"
PCI_VENDOR = "0x19e5"
LIBRARY = "DCMI"
# Variables: CANN "environment variable reference" (ASCEND_RT_VISIBLE_DEVICES); Ascend Docker Runtime (the other).
VISIBLE = Visible(("ASCEND_RT_VISIBLE_DEVICES", "ASCEND_VISIBLE_DEVICES"))
_PROCESS = re.compile(r"\|\s*(\d+)\s+(\d+)\s*\|\s*(\d+)\s*\|[^|]*\|\s*(\d+)\s*\|")
_VNPU = re.compile(r"\|\s*(\d+)\s*\|\s*\d+\s*\|\s*\w+\s*\|\s*\d+\s*\|\s*(vir\w+)\s*\|")
# vNPUs of a chip are numbered from 100 + 16 x its own number.
_FIRST_VNPU, _VNPUS = 100, 16
# A row of the table of distances: the connection of a chip to each other one (HCCS, PIX, PHB, SYS).
_NEAR_ROW = re.compile(r"\s*NPU\d+\s+((?:(?:X|NA|[A-Z]{3,4}(?:_SW)?)(?:\s+|$))+)")
_AMOUNT = re.compile(r"(\d+)\s*/\s*(\d+)")


def parse(text: str) -> list[Card]:
    """Parse the chips of the table, in its order."""
    version = header(text, "Version")
    processes = _processes(text)
    # The header names the last column of each row: DDR and HBM are side by side on some chips.
    hbm = "HBM-Usage" in text
    rows: list[tuple[Row, Row]] = []
    for record in devices(text):
        if len(record) % 2:
            raise UnreadableOutput("a row of its table is missing")
        rows += [(record[at], record[at + 1]) for at in range(0, len(record), 2)]
    return [_card(index, *pair, hbm, version, processes) for index, pair in enumerate(rows)]


def _card(
    index: int, above: Row, below: Row, hbm: bool, version: str, processes: dict[tuple[int, int], list[Process]]
) -> Card:
    npu, _, name = above[0].partition(" ")
    chip = below[0].split()[0] if below[0] else "0"
    power, temperature = (*above[2].split(), "", "")[:2]
    amounts = _AMOUNT.findall(below[2])
    if not amounts or not npu.isdigit() or not chip.isdigit():
        raise UnreadableOutput(f"its row {' | '.join(below)!r} tells no memory")
    # The first number of the cell is the use of the AI cores; memory follows, HBM last.
    used, total = amounts[-1] if hbm else amounts[0]
    return Card(
        index=index,
        model=f"Ascend {name.strip()}",
        pci=pci_address(below[1]),
        memory_bytes=scaled(total, MIB),
        memory_used_bytes=scaled(used, MIB),
        utilisation=ratio(below[2].split()[0]),
        power_w=positive(power),
        temperature_c=number(temperature),
        conditions=_conditions(above[1]),
        processes=tuple(processes.get((numeral(npu), numeral(chip)), ())),
        tells_memory=True,
        attributes={"npu": npu, "chip": chip, **({"driver": version} if version else {})},
    )


def _conditions(health: str) -> tuple[Condition, ...]:
    word = health.strip().lower()
    if word in ("ok", "na", "n/a", ""):
        return ()
    worst: Health = "DEGRADED" if "warning" in word else "UNHEALTHY"
    return (Condition("NPU_HEALTH", worst, NoteText(clause("HealthCalled", tool="npu-smi", health=health))),)


def _processes(text: str) -> dict[tuple[int, int], list[Process]]:
    found: dict[tuple[int, int], list[Process]] = {}
    for line in text.splitlines():
        if row := _PROCESS.match(line):
            found.setdefault((numeral(row[1]), numeral(row[2])), []).append(
                Process(numeral(row[3]), scaled(row[4], MIB))
            )
    return found


def parse_vnpus(text: str) -> Division | None:
    """Parse the vNPUs of one chip; None for an unpartitioned chip. This agent creates none: the operator does."""
    made = [
        Partition(template, (numeral(number) - _FIRST_VNPU) % _VNPUS, uuid=number)
        for number, template in _VNPU.findall(text)
    ]
    return Division("vNPU", made=made) if made else None


def parse_topology(text: str) -> list[tuple[Link, ...]]:
    """Parse the links of each chip to the others, in the order of the table; empty if the table is not square."""
    rows = [match[1].split() for line in text.splitlines() if (match := _NEAR_ROW.match(line))]
    if any(len(row) < len(rows) for row in rows):
        return []
    return [
        tuple(Link(f"#{peer}", word) for peer, word in enumerate(row[: len(rows)]) if word not in ("X", "NA"))
        for row in rows
    ]


@dataclass(frozen=True)
class NpuSmi(ToolSource):
    """``npu-smi info``, with partitioning and distances of the chips, which rarely change and cost a process each."""

    def look(self, host: ProbedHost, deadline_s: float) -> list[Card]:
        until = time.monotonic() + deadline_s
        return self.completed(super().look(host, deadline_s), host, until)

    def completed(self, cards: list[Card], host: ProbedHost, until: float) -> list[Card]:
        """Return the cards with their partitioning and distances, as far as time allows."""
        cards = [replace(card, division=self._division(card, host, until)) for card in cards]
        # Last: if time runs out, only links are missing.
        links = self._links(host, until) if len(cards) > 1 else []
        # There is a row for each number: with gaps in the numbers, rows cannot be assigned.
        if len(links) != len(cards) or any(card.index >= len(links) for card in cards):
            return cards
        return [replace(card, links=links[card.index]) for card in cards]

    def _links(self, host: ProbedHost, until: float) -> list[tuple[Link, ...]]:
        try:
            text = self.tool.ask(("info", "-t", "topo"), max(0.05, until - time.monotonic()), host.root)
        except ReaderSilent:
            return []  # older releases do not support it
        return parse_topology(text)

    def _division(self, card: Card, host: ProbedHost, until: float) -> Division | None:
        question = ("info", "-t", "info-vnpu", "-i", card.attributes["npu"], "-c", card.attributes["chip"])
        try:
            return parse_vnpus(self.tool.ask(question, max(0.05, until - time.monotonic()), host.root))
        except ReaderSilent:
            return None  # many releases and chips do not support vNPUs


class Dcmi(LibrarySource):
    """The library, and from ``npu-smi`` what the library does not report."""

    def __init__(self, npu_smi: NpuSmi) -> None:
        module = "agents.devices.readers.dcmi"
        super().__init__(LIBRARY, module, dcmi.NAMES, library_card, pci_vendor=PCI_VENDOR, folders=dcmi.FOLDERS)
        self.npu_smi = npu_smi

    def look(self, host: ProbedHost, deadline_s: float) -> list[Card]:
        until = time.monotonic() + deadline_s
        cards = super().look(host, deadline_s)
        return self.npu_smi.completed(cards, host, until) if self.npu_smi.present(host) else cards


def library_card(told: dict[str, Any], host: ProbedHost) -> Card:
    """Make a card from the answer of DCMI's reader."""
    attributes = {"npu": str(int(told["card"])), "chip": str(int(told["chip"]))}
    if error := told.get("error"):
        broken = Condition("DCMI_ERROR", "UNHEALTHY", str(error)[:200])
        return Card(index=int(told["index"]), conditions=(broken,), attributes=attributes)
    counts = told.get("ecc")
    errors, ill = memory_errors(*(counts if isinstance(counts, list) and len(counts) == 2 else (None, None)))
    clock, heat = positive(told.get("clock_mhz")), number(told.get("temperature_c"))
    processes = told.get("processes")
    driver = {"driver": str(told["driver"])} if told.get("driver") else {}
    return Card(
        index=int(told["index"]),
        model=f"Ascend {str(told.get('name') or '').removeprefix('Ascend').strip() or 'NPU'}",
        pci=pci_address(told.get("pci")),
        memory_bytes=scaled(told.get("memory_bytes"), 1),
        memory_used_bytes=scaled(told.get("memory_used_bytes"), 1),
        utilisation=ratio(told.get("use_percent")),
        power_w=positive(told.get("power_w")),
        temperature_c=heat if heat is not None and -60 < heat < 250 else None,
        clock_hz=clock * 1e6 if clock is not None and clock < 60_000 else None,
        conditions=_alarm(told.get("health")) + ill,
        processes=None if processes is None else tuple(Process(int(pid), int(used)) for pid, used in processes),
        tells_memory=processes is not None,
        attributes={**attributes, **driver, **errors},
    )


def _alarm(health: object) -> tuple[Condition, ...]:
    """Return the condition for a health value: 0 is OK, 1 to 3 are alarms of rising severity, others mean that the chip
    is not up."""
    level = number(health)
    if level is None or level == 0:
        return ()
    word = {1: "Warning", 2: "Alarm", 3: "Critical"}.get(int(level), "unknown")
    note = NoteText(clause("HealthCalled", tool="DCMI", health=word))
    return (Condition("NPU_HEALTH", "DEGRADED" if level == 1 else "UNHEALTHY", note),)


def probe(host: ProbedHost) -> CardProbe:
    tool = Tool("npu-smi", ("/usr/local/Ascend/driver/tools", "/usr/local/sbin", "/usr/local/bin"))
    source = NpuSmi(tool, (("info",),), lambda answers: parse(answers[0]))
    return CardProbe(host, Maker(VENDOR, "npu"), (Dcmi(source), source))
