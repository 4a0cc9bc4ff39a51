"""Vendors' libraries, asked through stand-ins that are built with the structures of the vendors' headers."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from agents.devices import cards as agent_cards
from agents.devices import visible
from agents.devices.cards import CardProbe
from agents.devices.readers import shared_object
from agents.devices.vendors import ProbedHost, amd, ascend, intel, mthreads
from agents.protocol import DeviceClaim
from agents.supervisor import procfs
from tests.agents.tools import FIXTURES

GIB = 1 << 30
State = Callable[..., None]


@pytest.fixture(scope="session")
def build(compiler: str, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Builds a stand-in as a library of this name; answers its folder."""
    made: dict[str, Path] = {}

    def answer(source: str, name: str, *flags: str) -> Path:
        if name not in made:
            folder = tmp_path_factory.mktemp("library")
            path = Path(__file__).with_name(source)
            command = [compiler, "-shared", "-fPIC", "-Wall", "-Werror", *flags, "-o", folder / name, path]
            subprocess.run(command, check=True)
            made[name] = folder
        return made[name]

    return answer


@pytest.fixture
def host(tmp_path: Path) -> ProbedHost:
    """A host whose PCI bus, and nothing else, is below a folder."""
    return ProbedHost("test", tmp_path / "root")


def put_card(host: ProbedHost, vendor: str, address: str, **files: str) -> None:
    folder = host.root / "sys/bus/pci/devices" / address
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in {"vendor": vendor, **files}.items():
        (folder / name).write_text(f"{content}\n")


def writer(path: Path, variable: str, monkeypatch: pytest.MonkeyPatch) -> State:
    """Writes the state that a stand-in looks at."""
    monkeypatch.setenv(variable, str(path))

    def write(**lines: object) -> None:
        draft = path.with_suffix(".draft")
        facts = {name.lstrip("_").replace("_", "."): value for name, value in lines.items()}
        draft.write_text("".join(f"{name} {value}\n" for name, value in facts.items()))
        draft.rename(path)

    return write


def claim(vendor: str, index: int, uuid: str = "") -> DeviceClaim:
    return DeviceClaim(uuid or f"{vendor}-{index}", "gpu", vendor, "card", index, 1000, 0)


def test_a_library_is_found_where_its_vendor_puts_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LD_LIBRARY_PATH", raising=False)
    assert shared_object.find(("libnobody.so",), ("/opt/nobody/lib",), tmp_path) is None
    (tmp_path / "opt/nobody/lib").mkdir(parents=True)
    (tmp_path / "opt/nobody/lib/libnobody.so").touch()
    found = shared_object.find(("libother.so", "libnobody.so"), ("/opt/nobody/lib",), tmp_path)
    assert found == str(tmp_path / "opt/nobody/lib/libnobody.so")


def test_what_a_library_says_is_bounded() -> None:
    assert shared_object.text(b"A\xff name\x07 of it\0rest") == "A\ufffd name of it"
    assert len(shared_object.text(b"x" * 5000)) == 120
    assert shared_object.finite(float("nan")) is None
    assert shared_object.rate((100, 10), (300, 20)) == 20.0
    assert [shared_object.rate(*pair) for pair in [(None, (1, 1)), ((9, 1), (1, 2)), ((1, 2), (2, 2))]] == [None] * 3


# -- Intel: Level Zero


@pytest.fixture
def tiles(
    build: Callable[..., Path], host: ProbedHost, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[CardProbe, State]]:
    monkeypatch.setenv("LD_LIBRARY_PATH", str(build("levelzero_standin.c", "libze_loader.so.1")))
    monkeypatch.setattr(agent_cards, "WEDGED_PAUSE_S", 0.0)
    put_card(host, "0x8086", "0000:40:00.0", numa_node="1")
    write = writer(tmp_path / "levelzero", "LEVELZERO_STANDIN", monkeypatch)
    write(count=2)
    probe = intel.probe(host)
    yield probe, write
    probe.close()


