"""The openb trace: what is read, what is refused, and a world of it that is placed as the protocol says."""

from __future__ import annotations

import pytest

from bench.engine import openb as bench
from scheduler.core.model.profile import Profile
from scheduler.policies import build
from scheduler.sim.traces import TraceError, openb

NODES = ["sn,cpu_milli,memory_mib,gpu,model\n", "n1,32000,65536,2,T4\n", "n2,64000,65536,2,P100\n"]
PODS = "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos\n"


def test_nodes_and_pods_are_read_with_their_models() -> None:
    first, second = openb.nodes(NODES)
    assert [(one.kind, one.model, one.capacity_milli) for one in first.devices] == [
        ("cpu", "", 32_000),
        ("gpu", "T4", 1000),
        ("gpu", "T4", 1000),
    ]
    assert second.devices[0].memory_bytes == 64 * 2**30
    share, cpu, picky = openb.pods(
        [PODS, "a,4000,1024,1,470,,LS\n", "b,8000,1024,0,0,,LS\n", "c,1,0,2,1000,T4|P100,BE\n"]
    )
    assert (share.gpu_total_milli, cpu.gpu_total_milli, picky.gpu_total_milli) == (470, 0, 2000)
    assert [ask.kind for ask in cpu.alternatives()[0].asks] == ["cpu"]
    assert [way.asks[0].model for way in picky.alternatives()] == ["T4", "P100"]


@pytest.mark.parametrize(
    ("row", "column", "problem"),
    [
        ("a,4000,1024,1,0,,LS", "gpu_milli", "must be from 1 to 1000"),
        ("a,4000,1024,2,500,,LS", "gpu_milli", "must be 1000 where num_gpu is above 1"),
        ("a,0,1024,1,500,,LS", "cpu_milli", "at least 1"),
        ("a,4000,1024,1,1500,,LS", "gpu_milli", "at most 1,000"),
    ],
)
def test_a_wrong_pod_is_named_by_line_and_column(row: str, column: str, problem: str) -> None:
    with pytest.raises(TraceError) as found:
        openb.pods([PODS, row + "\n"])
    assert (found.value.line, found.value.column) == (2, column)
    assert problem in str(found.value)


def test_pods_arrive_until_the_demand_is_there_and_each_is_placed_or_not() -> None:
    machines = openb.nodes(NODES)
    pods = openb.pods([PODS, "a,4000,1024,1,1000,,LS\n", "b,4000,1024,1,500,,LS\n", "c,8000,1024,0,0,,LS\n"])
    world = bench.arrange(machines, pods, seed=42)
    asked = sum(stage.alternatives[0].asks[0].milli for stage in world.waiting if len(stage.alternatives[0].asks) == 2)
    assert 4.2 * 1000 <= asked <= 1.3 * 4 * 1000, "of 4 GPUs, short of 130 % by less than the largest pod"
    assert bench.arrange(machines, pods, seed=42) == world != bench.arrange(machines, pods, seed=43)
    assert sum(one.share for one in bench.usual(pods)) == pytest.approx(1.0)
    for name in ("random", "best_fit", "fragmentation", "leftover"):
        course = bench.place(world, Profile(name, ((build(name, {}), 1.0),)))
        assert 75.0 <= course.percent[-1] <= 100.0, "at most one half of each GPU is left, and cores suffice"
        assert list(course.percent) == sorted(course.percent), "nobody leaves"
