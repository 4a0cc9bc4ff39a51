"""Maps devices of this host to their device files, so that a task can open those that it claimed and no others.

The table lists the files of vendors' drivers. If a driver does not tell which device a file belongs to, all of its
files are open to a task that claims any device of the vendor, and closed to all others.

Sources: NVIDIA's driver README (``/proc/driver/nvidia/gpus``), the kernel's DRM and KFD user interfaces (sysfs
``class/drm``), the Ascend, Gaudi, Cambricon and Cloud TPU installation guides.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from agents.decode import digits
from agents.devices.card import pci_address
from agents.protocol import DeviceClaim
from agents.supervisor.small_file import content


@dataclass(frozen=True, slots=True)
class Driver:
    """The files of one driver, as patterns of whole names below ``/dev``.

    ``vendors`` are those whose claims need it. ``each`` are files of one device, with its number as the first group;
    ``shared`` are files of all devices.
    """

    vendors: frozenset[str]
    each: str = ""
    shared: str = ""


_DRIVERS = {
    "nvidia": Driver(
        frozenset({"nvidia"}), r"nvidia([0-9]+)", r"nvidia(?:ctl|-uvm|-uvm-tools|-modeset)|nvidia-caps/.*"
    ),
    "kfd": Driver(frozenset({"amd", "hygon"}), shared=r"kfd|mkfd"),
    "davinci": Driver(frozenset({"huawei"}), r"v?davinci([0-9]+)", r"davinci_manager|devmm_svm|hisi_hdc"),
    "accel": Driver(frozenset({"habana", "google"}), r"accel/accel(?:_controlD)?([0-9]+)|accel([0-9]+)"),
    "cambricon": Driver(frozenset({"cambricon"}), r"cambricon_dev([0-9]+)", r"cambricon_ctl"),
    # The meaning of their numbers is not documented.
    "mthreads": Driver(frozenset({"mthreads"}), shared=r"mtgpu.*|mtml.*"),
    "metax": Driver(frozenset({"metax"}), shared=r"mxcd|mxgvm|mxc[0-9]+"),
    "iluvatar": Driver(frozenset({"iluvatar"}), shared=r"iluvatar[0-9]+"),
    "enflame": Driver(frozenset({"enflame"}), shared=r"(?:gcu|dtu)[0-9]+|(?:gcu|dtu)ctl"),
    "kunlunxin": Driver(frozenset({"kunlunxin"}), shared=r"xpu[0-9]+|xpuctrl"),
}
# Graphics devices: their files are found by PCI address.
_DRI = re.compile(r"dri/((?:card|renderD)[0-9]+)")
_DRAWS = frozenset({"nvidia", "amd", "hygon", "intel", "mthreads", "metax"})


class DriverFiles:
    """Lists ``root`` each time: drivers create and remove these files as devices are added and partitioned."""

    def __init__(self, address: Callable[[str], str | None], root: Path = Path("/")) -> None:
        """``address`` returns the PCI address of a device by its uuid."""
        self.address = address
        self.root = root

    def closed(self, claims: Sequence[DeviceClaim]) -> list[str]:
        """Return the files of accelerators that a task with these claims must not open."""
        mine = self._claimed(claims)
        return [path for path in self._accelerators() if path not in mine]

    def drawing(self, claims: Sequence[DeviceClaim]) -> list[str]:
        """Return the files below ``/dev/dri`` of these claims; none if the owner of one of them is unknown."""
        real = [claim for claim in claims if not claim.simulated and claim.vendor in _DRAWS]
        addresses = {pci_address(self.address(claim.uuid) or "") for claim in real}
        found = list(self._drawing())
        if not real or None in addresses or any(address is None for _, address in found):
            return []
        return [path for path, address in found if address in addresses]

    def groups(self, claims: Sequence[DeviceClaim]) -> list[int]:
        """Return the groups, other than root's, that may open the files of these claims."""
        found = set()
        for path in self._claimed(claims):
            try:
                told = os.stat(path)
            except OSError:
                continue
            is_needed = told.st_mode & stat.S_IRGRP and not told.st_mode & stat.S_IROTH
            if stat.S_ISCHR(told.st_mode) and is_needed and told.st_gid != 0:
                found.add(told.st_gid)
        return sorted(found)

    def _claimed(self, claims: Sequence[DeviceClaim]) -> set[str]:
        real = [claim for claim in claims if not claim.simulated]
        found: set[str] = set()
        for name, driver in _DRIVERS.items():
            mine = [claim for claim in real if claim.vendor in driver.vendors]
            if not mine:
                continue
            numbers = {self._number(name, claim) for claim in mine}
            for path, number in self._of(driver):
                if number is None or None in numbers or number in numbers:
                    found.add(path)
        drawing = [claim for claim in real if claim.vendor in _DRAWS]
        addresses = {pci_address(self.address(claim.uuid) or "") for claim in drawing}
        for path, address in self._drawing() if drawing else ():
            if address is None or None in addresses or address in addresses:
                found.add(path)
        return found

    def _accelerators(self) -> Iterable[str]:
        for driver in _DRIVERS.values():
            yield from (path for path, _ in self._of(driver))
        yield from (path for path, _ in self._drawing())

    def _of(self, driver: Driver) -> Iterable[tuple[str, int | None]]:
        """Return the files of this driver, with the number of their device, or None for shared ones."""
        for name in self._names():
            if driver.each and (found := re.fullmatch(driver.each, name)):
                yield str(self.root / "dev" / name), digits(next(filter(None, found.groups())))
            elif driver.shared and re.fullmatch(driver.shared, name):
                yield str(self.root / "dev" / name), None

    def _drawing(self) -> Iterable[tuple[str, str | None]]:
        for name in self._names():
            if found := _DRI.fullmatch(name):
                device = self.root / "sys/class/drm" / found[1] / "device"
                yield str(self.root / "dev" / name), pci_address(os.path.basename(os.path.realpath(device)))

    def _names(self) -> list[str]:
        found = []
        for folder in ("", "dri/", "accel/", "nvidia-caps/"):
            try:
                found += [folder + name for name in os.listdir(self.root / "dev" / folder)]
            except OSError:
                continue
        return found

    def _number(self, driver: str, claim: DeviceClaim) -> int | None:
        """Return the number in a device's file name; None if unknown."""
        if driver != "nvidia":
            # The file of a vNPU has the number of the vNPU.
            told = claim.partition.uuid if claim.partition else ""
            number = digits(told)
            return claim.index if number is None else number
        for folder in (self.root / "proc/driver/nvidia/gpus").glob("*"):
            told = (content(str(folder / "information")) or b"").decode(errors="replace")
            if re.search(rf"GPU UUID:\s*{re.escape(claim.uuid)}\s", told):
                minor = re.search(r"Device Minor:\s*([0-9]{1,5})\b", told)
                return digits(minor[1]) if minor else None
        return None
