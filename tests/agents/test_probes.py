"""Every probe keeps the same promises; NVIDIA's is asked through the real pynvml and a library built for the test."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from agents.devices import cards as agent_cards
from agents.devices import models, vendors, visible
from agents.devices.cards import CardProbe
from agents.devices.vendors import Probe, ProbedHost, cpu, nvidia, simulated
from agents.protocol import Device, DeviceClaim, Partition
from agents.supervisor import procfs

Cards = Callable[..., None]


@pytest.fixture(scope="session")
def libraries(compiler: str, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The stand-in library, as a new driver brings it and as an old one does; each in a folder of its own."""
    source = Path(__file__).with_name("nvml_standin.c")
    made = {}
    for name, flags in (("new", []), ("old", ["-DOLD_DRIVER"])):
        folder = tmp_path_factory.mktemp(name)
        target = str(folder / "libnvidia-ml.so.1")
        subprocess.run(
            [compiler, "-shared", "-fPIC", "-Wall", "-Werror", *flags, "-o", target, str(source)], check=True
        )
        made[name] = folder
    return made


@pytest.fixture
def cards(libraries: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cards:
    """Writes the cards' state; readers started later load the new driver's library, or the old one's."""
    state = tmp_path / "nvml"
    monkeypatch.setenv("NVML_STANDIN", str(state))

    def write(driver: str = "new", **lines: object) -> None:
        monkeypatch.setenv("LD_LIBRARY_PATH", str(libraries[driver]))
        facts: dict[str, object] = {"count": 2, "0.uuid": "GPU-a", "1.uuid": "GPU-b"}
        facts |= {"0.util": 40, "0.power": 312500, "0.temp": 55, "0.clock": 1755, "0.throttle": 0x44}
        facts |= {name.replace("_", "."): value for name, value in lines.items()}
        draft = state.with_suffix(".draft")
        draft.write_text("".join(f"{name} {value}\n" for name, value in facts.items()))
        draft.rename(state)

    return write


@pytest.fixture
def gpus(cards: Cards, monkeypatch: pytest.MonkeyPatch) -> Iterator[CardProbe]:
    monkeypatch.setattr(agent_cards, "WEDGED_PAUSE_S", 0.0)
    monkeypatch.setattr(nvidia, "WHOLE_EVERY_S", 0.0)
    cards()
    made = nvidia.probe(ProbedHost("test"))
    yield made
    made.close()


@pytest.fixture(params=["cpu", "nvidia", "nvidia without a library", *simulated.SHAPES])
def probe(request: pytest.FixtureRequest) -> Iterator[Probe]:
    made: Probe
    if request.param == "cpu":
        made = cpu.probe(ProbedHost("test"))
    elif request.param == "nvidia":
        made = request.getfixturevalue("gpus")
    elif request.param == "nvidia without a library":
        made = nvidia.probe(ProbedHost("test"))
    else:
        made = simulated.SimulatedProbe("test", request.param)
    yield made
    made.close()


def test_devices_are_distinct_whole_and_the_same_at_every_look(probe: Probe) -> None:
    found = probe.discover()
    assert found == probe.discover()
    assert len({device.uuid for device in found}) == len(found)
    assert len({(device.kind, device.vendor, device.index) for device in found}) == len(found)
    for device in found:
        assert device.memory_bytes > 0
        assert device.capacity_milli >= 10
        assert device.kind == "cpu" or device.capacity_milli == 1000
        assert device.model
        assert device.kind == device.kind.lower()


def test_samples_are_of_discovered_devices_and_within_bounds(probe: Probe) -> None:
    found = {device.uuid: device for device in probe.discover()}
    claims = [claim(device) for device in found.values()]
    for _ in range(2):
        for sample in probe.sample(claims):
            device = found[sample.uuid]
            assert sample.utilisation is None or 0 <= sample.utilisation <= 1
            assert sample.memory_used_bytes is None or 0 <= sample.memory_used_bytes <= device.memory_bytes


def test_a_healthy_probe_has_no_complaint(probe: Probe) -> None:
    probe.discover()
    probe.sample([])
    assert probe.errors() == []
    assert probe.notes() == []


def test_the_folder_scan_finds_every_probe_of_real_hardware() -> None:
    found = vendors.discover(ProbedHost("test"))
    files = {path.stem for path in Path(vendors.__file__).parent.glob("*.py")} - {"__init__"}
    # Simulated machines are asked for by name, and commands are the administrator's.
    assert files - found.keys() == {"command", "simulated"}
    for probe in found.values():
        probe.close()


def claim(device: Device, milli: int | None = None) -> DeviceClaim:
    return DeviceClaim(
        device.uuid,
        device.kind,
        device.vendor,
        device.model,
        device.index,
        device.capacity_milli if milli is None else milli,
        device.memory_bytes // 2,
    )


# -- CPU


def write_tree(root: Path, files: dict[str, str]) -> None:
    for path, content in files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(content)


def test_two_agents_of_one_machine_have_different_cpu_uuids_that_stay() -> None:
    first, second, again = (cpu.probe(ProbedHost(name)).discover()[0].uuid for name in ("one", "two", "one"))
    assert first == again
    assert first != second


def test_numa_nodes_quota_and_memory_limit_shape_the_cpu_devices(tmp_path: Path) -> None:
    kib = 1 << 20
    files = {
        "proc/meminfo": f"MemTotal: {2 * kib} kB\n",
        "proc/cpuinfo": "vendor_id : AuthenticAMD\nmodel name : AMD  EPYC 7742\n",
        "proc/self/cgroup": "0::/agents\n",
        "sys/fs/cgroup/agents/cpu.max": "50000 100000\n",
        "sys/fs/cgroup/agents/memory.max": str(kib << 10),
        "sys/devices/system/node/node0/cpulist": "0\n",
        "sys/devices/system/node/node0/meminfo": f"Node 0 MemTotal: {kib} kB\n",
        "sys/devices/system/node/node1/cpulist": "1-3,64-67\n",
        "sys/devices/system/node/node1/meminfo": f"Node 1 MemTotal: {kib} kB\n",
        "sys/devices/system/node/node2/cpulist": "\n",
    }
    write_tree(tmp_path, files)
    found = cpu.probe(ProbedHost("test", tmp_path)).discover()
    assert (found[0].vendor, found[0].model, found[0].numa) == ("amd", "AMD EPYC 7742", 0)
    assert sum(device.capacity_milli for device in found) == 500
    assert found[0].memory_bytes == kib << 9


def test_without_numa_folders_all_allowed_cores_are_one_device(tmp_path: Path) -> None:
    write_tree(tmp_path, {"proc/meminfo": "MemTotal: 1024 kB\n"})
    (device,) = cpu.probe(ProbedHost("test", tmp_path)).discover()
    assert (device.numa, device.memory_bytes) == (0, 1 << 20)


# -- NVIDIA


def test_cards_are_told_in_full(cards: Cards, gpus: CardProbe) -> None:
    cards(**{"0_peer": 17, "1_name": "NVIDIA A100-SXM4-80GB"})
    first, second = gpus.discover()
    assert (first.uuid, first.model, first.memory_bytes) == ("GPU-a", "NVIDIA H100 80GB HBM3", 80 << 30)
    assert (first.pci, first.health) == ("0000:10:00.0", "OK")
    assert first.features["bf16_tflops"] == 989.0
    pcie = {"pcie": "gen5 x16", "pcie_max": "gen5 x16"}
    assert first.attributes == {"driver": "570.0", "mig": "off", **pcie, "remapped_rows": "corrected 0, uncorrected 0"}
    assert [(link.peer, link.type, link.gbps) for link in first.links] == [
        ("GPU-b", "NVLINK", 200.0),
        ("host", "PCIE", 63.01),
    ]
    assert [(link.peer, link.type) for link in second.links] == [("GPU-a", "PIX"), ("host", "PCIE")]
    assert second.features["bf16_tflops"] == 312.0
    sample = gpus.sample([])[0]
    assert (sample.utilisation, sample.power_w, sample.temperature_c) == (0.4, 312.5, 55)
    assert (sample.clock_hz, sample.throttled) == (1.755e9, "power cap, heat (hardware)")


def test_what_a_card_does_not_tell_is_none(gpus: CardProbe) -> None:
    gpus.discover()
    silent = gpus.sample([])[1]
    assert (silent.utilisation, silent.power_w, silent.temperature_c, silent.clock_hz) == (None, None, None, None)
    assert silent.memory_used_bytes == 0


def test_what_the_driver_keeps_of_a_card_is_not_in_use(cards: Cards, gpus: CardProbe) -> None:
    gpus.discover()
    cards(**{"1_reserved": 480 << 20, "1_used": 1 << 30})
    assert gpus.sample([])[1].memory_used_bytes == 1 << 30


def test_an_old_driver_without_newer_functions_still_works(cards: Cards) -> None:
    cards(driver="old")
    made = nvidia.probe(ProbedHost("test"))
    assert [device.uuid for device in made.discover()] == ["GPU-a", "GPU-b"]
    assert [sample.utilisation for sample in made.sample([])] == [0.4, None]
    assert made.notes() == []
    made.close()


def test_a_card_that_falls_off_the_bus_is_lost_and_the_others_go_on(cards: Cards, gpus: CardProbe) -> None:
    gpus.discover()
    cards(**{"1_lost": 1})
    assert [sample.uuid for sample in gpus.sample([])] == ["GPU-a"]
    assert gpus.news()
    (error,) = gpus.errors()
    assert (error.uuid, error.code) == ("GPU-b", "GPU_IS_LOST")
    healthy, lost = gpus.discover()
    assert (healthy.health, lost.health, lost.health_reason) == ("OK", "LOST", "GPU is lost")
    gpus.sample([])
    assert not gpus.news()
    cards()
    gpus.sample([])
    assert gpus.news()
    assert [device.health for device in gpus.discover()] == ["OK", "OK"]
    assert gpus.errors() == []


def test_a_card_that_was_lost_before_anybody_looked_is_a_sentence(cards: Cards) -> None:
    cards(**{"1_lost": 1})
    made = nvidia.probe(ProbedHost("test"))
    assert [device.uuid for device in made.discover()] == ["GPU-a"]
    assert made.notes() == ["card 1 of nvidia cannot be used: GPU is lost"]
    made.close()


def test_cards_keep_their_uuid_when_others_vanish(cards: Cards, gpus: CardProbe) -> None:
    gpus.discover()
    cards(count=1, **{"0_uuid": "GPU-b"})
    assert {device.uuid: device.health for device in gpus.discover()} == {"GPU-a": "LOST", "GPU-b": "OK"}


def test_a_wedged_driver_is_given_up_and_its_cards_are_unhealthy(cards: Cards, gpus: CardProbe) -> None:
    gpus.discover()
    cards(hang=600)
    gpus.deadline_s = 0.3
    assert gpus.sample([]) == []
    assert gpus.news()
    assert {device.health for device in gpus.discover()} == {"UNHEALTHY"}
    (note,) = gpus.notes()
    assert "did not answer within 0.3 s" in note
    cards()
    gpus.deadline_s = 10.0
    assert {device.health for device in gpus.discover()} == {"OK"}


def test_a_broken_driver_is_a_note_not_an_error(cards: Cards) -> None:
    cards(init=18)
    made = nvidia.probe(ProbedHost("test"))
    assert made.discover() == []
    assert made.notes() == ["NVIDIA's driver answers: RM has detected an NVML/RM version mismatch."]
    made.close()


@pytest.mark.parametrize(
    ("state", "health", "code", "words"),
    [
        ({"0_width": 4}, "DEGRADED", "PCIE_WIDTH", "runs at x4 of x16"),
        ({"0_pending": 1}, "DEGRADED", "ROW_REMAP_PENDING", "reset the GPU"),
        ({"0_failed": 1}, "UNHEALTHY", "ROW_REMAP_FAILED", "could not be remapped"),
        ({"0_ecc": 3}, "DEGRADED", "ECC_UNCORRECTED", "3 memory errors"),
        ({"0_mig": 1}, "UNHEALTHY", "MIG_EMPTY", "no instance"),
        ({"xidturn": 1, "xid": 79}, "UNHEALTHY", "XID_79", "fell off the bus"),
        ({"xidturn": 1, "xid": 94}, "DEGRADED", "XID_94", "contained memory error"),
        ({"xidturn": 1, "xid": 140}, "UNHEALTHY", "XID_140", "reset the GPU"),
        ({"xidturn": 1, "xid": 149}, "UNHEALTHY", "XID_149", "NVLink error"),
        ({"xidturn": 1, "xid": 154}, "DEGRADED", "XID_154", "asks for an action"),
        ({"xidturn": 1, "xid": 154, "0_recovery": 2}, "UNHEALTHY", "RECOVERY_NODE_REBOOT", "a reboot of the host"),
        ({"0_recovery": 1}, "UNHEALTHY", "RECOVERY_GPU_RESET", "a reset of the GPU"),
        ({"0_recovery": 9}, "UNHEALTHY", "RECOVERY_UNKNOWN", "asks for an action"),
        ({"0_retiring": 1}, "DEGRADED", "PAGE_RETIREMENT_PENDING", "reset the GPU"),
    ],
)
def test_a_condition_has_a_code_a_sentence_and_its_weight(
    cards: Cards, gpus: CardProbe, state: dict[str, int], health: str, code: str, words: str
) -> None:
    gpus.discover()
    cards(**state)
    first, second = gpus.discover()
    assert (first.health, first.attributes["conditions"], second.health) == (health, code, "OK")
    assert words in first.health_reason
    assert [error.code for error in gpus.errors()] == ([code] if health == "UNHEALTHY" else [])
    gpus.sample([])
    assert not gpus.news()


def test_a_recovery_action_that_is_done_leaves_the_card_whole(cards: Cards, gpus: CardProbe) -> None:
    gpus.discover()
    cards(xidturn=1, xid=154, **{"0_recovery": 4})
    gpus.sample([])
    assert gpus.news()
    assert [error.code for error in gpus.errors()] == ["RECOVERY_DRAIN_AND_RESET"]
    cards(xidturn=2, xid=154, **{"0_recovery": 0})
    gpus.sample([])
    assert gpus.news()
    assert [device.health for device in gpus.discover()] == ["OK", "OK"]


@pytest.mark.parametrize("mig", [{}, {"0_mig": 1, "0_made": "3g.40gb 0 4 0"}], ids=["whole", "divided"])
def test_memory_errors_are_seen_by_a_sample(cards: Cards, gpus: CardProbe, mig: dict[str, object]) -> None:
    cards(**mig)
    gpus.discover()
    cards(**mig, **{"0_ecc": 2, "0_ecc0": 70, "0_ever": 5})
    gpus.sample([])
    assert gpus.news()
    first = gpus.discover()[0]
    assert first.attributes["conditions"] == "ECC_UNCORRECTED"
    assert first.attributes["ecc_errors"] == "corrected 70, uncorrected 2, uncorrected ever 5"
    assert first.attributes["remapped_rows"] == "corrected 0, uncorrected 0"


def test_a_link_that_stays_slow_under_load_is_told_and_one_that_rests_is_not(cards: Cards, gpus: CardProbe) -> None:
    cards(**{"0_generation": 1, "0_util": 0})
    gpus.discover()
    gpus.sample([])
    assert not gpus.news()
    cards(**{"0_generation": 3, "0_util": 90})
    gpus.sample([])
    assert not gpus.news(), "one look may have come while it was speeding up"
    gpus.sample([])
    assert gpus.news()
    cards(**{"0_generation": 1, "0_util": 0})
    slow = gpus.discover()[0]
    assert (slow.health, slow.attributes["conditions"]) == ("DEGRADED", "PCIE_GENERATION")
    assert "generation 3 of 5" in slow.health_reason
    cards(**{"0_generation": 5, "0_util": 90})
    gpus.sample([])
    assert gpus.news()
    assert gpus.discover()[0].health == "OK"


def test_a_card_tells_its_counter_of_energy_where_it_has_one(cards: Cards, gpus: CardProbe) -> None:
    cards(**{"0_energy": 5_000_000_123})
    gpus.discover()
    assert [sample.energy_j for sample in gpus.sample([])] == [5_000_000.123, None]


def test_cards_that_nobody_holds_are_let_go_of_between_two_questions(
    cards: Cards, gpus: CardProbe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    holders, steady = tmp_path / "holders", {"0_persistence": 1, "1_persistence": 1}
    cards(holders=holders, **steady)
    (first, _) = gpus.discover()
    assert (holders.read_text(), gpus.period_s) == ("1\n", 1.0)
    monkeypatch.setattr(nvidia, "IDLE_AFTER_S", 0.0)
    assert len(gpus.sample([])) == 2
    assert (holders.read_text(), gpus.period_s) == ("0\n", nvidia.IDLE_PERIOD_S)
    assert len(gpus.sample([])) == 2, "the next question opens it again"
    assert holders.read_text() == "0\n"
    assert [device.health for device in gpus.discover()] == ["OK", "OK"]
    monkeypatch.setattr(nvidia, "IDLE_AFTER_S", 60.0)
    assert len(gpus.sample([claim(first)])) == 2
    assert (holders.read_text(), gpus.period_s) == ("1\n", 1.0)


def test_cards_that_take_long_to_open_are_let_go_of_only_for_a_reset(
    cards: Cards, gpus: CardProbe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nvidia, "IDLE_AFTER_S", 0.0)
    holders = tmp_path / "holders"
    cards(holders=holders, **{"0_persistence": 0, "1_persistence": 0})
    gpus.discover()
    gpus.sample([])
    assert holders.read_text() == "1\n"
    cards(holders=holders, **{"0_persistence": 0, "1_persistence": 0, "0_recovery": 1})
    gpus.sample([])
    gpus.sample([])
    assert holders.read_text() == "0\n"


def test_an_operator_has_the_driver_to_himself_for_a_while(
    cards: Cards, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agent_cards, "WEDGED_PAUSE_S", 0.0)
    cards()
    probe = nvidia.probe(ProbedHost("test", tmp_path))
    assert [device.health for device in probe.discover()] == ["OK", "OK"]
    asked = tmp_path / nvidia.RELEASE_FILE
    asked.parent.mkdir(parents=True)
    asked.touch()
    assert probe.sample([]) == []
    assert probe.nvml.reader.is_running is False
    assert {device.health for device in probe.discover()} == {"UNHEALTHY"}
    assert "let go of as" in probe.notes()[0]
    old = time.time() - nvidia.RELEASE_S - 1
    os.utime(asked, (old, old))
    assert [device.health for device in probe.discover()] == ["OK", "OK"]
    probe.close()


def test_a_fault_is_seen_by_the_next_sample_and_holds(cards: Cards, gpus: CardProbe) -> None:
    gpus.discover()
    cards(xidturn=1, xid=48, xidcard=1)
    gpus.sample([])
    assert gpus.news()
    assert [(error.uuid, error.code) for error in gpus.errors()] == [("GPU-b", "XID_48")]
    assert [device.health for device in gpus.discover()] == ["OK", "UNHEALTHY"]
    gpus.sample([])
    assert [error.code for error in gpus.errors()] == ["XID_48"]


def test_a_fault_of_the_program_is_none_of_the_card(cards: Cards, gpus: CardProbe) -> None:
    gpus.discover()
    cards(xidturn=1, xid=31)
    gpus.sample([])
    assert gpus.errors() == []
    assert [device.health for device in gpus.discover()] == ["OK", "OK"]


def test_a_process_that_no_stage_started_is_named_and_one_of_ours_is_not(cards: Cards, gpus: CardProbe) -> None:
    gpus.discover()
    mark = {**os.environ, procfs.MARK: "p1"}
    quiet = {name: value for name, value in os.environ.items() if name != procfs.MARK}
    command = [sys.executable, "-c", "import sys; sys.stdin.read()"]
    with (
        subprocess.Popen(command, stdin=subprocess.PIPE, env=mark) as ours,
        subprocess.Popen(command, stdin=subprocess.PIPE, env=quiet) as foreign,
    ):
        cards(**{"0_pid": ours.pid})
        assert [device.health for device in gpus.discover()] == ["OK", "OK"]
        cards(**{"0_pid": foreign.pid})
        gpus.sample([])
        assert gpus.news()
        first, _ = gpus.discover()
        assert (first.health, first.attributes.get("conditions")) == ("DEGRADED", "FOREIGN_PROCESS")
        assert f"(pid {foreign.pid}, " in first.health_reason
        for process in (ours, foreign):
            process.stdin.close()  # type: ignore[union-attr]
    gpus.sample([])
    assert gpus.news()
    assert [device.health for device in gpus.discover()] == ["OK", "OK"]


MADE = {"0_mig": 1, "0_made": "3g.40gb 0 4 0,1g.10gb 4 1 0,1g.10gb 6 1 0"}


def test_a_divided_card_tells_its_instances_and_what_else_it_could_have(cards: Cards, gpus: CardProbe) -> None:
    cards(**MADE, **{"0_pending": 1})
    divided, whole = gpus.discover()
    assert (divided.uuid, divided.model, divided.memory_bytes) == ("GPU-a", "NVIDIA H100 80GB HBM3", 80 << 30)
    assert (divided.health, divided.attributes["mig"], whole.attributes["mig"]) == ("DEGRADED", "on", "off")
    assert whole.division is None
    assert divided.division is not None
    assert (divided.division.mode, divided.division.makes) == ("MIG", False)
    assert divided.division.profiles == {"1g.10gb": 7, "2g.20gb": 3, "3g.40gb": 2, "4g.40gb": 1, "7g.80gb": 1}
    assert divided.division.made == [
        Partition("3g.40gb", 0, 4, "MIG-GPU-a-0"),
        Partition("1g.10gb", 4, 1, "MIG-GPU-a-4"),
        Partition("1g.10gb", 6, 1, "MIG-GPU-a-6"),
    ]
    claimed = DeviceClaim(divided.uuid, "gpu", "nvidia", divided.model, 0, 142, 10 << 30)
    claimed = msgspec.structs.replace(claimed, partition=divided.division.made[2])
    assert visible.variables([claimed])["CUDA_VISIBLE_DEVICES"] == "MIG-GPU-a-6"


def test_where_instances_lie_is_told_to_root_only(cards: Cards, gpus: CardProbe) -> None:
    cards(**MADE, user=1)
    division = gpus.discover()[0].division
    assert division is not None
    assert [(one.profile, one.start) for one in division.made] == [
        ("3g.40gb", None),
        ("1g.10gb", None),
        ("1g.10gb", None),
    ]


def test_an_instance_that_is_shared_out_further_is_said_and_not_given(cards: Cards, gpus: CardProbe) -> None:
    cards(**{"0_mig": 1, "0_made": "1c.3g.40gb 0 4 0,1c.3g.40gb 0 4 0,1g.10gb 4 1 0"})
    device = gpus.discover()[0]
    assert device.division is not None
    assert [one.profile for one in device.division.made] == ["1g.10gb"]
    assert device.attributes["mig_split"].startswith("2 ")


def test_a_card_that_is_divided_anew_is_news(cards: Cards, gpus: CardProbe) -> None:
    cards(**MADE)
    gpus.discover()
    gpus.sample([])
    assert not gpus.news()
    cards(**{"0_mig": 1, "0_made": "7g.80gb 0 8 0"})
    gpus.sample([])
    assert gpus.news()
    division = gpus.discover()[0].division
    assert division is not None
    assert [one.profile for one in division.made] == ["7g.80gb"]


def test_a_process_on_an_instance_is_one_on_the_card(cards: Cards, gpus: CardProbe) -> None:
    quiet = {name: value for name, value in os.environ.items() if name != procfs.MARK}
    command = [sys.executable, "-c", "import sys; sys.stdin.read()"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, env=quiet) as foreign:
        cards(**{"0_mig": 1, "0_made": f"3g.40gb 0 4 0,1g.10gb 4 1 {foreign.pid}"})
        first, _ = gpus.discover()
        assert (first.health, first.attributes.get("conditions")) == ("DEGRADED", "FOREIGN_PROCESS")
        foreign.stdin.close()  # type: ignore[union-attr]


# -- simulated


@pytest.mark.parametrize("shape", simulated.SHAPES)
def test_everything_simulated_says_so(shape: str) -> None:
    assert all(device.simulated for device in simulated.SimulatedProbe("test", shape).discover())


def test_a_claimed_simulated_device_works_and_an_unclaimed_one_idles() -> None:
    busy, idle = (d for d in simulated.SimulatedProbe("test", "dgx-h100").discover() if d.kind == "gpu" and d.index < 2)
    claims = [claim(busy)]
    for at in range(0, 300, 7):
        working, resting = (simulated.load(device, claims, float(at)) for device in (busy, idle))
        assert working.utilisation is not None
        assert working.utilisation > 0.6
        assert resting.utilisation == 0.0
        assert working.power_w is not None
        assert resting.power_w is not None
        assert resting.power_w < working.power_w <= busy.features["watts"]


def test_simulated_machines_are_read_from_a_list() -> None:
    assert simulated.parse("2xdgx-h100, laptop") == ["dgx-h100", "dgx-h100", "laptop"]
    with pytest.raises(ValueError, match='"3xtoaster" is no machine to simulate; accepted are dgx-h100'):
        simulated.parse("3xtoaster")


def test_every_model_is_found_by_its_own_name_and_no_other_and_says_where_its_figures_are_from() -> None:
    for model in models.models():
        assert models.known(model.vendor, model.name) is model
        assert model.features["memory_gbps"] > 0
        assert model.source.startswith("https://")


@pytest.mark.parametrize(
    ("vendor", "told", "name"),
    [
        ("nvidia", "NVIDIA A100-SXM4-80GB", "A100 80GB"),
        ("nvidia", "NVIDIA A100-PCIE-40GB", "A100"),
        ("nvidia", "NVIDIA H100 PCIe", "H100 PCIe"),
        ("nvidia", "NVIDIA A10G", "A10"),
        ("amd", "AMD Instinct MI300X", "MI300X"),
        ("amd", "Arcturus GL-XL [Instinct MI100]", "MI100"),
        ("huawei", "Ascend 910B4", "Ascend 910B"),
        ("habana", "HL-225", "Gaudi 2"),
        ("habana", "HL-325L", "Gaudi 3"),
        ("google", "TPU v6e", "TPU v6e"),
        ("intel", "Intel(R) Data Center GPU Max 1100", "Data Center GPU Max 1100"),
    ],
)
def test_a_model_is_known_by_what_its_tool_calls_it(vendor: str, told: str, name: str) -> None:
    found = models.known(vendor, told)
    assert found is not None
    assert found.name == name


def test_a_model_that_nobody_wrote_down_has_no_rates() -> None:
    assert models.known("nvidia", "NVIDIA Z9000") is None
    assert models.features("huawei", "NVIDIA H100 80GB HBM3") == {}
