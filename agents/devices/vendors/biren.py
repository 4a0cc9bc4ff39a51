"""Finds Biren GPUs through ``brsmi gpu --query-gpu``. From documentation; never seen on hardware.

Format: the BRsmi user guide's query for programs, which takes nvidia-smi's names of fields and answers with a header.
"""

from __future__ import annotations

from agents.devices.card import Card
from agents.devices.cards import CardProbe, Maker
from agents.devices.readers.smi import ToolSource
from agents.devices.readers.table import queried_card, query
from agents.devices.readers.tool import Tool
from agents.devices.vendors import ProbedHost
from agents.devices.visible import Visible

VENDOR = "biren"
# Variable: Biren's SUPA runtime; Ray's and vLLM's plug-ins set the same.
VISIBLE = Visible(("SUPA_VISIBLE_DEVICES",), spares=("CUDA_VISIBLE_DEVICES",))
FIELDS = (
    *("index", "uuid", "name", "pci.bus_id", "memory.total", "memory.used", "utilization.gpu", "temperature.gpu"),
    "power.draw",
)


def parse(text: str) -> list[Card]:
    """Return a card for each line below the header."""
    return [queried_card(row) for row in query(text)]


def probe(host: ProbedHost) -> CardProbe:
    tool = Tool("brsmi", ("/usr/local/birensupa/bin", "/usr/bin"))
    question = ("gpu", f"--query-gpu={','.join(FIELDS)}", "--format=csv")
    return CardProbe(host, Maker(VENDOR, "gpu"), (ToolSource(tool, (question,), lambda answers: parse(answers[0])),))
