"""Finds Iluvatar CoreX GPUs through ``ixsmi``. From documentation; never seen on hardware.

Format: PaddleNLP and Iluvatar's container toolkit show the table and ``--query-gpu=index,uuid``.
"""

from __future__ import annotations

from dataclasses import replace

from agents.devices.card import Card
from agents.devices.cards import CardProbe, Maker
from agents.devices.readers.smi import ToolSource, smi_cards
from agents.devices.readers.table import query
from agents.devices.readers.tool import Tool
from agents.devices.vendors import ProbedHost
from agents.devices.visible import Visible

VENDOR = "iluvatar"
# Variable: CoreX is compatible with CUDA's; an empty list hides all.
VISIBLE = Visible(("CUDA_VISIBLE_DEVICES",))


def parse(answers: list[str]) -> list[Card]:
    """Return the table's cards, with their uuids if these were queried too."""
    uuids = {row.get("index"): row.get("uuid", "") for row in query(answers[1])} if len(answers) > 1 else {}
    return [replace(card, uuid=uuids.get(str(card.index), "")) for card in smi_cards(answers[0])]


def probe(host: ProbedHost) -> CardProbe:
    tool = Tool("ixsmi", ("/usr/local/corex/bin",))
    source = ToolSource(tool, ((), ("--query-gpu=index,uuid", "--format=csv")), parse, ((),), parse)
    return CardProbe(host, Maker(VENDOR, "gpu"), (source,))
