"""Parses tables that vendors' tools draw with ``|`` and ``+----+`` into cells; and those like nvidia-smi's into cards.

Nothing here is specific to a vendor: columns that several tools share are found by their form (``87W / 600W``), not by
place.
"""

from __future__ import annotations

import csv
import re

from agents.devices.card import MIB, Card, UnreadableOutput, number, numeral, pci_address, positive, ratio, scaled

Row = list[str]
_RULE = re.compile(r"[\s|+=\-]*[+=\-]{3}[\s|+=\-]*")
_PROCESSES = re.compile(r"\|.*\bProcess(es)?\b")
_NAMED = re.compile(r"(\d+)\s+(.+?)(?:\s{2,}.*)?")
# Use before the slash, cap behind it; older tools print no cap. A cap alone is not a use.
_WATTS = r"(\d+(?:\.\d+)?)\s*W\s*/|^[^/]*?(\d+(?:\.\d+)?)\s*W$"
_PAIR = r"(\d+)\s*(?:MiB)?\s*/\s*(\d+)\s*MiB"


def whole(text: str) -> str:
    """Return the text, unless it was cut off. Raises UnreadableOutput, because in half a table the other cards would
    seem lost."""
    if not text.endswith("\n"):
        raise UnreadableOutput("its answer ends in the middle of a line")
    return text


def records(text: str) -> list[list[Row]]:
    """Return the rows between each two rules of the first table; the tables of processes below it are left out.

    Raises UnreadableOutput if the table does not end with a rule.
    """
    found: list[list[Row]] = []
    open_rows: list[Row] = []
    for line in whole(text).splitlines():
        line = line.strip()
        if _RULE.fullmatch(line):
            if open_rows:
                found.append(open_rows)
            open_rows = []
        elif _PROCESSES.match(line):
            break
        elif line.startswith("|"):
            open_rows.append([cell.strip() for cell in line.strip("|").split("|")])
    if open_rows:
        raise UnreadableOutput("its table breaks off")
    return found


def devices(text: str) -> list[list[Row]]:
    """Return the records that begin with a number. Raises UnreadableOutput if there is none."""
    found = [record for record in records(text) if re.match(r"\d+\s", record[0][0] + " ") and len(record) > 1]
    if not found:
        raise UnreadableOutput("its answer has no table of devices")
    return found


def header(text: str, name: str) -> str:
    """Return the word after ``Name:`` or ``Name`` in the head of a table; empty if it is not there."""
    found = re.search(rf"{name}\s*:?\s+v?([\w.+-]+)", text[:2000])
    return found[1] if found else ""


def smi_card(record: list[Row]) -> Card:
    """Parse a card of a table like nvidia-smi's: name and bus above, temperature, power, memory and use below."""
    first, second = record[0], record[1]
    if len(first) < 3 or len(second) < 3:
        raise UnreadableOutput(f"its row {' | '.join(first)!r} has too few columns")
    named = _NAMED.fullmatch(first[0])
    if named is None:
        raise UnreadableOutput(f"its row {first[0]!r} names no device")
    used, total = pair(second[1])
    return Card(
        index=numeral(named[1]),
        model=named[2],
        pci=pci_address(first[1]),
        temperature_c=_find(r"(\d+(?:\.\d+)?)\s*C\b", second[0]),
        power_w=_find(_WATTS, second[0]),
        memory_used_bytes=used,
        memory_bytes=total,
        utilisation=_use(second[2], first[2]),
    )


def pair(cell: str) -> tuple[int | None, int | None]:
    """Return used and total bytes of ``768MiB / 98304MiB``."""
    found = re.search(_PAIR, cell)
    return (scaled(found[1], MIB), scaled(found[2], MIB)) if found else (None, None)


def _find(pattern: str, cell: str) -> float | None:
    found = re.search(pattern, cell)
    return number(next(group for group in found.groups() if group)) if found else None


def _use(*cells: str) -> float | None:
    for cell in cells:
        found = re.search(r"(\d+(?:\.\d+)?)\s*%", cell)
        if found:
            return ratio(found[1])
    return None


def query(text: str) -> list[dict[str, str]]:
    """Parse lines of comma-separated values by their header, in lower case and without units: ``memory.total [MiB]``.

    Raises UnreadableOutput if a line has not as many fields as the header.
    """
    lines = [line for line in whole(text).splitlines() if line.strip()]
    rows = [[field.strip() for field in row] for row in csv.reader(lines)]
    if len(rows) < 2:
        raise UnreadableOutput("its answer has a header at most")
    names = [re.sub(r"\s*\[.*", "", name).lower() for name in rows[0]]
    if any(len(row) != len(names) for row in rows[1:]):
        raise UnreadableOutput("a line of its answer has not as many fields as its header")
    return [dict(zip(names, row, strict=True)) for row in rows[1:]]


def queried_card(row: dict[str, str]) -> Card:
    """Return a card of a ``--query-gpu`` answer; memory is in MiB, as these tools print it."""
    index = positive(row.get("index"))
    if index is None:
        raise UnreadableOutput("a line of its answer has no index")
    return Card(
        index=int(index),
        model=row.get("name", ""),
        uuid=row.get("uuid", ""),
        pci=pci_address(row.get("pci.bus_id") or row.get("gpu_bus_id") or row.get("bus_id") or ""),
        memory_bytes=scaled(row.get("memory.total"), MIB),
        memory_used_bytes=scaled(row.get("memory.used"), MIB),
        utilisation=ratio(row.get("utilization.gpu") or row.get("utilization.aip")),
        temperature_c=number(row.get("temperature.gpu") or row.get("temperature.aip")),
        power_w=positive(row.get("power.draw") or row.get("gpu.power.draw")),
    )
