"""The inventory of a host for reports, gathered from the probes off the loop."""

from __future__ import annotations

import hashlib
import os
import platform
import socket
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec
import psutil

from agents.devices.vendors import Probe
from agents.devices.worker import Worker
from agents.notes import NoteText
from agents.protocol import (
    Clause,
    Conditions,
    Device,
    DeviceClaim,
    DeviceError,
    DeviceSample,
    Disk,
    FileSystem,
    HostSample,
    Interface,
    Inventory,
    noted,
)
from agents.runtimes.engine_watch import PATIENCE_S, EngineWatch
from agents.storage.disk_use import room_bytes
from agents.tasks.gang import with_addresses
from agents.telemetry.machine import Machine, space_of

LOOK_PATIENCE_S = 15.0
SAMPLE_PATIENCE_S = 0.5
SIMULATED_DISK_BYTES = 1 << 40
_encode = msgspec.json.Encoder(order="deterministic").encode


def address_towards(url: str) -> str:
    """Return the address of this host on the route to the control plane."""
    host = urlsplit(url).hostname or "127.0.0.1"
    try:
        family, _, _, _, target = socket.getaddrinfo(host, 9, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect(target)
            return str(probe.getsockname()[0])
    except OSError:
        return "127.0.0.1"


def _system() -> str:
    try:
        return platform.freedesktop_os_release().get("PRETTY_NAME", platform.system())
    except OSError:
        return platform.system()


class WatchedProbe:
    """One probe with its last results. A probe that is not prompt has a thread of its own, so that others do not wait
    for it."""

    def __init__(self, name: str, probe: Probe) -> None:
        self.probe = probe
        self.devices: list[Device] = []
        self.samples: list[DeviceSample] = []
        self.errors: list[DeviceError] = []
        self.notes: list[str] = []
        self.is_restless = False
        self.used: dict[str, dict[int, int]] = {}
        self._name = name
        self._worker: Worker | None = None
        self._sampled_at = 0.0
        self._samples_at = 0.0
        self._claimed: frozenset[str] = frozenset()

    def look(self) -> None:
        """Start a discovery, unless the probe is still busy."""
        self._begin(lambda: ("devices", self.probe.discover()))

    def sample(self, claims: list[DeviceClaim], at_once: bool = False) -> None:
        """Start a sample, if there are devices and it is due, requested at once, or a device is newly held."""
        now = time.monotonic()
        claimed = frozenset(claim.uuid for claim in claims) & {device.uuid for device in self.devices}
        at_once = at_once or not claimed <= self._claimed
        due = self.devices and (at_once or now - self._sampled_at >= self.probe.period_s * 0.9)
        if due and self._begin(lambda: ("samples", self.probe.sample(claims))):
            self._sampled_at, self._claimed = now, claimed
        self._claimed &= claimed

    def _begin(self, work: Callable[[], tuple[str, Any]]) -> bool:
        if self._worker is None:
            if self.probe.prompt:
                self._take(work())
                return True
            self._worker = Worker(f"probe {self._name}")
        if not self._worker.is_idle:
            return False
        self._worker.ask(work)
        return True

    def poll(self, until: float) -> bool:
        """Take the result if it is ready before ``until``; return whether the devices may have changed."""
        if self._worker is None:
            return True
        taken = self._worker.take(max(0.0, until - time.monotonic()))
        if taken is not None:
            self._take(taken)
        return taken is not None and taken[0] == "devices"

    def _take(self, taken: tuple[str, Any]) -> None:
        what, found = taken
        if what == "devices":
            self.devices = found
        else:
            self.samples, self._samples_at = found, time.monotonic()
            self.used = self.probe.memory_by_process()
        self.errors, self.notes, self.is_restless = self.probe.errors(), self.probe.notes(), self.probe.news()

    def fresh(self) -> list[DeviceSample]:
        """Return the samples since the last call, with their ages."""
        taken, self.samples = self.samples, []
        age_s = round(time.monotonic() - self._samples_at, 3)
        return [msgspec.structs.replace(sample, age_s=age_s) for sample in taken] if age_s > 0.05 else taken

    def close(self) -> None:
        if self._worker is not None:
            self._worker.close()
        self.probe.close()


class HostView:
    """One node's probes and their last results. ``look`` and ``sample`` block briefly and run off the loop."""

    def __init__(
        self,
        name: str,
        probes: dict[str, Probe],
        isolation: str,
        runs_as: str,
        address: str,
        labels: dict[str, str] | None = None,
        mounts: Sequence[str] = (),
        simulated: bool = False,
        engine: EngineWatch | None = None,
        executor: str = "",
        lacks: Sequence[Clause] = (),
    ) -> None:
        """``executor`` is the foreign engine that the node represents, and ``lacks`` what it cannot give."""
        self.name = name
        self.executor, self.lacks = executor, list(lacks)
        self.isolation = isolation
        self.runs_as = runs_as
        self.address = address
        self.labels, self.mounts = labels or {}, list(mounts)
        self.simulated = simulated
        self.engine = engine
        self.inventory: Inventory | None = None
        self.hash = ""
        self.machine = None if simulated else Machine()
        self.host_sample: HostSample | None = None
        # The folder on whose file system parts work.
        self.work_folder: Path | None = None
        self._interfaces: list[Interface] = []
        self._disks: list[Disk] = []
        self._file_systems: list[FileSystem] = []
        self.is_changed = False  # whether the last sample completed a slow discovery that changed the inventory
        self._watched = [WatchedProbe(module, probe) for module, probe in probes.items()]

    def look(self, patience_s: float = LOOK_PATIENCE_S) -> bool:
        """Discover devices again; return whether the inventory changed.

        A probe that does not answer in time keeps its last result; the new one is taken by a later call.
        """
        until = time.monotonic() + patience_s
        for watched in self._watched:
            watched.look()
        if self.machine is not None:
            self._interfaces, self._disks = self.machine.interfaces(), self.machine.disks()
            self._file_systems = self.machine.file_systems()
        if self.engine is not None:
            self.engine.look(min(patience_s, PATIENCE_S))
        return self._poll_probes(until)

    def sample(
        self, claims: list[DeviceClaim], patience_s: float = SAMPLE_PATIENCE_S, at_once: Collection[str] = ()
    ) -> list[DeviceSample]:
        """Return the samples since the last call; a slow probe's come with a later one.

        The devices ``at_once`` (uuids) are sampled now, even if they were sampled shortly before.
        """
        until = time.monotonic() + patience_s
        for watched in self._watched:
            watched.sample(claims, any(device.uuid in at_once for device in watched.devices))
        has_news = self.engine is not None and self.engine.poll()
        self.is_changed = self._poll_probes(until) or (has_news and self._update_inventory())
        return [sample for watched in self._watched for sample in watched.fresh()]

    def sample_host(self, on_disk: Iterable[tuple[int, int]] = ()) -> HostSample | None:
        """Measure the host itself; its devices are measured by ``sample``. A simulated one is not measured.

        ``on_disk`` has what each part that asked for disk space takes up, and what it asked for.
        """
        if self.machine is not None:
            self.host_sample = self.machine.sample(self._file_systems)
            space = space_of(self.work_folder) if self.work_folder is not None else None
            if space is not None:
                room = room_bytes(space[1], on_disk)
                self.host_sample = msgspec.structs.replace(self.host_sample, disk_room_bytes=room)
        return self.host_sample

    def _poll_probes(self, until: float) -> bool:
        looked = [watched.poll(until) for watched in self._watched]
        return self._update_inventory() if any(looked) else False

    def _update_inventory(self) -> bool:
        devices = with_addresses([device for watched in self._watched for device in watched.devices])
        cpu = [device for device in devices if device.kind == "cpu"]
        is_elsewhere = self.simulated or bool(self.executor)
        cores = sum(device.capacity_milli for device in cpu) // 1000 if is_elsewhere else os.cpu_count() or 1
        memory = sum(device.memory_bytes for device in cpu) if is_elsewhere else psutil.virtual_memory().total
        found = Inventory(
            hostname=self.name if self.simulated else platform.node(),
            os=_system(),
            arch=platform.machine(),
            cpus=cores,
            memory_bytes=memory,
            isolation=self.isolation,
            runs_as=self.runs_as,
            address=self.address,
            simulated=self.simulated,
            container_engine=self.engine.spoken if self.engine is not None else "",
            labels=self.labels,
            mounts=self.mounts,
            executor=self.executor,
            lacks=[str(NoteText(each)) for each in self.lacks],
            lacks_said=[[each] for each in self.lacks],
            devices=devices,
            interfaces=self._interfaces,
            disks=self._disks,
            file_systems=self._file_systems,
            disk_bytes=self._disk_bytes(),
        )
        if found == self.inventory:
            return False
        self.inventory = found
        before, self.hash = self.hash, hashlib.sha256(_encode(found)).hexdigest()[:16]
        return before != self.hash

    def _disk_bytes(self) -> int:
        if self.simulated:
            return SIMULATED_DISK_BYTES
        space = space_of(self.work_folder) if self.work_folder is not None else None
        return space[0] if space else 0

    @property
    def is_restless(self) -> bool:
        """Whether a probe saw something that its last discovery did not report."""
        return any(watched.is_restless for watched in self._watched)

    def memory_by_process(self) -> dict[str, dict[int, int]]:
        """Return the bytes in use by device and pid as of the last sample, for devices that report that."""
        return {uuid: used for watched in self._watched for uuid, used in watched.used.items()}

    def device(self, uuid: str) -> Device | None:
        """Return a device of this host as of the last discovery."""
        known = self.inventory.devices if self.inventory else []
        return next((device for device in known if device.uuid == uuid), None)

    def memory_of(self, uuid: str) -> int:
        """Return the memory of a device of this host in bytes; 0 if unknown."""
        device = self.device(uuid)
        return device.memory_bytes if device else 0

    def address_of(self, uuid: str) -> str | None:
        """Return the PCI address of a device of this host; None if unknown."""
        device = self.device(uuid)
        return device.pci if device else None

    @property
    def has_accelerators(self) -> bool:
        return any(device.kind != "cpu" for watched in self._watched for device in watched.devices)

    def conditions(self, disk_pressure: bool) -> Conditions:
        return noted(
            Conditions(
                disk_pressure=disk_pressure,
                device_errors=[error for watched in self._watched for error in watched.errors],
            ),
            [*(note for watched in self._watched for note in watched.notes), *self._own_notes()],
        )

    def _own_notes(self) -> Sequence[str]:
        if self.machine is None or self.host_sample is None:
            return []
        return self.machine.notes(self.host_sample, self._file_systems)

    def close(self) -> None:
        if self.engine is not None:
            self.engine.close()
        for watched in self._watched:
            watched.close()