def test_level_zero_tells_cards_in_full(tiles: tuple[CardProbe, State]) -> None:
    probe, write = tiles
    write(count=2, _0_energy=5_000_000, _0_at=1_000_000, _0_busy=1000, _0_throttle=9)
    first, second = probe.discover()
    assert probe.notes() == []
    assert (first.model, first.index, first.pci, first.numa) == (
        "Intel(R) Data Center GPU Max 1550",
        0,
        "0000:40:00.0",
        1,
    )
    assert (first.memory_bytes, first.health) == (128 * GIB, "OK")
    assert first.attributes == {"driver": "1.6.31294", "tiles": "2", "pcie": "gen5 x16", "pcie_max": "gen5 x16"}
    assert first.uuid != second.uuid
    assert first.uuid.startswith("intel-"), "its own uuid is the same on every host that is built alike"
    write(count=2, _0_energy=255_000_000, _0_at=2_000_000, _0_busy=801_000, _0_heat=61.5, _0_throttle=9)
    busy, silent = probe.sample([])
    assert (busy.power_w, busy.energy_j, busy.utilisation) == (250.0, 255.0, 0.4), (
        "one of two tiles works for 0.8 s of 1"
    )
    assert (busy.temperature_c, busy.clock_hz, busy.throttled) == (61.5, 1.55e9, "power cap, heat")
    assert busy.memory_used_bytes == 8 * GIB
    assert (silent.power_w, silent.energy_j, silent.utilisation) == (None, None, None)


@pytest.mark.parametrize(
    ("state", "health", "code"),
    [
        ({"_0_width": 4}, "DEGRADED", "PCIE_WIDTH"),
        ({"_0_width": -1}, "OK", None),
        ({"_0_health": 2}, "DEGRADED", "MEMORY_HEALTH"),
        ({"_0_health": 4}, "UNHEALTHY", "MEMORY_HEALTH"),
        ({"_0_reset": 1}, "UNHEALTHY", "RESET_NEEDED"),
        ({"_0_lost": 1}, "UNHEALTHY", "LEVEL_ZERO_ERROR"),
    ],
)
def test_what_level_zero_finds_wrong_is_a_condition(
    tiles: tuple[CardProbe, State], state: dict[str, object], health: str, code: str | None
) -> None:
    probe, write = tiles
    probe.discover()
    write(count=2, **state)
    probe.sample([])
    assert probe.news() == (code is not None)
    first, second = probe.discover()
    assert (first.health, first.attributes.get("conditions"), second.health) == (health, code, "OK")


def test_graphics_in_a_cpu_are_left_to_others_without_a_word(tiles: tuple[CardProbe, State]) -> None:
    probe, write = tiles
    write(count=1, _0_integrated=1)
    assert probe.discover() == []
    assert probe.notes() == []


def test_a_level_zero_that_does_not_start_is_a_note(tiles: tuple[CardProbe, State]) -> None:
    probe, write = tiles
    write(count=1, init=1)
    assert probe.discover() == []
    assert probe.notes() == ["Level Zero: its function zesInit answers 0x1"]


def test_a_level_zero_that_hangs_is_given_up(tiles: tuple[CardProbe, State]) -> None:
    probe, write = tiles
    probe.deadline_s = 0.5
    write(hang=600)
    assert probe.discover() == []
    assert "did not answer within 0.5 s" in probe.notes()[0]


