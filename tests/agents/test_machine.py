"""What a host is beside its devices, read from a made-up /proc and /sys; and bandwidth, bounded and only when asked."""

from __future__ import annotations

import json
import os
import socket
import struct
import threading
from pathlib import Path
from typing import Any

import pytest

from agents.devices.readers.rapl import Rapl
from agents.devices.vendors import ProbedHost, cpu
from agents.main import main
from agents.protocol import FileSystem, HostSample
from agents.telemetry import bandwidth
from agents.telemetry.machine import Machine


def plant(root: Path, files: dict[str, str]) -> None:
    for path, content in files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(content)


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    plant(
        tmp_path,
        {
            "sys/class/net/eth0/device/vendor": "0x8086", "sys/class/net/eth0/speed": "25000\n",
            "sys/class/net/eth0/operstate": "up\n",
            "sys/class/net/eth1/device/vendor": "0x8086", "sys/class/net/eth1/speed": "-1\n",
            "sys/class/net/docker0/speed": "10000\n",
            "sys/block/nvme0n1/size": "2000000", "sys/block/nvme0n1/queue/rotational": "0",
            "sys/block/nvme0n1/device/model": "Fast One  ", "sys/block/loop0/size": "8", "sys/block/sdb/size": "0",
            "proc/net/dev": "head\nhead\n    lo: 5 0 0 0 0 0 0 0 5\n  eth0: 1000 1 0 0 0 0 0 0 2000 2\n",
            "proc/diskstats": " 259 0 nvme0n1 10 0 80 0 20 0 160 0\n 259 1 nvme0n1p1 1 0 8 0 2 0 16 0\n"
            " 7 0 loop0 1 0 2 0 1 0 2 0\n",
            "proc/pressure/memory": "some avg10=12.50 avg60=1 total=5\nfull avg10=31.00 avg60=1 total=5\n",
            "proc/pressure/cpu": "some avg10=3.00 avg60=1 avg300=1 total=5\n",
            "proc/loadavg": "3.00 1.20 0.80 2/512 9000\n", "proc/stat": "cpu  1 2\ncpu0 1 2\ncpu1 1 2\nintr 5\n",
            "proc/self/mounts": "/dev/nvme0n1p1 / ext4 rw 0 0\n/dev/nvme0n1p1 /again ext4 rw 0 0\n"
            "/dev/loop0 / squashfs ro 0 0\n"
            "tmpfs /run tmpfs rw 0 0\nfiler:/home /home nfs4 rw 0 0\n/dev/gone /not\\040here xfs rw 0 0\n",
        },
    )  # fmt: skip
    return Machine(tmp_path)


def test_only_hardware_is_listed_with_the_speed_that_it_tells(machine: Machine) -> None:
    told = [(each.name, each.bits_per_s, each.is_up) for each in machine.interfaces()]
    assert told == [("eth0", 25 * 10**9, True), ("eth1", None, False)]
    (disk,) = machine.disks()
    assert (disk.name, disk.size_bytes, disk.is_rotating, disk.model) == ("nvme0n1", 1024000000, False, "Fast One")


def test_a_file_system_is_listed_once_and_one_of_another_host_is_not_asked(machine: Machine) -> None:
    local, remote = machine.file_systems()
    assert (local.mount, local.type) == ("/", "ext4")
    assert local.size_bytes
    assert remote == FileSystem("/home", "nfs4", None)
    assert set(machine.sample([local, remote]).free_bytes) == {"/"}


def test_counters_are_bytes_of_whole_disks_and_of_every_interface(machine: Machine) -> None:
    sample = machine.sample([])
    assert (sample.received_bytes, sample.sent_bytes) == ({"eth0": 1000}, {"eth0": 2000})
    assert (sample.read_bytes, sample.written_bytes) == ({"nvme0n1": 80 * 512}, {"nvme0n1": 160 * 512})
    assert sample.pressure == {"cpu_some": 3.0, "memory_some": 12.5, "memory_full": 31.0}
    assert sample.queue == 1.5


def test_what_people_should_look_at_is_a_sentence() -> None:
    system = FileSystem("/data", "xfs", 1 << 40)
    calm = HostSample(pressure={"memory_full": 1.0}, free_bytes={"/data": 1 << 39})
    assert Machine.notes(calm, [system]) == []
    ill = HostSample(pressure={"memory_full": 31.0}, free_bytes={"/data": 1 << 30})
    assert Machine.notes(ill, [system]) == [
        "all tasks waited for memory in more than 30 % of the last ten seconds",
        "the file system at /data (1024 GiB) has less than 3% left",
    ]


def test_an_empty_kernel_tells_nothing_and_stops_nobody(tmp_path: Path) -> None:
    empty = Machine(tmp_path)
    assert (empty.interfaces(), empty.disks(), empty.file_systems()) == ([], [], [])
    assert empty.sample([]) == HostSample()


