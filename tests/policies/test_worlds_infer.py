"""Low-precision inference goes to an NPU where one exists, else to a GPU, else to the CPU."""

from __future__ import annotations

from dataclasses import replace

import pytest

from scheduler.core.model.types import Alternative, Ask, Estimate, Snapshot
from tests.core.worlds import node, stage, think

ANY = (
    Alternative(0, (Ask("npu"), Ask("cpu"))),
    Alternative(1, (Ask("gpu", milli=250), Ask("cpu"))),
    Alternative(2, (Ask("cpu"),)),
)


@pytest.mark.parametrize(
    ("gpus", "npus", "chosen"), [(8, 1, "npu"), (8, 0, "gpu"), (0, 0, "cpu")], ids=["npu", "gpu", "cpu"]
)
def test_the_best_kind_that_is_there(gpus: int, npus: int, chosen: str) -> None:
    machine = node("mixed", gpus, npus=npus)
    rates = {"gpu": {"int8_tops": 1979.0, "bf16_tflops": 989.0}, "npu": {"int8_tops": 640.0}}
    machine = replace(machine, devices=tuple(replace(one, features=rates.get(one.kind, {})) for one in machine.devices))
    asked = stage(1, alternatives=ANY, kind="infer", precision="int8", estimate=Estimate(5, 8, declared=True))
    start = think(Snapshot((machine,), (asked,)), "hybrid").starts[0]
    kinds = {one.device.split("/")[1][:3] for one in start.placement.grants[0]}
    assert (kinds - {"cpu"} or kinds) == {chosen}
