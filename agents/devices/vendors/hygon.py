"""Finds Hygon DCUs through ``hy-smi``, which descends from rocm-smi. From documentation; never seen on hardware.

Format: ``hy-smi --json`` as several published exporters read it, else the table that it prints without options.
"""

from __future__ import annotations

from agents.devices.card import Card, UnreadableOutput, number, numeral, positive, ratio
from agents.devices.cards import CardProbe, Maker
from agents.devices.readers import rocm
from agents.devices.readers.smi import ToolSource
from agents.devices.readers.table import whole
from agents.devices.readers.tool import Tool
from agents.devices.vendors import ProbedHost
from agents.devices.visible import Visible

VENDOR = "hygon"
# Variable: DTK is a variant of ROCm's runtime, and reads AMD's variable too.
VISIBLE = Visible(("HIP_VISIBLE_DEVICES",), spares=("ROCR_VISIBLE_DEVICES",))
_QUESTION = (
    *("--showproductname", "--showuniqueid", "--showbus", "--showmeminfo", "vram", "--showuse", "--showpower"),
    *("--showtemp", "--showdriverversion", "--json"),
)


def parse_table(text: str) -> list[Card]:
    """Parse the table without options: a header that names the columns, then a line per card."""
    lines = [line.split() for line in whole(text).splitlines() if line.strip() and "=" not in line]
    names = next((line for line in lines if line[0] in ("HCU", "DCU")), None)
    if names is None:
        raise UnreadableOutput("its answer has no table of devices")
    rows = [dict(zip(names, line, strict=False)) for line in lines if line[0].isdigit() and len(line) == len(names)]
    if not rows:
        raise UnreadableOutput("its table is empty")
    return [
        Card(
            index=numeral(row[names[0]]),
            model="Hygon DCU",
            temperature_c=number(row.get("Temp")),
            power_w=positive(row.get("AvgPwr")),
            utilisation=ratio(row.get(f"{names[0]}%")),
        )
        for row in rows
    ]


def probe(host: ProbedHost) -> CardProbe:
    tool = Tool("hy-smi", ("/opt/hyhal/bin", "/opt/dtk/bin", "/usr/local/hyhal/bin"))
    queried = ToolSource(tool, (_QUESTION,), lambda answers: rocm.cards(answers[0]))
    table = ToolSource(tool, ((),), lambda answers: parse_table(answers[0]))
    return CardProbe(host, Maker(VENDOR, "gpu"), (queried, table))
