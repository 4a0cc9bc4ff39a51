"""Simulated devices, in the shapes of real machines; each is marked as simulated wherever it is shown.

Their samples follow from the claims on them: a claimed device works, with a slow wave and a little noise that depend on
its uuid and the time only; an unclaimed one idles.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass

import msgspec

from agents.devices import models
from agents.protocol import Device, DeviceClaim, DeviceError, DeviceSample, Division, Link, Partition
from agents.supervisor.procfs import boottime

_GIB = 1 << 30


# An H100 with 80 GB: how many instances of each profile it takes (NVIDIA, "MIG user guide").
_H100_PROFILES = {
    "1g.10gb": 7,
    "1g.10gb+me": 1,
    "1g.20gb": 4,
    "2g.20gb": 3,
    "3g.40gb": 2,
    "4g.40gb": 1,
    "7g.80gb": 1,
}
# Partitioned as by an operator, and as by the agent itself for arriving stages.
_DIVIDED = Division(
    "MIG", _H100_PROFILES, [Partition("3g.40gb", 0, 4), Partition("2g.20gb", 4, 2), Partition("1g.10gb", 6, 1)]
)
_DIVIDES = Division("MIG", _H100_PROFILES, makes=True, whole=True)


@dataclass(frozen=True, slots=True)
class MachineShape:
    """A machine: sockets of a CPU model with cores and memory each, and accelerators by name of ``models.toml``.

    ``divisions`` is the partitioning by index of the accelerator; others are not partitioned.
    """

    short: str
    cpu_vendor: str
    cpu: str
    sockets: int
    cores: int
    memory_gib: int
    accelerators: tuple[tuple[str, int], ...] = ()
    link: tuple[str, float] | None = None
    divisions: tuple[Division, ...] = ()


SHAPES: dict[str, MachineShape] = {
    "dgx-h100": MachineShape(
        "dgx", "intel", "Intel(R) Xeon(R) Platinum 8480C", 2, 56, 1024, (("H100", 8),), ("NVLINK", 900.0)
    ),
    "dgx-h100-mig": MachineShape(
        "mig",
        "intel",
        "Intel(R) Xeon(R) Platinum 8480C",
        2,
        56,
        1024,
        (("H100", 8),),
        ("NVLINK", 900.0),
        (_DIVIDED,) * 4 + (_DIVIDES,) * 4,
    ),
    "atlas-800": MachineShape("atlas", "huawei", "Kunpeng 920", 4, 48, 256, (("Ascend 910B", 8),), ("HCCS", 392.0)),
    "mixed": MachineShape(
        "mixed", "amd", "AMD EPYC 9654 96-Core Processor", 2, 96, 768, (("H100", 8), ("Ascend 910B", 1))
    ),
    "mi300x": MachineShape(
        "mi300x", "amd", "AMD EPYC 9654 96-Core Processor", 2, 96, 1152, (("MI300X", 8),), ("XGMI", 896.0)
    ),
    "gaudi2": MachineShape(
        "gaudi", "intel", "Intel(R) Xeon(R) Platinum 8380", 2, 40, 512, (("Gaudi 2", 8),), ("ROCE", 262.5)
    ),
    "tpu-v5e": MachineShape("tpu", "amd", "AMD EPYC 7B12", 2, 56, 192, (("TPU v5e", 8),), ("ICI", 400.0)),
    "laptop": MachineShape("laptop", "amd", "AMD Ryzen 9 7940HS", 1, 8, 32, (("RTX 4090", 1),)),
}
_KINDS = {"huawei": "npu", "habana": "npu", "google": "tpu"}


def parse(text: str) -> list[str]:
    """Parse ``4xdgx-h100,2xatlas-800`` into the shapes' names, one per node."""
    nodes: list[str] = []
    for piece in filter(None, (piece.strip() for piece in text.split(","))):
        count, _, name = piece.partition("x")
        if count.isdigit() and name in SHAPES:
            nodes += [name] * int(count)
        elif piece in SHAPES:
            nodes.append(piece)
        else:
            known = ", ".join(SHAPES)
            raise ValueError(f'"{piece}" is no machine to simulate; accepted are {known}, with a count like 4xdgx-h100')
    return nodes


