"""Finds Enflame GCUs through ``efsmi -q``. From documentation; never seen on hardware.

Format: sections of ``Name : value`` below ``DEV ID n``, as Enflame's guides and published exporters show them; older
releases print ``Mem Size`` and ``Mem Usage`` instead of ``Total Size`` and ``Used Size``.
"""

from __future__ import annotations

import re

from agents.devices.card import (
    MIB,
    Card,
    Condition,
    UnreadableOutput,
    narrow_link,
    number,
    numeral,
    positive,
    ratio,
    scaled,
)
from agents.devices.cards import CardProbe, Maker
from agents.devices.readers.smi import ToolSource
from agents.devices.readers.table import whole
from agents.devices.readers.tool import Tool
from agents.devices.vendors import ProbedHost
from agents.devices.visible import Visible
from agents.ends import clause
from agents.notes import NoteText

VENDOR = "enflame"
# Variable: TopsRider runtime, as vLLM's and Enflame's own training scripts set it.
VISIBLE = Visible(("TOPS_VISIBLE_DEVICES",))


def parse(text: str) -> list[Card]:
    """Return every ``DEV ID`` of the answer."""
    parts = re.split(r"^DEV ID\s+(\d+)\s*$", whole(text), flags=re.MULTILINE)
    cards = [_card(numeral(parts[at]), parts[at + 1]) for at in range(1, len(parts), 2)]
    if not cards:
        raise UnreadableOutput("its answer names no device")
    return cards


def _card(index: int, section: str) -> Card:
    told: dict[str, str] = {}
    for line in section.splitlines():
        name, colon, value = line.strip().partition(":")
        if colon and value.strip():
            told.setdefault(name.strip(), value.strip())
    widths = [positive(told.get(name)) for name in ("Cur Link Width", "Max Link Width")]
    called = NoteText(clause("HealthCalled", tool="efsmi", health=str(told.get("Health"))))
    ill = Condition("GCU_HEALTH", "UNHEALTHY", called)
    return Card(
        index=index,
        model=f"Enflame {told['Dev Name'].removeprefix('Enflame ')}" if "Dev Name" in told else "Enflame GCU",
        uuid=told.get("Dev UUID", ""),
        pci=_pci(told),
        memory_bytes=scaled(told.get("Total Size", told.get("Mem Size")), MIB),
        memory_used_bytes=scaled(told.get("Used Size", told.get("Mem Usage")), MIB),
        utilisation=ratio(told.get("GCU Usage")),
        power_w=positive(told.get("Cur Power")),
        temperature_c=number(told.get("GCU Temp")),
        conditions=((ill,) if told.get("Health", "True") != "True" else ())
        + narrow_link(*(int(width) if width else None for width in widths)),
        attributes={"driver": told["Ver"]} if "Ver" in told else {},
    )


def _pci(told: dict[str, str]) -> str | None:
    try:
        numbers = [numeral(told[name], 16) for name in ("Domain", "Bus", "Dev", "Func")]
    except (KeyError, ValueError):
        return None
    return "{:04x}:{:02x}:{:02x}.{:x}".format(*numbers)


def probe(host: ProbedHost) -> CardProbe:
    source = ToolSource(Tool("efsmi", ("/usr/bin",)), (("-q",),), lambda answers: parse(answers[0]))
    return CardProbe(host, Maker(VENDOR, "npu"), (source,))
