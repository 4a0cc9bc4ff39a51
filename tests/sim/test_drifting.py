"""Nodes that have other work too: what runs beside it takes longer, and goes on at full pace when it is over."""

from __future__ import annotations

import pytest

from scheduler.core.model.lifecycle import State
from scheduler.profiles import named
from scheduler.sim.cluster import cluster
from scheduler.sim.drifting import Drift, DriftingWorld
from scheduler.sim.traces import Arrival
from scheduler.sim.world import Chance

HOUR = 3600.0


def ends(nodes: str, drifts: list[Drift], *, profile: str = "hybrid", stages: int = 1) -> list[float | None]:
    arrivals = [Arrival(f"{i}", 10.0 * i, HOUR, 1, cpus=1) for i in range(stages)]
    lived = DriftingWorld(cluster(nodes, 16), arrivals, named(profile), drifts, chance=Chance(checkpoint_s=600.0)).run()
    assert all(entry.state is State.COMPLETED for entry in lived.entries)
    return [entry.ended_at for entry in lived.entries]


def test_other_work_slows_down_what_runs_beside_it() -> None:
    assert ends("1x1", []) == [HOUR]
    (slow,) = ends("1x1", [Drift(0.0, "node00000", 2.0)])
    assert slow == pytest.approx(HOUR * (2.0 + 1 / 16))
    (half,) = ends("1x1", [Drift(0.0, "node00000", 2.0 - 1 / 16), Drift(HOUR, "node00000", 0.0)])
    assert half == pytest.approx(1.5 * HOUR)


def test_hybrid_leaves_the_node_that_becomes_hot_and_fifo_stays() -> None:
    hot = [Drift(1200.0, "node00000", 4.0)]
    (moved,), (stayed,) = ends("2x1", hot), ends("2x1", hot, profile="fifo")
    assert moved is not None
    assert stayed is not None
    assert moved < 1.5 * HOUR < 2 * HOUR < stayed