class SimulatedProbe:
    """One simulated machine. Its uuids follow from the node's name, so they are the same after a restart."""

    prompt = True
    period_s = 1.0

    def __init__(self, name: str, shape: str) -> None:
        self.shape = SHAPES[shape]
        self.name = name
        self._devices = self._build()

    def _uuid(self, kind: str, index: int) -> str:
        digest = hashlib.sha256(f"{self.name}/{kind}/{index}".encode()).hexdigest()
        if kind == "cpu":
            return f"cpu-{digest[:12]}-{index}"
        return f"{kind.upper()}-{digest[:8]}-{digest[8:12]}-{digest[12:16]}-{digest[16:20]}-{digest[20:32]}"

    def _build(self) -> list[Device]:
        shape = self.shape
        found = [
            Device(
                uuid=self._uuid("cpu", socket),
                kind="cpu",
                vendor=shape.cpu_vendor,
                model=shape.cpu,
                index=socket,
                numa=socket,
                memory_bytes=shape.memory_gib * _GIB,
                capacity_milli=shape.cores * 1000,
                simulated=True,
            )
            for socket in range(shape.sockets)
        ]
        for name, count in shape.accelerators:
            model = models.named(name)
            kind = _KINDS.get(model.vendor, "gpu")
            uuids = [self._uuid(kind, index) for index in range(count)]
            for index, uuid in enumerate(uuids):
                peers = [peer for peer in uuids if peer != uuid] if shape.link else []
                found.append(
                    Device(
                        uuid=uuid,
                        kind=kind,
                        vendor=model.vendor,
                        model=model.name,
                        index=index,
                        numa=index * shape.sockets // count,
                        memory_bytes=model.memory_bytes,
                        simulated=True,
                        features=dict(model.features),
                        links=[Link(peer, shape.link[0], shape.link[1]) for peer in peers] if shape.link else [],
                        division=_division(shape, index, uuid),
                    )
                )
        return found

    def discover(self) -> list[Device]:
        return list(self._devices)

    def sample(self, claims: list[DeviceClaim]) -> list[DeviceSample]:
        return [load(device, claims, boottime()) for device in self._devices]

    def memory_by_process(self) -> dict[str, dict[int, int]]:
        return {}

    def errors(self) -> list[DeviceError]:
        return []

    def notes(self) -> list[str]:
        return []

    def news(self) -> bool:
        return False

    def close(self) -> None:
        """Nothing to release."""


def _division(shape: MachineShape, index: int, uuid: str) -> Division | None:
    """Return the partitioning of one accelerator; its instances are named after it."""
    if index >= len(shape.divisions):
        return None
    division = shape.divisions[index]
    made = [
        msgspec.structs.replace(each, uuid=f"MIG-{uuid.removeprefix('GPU-')}-{each.start}") for each in division.made
    ]
    return msgspec.structs.replace(division, made=made)


def load(device: Device, claims: list[DeviceClaim], at: float) -> DeviceSample:
    """Return the sample of a device at a time: busy in proportion to its claims."""
    mine = [claim for claim in claims if claim.uuid == device.uuid]
    share = min(1.0, sum(claim.milli for claim in mine) / device.capacity_milli)
    seed = int.from_bytes(hashlib.sha256(device.uuid.encode()).digest()[:4], "big") / 2**32
    swing = math.sin(at / 17 + seed * 6.3) * 0.05 + math.sin(at / 2.3 + seed * 31) * 0.03
    utilisation = max(0.0, min(1.0, share * (0.88 + swing))) if share else 0.0
    memory = sum(claim.memory_bytes for claim in mine) or int(share * 0.8 * device.memory_bytes)
    used = min(device.memory_bytes, int(memory * (0.9 + swing)) + (device.memory_bytes >> 8))
    if device.kind == "cpu":
        return DeviceSample(uuid=device.uuid, age_s=0.0, utilisation=round(utilisation, 4), memory_used_bytes=used)
    watts = device.features.get("watts", 300.0)
    idle = models.named(device.model).idle_watts
    return DeviceSample(
        uuid=device.uuid,
        age_s=0.0,
        utilisation=round(utilisation, 4),
        memory_used_bytes=used,
        power_w=round(idle + (watts - idle) * utilisation * 0.92, 1),
        temperature_c=round(31 + seed * 4 + 38 * utilisation, 1),
    )
