"""Finds Kunlunxin XPUs through ``xpu-smi``, older ``xpu_smi``. From documentation; never seen on hardware.

Format: PaddlePaddle, "Kunlunxin XPU P800 installation". Intel's tool has the same name: the PCI vendor decides.
"""

from __future__ import annotations

from agents.devices.cards import CardProbe, Maker
from agents.devices.readers.smi import ToolSource, smi_cards
from agents.devices.readers.tool import Tool
from agents.devices.vendors import ProbedHost
from agents.devices.visible import Visible

VENDOR = "kunlunxin"
PCI_VENDOR = "0x1d22"
# Variable: PaddlePaddle and FastDeploy documentation for Kunlunxin; its CUDA layer reads CUDA's too.
VISIBLE = Visible(("XPU_VISIBLE_DEVICES",), spares=("CUDA_VISIBLE_DEVICES",))


def probe(host: ProbedHost) -> CardProbe:
    sources = [
        ToolSource(Tool(name, ("/usr/local/xpu/bin",)), ((),), lambda answers: smi_cards(answers[0]), pci_vendor=vendor)
        for name, vendor in (("xpu_smi", ""), ("xpu-smi", PCI_VENDOR))
    ]
    return CardProbe(host, Maker(VENDOR, "npu"), sources)
