"""What a second of a device counts in the use of a project: a fast one more than a slow one, a core next to nothing."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final

from scheduler.core.model.types import Device
from scheduler.core.resources.speed import REFERENCE_RATES

# A device of charge 1 does dense work at the reference rate and reads its memory at this one (GB/s): an A100.
REFERENCE_MEMORY_GBPS: Final = 2039.0
RATES: Final = ("bf16", "fp16", "int8")
# A core counts as a thirty-second of an accelerator; an accelerator of which nothing is declared counts as one.
CORE: Final = 1 / 32
LEAST, MOST = 1 / 32, 32.0


def charge(device: Device) -> float:
    """What a second of the whole device counts; of one core, where it is a CPU."""
    return of(device.kind, device.features)


def of(kind: str, features: Mapping[str, float]) -> float:
    """The same by what a device declares: the geometric mean of its peak rate and its memory's bandwidth beside those
    of the reference device, of what is known of them, within bounds."""
    if kind == "cpu":
        return CORE
    known = []
    for rate in RATES:
        declared = features.get(f"{rate}_tflops") or features.get(f"{rate}_tops")
        if declared:
            known.append(declared / REFERENCE_RATES[rate])
            break
    if gbps := features.get("memory_gbps"):
        known.append(gbps / REFERENCE_MEMORY_GBPS)
    known = [one for one in known if one > 0]
    return min(max(math.prod(known) ** (1 / len(known)), LEAST), MOST) if known else 1.0
