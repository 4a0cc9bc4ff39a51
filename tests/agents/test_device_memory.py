"""The most memory that a part held of its devices: only what can be told to be its own."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from agents.devices.memory import DeviceMemory
from agents.protocol import DeviceClaim, DeviceSample, Exit, Partition, Timers
from agents.telemetry.host import HostView
from agents.telemetry.sampling import Meter
from tests.agents.test_host import Stub

GIB = 2**30


def claim(uuid: str, kind: str = "gpu", **more: Any) -> DeviceClaim:
    return DeviceClaim(uuid, kind, "nvidia", "H100", 0, 1000, 0, **more)


def used(uuid: str, gib: float | None, age_s: float = 0.0) -> DeviceSample:
    return DeviceSample(uuid, age_s, memory_used_bytes=None if gib is None else int(gib * GIB))


def noted(tmp_path: Path, parts: dict[str, list[DeviceClaim]], *seconds: list[DeviceSample], foreign: str = "") -> Any:
    memory = DeviceMemory()
    told = {name: (str(tmp_path / name), claims) for name, claims in parts.items()}
    for name in parts:
        (tmp_path / name).mkdir(exist_ok=True)
    for at, samples in enumerate(seconds, 100):
        memory.note(samples, {foreign}, told, float(at))
    return {name: memory.peaks(name) for name in parts}


def test_the_most_of_one_device_of_each_kind_counts(tmp_path: Path) -> None:
    parts = {"p": [claim("a"), claim("b"), claim("n", "npu"), claim("c", "cpu")]}
    first = [used("a", 10), used("b", 31), used("n", 4), used("c", 60)]
    second = [used("a", 12), used("b", 20), used("n", None), used("x", 79)]
    assert noted(tmp_path, parts, first, second) == {"p": {"gpu": 31 * GIB, "npu": 4 * GIB}}


@pytest.mark.parametrize(
    "more",
    [
        {"parts": {"p": [claim("a")], "q": [claim("a")]}},
        {"parts": {"p": [claim("a", partition=Partition("1g.10gb", 0, 1))]}},
        {"parts": {"p": [claim("a", simulated=True)]}},
        {"parts": {"p": [claim("a")]}, "foreign": "a"},
    ],
    ids=["others hold it", "a partition", "simulated", "a foreign process"],
)
def test_what_may_be_of_others_is_left_out(tmp_path: Path, more: dict[str, Any]) -> None:
    found = noted(tmp_path, more["parts"], [used("a", 31)], foreign=more.get("foreign", ""))
    assert all(peaks == {} for peaks in found.values())


def test_what_was_measured_before_it_began_is_of_somebody_else(tmp_path: Path) -> None:
    assert noted(tmp_path, {"p": [claim("a")]}, [used("a", 70, age_s=3.0)], [used("a", 31)]) == {"p": {"gpu": 31 * GIB}}


def test_it_goes_on_after_the_agent_began_again_and_forgets_who_is_gone(tmp_path: Path) -> None:
    noted(tmp_path, {"p": [claim("a")]}, [used("a", 31)], [used("a", 30)])
    assert noted(tmp_path, {"p": [claim("a")]}, [used("a", 5)]) == {"p": {"gpu": 31 * GIB}}
    memory = DeviceMemory()
    memory.note([used("a", 5)], (), {"p": (str(tmp_path / "q"), [claim("a")])}, 1.0)
    assert memory.peaks("p") == {"gpu": 5 * GIB}, "a folder that cannot be written is no fault"
    memory.forget([])
    assert memory.peaks("p") == {}


async def test_the_end_of_a_part_tells_it(tmp_path: Path) -> None:
    probe = Stub("card")
    view = HostView("node", {"stub": probe}, "none", "self", "127.0.0.1")
    held = SimpleNamespace(intent=SimpleNamespace(part="p", folder=str(tmp_path), devices=[claim("card")]), pid=None)
    node: Any = SimpleNamespace(live=[held], parts={"p": held}, timers=Timers(), changed=asyncio.Event())
    nobody: Any = None
    view.look(5.0)
    meter = Meter(node, view, SimpleNamespace(inventory_changed=lambda: None), nobody)  # type: ignore[arg-type]
    told = iter((31, 12))
    probe.sample = lambda *_args, **_more: [used("card", next(told))]  # type: ignore[method-assign]
    for _ in range(2):
        await meter._sample()
    assert node.measured("p", Exit(code=0)).device_peak_bytes == {"gpu": 31 * GIB}
    assert node.measured("q", Exit(code=0)).device_peak_bytes == {}
    view.close()
