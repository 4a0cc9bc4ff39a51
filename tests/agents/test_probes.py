"""Every probe keeps the same promises; NVIDIA's is asked through the real pynvml and a library built for the test."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from agents import devices, probes
from agents.probes import Host, Probe, cpu, nvidia, simulated
from agents.protocol import Device, DeviceClaim

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
        facts = {"count": 2, "0.uuid": "GPU-a", "1.uuid": "GPU-b", "0.util": 40, "0.power": 312500, "0.temp": 55}
        facts |= {name.replace("_", "."): value for name, value in lines.items()}
        draft = state.with_suffix(".draft")
        draft.write_text("".join(f"{name} {value}\n" for name, value in facts.items()))
        draft.rename(state)

    return write


@pytest.fixture
def gpus(cards: Cards) -> Iterator[nvidia.NvidiaProbe]:
    cards()
    made = nvidia.NvidiaProbe(Host("test"))
    yield made
    made.close()


@pytest.fixture(params=["cpu", "nvidia", "nvidia without a library", *simulated.SHAPES])
def probe(request: pytest.FixtureRequest) -> Iterator[Probe]:
    made: Probe
    if request.param == "cpu":
        made = cpu.probe(Host("test"))
    elif request.param == "nvidia":
        made = request.getfixturevalue("gpus")
    elif request.param == "nvidia without a library":
        made = nvidia.probe(Host("test"))
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
    assert set(probes.discover(Host("test"))) == {"cpu", "nvidia"}


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
    first, second, again = (cpu.probe(Host(name)).discover()[0].uuid for name in ("one", "two", "one"))
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
    found = cpu.probe(Host("test", tmp_path)).discover()
    assert (found[0].vendor, found[0].model, found[0].numa) == ("amd", "AMD EPYC 7742", 0)
    assert sum(device.capacity_milli for device in found) == 500
    assert found[0].memory_bytes == kib << 9


def test_without_numa_folders_all_allowed_cores_are_one_device(tmp_path: Path) -> None:
    write_tree(tmp_path, {"proc/meminfo": "MemTotal: 1024 kB\n"})
    (device,) = cpu.probe(Host("test", tmp_path)).discover()
    assert (device.numa, device.memory_bytes) == (0, 1 << 20)


# -- NVIDIA


def test_cards_are_told_in_full(cards: Cards, gpus: nvidia.NvidiaProbe) -> None:
    cards(**{"0_peer": 17, "1_name": "NVIDIA A100-SXM4-80GB", "1_mig": 1})
    first, second = gpus.discover()
    assert (first.uuid, first.model, first.memory_bytes) == ("GPU-a", "NVIDIA H100 80GB HBM3", 80 << 30)
    assert first.features["bf16_tflops"] == 989.0
    assert [(link.peer, link.type, link.gbps) for link in first.links] == [
        ("GPU-b", "NVLINK", 200.0),
        ("host", "PCIE", 63.01),
    ]
    assert second.features["bf16_tflops"] == 312.0
    assert "mig" in second.attributes
    sample = gpus.sample([])[0]
    assert (sample.utilisation, sample.power_w, sample.temperature_c) == (0.4, 312.5, 55)


def test_what_a_card_does_not_tell_is_none(gpus: nvidia.NvidiaProbe) -> None:
    gpus.discover()
    silent = gpus.sample([])[1]
    assert (silent.utilisation, silent.power_w, silent.temperature_c) == (None, None, None)
    assert silent.memory_used_bytes == 0


def test_an_old_driver_without_newer_functions_still_works(cards: Cards) -> None:
    cards(driver="old")
    made = nvidia.NvidiaProbe(Host("test"))
    assert [device.uuid for device in made.discover()] == ["GPU-a", "GPU-b"]
    assert made.notes() == []
    made.close()


def test_a_card_that_falls_off_the_bus_is_lost_and_the_others_go_on(cards: Cards, gpus: nvidia.NvidiaProbe) -> None:
    gpus.discover()
    cards(**{"1_lost": 1})
    assert [sample.uuid for sample in gpus.sample([])] == ["GPU-a"]
    (error,) = gpus.errors()
    assert (error.uuid, error.code) == ("GPU-b", "GPU_IS_LOST")
    healthy, lost = gpus.discover()
    assert (healthy.health, lost.health, lost.health_reason) == ("OK", "LOST", "GPU is lost")
    cards()
    assert [device.health for device in gpus.discover()] == ["OK", "OK"]
    assert gpus.errors() == []


def test_cards_keep_their_uuid_when_others_vanish(cards: Cards, gpus: nvidia.NvidiaProbe) -> None:
    gpus.discover()
    cards(count=1, **{"0_uuid": "GPU-b"})
    assert {device.uuid: device.health for device in gpus.discover()} == {"GPU-a": "LOST", "GPU-b": "OK"}


def test_a_wedged_driver_is_given_up_and_its_cards_are_unhealthy(cards: Cards, gpus: nvidia.NvidiaProbe) -> None:
    gpus.discover()
    cards(hang=600)
    gpus.deadline_s = 0.3
    assert gpus.sample([]) == []
    assert {device.health for device in gpus.discover()} == {"UNHEALTHY"}
    (note,) = gpus.notes()
    assert "did not answer within 0.3 s" in note


def test_a_broken_driver_is_a_note_not_an_error(cards: Cards) -> None:
    cards(init=18)
    made = nvidia.NvidiaProbe(Host("test"))
    assert made.discover() == []
    assert made.notes() == ["NVIDIA's driver answers: RM has detected an NVML/RM version mismatch."]
    made.close()


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


def test_every_model_is_found_by_its_own_name_and_no_other() -> None:
    for model in devices.models():
        assert devices.features(model.vendor, model.name) == model.features
        assert model.features["memory_gbps"] > 0