def test_a_host_without_intels_cards_starts_nothing(
    tiles: tuple[CardProbe, State], host: ProbedHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    probe, _ = tiles
    put_card(host, "0x10de", "0000:40:00.0")
    assert probe.prompt
    assert probe.discover() == []


def test_cards_with_two_tiles_are_counted_as_the_agent_counts_them() -> None:
    told = visible.variables([claim("intel", 2), claim("intel", 5)])
    assert (told["ZE_AFFINITY_MASK"], told["ZE_FLAT_DEVICE_HIERARCHY"]) == ("2,5", "COMPOSITE")
    assert "ZE_FLAT_DEVICE_HIERARCHY" not in visible.variables([claim("amd", 0)])


# -- AMD: AMD SMI and ROCm SMI

INSTINCT = {"bdf": hex(0x1 << 32 | 0x1 << 28 | 0x25 << 8), "total": 192 * GIB, "used": 5 * GIB, "use": 73, "heat": 62}
INSTINCT |= {"corrected": 4, "energy": 1_000_000}


@pytest.fixture(params=["newer", "elder"])
def instincts(
    request: pytest.FixtureRequest,
    build: Callable[..., Path],
    host: ProbedHost,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[tuple[CardProbe, State]]:
    names = {"newer": "libamd_smi.so.26", "elder": "librocm_smi64.so.7"}
    flags = ["-DELDER"] if request.param == "elder" else []
    monkeypatch.setenv("LD_LIBRARY_PATH", str(build("amdsmi_standin.c", names[request.param], *flags)))
    monkeypatch.setattr(agent_cards, "WEDGED_PAUSE_S", 0.0)
    put_card(host, "0x1002", "0001:25:00.0", unique_id="7d1a00c0ffee", numa_node="1")
    probe = amd.probe(host)
    yield probe, writer(tmp_path / "amdsmi", "AMDSMI_STANDIN", monkeypatch)
    probe.close()


def of(index: int, **facts: object) -> dict[str, object]:
    return {f"_{index}_{name}": value for name, value in facts.items()}


def test_amds_library_tells_cards_in_full(instincts: tuple[CardProbe, State]) -> None:
    probe, write = instincts
    write(count=1, **of(0, **INSTINCT))
    (card,) = probe.discover()
    assert probe.notes() == []
    assert (card.uuid, card.pci, card.numa) == ("GPU-00007d1a00c0ffee", "0001:25:00.0", 1)
    assert card.model in ("AMD Instinct MI300X", "Instinct MI210")
    assert (card.memory_bytes, card.health) == (192 * GIB, "OK")
    assert card.attributes == {"ecc_errors": "corrected 4, uncorrected 0"}
    (sample,) = probe.sample([])
    assert (sample.memory_used_bytes, sample.utilisation, sample.temperature_c) == (5 * GIB, 0.73, 62.0)
    assert sample.energy_j == pytest.approx(15.3)
    assert sample.power_w is None, "its counter stood still"


def test_what_amds_library_does_not_tell_is_none(instincts: tuple[CardProbe, State]) -> None:
    probe, write = instincts
    write(count=1, **of(0, bdf=0x2500, use=0xFFFFFFFF, energy=0xFFFFFFFFFFFFFFFF, heat=100_000_000))
    probe.discover()
    (sample,) = probe.sample([])
    assert (sample.utilisation, sample.energy_j, sample.power_w, sample.temperature_c) == (None, None, None, None)
    assert sample.memory_used_bytes is None


def test_partitions_and_memory_errors_of_amds_cards_are_told(instincts: tuple[CardProbe, State]) -> None:
    probe, write = instincts
    write(count=1, **of(0, **INSTINCT))
    probe.discover()
    write(count=1, **of(0, **INSTINCT, uncorrected=2, partition="SPX"))
    probe.sample([])
    assert probe.news()
    (card,) = probe.discover()
    assert (card.health, card.attributes["conditions"]) == ("DEGRADED", "ECC_UNCORRECTED")
    assert card.attributes["partition"] == "SPX"


def test_an_accelerator_of_amd_with_fewer_lanes_is_told(instincts: tuple[CardProbe, State], host: ProbedHost) -> None:
    probe, write = instincts
    put_card(host, "0x1002", "0001:25:00.0", current_link_width="8", max_link_width="16")
    write(count=1, **of(0, **INSTINCT))
    assert [card.attributes["conditions"] for card in probe.discover()] == ["PCIE_WIDTH"]


def test_partitions_of_one_card_of_amd_are_told_apart(instincts: tuple[CardProbe, State]) -> None:
    probe, write = instincts
    write(count=2, **of(0, **INSTINCT, partition="CPX"), **of(1, **INSTINCT, partition="CPX"))
    first = [(card.uuid, card.index) for card in probe.discover()]
    assert [uuid for uuid, _ in first] == ["part-00007d1a00c0ffee-0", "part-00007d1a00c0ffee-1"]
    assert visible.variables([claim("amd", 1, first[1][0])])["ROCR_VISIBLE_DEVICES"] == "1"
    assert [(card.uuid, card.index) for card in probe.discover()] == first
    assert probe.notes() == []


def test_a_card_that_amds_library_cannot_place_is_ill(instincts: tuple[CardProbe, State]) -> None:
    probe, write = instincts
    write(count=1, **of(0, **INSTINCT))
    probe.discover()
    write(count=1)
    probe.sample([])
    assert [error.code for error in probe.errors()] == ["AMD_SMI_ERROR"]


def test_a_library_of_amd_that_does_not_start_is_a_note_and_sysfs_is_asked(instincts: tuple[CardProbe, State]) -> None:
    probe, write = instincts
    write(init=8)
    assert probe.discover() == []
    assert "_init answers 0x8" in probe.notes()[0]


def test_the_mean_power_of_older_cards_is_told(
    build: Callable[..., Path], host: ProbedHost, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = build("amdsmi_standin.c", "librocm_smi64.so.7", "-DELDER")
    monkeypatch.setenv("LD_LIBRARY_PATH", str(folder))
    put_card(host, "0x1002", "0000:25:00.0")
    writer(tmp_path / "amdsmi", "AMDSMI_STANDIN", monkeypatch)(count=1, **of(0, bdf=0x2500, microwatts=181_000_000))
    probe = amd.probe(host)
    (card,) = probe.discover()
    assert card.uuid.startswith("amd-")
    assert [sample.power_w for sample in probe.sample([])] == [181.0]
    probe.close()


# -- Huawei: DCMI

CHIP = {"logic": 0, "hbm": 32768, "used": 2791, "power": 863, "heat": 37, "use": 41}


@pytest.fixture
def ascends(
    build: Callable[..., Path], host: ProbedHost, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[CardProbe, State]]:
    monkeypatch.setenv("LD_LIBRARY_PATH", str(build("dcmi_standin.c", "libdcmi.so")))
    monkeypatch.setattr(agent_cards, "WEDGED_PAUSE_S", 0.0)
    put_card(host, "0x19e5", "0000:c1:00.0")
    probe = ascend.probe(host)
    write = writer(tmp_path / "dcmi", "DCMI_STANDIN", monkeypatch)
    write(cards=2, **of(1, **CHIP), **of(2, **CHIP | {"logic": 1}))
    yield probe, write
    probe.close()


def test_dcmi_tells_chips_in_full(ascends: tuple[CardProbe, State]) -> None:
    probe, _ = ascends
    first, second = probe.discover()
    assert probe.notes() == []
    assert (first.model, first.index, first.pci, first.memory_bytes) == (
        "Ascend 910B4",
        0,
        "0000:c1:00.0",
        32768 << 20,
    )
    assert first.features["bf16_tflops"] > 0, "the model is known by the name that the library gives"
    assert (second.index, second.pci) == (1, "0000:c2:00.0")
    told = {"npu": "1", "chip": "0", "driver": "24.1.rc2", "ecc_errors": "corrected 3, uncorrected 0"}
    assert first.attributes == told
    sample = probe.sample([])[0]
    assert (sample.memory_used_bytes, sample.utilisation, sample.power_w) == (2791 << 20, 0.41, 86.3)
    assert (sample.temperature_c, sample.clock_hz) == (37.0, 1.8e9)


@pytest.mark.parametrize(
    ("state", "health", "code"),
    [
        ({"health": 1}, "DEGRADED", "NPU_HEALTH"),
        ({"health": 3}, "UNHEALTHY", "NPU_HEALTH"),
        ({"health": 0xFFFFFFFF}, "UNHEALTHY", "NPU_HEALTH"),
        ({"double": 2}, "DEGRADED", "ECC_UNCORRECTED"),
    ],
)
def test_what_dcmi_finds_wrong_is_a_condition(
    ascends: tuple[CardProbe, State], state: dict[str, object], health: str, code: str
) -> None:
    probe, write = ascends
    probe.discover()
    write(cards=2, **of(1, **CHIP, **state), **of(2, **CHIP | {"logic": 1}))
    probe.sample([])
    assert probe.news()
    assert [(d.health, d.attributes.get("conditions")) for d in probe.discover()] == [(health, code), ("OK", None)]


@pytest.mark.parametrize(
    ("memory", "total", "used"),
    [
        ({"hbm": 65536, "used": 1024}, 64 * GIB, GIB),
        ({"hbm": 65536 << 10, "used": 1024 << 10}, 64 * GIB, GIB),
        ({"hbm": 0, "ddr": 21534, "ddruse": 50}, 21534 << 20, 10767 << 20),
    ],
    ids=["in MB", "in KB", "of DDR"],
)
def test_the_memory_of_a_chip_is_told_in_bytes_whatever_its_driver_counts_in(
    ascends: tuple[CardProbe, State], memory: dict[str, object], total: int, used: int
) -> None:
    probe, write = ascends
    write(cards=1, **of(1, **CHIP | memory))
    assert [device.memory_bytes for device in probe.discover()] == [total]
    assert [sample.memory_used_bytes for sample in probe.sample([])] == [used]


def test_a_process_on_a_chip_that_no_stage_started_is_named(ascends: tuple[CardProbe, State]) -> None:
    probe, write = ascends
    quiet = {name: value for name, value in os.environ.items() if name != procfs.MARK}
    command = [sys.executable, "-c", "import sys; sys.stdin.read()"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, env=quiet) as foreign:
        write(cards=1, **of(1, **CHIP, pid=foreign.pid))
        (device,) = probe.discover()
        assert device.attributes["conditions"] == "FOREIGN_PROCESS"
        foreign.stdin.close()  # type: ignore[union-attr]


def test_npu_smi_tells_beside_dcmi_how_near_chips_stand(
    ascends: tuple[CardProbe, State], host: ProbedHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    probe, _ = ascends
    tool = host.root / "usr/local/sbin/npu-smi"
    tool.parent.mkdir(parents=True)
    topology = FIXTURES / "npu-smi_topo.txt"
    tool.write_text(f'#!/bin/sh\n[ "$3" = topo ] && cat {topology} || echo none\n')
    tool.chmod(0o755)
    first, second = probe.discover()
    assert [link.peer for link in first.links] == [second.uuid]


def test_a_dcmi_that_refuses_is_a_note_and_the_tool_is_asked(ascends: tuple[CardProbe, State]) -> None:
    probe, write = ascends
    write(init=-8005)
    assert probe.discover() == []
    assert probe.notes() == ["DCMI: its function dcmi_init answers -8005"]


# -- Moore Threads: MTML

MTT = {"sbdf": "00000000:41:00.0", "uuid": "f0D1a2b3-0000-4c5d-8e9f-001122334455", "power": 265_400, "use": 88}
MTT |= {"heat": 63, "total": 48 * GIB, "used": GIB}


@pytest.fixture
def mtts(
    build: Callable[..., Path], host: ProbedHost, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[CardProbe, State]]:
    monkeypatch.setenv("LD_LIBRARY_PATH", str(build("mtml_standin.c", "libmtml.so")))
    monkeypatch.setattr(agent_cards, "WEDGED_PAUSE_S", 0.0)
    put_card(host, "0x1ed5", "0000:41:00.0", current_link_width="16", max_link_width="16")
    probe = mthreads.probe(host)
    yield probe, writer(tmp_path / "mtml", "MTML_STANDIN", monkeypatch)
    probe.close()


def test_mtml_tells_uuid_and_watts(mtts: tuple[CardProbe, State], host: ProbedHost) -> None:
    probe, write = mtts
    write(count=1, **of(0, **MTT))
    (card,) = probe.discover()
    assert probe.notes() == []
    assert (card.uuid, card.model, card.pci) == (
        "MTT-f0d1a2b3-0000-4c5d-8e9f-001122334455",
        "MTT S4000",
        "0000:41:00.0",
    )
    assert (card.memory_bytes, card.attributes, card.health) == (48 * GIB, {"driver": "3.1.0"}, "OK")
    (sample,) = probe.sample([])
    assert (sample.power_w, sample.utilisation, sample.temperature_c) == (265.4, 0.88, 63.0)
    assert (sample.memory_used_bytes, sample.clock_hz) == (GIB, 1.75e9)
    put_card(host, "0x1ed5", "0000:41:00.0", current_link_width="4")
    assert [card.attributes["conditions"] for card in probe.discover()] == ["PCIE_WIDTH"]


def test_a_card_keeps_its_uuid_while_only_the_tool_answers(mtts: tuple[CardProbe, State], host: ProbedHost) -> None:
    probe, write = mtts
    write(count=1, **of(0, **MTT))
    (before,) = probe.discover()
    tool = host.root / "usr/bin/mthreads-gmi"
    tool.parent.mkdir(parents=True)
    tool.write_text(f"#!/bin/sh\ncat {FIXTURES / 'mthreads-gmi.txt'}\n")
    tool.chmod(0o755)
    probe.sources[0].close()
    write(init=1)
    first, second = probe.discover()
    assert first.uuid == before.uuid
    assert second.uuid.startswith("mthreads-")
    assert probe.notes() == ["MTML: its function mtmlLibraryInit answers 0x1"]


def test_a_card_that_mtml_cannot_name_is_ill(mtts: tuple[CardProbe, State]) -> None:
    probe, write = mtts
    write(count=1, **of(0, **MTT))
    probe.discover()
    write(count=1, **of(0, sbdf=MTT["sbdf"]))
    probe.sample([])
    assert [error.code for error in probe.errors()] == ["MTML_ERROR"]


# -- Google: a part of a host's chips


@pytest.mark.parametrize(
    ("claimed", "of_host", "box"), [(1, 4, "1,1,1"), (2, 4, "1,2,1"), (4, 8, "2,2,1"), (3, 4, None), (4, 4, None)]
)
def test_a_part_of_a_hosts_tpu_chips_is_told_as_a_box(
    claimed: int, of_host: int, box: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(visible._counts, "google", of_host)
    told = visible.variables([claim("google", index) for index in range(claimed)])
    assert told["TPU_VISIBLE_CHIPS"] == ",".join(map(str, range(claimed)))
    assert told.get("TPU_CHIPS_PER_PROCESS_BOUNDS") == box
    assert told.get("TPU_PROCESS_BOUNDS") == ("1,1,1" if box else None)
