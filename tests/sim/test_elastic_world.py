"""Elastic stages in a simulated world: they fill what is idle, make room for others, and lose little by it."""

from __future__ import annotations

import pytest

from scheduler.core.model.lifecycle import State
from scheduler.core.model.types import SCALING, Running
from scheduler.core.resources.elastic import faster
from scheduler.profiles import named
from scheduler.sim.cluster import cluster
from scheduler.sim.metrics import measure
from scheduler.sim.traces import Arrival, TraceError
from scheduler.sim.traces.generic import read
from scheduler.sim.world import Chance, Lived, SimulatedWorld

SAVES = Chance(stop_s=5.0, saves_on_stop=True)


def live(*arrivals: Arrival, profile: str = "hybrid", nodes: str = "2x1", chance: Chance = SAVES) -> tuple[Lived, list]:
    """The world, and of each attempt that ended: whose, when, on how many nodes, and whether its work was done."""
    world, ends = SimulatedWorld(cluster(nodes), arrivals, named(profile), chance=chance), []

    def witness(one: Running, now: float, *, done: bool) -> None:
        ends.append((one.id, now, len(one.placement.nodes), done))

    world.witness = witness
    return world.run(), ends


def test_alone_it_runs_on_all_it_may_have() -> None:
    lived, ends = live(Arrival("e", 0.0, 1000.0, 1, most_nodes=2))
    assert ends == [("e", 1000.0 / faster(1, 2), 2, True)]
    assert [entry.state for entry in lived.entries] == [State.COMPLETED]


def test_it_gives_back_for_a_newcomer_and_grows_again_when_that_is_done() -> None:
    lived, ends = live(Arrival("e", 0.0, 5000.0, 1, most_nodes=2), Arrival("r", 300.0, 500.0, 1))
    assert [(name, size, done) for name, _, size, done in ends] == [
        ("e", 2, False),
        ("r", 1, True),
        ("e", 1, False),
        ("e", 2, True),
    ]
    assert {entry.stage.id: entry.preemptions for entry in lived.entries} == {"e": 0, "r": 0}
    assert {entry.stage.id: entry.lost_device_s for entry in lived.entries} == {"e": 0.0, "r": 0.0}
    started = {entry.stage.id: entry.started_at for entry in lived.entries}
    assert started["r"] == 305.0, "when the elastic stage has stopped"


def test_where_newcomers_keep_coming_nothing_flaps() -> None:
    """Without patience it would stop twice for each of them."""
    guests = [Arrival(f"g{i:02}", 300.0 + 150.0 * i, 20.0, 1) for i in range(20)]
    _, ends = live(Arrival("e", 0.0, 8_000.0, 1, most_nodes=2), *guests)
    assert [name for name, _, _, done in ends if done and name != "e"] == [one.id for one in guests]
    assert sum(name == "e" for name, *_ in ends) <= 2 * 6


def test_a_lost_node_leaves_it_on_one_and_it_grows_back() -> None:
    world = SimulatedWorld(
        cluster("2x1"), [Arrival("e", 0.0, 20_000.0, 1, most_nodes=2)], named("hybrid"), chance=SAVES
    )
    sizes: list[tuple[float, int]] = []
    world.witness = lambda one, now, done: sizes.append((now, len(one.placement.nodes)))
    world.at(500.0, lambda: world.lose(sorted(world.store.nodes)[1]))
    world.run()
    assert [size for _, size in sizes] == [2, 1, 2]
    assert sizes[1][0] >= 500.0 + world.chance.repair_s


def test_the_classical_profiles_resize_nobody_who_runs() -> None:
    for profile in ("fifo", "static", "easy"):
        _, ends = live(Arrival("e", 0.0, 5000.0, 1, most_nodes=2), Arrival("r", 300.0, 500.0, 1), profile=profile)
        assert [name for name, *_ in ends] == ["e", "r"]


def test_elastic_stages_use_more_and_nobody_is_preempted_for_it() -> None:
    def arrivals(most: int) -> list[Arrival]:
        return [
            Arrival(f"s{i:02}", 200.0 * i, 900.0 + 100 * (i % 5), 2, nodes=1, most_nodes=most if i % 2 else 0)
            for i in range(24)
        ]

    rigid, elastic = (
        measure(SimulatedWorld(cluster("4x2"), arrivals(m), named("hybrid"), chance=SAVES).run()) for m in (0, 4)
    )
    assert elastic.jct_avg_s < rigid.jct_avg_s
    assert elastic.preemptions == 0


def test_a_trace_may_name_a_range() -> None:
    found = read(["submit_s,duration_s,gpus,nodes,most_nodes,scaling", "0,100,1,1,4,0.5", "0,100,1,2,,"])
    assert [(one.nodes, one.most_nodes, one.scaling) for one in found] == [(1, 4, 0.5), (2, 0, SCALING)]
    with pytest.raises(TraceError, match="must be 0 or at least nodes, 2"):
        read(["submit_s,duration_s,gpus,nodes,most_nodes", "0,100,1,2,1"])


def test_it_scales_as_its_trace_says() -> None:
    _, ends = live(Arrival("e", 0.0, 1000.0, 1, most_nodes=2, scaling=0.5))
    assert ends == [("e", pytest.approx(1000.0 / 2**0.5), 2, True)]
