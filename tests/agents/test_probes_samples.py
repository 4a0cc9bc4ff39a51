"""The parsers over what real tools printed on real machines, where a folder of recorded output is at hand.

The recordings belong to others and are no part of the project: YARD_VENDOR_SAMPLES names the folder.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from agents.devices.card import MIB, Card
from agents.devices.readers import rocm
from agents.devices.vendors import amd, ascend, cambricon, gaudi, intel, mthreads, tpu

Parse = Callable[[str], list[Card]]
# How many devices each recording shows, and of the first: model, memory, used memory, use, watts, degrees.
SAMPLES: dict[str, tuple[Parse, int, tuple[object, ...]]] = {
    "amd_rocm_smi__mi100_rocm602.json": (
        rocm.cards, 4, ("Arcturus GL-XL [Instinct MI100]", 34342961152, 6750208, 0.0, 36.0, 55.0),
    ),
    "amd_rocm_smi__rx6700xt_rocm612.json": (
        rocm.cards, 1, ("Navi 22 [Radeon RX 6700/6700 XT / 6800M]", 12868124672, 1572745216, 0.0, 6.0, 47.0),
    ),
    "amd_rocm_smi__vega-20-WKS-GL-XE.json": (
        rocm.cards, 1, ("Radeon Instinct MI50 32GB", 34342961152, 10850304, 0.0, 26.0, 38.0),
    ),
    "amd-smi_static_mi300a.txt": (amd.read_static, 4, ("MI300A", 64289 * MIB, None, None, None, None)),
    "amd-smi_metric_shapes_AUTHORED.json": (amd.read_metric, 1, ("", 196592 * MIB, 121344 * MIB, 0.87, 542.0, 71.0)),
    "npu-smi_23.0.6_910B4_x8_idle.txt": (
        ascend.parse, 8, ("Ascend 910B4", 32768 * MIB, 2791 * MIB, 0.0, 86.3, 37.0),
    ),
    "npu-smi_23.0.rc3_310B4_soc.txt": (ascend.parse, 1, ("Ascend 310B4", 3513 * MIB, 1797 * MIB, 0.0, 7.2, 37.0)),
    "hl-smi_gaudi2_x8.txt": (gaudi.parse, 8, ("HL-225", 98304 * MIB, 768 * MIB, 0.0, 87.0, 26.0)),
    "hl-smi_gaudi3_x1.txt": (gaudi.parse, 1, ("HL-325", 131072 * MIB, 672 * MIB, 0.0, 264.0, 43.0)),
    "cnmon_v4.20.11_MLU370-X4_old_layout.txt": (
        cambricon.parse, 2, ("MLU370-X4", 23308 * MIB, 0, 0.0, 30.0, 32.0),
    ),
    "cnmon_v5.10.13_MLU370-X8_x2.txt": (cambricon.parse, 2, ("MLU370-X8", 23374 * MIB, 0, 0.0, 106.0, 32.0)),
    "mthreads-gmi_2.0.0_S80.txt": (mthreads.parse, 1, ("MTT S80", 16384 * MIB, 662 * MIB, 0.0, None, 41.0)),
    "tpu-info_v6e_x4.txt": (tpu.parse, 4, ("TPU v6e", 32000 * MIB, 9062380994, 1.0, None, None)),
    "xpu-smi_dump_atsm150_busy.csv": (intel.parse_dump, 1, ("", None, None, 0.9965, 119.24, 51.0)),
    "xpu-smi_dump_max1100_x2.csv": (intel.parse_dump, 2, ("", None, 29381099, 0.0, 106.6, None)),
}  # fmt: skip


@pytest.mark.parametrize("name", SAMPLES)
def test_a_recorded_answer_is_read_in_full(name: str) -> None:
    folder = os.environ.get("YARD_VENDOR_SAMPLES")
    if not folder:
        pytest.skip("YARD_VENDOR_SAMPLES names no folder of recorded output")
    parse, count, first = SAMPLES[name]
    cards = parse(Path(folder, name).read_text().rstrip("\n") + "\n")
    assert [card.index for card in cards] == list(range(count))
    card = cards[0]
    told = (card.model, card.memory_bytes, card.memory_used_bytes)
    assert (*told, card.utilisation, card.power_w, card.temperature_c) == first
    if cards[0].pci is not None:
        assert len({card.pci for card in cards}) == count
