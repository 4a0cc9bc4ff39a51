"""One suite for every probe that reads a vendor's tool: facts in the house's units, patience with broken answers."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agents.devices import cards, vendors, visible
from agents.devices.card import GIB, number, pci_address, ratio, scaled
from agents.devices.cards import BROKEN_INPUT, CardProbe
from agents.devices.readers import kfd, tool
from agents.devices.readers.library import ReaderSilent
from agents.devices.readers.smi import ToolSource
from agents.devices.readers.tool import Tool
from agents.devices.vendors import ProbedHost, ascend
from agents.protocol import DeviceClaim, Link
from agents.supervisor import procfs
from tests.agents.tools import CASES, FIXTURES, Bench
from tests.examples_count import examples

CAP_BYTES = 1 << 16
BROKEN = {
    "empty": "exit 0",
    "garbage": "head -c 3000 /dev/urandom; echo",
    "failing": "echo 'Segmentation fault' >&2; exit 139",
    "talking of something else": "echo 'No devices were found'; exit 1",
    "endless": f"head -c {CAP_BYTES + 4096} /dev/zero | tr '\\0' '|'",
    "hanging": "exec sleep 600",
}


@pytest.fixture(autouse=True)
def _only_these_tools(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    monkeypatch.setattr(cards, "WEDGED_PAUSE_S", 0.0)
    monkeypatch.setattr(tool, "CAP_BYTES", CAP_BYTES)


@pytest.fixture(params=CASES)
def bench(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    made = Bench(CASES[request.param], tmp_path)
    monkeypatch.setenv("PATH", f"{made.bin}:/usr/bin:/bin")
    return made


@pytest.fixture
def probe(bench: Bench) -> Iterator[CardProbe]:
    made = bench.probe()
    made.deadline_s = 5.0
    yield made
    made.close()


def test_every_fact_arrives_in_the_units_of_the_house_and_what_is_missing_is_none(
    bench: Bench, probe: CardProbe
) -> None:
    case = bench.case
    first, second = probe.discover()
    assert probe.notes() == [] or "hy-smi" in case.tool or case.answers.keys() == {""}
    for device, health, place in zip((first, second), case.healths, (0, 1), strict=True):
        assert (device.model, device.memory_bytes, device.index) == (case.model, case.memory_bytes, place)
        assert device.capacity_milli == 1000
        assert device.health == health, device.health_reason
        assert bool(device.health_reason) == (health != "OK")
        assert device.pci == (case.pci[place] if case.pci else None)
        assert case.uuids is None or device.uuid == case.uuids[place]
    told = [(s.utilisation, s.memory_used_bytes, s.power_w, s.temperature_c) for s in probe.sample([])]
    assert told == [case.first, case.second]
    assert probe.errors() == []


def test_two_looks_and_two_agents_of_one_name_tell_the_same(bench: Bench, probe: CardProbe) -> None:
    found = probe.discover()
    assert found == probe.discover()
    again = bench.probe()
    assert again.discover() == found
    assert len({device.uuid for device in found}) == 2


def test_a_calm_sample_is_no_news(probe: CardProbe) -> None:
    probe.discover()
    for _ in range(2):
        probe.sample([])
        assert not probe.news()


@pytest.mark.parametrize("how", BROKEN)
def test_a_broken_tool_is_a_sentence_and_its_devices_stay_and_recover(bench: Bench, probe: CardProbe, how: str) -> None:
    healthy = probe.discover()
    probe.deadline_s = 0.1 if how == "hanging" else 5.0
    bench.behave(BROKEN[how])
    assert probe.sample([]) == []
    assert probe.news()
    broken = probe.discover()
    assert [device.uuid for device in broken] == [device.uuid for device in healthy]
    assert all(device.health in ("DEGRADED", "UNHEALTHY") and device.health_reason for device in broken)
    assert all(note.count(" ") > 2 for note in probe.notes())
    assert probe.notes()
    probe.deadline_s = 5.0
    bench.tell(bench.texts)
    assert [device.health for device in probe.discover()] == list(bench.case.healths)


@pytest.mark.parametrize("how", BROKEN)
def test_a_tool_that_never_worked_is_a_sentence_and_no_device(bench: Bench, probe: CardProbe, how: str) -> None:
    probe.deadline_s = 0.1 if how == "hanging" else 5.0
    bench.behave(BROKEN[how])
    assert probe.discover() == []
    assert probe.sample([]) == []
    assert probe.notes()


@pytest.mark.parametrize("share", [0.2, 0.5, 0.8, 0.97])
def test_half_an_answer_loses_no_device(bench: Bench, probe: CardProbe, share: float) -> None:
    probe.discover()
    bench.tell({pattern: text[: int(len(text) * share)].rstrip("\n") for pattern, text in bench.texts.items()})
    assert [device.health for device in probe.discover()].count("LOST") == 0
    probe.sample([])
    assert probe.errors() == []


def test_a_device_that_vanishes_between_two_looks_is_lost_and_the_other_goes_on(bench: Bench, probe: CardProbe) -> None:
    first, second = probe.discover()
    less = {pattern: re.sub(bench.case.cut, "", text, flags=re.DOTALL) for pattern, text in bench.texts.items()}
    assert less != bench.texts
    bench.tell(less)
    assert [sample.uuid for sample in probe.sample([])] == [first.uuid]
    (error,) = probe.errors()
    assert (error.uuid, error.code) == (second.uuid, "DEVICE_LOST")
    assert probe.news()
    assert [(d.uuid, d.health) for d in probe.discover()] == [(first.uuid, "OK"), (second.uuid, "LOST")]
    probe.sample([])
    probe.sample([])
    assert not probe.news()
    bench.tell(bench.texts)
    probe.sample([])
    assert probe.news()
    assert [device.health for device in probe.discover()] == list(bench.case.healths)


@pytest.mark.parametrize("bench", ["xpu-smi of Intel"], indirect=True)
def test_hosts_that_are_built_alike_have_no_device_in_common(bench: Bench, probe: CardProbe) -> None:
    """What the tool calls a uuid is made of the model and its place on the bus."""
    found = probe.discover()
    assert found
    assert all(probe.host.machine in device.uuid for device in found)


# A command of the administrator's that tells one uuid twice is refused as a whole: see test_probes_command.
@pytest.mark.parametrize("bench", [n for n, case in CASES.items() if case.uuids and n != "command"], indirect=True)
def test_two_cards_with_one_uuid_are_told_apart(bench: Bench, probe: CardProbe) -> None:
    assert bench.case.uuids is not None
    one, other = bench.case.uuids
    bench.tell({pattern: text.replace(other, one) for pattern, text in bench.texts.items()})
    found = probe.discover()
    assert len({device.uuid for device in found}) == 2
    assert one not in {device.uuid for device in found}
    assert probe.discover() == found
    assert any("same uuid" in note for note in probe.notes())
    assert {sample.uuid for sample in probe.sample([])} == {device.uuid for device in found}


@pytest.mark.parametrize("bench", [name for name in CASES if name != "command"], indirect=True)
def test_a_host_without_the_tool_has_neither_devices_nor_complaints(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    made = bench.probe()
    assert (made.discover(), made.sample([]), made.notes(), made.errors()) == ([], [], [], [])


@pytest.mark.parametrize("name", CASES)
@settings(
    max_examples=examples(60),
    deadline=None,
    suppress_health_check=[HealthCheck.differing_executors, HealthCheck.too_slow],
)
@given(
    cut=st.tuples(st.floats(0, 1), st.floats(0, 0.3)),
    put=st.text(st.characters(codec="utf-8"), max_size=12),
    upper=st.booleans(),
)
def test_no_text_breaks_a_parser_in_a_way_that_the_probe_does_not_expect(
    name: str, cut: tuple[float, float], put: str, upper: bool
) -> None:
    case = CASES[name]
    texts = [(FIXTURES / file).read_text() for file in case.answers.values()]

    def spoil(text: str) -> str:
        at, span = int(cut[0] * len(text)), int(cut[1] * len(text))
        spoiled = text[:at] + put + text[at + span :]
        return spoiled.upper() if upper else spoiled

    for source in case.make(ProbedHost("test")).sources:
        if isinstance(source, ToolSource) and source.tool.name == case.tool:
            try:
                found = source.read_look([spoil(text) for text in texts])
            except BROKEN_INPUT:
                continue
            for card in found:
                assert card.utilisation is None or 0 <= card.utilisation <= 1
                assert card.memory_bytes is None or card.memory_bytes >= 0


# -- what all share


def test_every_vendor_declares_how_its_runtime_is_told_of_devices() -> None:
    declared = visible.declared()
    made = {
        probe.maker.vendor for probe in vendors.discover(ProbedHost("test")).values() if isinstance(probe, CardProbe)
    }
    assert made <= declared.keys()
    for vendor, each in declared.items():
        claims = [DeviceClaim(f"{vendor}-{at}", "gpu", vendor, "m", at, 1000, 0) for at in (1, 3)]
        shown = visible.variables(claims)
        for name in each.names:
            assert shown[name] == ",".join(each.word(name, claim) for claim in claims)


def test_a_gaudi_is_named_by_its_module_where_the_runtime_wants_that(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Bench(CASES["hl-smi query"], tmp_path)
    monkeypatch.setenv("PATH", f"{bench.bin}:/usr/bin:/bin")
    first = bench.probe().discover()[0]
    claim = DeviceClaim(first.uuid, first.kind, first.vendor, first.model, first.index, 1000, 0)
    shown = visible.variables([claim])
    assert (shown["HABANA_VISIBLE_DEVICES"], shown["HABANA_VISIBLE_MODULES"]) == ("0", "3")


def test_amd_devices_with_and_without_a_uuid_stand_in_one_list() -> None:
    claims = [
        DeviceClaim("GPU-00aa11bb22cc33dd", "gpu", "amd", "m", 0, 1000, 0),
        DeviceClaim("amd-1", "gpu", "amd", "m", 1, 1000, 0),
    ]
    shown = visible.variables(claims)
    assert shown["ROCR_VISIBLE_DEVICES"] == "GPU-00aa11bb22cc33dd,1"
    # HIP counts within those; told nothing, it would read CUDA's variable, which hides all.
    assert (shown["HIP_VISIBLE_DEVICES"], shown["CUDA_VISIBLE_DEVICES"]) == ("0,1", "")


@pytest.mark.parametrize(
    ("vendor", "own", "foreign"),
    [
        ("hygon", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"),
        ("kunlunxin", "XPU_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"),
        ("metax", "MACA_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"),
        ("biren", "SUPA_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"),
    ],
)
def test_a_runtime_that_reads_another_vendors_variable_is_not_blinded_by_it(
    vendor: str, own: str, foreign: str
) -> None:
    shown = visible.variables([DeviceClaim(f"{vendor}-2", "gpu", vendor, "m", 2, 1000, 0)])
    assert (shown[own], foreign in shown) == ("2", False)
    assert foreign in visible.variables([])


def test_a_second_source_takes_over_where_the_first_is_broken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(CASES["rocm-smi"], tmp_path)
    monkeypatch.setenv("PATH", f"{bench.bin}:/usr/bin:/bin")
    broken = bench.bin / "amd-smi"
    broken.write_text("#!/bin/sh\necho nonsense\n")
    broken.chmod(0o755)
    made = bench.probe()
    assert [device.health for device in made.discover()] == ["OK", "OK"]
    assert made.notes() == ["amd-smi cannot be read: its answer holds no JSON"]
    assert len(made.sample([])) == 2


def test_the_kernel_tells_of_amd_cards_where_no_tool_is(tmp_path: Path) -> None:
    for at, busy in ((0, "37"), (1, "")):
        device = tmp_path / f"sys/class/drm/card{at}/device"
        (device / "hwmon/hwmon3").mkdir(parents=True)
        for name, text in {
            "mem_info_vram_total": str(64 * GIB), "mem_info_vram_used": str(GIB), "gpu_busy_percent": busy,
            "unique_id": f"a{at}", "numa_node": "1", "product_name": "AMD Instinct MI210",
            "hwmon/hwmon3/power1_average": "90000000", "hwmon/hwmon3/temp1_input": "44000",
        }.items():  # fmt: skip
            (device / name).write_text(f"{text}\n")
    (tmp_path / "sys/class/drm/card0-DP-1").mkdir()
    made = CASES["rocm-smi"].make(ProbedHost("test", tmp_path))
    first, second = made.discover()
    assert (first.uuid, first.numa, first.memory_bytes) == ("GPU-00000000000000a0", 1, 64 * GIB)
    busy_card, other = made.sample([])
    assert (busy_card.utilisation, busy_card.power_w, busy_card.temperature_c) == (0.37, 90.0, 44.0)
    assert (other.uuid, other.utilisation) == (second.uuid, None)


def test_the_kernel_tells_which_amd_cards_xgmi_joins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = {
        "0": ({"simd_count": 0, "cpu_cores_count": 64}, {"0": (2, 1), "1": (2, 2)}),
        "1": ({"simd_count": 416, "location_id": 0x4300, "domain": 0}, {"0": (2, 0), "1": (11, 2)}),
        "2": ({"simd_count": 416, "location_id": 0x6300, "domain": 0}, {"0": (2, 0), "1": (11, 1), "2": (11, 99)}),
    }
    for name, (properties, links) in nodes.items():
        folder = tmp_path / "root/sys/class/kfd/kfd/topology/nodes" / name
        folder.mkdir(parents=True)
        (folder / "properties").write_text("".join(f"{key} {value}\n" for key, value in properties.items()))
        for at, (sort, to) in links.items():
            (folder / "io_links" / at).mkdir(parents=True)
            text = f"type {sort}\nnode_from {name}\nnode_to {to}\nmax_bandwidth 100000\nbroken\n"
            (folder / "io_links" / at / "properties").write_text(text)
    bench = Bench(CASES["rocm-smi"], tmp_path)
    monkeypatch.setenv("PATH", f"{bench.bin}:/usr/bin:/bin")
    first, second = bench.probe().discover()
    assert first.links == [Link(second.uuid, "XGMI", 100.0)]
    assert second.links == [Link(first.uuid, "XGMI", 100.0)]
    assert kfd.links(ProbedHost("test", tmp_path / "nothing")) == {}


HCCS = """\
\t   NPU0       NPU1       NPU2       CPU Affinity
NPU0       X          HCCS       PHB        0-23
NPU1       HCCS       X          NA         0-23
NPU2       PHB        NA         X          24-47

