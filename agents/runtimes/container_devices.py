"""The host files and names that a container needs for a vendor's runtime to find the claimed devices, and no others.

Pure. The sources are vendors' documents: the NVIDIA container toolkit (CDI names), ROCm's and oneAPI's "running
containers", the Ascend docker runtime's manual set-up, Intel Gaudi's and Cambricon's installation guides.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from agents.protocol import DeviceClaim

_ASCEND_MANAGERS = ("/dev/davinci_manager", "/dev/devmm_svm", "/dev/hisi_hdc")
_ASCEND_DRIVER = ("/usr/local/Ascend/driver", "/usr/local/dcmi", "/usr/local/bin/npu-smi")


@dataclass(frozen=True, slots=True)
class DeviceNodes:
    """Device files, CDI names, NVIDIA uuids, groups that may open them, and folders of the driver that are read."""

    nodes: tuple[str, ...] = ()
    cdi: tuple[str, ...] = ()
    nvidia: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()
    libraries: tuple[str, ...] = ()

    def __add__(self, other: DeviceNodes) -> DeviceNodes:
        return DeviceNodes(
            self.nodes + tuple(node for node in other.nodes if node not in self.nodes),
            self.cdi + other.cdi,
            self.nvidia + other.nvidia,
            self.groups + tuple(group for group in other.groups if group not in self.groups),
            self.libraries + other.libraries,
        )


def nodes_of(vendor: str, claims: Sequence[DeviceClaim]) -> DeviceNodes | None:
    """Return what these claims, all of one vendor, need; None for a vendor without an entry here.

    AMD's and Intel's GPUs have no device file that follows from an index, so it is all of ``/dev/dri``;
    :meth:`agents.devices.files.DriverFiles.drawing` narrows that where the kernel tells which file belongs to which
    device.
    """
    indexes = [claim.index for claim in claims]
    uuids = tuple(claim.partition.uuid if claim.partition else claim.uuid for claim in claims)
    match vendor.lower():
        case "nvidia":
            return DeviceNodes(cdi=tuple(f"nvidia.com/gpu={uuid}" for uuid in uuids), nvidia=uuids)
        case "amd":
            return DeviceNodes(nodes=("/dev/kfd", "/dev/dri"), groups=("video", "render"))
        case "intel":
            return DeviceNodes(nodes=("/dev/dri",), groups=("video", "render"))
        case "huawei":
            # A vNPU is another file on the host, and a chip like any other inside.
            own = tuple(
                f"/dev/vdavinci{claim.partition.uuid}:/dev/davinci{claim.partition.uuid}"
                if claim.partition
                else f"/dev/davinci{claim.index}"
                for claim in claims
            )
            return DeviceNodes(nodes=own + _ASCEND_MANAGERS, libraries=_ASCEND_DRIVER)
        case "habana":
            own = tuple(f"/dev/accel/{stem}{index}" for index in indexes for stem in ("accel", "accel_controlD"))
            return DeviceNodes(nodes=own)
        case "cambricon":
            return DeviceNodes(nodes=("/dev/cambricon_ctl", *(f"/dev/cambricon_dev{index}" for index in indexes)))
        case _:
            return None
