"""The speed of a kind of stage on a device, relative to a device of speed 1.

Three sources, the best available: the measured speed, the declared rates of the hardware, and a prior by kind of stage
(which for low-precision inference comes before the declared rates). Of the declared rates the limiting one counts: the
peak rate of the precision for work limited by arithmetic, the memory bandwidth for work limited by memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from scheduler.core.model.kinds import is_accelerator, is_device
from scheduler.core.model.partitions import tables
from scheduler.core.model.types import Ask, Device, Grant

# A device of speed 1 does dense work at these rates (1e12 operations per second).
REFERENCE_RATES: Final[Mapping[str, float]] = {
    "fp64": 19.5,
    "fp32": 19.5,
    "tf32": 156.0,
    "bf16": 312.0,
    "fp16": 312.0,
    "fp8": 624.0,
    "int8": 624.0,
}
# A device of speed 1 reads and writes its memory at this rate (GB/s).
REFERENCE_MEMORY_GBPS: Final = 2039.0
DENSE: Final = frozenset({"train", "infer", "serve", "render", "validate"})
# Work that waits for memory: to make one token all weights are read once, for a few operations each (Williams et al.,
# "Roofline", CACM 2009; Pope et al., "Efficiently scaling transformer inference", MLSys 2023). `train`, `render` and
# `validate` use each byte often enough to wait for arithmetic; what `extract` waits for nobody declares, so that
# affinity decides until it was measured.
MEMORY_BOUND: Final = frozenset({"infer", "serve"})
# The precision that counts where a stage names none.
USUAL_PRECISION: Final[Mapping[str, str]] = {"train": "bf16", "serve": "bf16", "infer": "bf16", "render": "fp32"}

_ON_CPU: Final = {"cpu": 1.0, "gpu": 1.0, "npu": 0.5}
PRIOR: Final[Mapping[str, Mapping[str, float]]] = {
    "preprocess": _ON_CPU,
    "extract": {"npu": 1.5, "gpu": 1.2, "cpu": 1.0},
    "load": _ON_CPU,
    "generic": _ON_CPU,
    "train": {"gpu": 1.0, "npu": 0.7, "cpu": 0.02},
    "render": {"gpu": 1.0, "npu": 0.1, "cpu": 0.05},
    "serve": {"gpu": 1.0, "npu": 0.8, "cpu": 0.03},
    "infer": {"gpu": 1.0, "npu": 0.8, "cpu": 0.05},
    "infer int8": {"npu": 1.5, "gpu": 1.0, "cpu": 0.05},
    "serve int8": {"npu": 1.5, "gpu": 1.0, "cpu": 0.03},
    "validate int8": {"npu": 1.5, "gpu": 1.0, "cpu": 0.5},
    "validate": {"gpu": 1.0, "npu": 0.9, "cpu": 0.5},
}
# The relative worth of a whole device; a CPU core counts a tenth. It breaks ties between equal finishes.
WORTH: Final[Mapping[str, float]] = {"cpu": 0.1, "gpu": 10.0, "npu": 8.0}


def speed(
    kind: str, precision: str, device: Device, measured: Mapping[tuple[str, str], float], partition: str = ""
) -> float:
    """Return the relative speed of a stage of ``kind`` on ``device``, or on a ``partition`` of it; always positive.

    An unmeasured partition does dense work at its share of the whole device's speed (of its memory bandwidth for work
    limited by memory), other work at full speed.
    """
    if partition:
        own = measured.get((kind, f"{device.model} {partition}"))
        if own and own > 0:
            return own
        table = tables().get(device.partitions)
        share = 1.0
        if kind in DENSE and table and partition in table.profiles:
            profile = table.profiles[partition]
            by_memory = kind in MEMORY_BOUND and device.features.get("memory_gbps")
            share = (profile.memory_milli if by_memory else profile.milli) / 1000
        return speed(kind, precision, device, measured) * share
    known = measured.get((kind, device.model))
    return known if known and known > 0 else unmeasured(kind, precision, device.kind, device.features)[0]


def unmeasured(kind: str, precision: str, device: str, features: Mapping[str, float]) -> tuple[float, bool]:
    """Return the relative speed of a stage of ``kind`` on a device of this kind with these features until one was
    measured, and whether it follows from what the device declares."""
    special = PRIOR.get(f"{kind} {precision}")
    if special is not None:
        # Peak rates say little about low-precision inference on small batches: until measured, affinity decides.
        return special.get(device, 0.5), False
    if kind in MEMORY_BOUND and (declared := features.get("memory_gbps")):
        return max(declared / REFERENCE_MEMORY_GBPS, 1e-3), True
    if kind in DENSE:
        wanted = precision or USUAL_PRECISION.get(kind, "bf16")
        for rate in (wanted, "bf16", "fp16", "fp32"):
            declared = features.get(f"{rate}_tflops") or features.get(f"{rate}_tops")
            if declared and rate in REFERENCE_RATES:
                return max(declared / REFERENCE_RATES[rate], 1e-3), True
    prior = PRIOR.get(kind) or _ON_CPU
    return prior.get(device, 0.5), False


def speed_of(
    kind: str,
    precision: str,
    grants: Iterable[Grant],
    devices: Mapping[str, Device],
    measured: Mapping[tuple[str, str], float],
) -> float:
    """Return the speed on the granted devices: that of the slowest accelerator, of the CPU without one."""
    here = [(devices[one.device], one.part) for one in grants if one.device in devices]
    held = [(device, part) for device, part in here if is_device(device.kind)]
    special = [(device, part) for device, part in held if is_accelerator(device.kind)] or held
    rates = (speed(kind, precision, device, measured, part.profile if part else "") for device, part in special)
    return min(rates, default=1.0)


def worth(device: Device, milli: int) -> float:
    """The value of a share of a device."""
    return 0.0 if not is_device(device.kind) else WORTH.get(device.kind, 5.0) * milli / 1000


def deciding(asks: tuple[Ask, ...]) -> int:
    """Which of the asks sets the speed: the first accelerator, else the first ask."""
    return next((i for i, ask in enumerate(asks) if is_accelerator(ask.kind)), 0)