Legend:
  HCCS = Connection traversing HCCS.
"""


def test_ascend_chips_tell_how_near_they_stand() -> None:
    assert ascend.parse_topology(HCCS) == [
        (Link("#1", "HCCS"), Link("#2", "PHB")),
        (Link("#0", "HCCS"),),
        (Link("#0", "PHB"),),
    ]
    assert ascend.parse_topology(HCCS.replace("X          NA ", "X ")) == [], "a row of it is cut"
    assert ascend.parse_topology("") == ascend.parse_topology("command not supported") == []


def test_links_of_ascend_chips_name_their_devices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(
        replace(CASES["npu-smi"], answers={"info": "npu-smi.txt", "info -t topo": "npu-smi_topo.txt"}), tmp_path
    )
    monkeypatch.setenv("PATH", f"{bench.bin}:/usr/bin:/bin")
    first, second = bench.probe().discover()
    assert (first.links, second.links) == ([Link(second.uuid, "HCCS")], [Link(first.uuid, "HCCS")])


def test_the_kernel_tells_of_intel_cards_with_memory_of_their_own(tmp_path: Path) -> None:
    for at, memory in ((0, None), (1, 16 * GIB)):
        card = tmp_path / f"sys/class/drm/card{at}"
        (card / "device").mkdir(parents=True)
        (card / "device/vendor").write_text("0x8086\n")
        (card / "device/device").write_text("0x56a0\n")
        if memory:
            (card / "lmem_total_bytes").write_text(str(memory))
            (card / "lmem_avail_bytes").write_text(str(memory - GIB))
    made = CASES["xpu-smi of Intel"].make(ProbedHost("test", tmp_path))
    (device,) = made.discover()
    assert (device.model, device.memory_bytes) == ("Intel GPU 0x56a0", 16 * GIB)
    assert made.sample([])[0].memory_used_bytes == GIB


def test_tpu_chips_are_found_by_their_files_only_where_google_is_on_the_bus(tmp_path: Path) -> None:
    (tmp_path / "dev/vfio").mkdir(parents=True)
    for name in ("0", "1", "vfio"):
        (tmp_path / "dev/vfio" / name).touch()
    assert CASES["tpu-info"].make(ProbedHost("test", tmp_path)).discover() == []
    device = tmp_path / "sys/bus/pci/devices/0000:00:05.0"
    device.mkdir(parents=True)
    (device / "vendor").write_text("0x1ae0\n")
    found = CASES["tpu-info"].make(ProbedHost("test", tmp_path)).discover()
    assert [each.attributes["device"] for each in found] == ["/dev/vfio/0", "/dev/vfio/1"]


def test_a_tool_and_all_that_it_started_end_at_the_deadline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = tmp_path / "slow"
    child = tmp_path / "child"
    script.write_text(f"#!/bin/sh\nsleep 600 & echo $! > {child}; wait\n")
    script.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    with pytest.raises(ReaderSilent, match=r"`slow` did not answer within 2 s"):
        Tool("slow").ask((), 2.0)  # long enough for the shell to have begun, on however busy a machine
    pid = int(child.read_text())
    deadline = time.monotonic() + 60
    while procfs.start_time(pid) is not None:  # it was told to die, which takes its moment too
        assert time.monotonic() < deadline, f"pid {pid} is still there"
        time.sleep(0.01)


@pytest.mark.parametrize("text", ["N/A", "", "-", None, "nan", "[N/A]", float("nan"), float("inf"), True])
def test_what_is_not_told_is_none(text: object) -> None:
    assert (number(text), ratio(text), scaled(text, 1)) == (None, None, None)


def test_impossible_values_are_unknown_and_rounding_is_forgiven() -> None:
    assert ratio(101) == 1.0
    assert ratio(350) is None
    assert ratio(-1) is None
    assert scaled(-5, 1) is None
    assert scaled(10**18, 1) is None
    assert pci_address("00000000:3B:00.0") == "0000:3b:00.0"
    assert pci_address("N/A") is None
