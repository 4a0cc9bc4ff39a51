"""Simulated worlds in which stages take turns: nothing is lost or left over, and orders keep their word."""

from __future__ import annotations

from pathlib import Path

import pytest

from scheduler.core.model.lifecycle import State
from scheduler.profiles import load
from scheduler.sim.cluster import cluster
from scheduler.sim.traces import TraceError, gavel, muri
from scheduler.sim.traces.arrival import Arrival
from scheduler.sim.world import Chance, Lived, SimulatedWorld

AT_ONCE = Chance(stop_s=0.0, saves_on_stop=True)


def live(policies: dict[str, dict[str, object]], arrivals: list[Arrival], nodes: str = "1x4", **more: object) -> Lived:
    chance = more.pop("chance", AT_ONCE)
    profile = load("mine", {"policies": policies, "rotates": more.pop("rotates", "event")})
    world = SimulatedWorld(cluster(nodes), arrivals, profile, chance=chance, **more)  # type: ignore[arg-type]
    lived = world.run()
    assert {entry.state for entry in lived.entries} == {State.COMPLETED}
    for device in world.store.devices.values():
        assert world.store.free[device.id] == [device.capacity_milli, device.memory_bytes]
    return lived


def ends(lived: Lived) -> dict[str, float | None]:
    return {entry.stage.id: entry.ended_at for entry in lived.entries}


LONG, SHORT = Arrival("long", 0, 1000, 4), Arrival("short", 100, 50, 4)


def test_a_stage_that_is_displaced_goes_on_where_it_was() -> None:
    lived = live({"oracle_remaining_time": {}}, [LONG, SHORT])
    assert ends(lived) == {"short": 150, "long": 1050}
    assert sum(entry.preemptions for entry in lived.entries) == 1
    assert sum(entry.lost_device_s for entry in lived.entries) == 0


def test_without_a_checkpoint_the_work_is_lost_and_with_one_only_what_came_after_it() -> None:
    def end(checkpoint_s: float) -> float | None:
        chance = Chance(stop_s=0.0, checkpoint_s=checkpoint_s)
        return ends(live({"oracle_remaining_time": {}}, [LONG, SHORT], chance=chance))["long"]

    assert end(0) == 150 + 1000
    assert end(60) == 150 + 940


def test_a_stop_that_takes_time_frees_the_devices_later() -> None:
    lived = live({"oracle_remaining_time": {}}, [LONG, SHORT], chance=Chance(stop_s=10.0, saves_on_stop=True))
    assert ends(lived)["short"] == 160


def test_without_knowing_lengths_attained_service_helps_the_short_and_nobody_waits_for_ever() -> None:
    lived = live({"attained_service": {"thresholds": (400.0,)}}, [LONG, SHORT, Arrival("other", 200, 1000, 4)])
    assert ends(lived)["short"] == 150


def test_fast_devices_go_to_whom_they_help_most() -> None:
    speeds = {("a", "V100"): 1.0, ("a", "K80"): 0.9, ("b", "V100"): 1.0, ("b", "K80"): 0.1}
    arrivals = [Arrival("first", 0, 900, 1, kind="a"), Arrival("second", 0, 900, 1, kind="b")]
    lived = live({"max_min": {}, "gang": {}}, arrivals, "1x1:V100,1x1:K80", speeds=speeds)
    # Once the fast device is free, the first goes on there: 810 of its 900 s are done by then.
    assert ends(lived) == {"first": pytest.approx(990), "second": pytest.approx(900)}


def test_a_life_is_the_same_again() -> None:
    arrivals = [Arrival(f"s{i}", 30.0 * i, 100.0 * (1 + i * 7 % 5), 1 + i % 4) for i in range(30)]
    for policies in ({"attained_service": {}}, {"foreground": {}}, {"shortest_predicted": {}}, {"balance": {}}):
        assert live(policies, arrivals, "2x4") == live(policies, arrivals, "2x4")


def test_the_traces_of_muri_and_gavel_are_read_or_refused_with_line_and_column(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    head = "job_id,num_gpu,submit_time,iterations,model_name,iteration_time\n"
    path.write_text(head + "0,16,2000,10,bert,500\n1,12,1000,10,vgg16,500\n2,4,500,4,dqn,250\n")
    read = muri.read(path)
    assert [(one.id, one.submit_s, one.duration_s, one.gpus, one.nodes) for one in read] == [
        ("2", 0.5, 1.0, 4, 1),
        ("0", 2.0, 5.0, 8, 2),
    ]
    assert read.left_out == 1
    path.write_text(head + "0,many,0,1,bert,1\n")
    with pytest.raises(TraceError, match='line 2, column "num_gpu"'):
        muri.read(path)
    path.write_text("job_type,scale_factor,v100,p100,k80\nLM,1,2.0,1.5,\nLM,2,4.0,3.0,1.0\n")
    assert gavel.throughputs(path) == {"LM": {"V100": 2.0, "P100": 1.5}}
