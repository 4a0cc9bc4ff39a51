"""A stop that is planned costs no more work than a save does, however rarely a stage saves by itself."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.core.model.types import Node
from scheduler.predict import saving
from scheduler.profiles import named
from scheduler.sim.cluster import cluster
from scheduler.sim.traces import Arrival
from scheduler.sim.world import Chance, SimulatedWorld
from tests.examples_count import examples


def world(chance: Chance, *, hours: float) -> SimulatedWorld:
    nodes: tuple[Node, ...] = cluster("2x4:H100", 32)
    arrivals = [Arrival(f"s{i}", 10.0 * i, hours * 3600.0, gpus=2.0, cpus=4) for i in range(3)]
    return SimulatedWorld(nodes, arrivals, named("hybrid"), chance=chance)


def lost_s(chance: Chance, stop_at: float, hours: float = 20.0) -> list[float]:
    """The seconds of work that each stage lost where a node is emptied at this time."""
    lived = world(chance, hours=hours)
    node = min(lived.store.nodes)
    lived.at(600.0, lambda: lived.plan_stop(node, stop_at))
    found = lived.run()
    assert all(one.ended_at is not None for one in found.entries)
    return [one.lost_device_s / 2 for one in found.entries]


@given(
    save_s=st.sampled_from([1.0, 30.0, 240.0]),
    checkpoint_s=st.sampled_from([0.0, 3_600.0, 14_400.0]),
    stop_at=st.floats(3_000.0, 60_000.0),
)
@settings(max_examples=examples(25), deadline=None)
def test_what_a_planned_stop_costs_is_bounded_by_a_save(save_s: float, checkpoint_s: float, stop_at: float) -> None:
    chance = Chance(checkpoint_s=checkpoint_s, save_s=save_s)
    assert max(lost_s(chance, stop_at)) <= saving.ahead_s(save_s) + 1e-6


def test_without_being_asked_it_loses_all_since_its_last_checkpoint() -> None:
    assert max(lost_s(Chance(save_s=0.0), 30_000.0)) > 29_000.0
    assert max(lost_s(Chance(save_s=0.0, checkpoint_s=14_400.0), 28_000.0)) > 13_000.0


def test_a_save_that_is_asked_for_is_begun_early_enough_to_be_done_though_it_takes_twice_as_long() -> None:
    assert saving.ahead_s(0.0) > 0
    assert saving.ahead_s(240.0) >= 2 * 240.0
