"""What a node that represents a foreign cluster offers: devices by shape, as its operator declares them in a TOML file.

    engine = "slurm"

    [options]                 # what the engine's module knows
    partition = "batch"

    [[shape]]                 # so many foreign nodes of one kind
    name = "h100"
    nodes = 4
    cpus = 64
    memory_gib = 512
    model = "H100"            # a model of agents/devices/models.toml; without one, CPUs only
    devices = 8
    options = { gres = "gpu:h100" }

The engine decides where a job runs; a device of this node stands for one of its shape.
"""

from __future__ import annotations

import hashlib
import tomllib
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta

from agents.delegated import DelegatedEngine, EngineGround, discover
from agents.devices import models
from agents.ends import clause
from agents.protocol import MOST_DEVICES, Device, DeviceClaim, DeviceError, DeviceSample, PartSpec
from agents.runtimes import Unlaunchable

_GIB: Final = 1 << 30
_KINDS: Final = {"huawei": "npu", "habana": "npu", "cambricon": "npu", "google": "tpu"}
ShapeName = Annotated[str, Meta(pattern=r"\A[a-z0-9][a-z0-9-]{0,39}\Z")]


class ForeignShape(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``nodes`` foreign nodes of one kind, each with cores, memory and accelerators of one model."""

    name: ShapeName
    cpus: Annotated[int, Meta(ge=1, le=4_096)]
    memory_gib: Annotated[float, Meta(gt=0, le=65_536)]
    nodes: Annotated[int, Meta(ge=1, le=512)] = 1
    model: Annotated[str, Meta(max_length=80)] = ""
    devices: Annotated[int, Meta(ge=0, le=64)] = 0
    options: dict[str, Any] = msgspec.field(default_factory=dict)


class Delegation(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The file."""

    engine: str
    shape: Annotated[list[ForeignShape], Meta(min_length=1, max_length=64)]
    options: dict[str, Any] = msgspec.field(default_factory=dict)

    def engine_for(self, tag: str, state: Path) -> DelegatedEngine:
        """Return the engine. Raises ValueError with a sentence about the first option that it does not take."""
        made: DelegatedEngine = discover()[self.engine](
            EngineGround(tag, state, self.options, {shape.name: shape.options for shape in self.shape})
        )
        return made


def read_delegation(path: Path) -> Delegation:
    """Read the file. Raises ValueError with a sentence."""
    try:
        found = msgspec.convert(tomllib.loads(path.read_text()), Delegation)
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, msgspec.ValidationError) as error:
        raise ValueError(f"{path} is refused: {error}") from error
    known = discover()
    if found.engine not in known:
        raise ValueError(f'{path}: no engine is called "{found.engine}"; there are {", ".join(sorted(known))}')
    names = [shape.name for shape in found.shape]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ValueError(f'{path}: two shapes are called "{twice[0]}"; give each its own name')
    for shape in found.shape:
        if bool(shape.model) != bool(shape.devices):
            raise ValueError(f'{path}: shape "{shape.name}" needs both model and devices, or neither')
        if shape.model and all(shape.model != model.name for model in models.models()):
            names = sorted(model.name for model in models.models())
            raise ValueError(f'{path}: no model is called "{shape.model}"; known are {", ".join(names)}')
    if sum(shape.nodes * (1 + shape.devices) for shape in found.shape) > MOST_DEVICES:
        raise ValueError(
            f"{path}: its shapes have more than {MOST_DEVICES} devices; share them out among several agents"
        )
    return found


class ForeignCapacity:
    """A probe (see :class:`agents.devices.vendors.Probe`) of the declared devices. Their uuids follow from the node's
    name, shape and number, so they are the same after a restart."""

    prompt = True
    period_s = 5.0

    def __init__(self, node: str, delegation: Delegation) -> None:
        self.delegation = delegation
        self.shape_of: dict[str, str] = {}
        self._devices: list[Device] = []
        for shape in delegation.shape:
            for number in range(shape.nodes):
                self._add(node, shape, number)

    def _add(self, node: str, shape: ForeignShape, number: int) -> None:
        numa = sum(device.kind == "cpu" for device in self._devices)
        attributes = {"executor": self.delegation.engine, "shape": shape.name}

        def uuid(kind: str, index: int) -> str:
            found = (
                f"foreign-{kind}-{hashlib.sha256(f'{node}/{shape.name}/{number}/{index}'.encode()).hexdigest()[:16]}"
            )
            self.shape_of[found] = shape.name
            return found

        cores = Device(
            uuid=uuid("cpu", 0), kind="cpu", vendor="", model=f"{shape.name} of {self.delegation.engine}", index=numa,
            numa=numa, memory_bytes=int(shape.memory_gib * _GIB), capacity_milli=shape.cpus * 1000,
            attributes=attributes,
        )  # fmt: skip
        self._devices.append(cores)
        if not shape.devices:
            return
        model = models.named(shape.model)
        kind = _KINDS.get(model.vendor, "gpu")
        before = sum(device.kind != "cpu" for device in self._devices)
        self._devices += [
            Device(
                uuid=uuid(kind, 1 + index), kind=kind, vendor=model.vendor, model=model.name, index=before + index,
                numa=numa, memory_bytes=model.memory_bytes, features=dict(model.features), attributes=attributes,
                sharing="none",
            )
            for index in range(shape.devices)
        ]  # fmt: skip

    def placed(self, spec: PartSpec) -> tuple[str, int]:
        """Return the shape that a part was placed on, and how many whole accelerators it gets. Raises Unlaunchable for
        claims that no single foreign job can have."""
        held = [claim for claim in spec.devices if claim.kind != "cpu"]
        if any(claim.milli < 1000 or claim.partition is not None for claim in held):
            raise Unlaunchable(clause("ForeignShare", engine=self.delegation.engine))
        shapes = {self.shape_of.get(claim.uuid, "") for claim in (held or spec.devices)}
        if len(shapes) > 1 or "" in shapes:
            raise Unlaunchable(clause("ForeignShapes", engine=self.delegation.engine))
        return (shapes.pop() if shapes else self.delegation.shape[0].name), len(held)

    def discover(self) -> list[Device]:
        return list(self._devices)

    def sample(self, claims: list[DeviceClaim]) -> list[DeviceSample]:
        """Nothing is measured: the devices are elsewhere."""
        return []

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
