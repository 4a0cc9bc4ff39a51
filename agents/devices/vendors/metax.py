"""Finds MetaX GPUs through ``mx-smi``. From documentation; never seen on hardware.

Format: PaddleNLP, "MX C550"; MetaX's table and its list ``mx-smi -L``.
"""

from __future__ import annotations

import re
from dataclasses import replace

from agents.devices.card import Card, Condition, UnreadableOutput, numeral
from agents.devices.cards import CardProbe, Maker
from agents.devices.readers.smi import ToolSource, with_attributes
from agents.devices.readers.table import devices, header, smi_card, whole
from agents.devices.readers.tool import Tool
from agents.devices.vendors import ProbedHost
from agents.devices.visible import Visible
from agents.ends import clause
from agents.notes import NoteText

VENDOR = "metax"
# Variable: MACA's own; its CUDA layer reads CUDA's too.
VISIBLE = Visible(("MACA_VISIBLE_DEVICES",), spares=("CUDA_VISIBLE_DEVICES",))
_LISTED = re.compile(r"GPU#(\d+)\s+(\S+)\s+(\S+)\s+(.+?)\s*\(UUID:\s*(\S+?)\)")


def parse_table(text: str) -> list[Card]:
    """Parse the cards of the table; a state other than *Available* is a condition."""
    driver = header(text, "Kernel Mode Driver Version")
    cards = []
    for record in devices(text):
        state = record[1][2] if len(record[1]) > 2 else ""
        bad = Condition("GPU_STATE", "UNHEALTHY", NoteText(clause("StateCalled", tool="mx-smi", state=state)))
        conditions = (bad,) if state and state != "Available" else ()
        card = with_attributes(smi_card(record), {"driver": driver} if driver else {})
        cards.append(replace(card, conditions=conditions))
    return cards


def parse_list(text: str) -> dict[int, str]:
    """Return the uuid of each card of ``mx-smi -L``."""
    found = {numeral(row[1]): row[5] for row in _LISTED.finditer(whole(text))}
    if not found:
        raise UnreadableOutput("its list names no GPU")
    return found


def parse(answers: list[str]) -> list[Card]:
    """Return the table's cards, with their uuids if the list was read too."""
    uuids = parse_list(answers[1]) if len(answers) > 1 else {}
    return [replace(card, uuid=uuids.get(card.index, "")) for card in parse_table(answers[0])]


def probe(host: ProbedHost) -> CardProbe:
    tool = Tool("mx-smi", ("/opt/mxdriver/bin", "/opt/maca/bin"))
    source = ToolSource(tool, ((), ("-L",)), parse, ((),), parse)
    return CardProbe(host, Maker(VENDOR, "gpu"), (source,))
