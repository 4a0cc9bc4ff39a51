"""Finds Intel Gaudi accelerators through ``hl-smi``: its CSV query, else its table.

Format: Intel Gaudi documentation, "System Management Interface Tool (hl-smi)".
"""

from __future__ import annotations

from dataclasses import replace

from agents.devices.card import Card, UnreadableOutput, positive
from agents.devices.cards import CardProbe, Maker
from agents.devices.readers.smi import ToolSource, smi_cards, with_attributes
from agents.devices.readers.table import queried_card, query
from agents.devices.readers.tool import Tool
from agents.devices.vendors import ProbedHost
from agents.devices.visible import Visible

VENDOR = "habana"
# Variables: Intel Gaudi documentation, "multiple workloads on a single node" (modules) and its container runtime.
VISIBLE = Visible(("HABANA_VISIBLE_DEVICES", "HABANA_VISIBLE_MODULES"))
FIELDS = (
    *("index", "uuid", "name", "bus_id", "module_id", "driver_version", "memory.total", "memory.used"),
    *("utilization.aip", "power.draw", "temperature.aip"),
)


def parse_query(text: str) -> list[Card]:
    """The lines of ``hl-smi -Q FIELDS -f csv,noheader,nounits``."""
    cards = []
    for row in query(",".join(FIELDS) + "\n" + text):
        card = queried_card(row)
        module = positive(row["module_id"])
        # A module's number is its place on the board; it need not be the card's index.
        words = {"HABANA_VISIBLE_MODULES": str(int(module))} if module is not None else {}
        cards.append(replace(with_attributes(card, {"driver": row["driver_version"]}), visible_as=words))
    return cards


def parse(text: str) -> list[Card]:
    """Parse either form: a table begins with its frame."""
    if text.lstrip().startswith(("+", "|")):
        return smi_cards(text)
    if "," not in text:
        raise UnreadableOutput("its answer is neither its table nor lines of values")
    return parse_query(text)


def probe(host: ProbedHost) -> CardProbe:
    tool = Tool("hl-smi", ("/usr/bin", "/opt/habanalabs/bin"))
    queried = ToolSource(
        tool, (("-Q", ",".join(FIELDS), "-f", "csv,noheader,nounits"),), lambda answers: parse(answers[0])
    )
    table = ToolSource(tool, ((),), lambda answers: parse(answers[0]))
    return CardProbe(host, Maker(VENDOR, "npu"), (queried, table))