# -- the CPU's watts


def counters(root: Path, first: int, second: int | None) -> None:
    for package, value in ((0, first), (1, second)):
        folder = f"sys/class/powercap/intel-rapl:{package}"
        plant(root, {f"{folder}/name": f"package-{package}\n", f"{folder}/max_energy_range_uj": "1000000000\n"})
        if value is not None:
            plant(root, {f"{folder}/energy_uj": f"{value}\n"})
    plant(
        root, {"sys/class/powercap/intel-rapl:0:0/name": "core\n", "sys/class/powercap/intel-rapl:0:0/energy_uj": "9"}
    )


def test_a_counter_becomes_watts_also_when_it_begins_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr("agents.devices.readers.rapl.time.monotonic", lambda: now[0])
    counters(tmp_path, 999_000_000, None)
    rapl = Rapl(tmp_path)
    assert rapl.watts() == {}
    now[0] += 2.0
    counters(tmp_path, 119_000_000, None)
    assert rapl.watts() == {0: 60.0}


def test_a_numa_node_draws_its_share_of_its_package_and_an_unreadable_one_is_unknown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [100.0]
    monkeypatch.setattr("agents.devices.readers.rapl.time.monotonic", lambda: now[0])
    allowed = sorted(os.sched_getaffinity(0))[:1]
    monkeypatch.setattr("agents.devices.vendors.cpu.os.sched_getaffinity", lambda _: {0, 1, 2, 3})
    assert allowed
    plant(tmp_path, {"proc/meminfo": "MemTotal: 1024 kB\n", "proc/cpuinfo": "vendor_id : GenuineIntel\n"})
    for core in range(4):
        plant(tmp_path, {f"sys/devices/system/cpu/cpu{core}/topology/physical_package_id": str(core // 3)})
    for numa, cores in ((0, "0"), (1, "1-2"), (2, "3")):
        plant(tmp_path, {f"sys/devices/system/node/node{numa}/cpulist": cores})
    counters(tmp_path, 0, None)
    probe = cpu.probe(ProbedHost("test", tmp_path))
    assert [device.attributes["sockets"] for device in probe.discover()] == ["1", "1", "1"]
    probe.sample([])
    now[0] += 1.0
    counters(tmp_path, 90_000_000, None)
    assert [sample.power_w for sample in probe.sample([])] == [30.0, 60.0, None]


# -- bandwidth


def test_two_hosts_measure_their_line_and_a_wrong_key_is_turned_away() -> None:
    said: list[dict[str, Any]] = []
    ready = threading.Event()

    def say(told: dict[str, Any]) -> None:
        said.append(told)
        ready.set()

    found: list[dict[str, Any]] = []
    side = threading.Thread(target=lambda: found.append(bandwidth.listen("127.0.0.1", 0, say)))
    side.start()
    assert ready.wait(60)
    port = said[0]["listening"]
    with pytest.raises(OSError, match="is the key right"):
        bandwidth.send("127.0.0.1", port, "0" * bandwidth.KEY_BYTES, 1 << 20, 1.0)
    with socket.create_connection(("127.0.0.1", port)) as stranger:
        stranger.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # its end is a reset
    sent = bandwidth.send("127.0.0.1", port, said[0]["key"], 8 << 20, 5.0)
    side.join(10)
    assert sent["bytes"] == found[0]["bytes"] == 8 << 20
    assert sent["bytes_per_s"] > 0


def test_a_folder_is_measured_within_its_bound_and_left_as_it_was(tmp_path: Path) -> None:
    told = bandwidth.of_folder(tmp_path, 4 << 20, 5.0)
    assert told["write"]["bytes"] == told["read"]["bytes"] == 4 << 20
    assert list(tmp_path.iterdir()) == []


def test_numa_nodes_are_measured_in_pairs_and_the_agent_keeps_its_cores(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = os.sched_getaffinity(0)
    core = min(before)
    monkeypatch.setattr(bandwidth, "NUMA_BYTES", 1 << 20)
    plant(tmp_path, {f"sys/devices/system/node/node{numa}/cpulist": f"{core}\n" for numa in (0, 1)})
    found = bandwidth.between_numa_nodes(tmp_path, 0.001)
    assert [(pair["from_node"], pair["to_node"]) for pair in found] == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert os.sched_getaffinity(0) == before


def test_the_command_line_says_what_it_cannot_do(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["bandwidth", "--folder", str(tmp_path / "none")]) == 1
    assert "No such file" in capsys.readouterr().err
    assert main(["bandwidth", "--to", "nowhere", "--key", "x"]) == 1
    assert '"nowhere" is no HOST:PORT' in capsys.readouterr().err
    assert main(["bandwidth", "--folder", str(tmp_path), "--mib", "1"]) == 0
    assert json.loads(capsys.readouterr().out)["write"]["bytes"] == 1 << 20
