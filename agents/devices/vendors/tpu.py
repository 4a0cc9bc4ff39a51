"""Finds Google TPU chips through ``tpu-info``, else by their device files.

Format: AI-Hypercomputer/cloud-accelerator-diagnostics, tpu_info. It prints several tables; the second numbers chips by
their place in the slice, so tables are joined by rows, not by numbers.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from agents.devices.card import GIB, Card, Process, UnreadableOutput, numeral, positive, ratio, scaled
from agents.devices.cards import CardProbe, Maker
from agents.devices.readers.smi import ToolSource
from agents.devices.readers.table import Row, whole
from agents.devices.readers.tool import Tool
from agents.devices.vendors import ProbedHost
from agents.devices.visible import Visible

VENDOR = "google"
PCI_VENDOR = "0x1ae0"
# The shapes of boxes of chips by their number: libtpu requires a part of a host to be a box.
_BOXES = {1: "1,1,1", 2: "1,2,1", 4: "2,2,1"}


def bounds(claimed: int, of_host: int) -> dict[str, str]:
    """Return the variables that tell libtpu that a process has part of its host's chips and no neighbours.

    Empty if it has all of them, because then the host may be one of several, and for a number of chips that is no box.
    """
    if claimed >= of_host or claimed not in _BOXES:
        return {}
    return {"TPU_CHIPS_PER_PROCESS_BOUNDS": _BOXES[claimed], "TPU_PROCESS_BOUNDS": "1,1,1"}


# Variables: Cloud TPU documentation, "run several processes on one host"; boxes as in JAX's multiprocess tests.
VISIBLE = Visible(("TPU_VISIBLE_CHIPS",), shape=bounds)
_USED = re.compile(r"([\d.]+)\s*GiB\s*/\s*([\d.]+)\s*GiB")


def parse(text: str) -> list[Card]:
    """Parse the chips of the first table, with memory and duty cycle from the second if it is there."""
    tables = _tables(text)
    chips = next((rows for title, rows in tables if "Chips" in title), [])
    use = next((rows for title, rows in tables if "Runtime Utilization" in title), [])
    if not chips:
        raise UnreadableOutput("its answer has no table of chips")
    if use and len(use) != len(chips):
        raise UnreadableOutput(f"it tells {len(chips)} chips and the use of {len(use)}")
    return [_card(index, row, use[index] if use else None) for index, row in enumerate(chips)]


def _tables(text: str) -> list[tuple[str, list[Row]]]:
    """Return each title with the rows below it; the frame may be drawn with ``|`` or with box characters."""
    found: list[tuple[str, list[Row]]] = []
    for line in whole(text).replace("│", "|").replace("┃", "|").splitlines():
        line = line.strip()
        if line.startswith("|"):
            cells = [cell.strip() for cell in line.strip("|").split("|")]
            if found and not set("".join(cells)) <= set("-:=+ "):
                found[-1][1].append(cells)
        elif re.match(r"[A-Za-z]", line):
            found.append((line, []))
    return [(title, rows[1:]) for title, rows in found if len(rows) > 1]


def _card(index: int, chip: Row, use: Row | None) -> Card:
    if len(chip) < 2:
        raise UnreadableOutput(f"the row of chip {index} breaks off")
    memory = _USED.search(use[1]) if use and len(use) > 2 else None
    pid = positive(chip[3]) if len(chip) > 3 else None
    return Card(
        index=index,
        model=chip[1].removesuffix(" chip"),
        memory_used_bytes=scaled(memory[1], GIB) if memory else None,
        memory_bytes=scaled(memory[2], GIB) if memory else None,
        utilisation=ratio(use[2]) if use and len(use) > 2 else None,
        processes=(Process(numeral(pid)),) if pid else (),
        attributes={"device": chip[0]},
    )


@dataclass(frozen=True, slots=True)
class DeviceFiles:
    """Chips by ``/dev/accel*``, or by ``/dev/vfio/*`` if a Google device is on the PCI bus."""

    name: str = "the kernel's TPU driver"
    thorough: bool = True
    period_s: float = 1.0

    def present(self, host: ProbedHost) -> bool:
        return bool(self._files(host))

    @staticmethod
    def _files(host: ProbedHost) -> list[str]:
        if PCI_VENDOR not in host.pci_vendors():
            return []
        found = [*host.root.glob("dev/accel[0-9]*"), *host.root.glob("dev/vfio/[0-9]*")]
        return sorted((f"/{path.relative_to(host.root)}" for path in found), key=lambda name: (len(name), name))

    def look(self, host: ProbedHost, deadline_s: float) -> list[Card]:
        files = self._files(host)
        return [Card(index=index, model="TPU", attributes={"device": name}) for index, name in enumerate(files)]

    def sample(self, host: ProbedHost, deadline_s: float) -> list[Card]:
        return self.look(host, deadline_s)

    def close(self) -> None:
        """Nothing to release."""


def probe(host: ProbedHost) -> CardProbe:
    tool = ToolSource(Tool("tpu-info"), ((),), lambda answers: parse(answers[0]))
    return CardProbe(host, Maker(VENDOR, "tpu"), (tool, DeviceFiles()))
