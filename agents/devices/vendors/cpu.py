"""Finds CPUs: one device per NUMA node, with the cores and the memory that this agent may use."""

from __future__ import annotations

import os
import platform
from collections import Counter
from pathlib import Path

import psutil

from agents.devices.readers.rapl import Rapl, file_text
from agents.devices.vendors import ProbedHost
from agents.protocol import Device, DeviceClaim, DeviceError, DeviceSample

_VENDORS = {"GenuineIntel": "intel", "AuthenticAMD": "amd", "HygonGenuine": "hygon", "0x41": "arm", "0x48": "huawei"}


class CpuProbe:
    """Reads ``/sys/devices/system/node``, ``/proc/cpuinfo`` and the limits of the agent's own control group."""

    prompt = True
    period_s = 1.0

    def __init__(self, host: ProbedHost) -> None:
        self.host = host
        self.root = host.root
        self._nodes: dict[str, list[int]] = {}
        self._before: dict[int, tuple[float, float]] = {}
        self._rapl = Rapl(host.root)
        self._packages: dict[int, int] = {}

    def discover(self) -> list[Device]:
        allowed = sorted(os.sched_getaffinity(0))
        nodes = self._numa_nodes(allowed)
        quota = self._cpu_quota()
        share = min(1.0, quota / len(allowed)) if quota else 1.0
        total = _mem_total(file_text(self.root / "proc/meminfo")) or psutil.virtual_memory().total
        limit = self._memory_limit()
        cut = min(1.0, limit / total) if limit else 1.0
        vendor, model = self._model()
        machine = self.host.machine
        self._nodes = {}
        self._packages = {core: self._package(core) for cores, _ in nodes.values() for core in cores}
        devices = []
        for index, (numa, (cores, memory)) in enumerate(sorted(nodes.items())):
            uuid = f"cpu-{machine}-{numa}"
            self._nodes[uuid] = cores
            devices.append(
                Device(
                    uuid=uuid,
                    kind="cpu",
                    vendor=vendor,
                    model=model,
                    index=index,
                    numa=numa,
                    memory_bytes=int(memory * cut) if memory else int(total * cut / len(nodes)),
                    capacity_milli=max(10, int(len(cores) * 1000 * share)),
                    attributes={"cores": ",".join(map(str, cores)), **self._shape(cores)},
                )
            )
        return devices

    def sample(self, claims: list[DeviceClaim]) -> list[DeviceSample]:
        now = {core: (sum(times), times.idle + getattr(times, "iowait", 0.0)) for core, times in self._core_times()}
        before, self._before = self._before, now
        memory = psutil.virtual_memory()
        watts = self._rapl.watts()
        samples = []
        for uuid, cores in self._nodes.items():
            spans = [(now[c][0] - before[c][0], now[c][1] - before[c][1]) for c in cores if c in now and c in before]
            total = sum(span for span, _ in spans)
            idle = sum(span for _, span in spans)
            utilisation = round(min(1.0, max(0.0, 1 - idle / total)), 4) if total > 0 else None
            used = int((memory.total - memory.available) * len(cores) / max(1, len(now)))
            samples.append(
                DeviceSample(
                    uuid=uuid,
                    age_s=0.0,
                    utilisation=utilisation,
                    memory_used_bytes=used,
                    power_w=self._watts(cores, watts),
                )
            )
        return samples

    def memory_by_process(self) -> dict[str, dict[int, int]]:
        return {}

    def errors(self) -> list[DeviceError]:
        return []

    def notes(self) -> list[str]:
        return []

    def news(self) -> bool:
        return False

    def close(self) -> None:
        self._before.clear()

    # -- sources

    def _package(self, core: int) -> int:
        text = file_text(self.root / f"sys/devices/system/cpu/cpu{core}/topology/physical_package_id")
        return int(text) if text.isdigit() else 0

    def _watts(self, cores: list[int], watts: dict[int, float]) -> float | None:
        """Return the watts of these cores: their share of each package that they are in; None if one is not
        measured."""
        packages = {self._packages[core] for core in cores if core in self._packages}
        if not packages or not packages <= watts.keys():
            return None
        whole = Counter(self._packages.values())
        mine = Counter(self._packages[core] for core in cores)
        return round(sum(watts[package] * mine[package] / whole[package] for package in packages), 1)

    def _shape(self, cores: list[int]) -> dict[str, str]:
        """Return physical cores, sockets and caches, if the kernel reports them."""
        found: dict[str, str] = {"sockets": str(len({self._packages[core] for core in cores}))}
        siblings = {
            file_text(self.root / f"sys/devices/system/cpu/cpu{core}/topology/thread_siblings_list") for core in cores
        }
        if siblings and "" not in siblings:
            found["physical_cores"] = str(len(siblings))
        for folder in sorted((self.root / f"sys/devices/system/cpu/cpu{cores[0]}/cache").glob("index[0-9]*")):
            level, kind, size = (file_text(folder / name) for name in ("level", "type", "size"))
            if level and size:
                found[f"cache_l{level}{'i' if kind == 'Instruction' else ''}"] = size
        return found

    @staticmethod
    def _core_times() -> list[tuple[int, psutil._common.scputimes]]:
        return list(enumerate(psutil.cpu_times(percpu=True)))

    def _numa_nodes(self, allowed: list[int]) -> dict[int, tuple[list[int], int]]:
        """Return allowed cores and bytes by NUMA node; one node 0 with everything if the kernel reports none."""
        nodes: dict[int, tuple[list[int], int]] = {}
        found = {int(folder.name[4:]): folder for folder in (self.root / "sys/devices/system/node").glob("node[0-9]*")}
        memory = {numa: _mem_total(file_text(folder / "meminfo")) for numa, folder in found.items()}
        # Memory hot-plugged into a virtual machine is missing in some kernels' per-node sums.
        whole = _mem_total(file_text(self.root / "proc/meminfo"))
        scale = max(1.0, whole / sum(memory.values())) if sum(memory.values()) else 1.0
        for numa, folder in found.items():
            if cores := [core for core in core_list(file_text(folder / "cpulist")) if core in allowed]:
                nodes[numa] = (cores, int(memory[numa] * scale))
        return nodes or {0: (allowed, 0)}

    def _groups(self) -> list[Path]:
        """Return the agent's own cgroup v2 folder and those above it, whose limits apply too."""
        mount = self.root / "sys/fs/cgroup"
        own = next(
            (line[3:] for line in file_text(self.root / "proc/self/cgroup").split("\n") if line[:3] == "0::"), "/"
        )
        folder = mount / own.strip("/")
        return [step for step in [folder, *folder.parents] if step.is_relative_to(mount)]

    def _cpu_quota(self) -> float | None:
        quotas = []
        for folder in self._groups():
            words = file_text(folder / "cpu.max").split()
            if len(words) == 2 and words[0] != "max":
                quotas.append(int(words[0]) / int(words[1]))
        v1 = self.root / "sys/fs/cgroup/cpu"
        quota, period = file_text(v1 / "cpu.cfs_quota_us"), file_text(v1 / "cpu.cfs_period_us")
        if quota.isdigit() and period.isdigit():
            quotas.append(int(quota) / int(period))
        return min(quotas) if quotas else None

    def _memory_limit(self) -> int | None:
        texts = [file_text(folder / "memory.max") for folder in self._groups()]
        for line in file_text(self.root / "proc/self/cgroup").split("\n"):
            _, controllers, own = (*line.split(":", 2), "", "")[:3]
            if "memory" in controllers.split(","):
                folder = self.root / "sys/fs/cgroup/memory"
                texts += [file_text(step / "memory.limit_in_bytes") for step in (folder, folder / own.strip("/"))]
        limits = [int(text) for text in texts if text.isdigit() and int(text) < 1 << 60]
        return min(limits) if limits else None

    def _model(self) -> tuple[str, str]:
        fields: dict[str, str] = {}
        for line in file_text(self.root / "proc/cpuinfo").split("\n"):
            name, _, value = line.partition(":")
            fields.setdefault(name.strip(), value.strip())
        vendor = fields.get("vendor_id") or fields.get("CPU implementer", "")
        model = fields.get("model name") or fields.get("Hardware") or platform.machine()
        return _VENDORS.get(vendor, vendor.lower() or "generic"), " ".join(model.split())


def core_list(text: str) -> list[int]:
    """Parse ``0-3,8`` into [0, 1, 2, 3, 8]."""
    cores: list[int] = []
    for piece in filter(None, text.split(",")):
        first, _, last = piece.partition("-")
        cores += range(int(first), int(last or first) + 1)
    return cores


def _mem_total(text: str) -> int:
    words = text.split()
    for position, word in enumerate(words):
        if word == "MemTotal:":
            return int(words[position + 1]) * 1024
    return 0


def probe(host: ProbedHost) -> CpuProbe:
    return CpuProbe(host)
