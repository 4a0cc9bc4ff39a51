"""Partitions on a host: which are there, who may hold which at once, and how a process is told of its own."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from agents.devices import visible
from agents.devices.partitions import missing
from agents.devices.vendors.ascend import parse_vnpus
from agents.devices.vendors.simulated import SimulatedProbe
from agents.protocol import Desired, Device, DeviceClaim, Division, Inventory, Partition, PartSpec, Phase, Wanted
from agents.resources.turns import Turns
from agents.runtimes import container_devices
from agents.tasks import diff, environment
from tests.agents.test_diff import spec
from tests.agents.test_turns import nothing, part
from tests.agents.tools import CASES, FIXTURES, Bench

LEFT, RIGHT = Partition("3g.40gb", 0, 4, "MIG-left"), Partition("1g.10gb", 4, 1, "MIG-right")


def claim(partition: Partition | None, vendor: str = "nvidia", milli: int = 142, **more: object) -> DeviceClaim:
    return DeviceClaim("GPU-0", "gpu", vendor, "H100", 2, milli, 1, partition=partition, **more)  # type: ignore[arg-type]


def host(division: Division | None) -> Inventory:
    device = Device("GPU-0", "gpu", "nvidia", "H100", 2, 80 << 30, division=division)
    return Inventory("h", "Linux", "x86_64", 8, 1 << 30, "none", "root", devices=[device])


def asking(partition: Partition | None, image: str = "") -> PartSpec:
    return msgspec.structs.replace(spec([claim(partition)]), image=image)


@pytest.mark.parametrize(
    ("division", "asked", "image", "words"),
    [
        (Division("MIG", made=[LEFT, RIGHT]), RIGHT, "", ""),
        (Division("MIG", made=[LEFT]), RIGHT, "", "gpu 2 was divided anew: 1g.10gb at slot 4 (MIG-right) is gone"),
        (None, RIGHT, "", "gpu 2 is not divided any more, so it has no 1g.10gb at slot 4"),
        (Division("MIG", makes=True), Partition("1g.10gb", 4), "", ""),
        (Division("MIG", made=[LEFT]), Partition("1g.10gb", 4), "", "this agent makes none: its operator has to"),
        (Division("vNPU", made=[Partition("vir01", 0, 1, "116")]), Partition("vir01", 0, 1, "116"), "", "an image"),
        (Division("vNPU", made=[Partition("vir01", 0, 1, "116")]), Partition("vir01", 0, 1, "116"), "cann:8", ""),
    ],
)
def test_what_is_not_there_is_a_sentence(division: Division | None, asked: Partition, image: str, words: str) -> None:
    why = missing(asking(asked, image), host(division))
    assert words in why
    assert bool(why) == bool(words)


def test_a_share_needs_no_partition() -> None:
    assert missing(asking(None), None) == ""


def test_who_holds_other_slots_is_in_nobodys_way() -> None:
    def begun(asked: Partition | None, milli: int = 142) -> diff.Order:
        wish = Desired(1, wanted=[Wanted("new", "a", 1, "run", spec=spec([claim(asked, milli=milli)]))])
        held = diff.Known("old", 1, Phase.RUNNING, devices=(claim(LEFT, milli=428),))
        (order,) = diff.diff(wish, diff.AgentState(here={"old": held}))
        return order

    assert isinstance(begun(RIGHT), diff.StartPart)
    assert isinstance(begun(LEFT), diff.Hold)
    assert isinstance(begun(Partition("2g.20gb", 2, 2)), diff.Hold), "it lies within what is held"
    assert isinstance(begun(Partition("1g.10gb", None, 1, "MIG-other")), diff.StartPart)
    assert isinstance(begun(Partition("3g.40gb", None, 1, "MIG-left")), diff.Hold)
    assert isinstance(begun(None, milli=1000), diff.Hold)


def test_partitions_take_no_turns() -> None:
    mine, theirs = part("a", "g0"), part("b", "g0")
    for one, partition in ((mine, LEFT), (theirs, RIGHT)):
        one.intent.devices = [msgspec.structs.replace(each, partition=partition) for each in one.intent.devices]
    assert Turns(["gpu"]).paused([mine, theirs], 0.0, nothing) == set()


def test_a_process_sees_its_instance_and_a_container_too() -> None:
    held = [claim(RIGHT)]
    told = visible.variables(held)
    assert (told["CUDA_VISIBLE_DEVICES"], told["NVIDIA_VISIBLE_DEVICES"]) == ("MIG-right", "MIG-right")
    found = container_devices.nodes_of("nvidia", held)
    assert found is not None
    assert found.cdi == ("nvidia.com/gpu=MIG-right",)


def test_a_stage_is_told_the_kind_of_its_partition(tmp_path: Path) -> None:
    def told(held: Partition | None) -> dict[str, str]:
        wanted = Wanted("p", "a", 1, "run", spec=asking(held))
        return environment.environment(wanted, environment.PartPaths(tmp_path), {}, None, "/")

    assert told(RIGHT)["YARD_DEVICE_PARTITION"] == "1g.10gb"
    assert "YARD_DEVICE_PARTITION" not in told(None)


def test_a_container_sees_its_vnpu_as_a_chip() -> None:
    held = [claim(Partition("vir02_1c", 2, 1, "118"), vendor="huawei")]
    assert visible.variables(held)["ASCEND_VISIBLE_DEVICES"] == "118"
    found = container_devices.nodes_of("huawei", held)
    assert found is not None
    assert found.nodes[0] == "/dev/vdavinci118:/dev/davinci118"


def test_vnpus_are_read_with_their_templates() -> None:
    found = parse_vnpus((FIXTURES / "npu-smi_vnpu.txt").read_text())
    assert found == Division("vNPU", made=[Partition("vir01", 0, 1, "116"), Partition("vir02_1c", 2, 1, "118")])
    assert parse_vnpus((FIXTURES / "npu-smi.txt").read_text()) is None
    assert parse_vnpus("") is None


def test_a_divided_chip_is_told_beside_a_whole_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    case = replace(CASES["npu-smi"], answers={"info": "npu-smi.txt", "info -t info-vnpu -i 6 -c 0": "npu-smi_vnpu.txt"})
    bench = Bench(case, tmp_path)
    monkeypatch.setenv("PATH", f"{bench.bin}:/usr/bin:/bin")
    probe = bench.probe()
    whole, divided = probe.discover()
    assert (whole.division, divided.division is not None) == (None, True)
    probe.sample([])
    assert not probe.news()
    probe.close()


def test_a_simulated_machine_has_cards_that_are_divided_and_cards_that_it_divides() -> None:
    gpus = [device for device in SimulatedProbe("mig-01", "dgx-h100-mig").discover() if device.kind == "gpu"]
    divisions = [device.division for device in gpus]
    assert [division.makes for division in divisions if division] == [False] * 4 + [True] * 4
    uuids = [one.uuid for division in divisions if division for one in division.made]
    assert len(uuids) == len(set(uuids)) == 12
    assert all(uuid.startswith("MIG-") for uuid in uuids)
