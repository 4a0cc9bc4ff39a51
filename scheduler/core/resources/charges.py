"""The charge of a second of a device in the use of a project: fast devices more than slow ones, cores very little."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final

from scheduler.core.model.kinds import CPU, is_device
from scheduler.core.model.types import Device
from scheduler.core.resources.speed import REFERENCE_RATES

# A device of charge 1 does dense work at the reference rate and reads its memory at this one (GB/s): an A100.
REFERENCE_MEMORY_GBPS: Final = 2039.0
RATES: Final = ("bf16", "fp16", "int8")
# A core counts as a thirty-second of an accelerator; an accelerator of which nothing is declared counts as one.
CORE: Final = 1 / 32
LEAST, MOST = 1 / 32, 32.0


def charge(device: Device) -> float:
    """Return the charge of a second of the whole device; of one core for a CPU."""
    return of(device.kind, device.features)


def of(kind: str, features: Mapping[str, float]) -> float:
    """Return the charge by declared features: the geometric mean of its peak rate and its memory bandwidth relative to
    those of the reference device, as far as known, within bounds."""
    if kind == CPU:
        return CORE
    if not is_device(kind):
        return 0.0
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
