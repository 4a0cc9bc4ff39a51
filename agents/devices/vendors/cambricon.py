"""Finds Cambricon MLUs through ``cnmon``, in the layouts of version 4 (no bus) and 5.

Format: PaddlePaddle documentation, Cambricon pages; Cambricon, "cnmon user guide".
"""

from __future__ import annotations

import re
from dataclasses import replace

from agents.devices.card import Card, UnreadableOutput
from agents.devices.cards import CardProbe, Maker
from agents.devices.readers.smi import ToolSource
from agents.devices.readers.table import devices, header, smi_card
from agents.devices.readers.tool import Tool
from agents.devices.vendors import ProbedHost
from agents.devices.visible import Visible

VENDOR = "cambricon"
# Variable: Cambricon, "CNRT developer guide".
VISIBLE = Visible(("MLU_VISIBLE_DEVICES",))
_NAMED = re.compile(r"(\d+)\s+\S+\s+(\S+)\s+(\S+)")


def parse(text: str) -> list[Card]:
    """Return the cards of the table. Between number and name is the virtual function, ``/`` for none."""
    driver = header(text, "Driver")
    cards = []
    for record in devices(text):
        named = _NAMED.fullmatch(record[0][0])
        if named is None:
            raise UnreadableOutput(f"its row {record[0][0]!r} names no device")
        # Version 4 prints the driver in each row, where version 5 has the bus.
        own = re.search(r"\bv[\d.]+", record[0][1])
        version = (own[0] if own else driver).removeprefix("v")
        attributes = {"firmware": named[3], **({"driver": version} if version[:1].isdigit() else {})}
        cards.append(replace(smi_card(record), model=named[2], attributes=attributes))
    return cards


def probe(host: ProbedHost) -> CardProbe:
    source = ToolSource(Tool("cnmon", ("/usr/bin", "/usr/local/neuware/bin")), ((),), lambda answers: parse(answers[0]))
    return CardProbe(host, Maker(VENDOR, "npu"), (source,))
