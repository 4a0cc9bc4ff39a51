"""Who will soon be done overtakes, within a class, who still takes long: worlds, and laws that Hypothesis searches."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.engine.families import RestartingWorld
from scheduler.core.model.lifecycle import State
from scheduler.core.model.profile import Profile
from scheduler.core.model.types import Project, Snapshot
from scheduler.core.world.service import middle_left_s
from scheduler.policies.fair_share import FairShare
from scheduler.policies.overtake import Overtake
from scheduler.profiles import named
from scheduler.sim.cluster import cluster
from scheduler.sim.traces.arrival import Arrival
from scheduler.sim.world import Chance
from tests.core.worlds import NOW, node, running, stage, think
from tests.examples_count import examples

HOUR = 3_600.0
ALONE = Profile("one", ((Overtake(), 1.0),), timetable="repair")


def stopped(world: Snapshot, profile: Profile = ALONE) -> list[tuple[str, str]]:
    return [(one.stage, one.victim) for one in think(world, profile).preempts]


def long(number: int, device: str, **more: object) -> object:
    """A stage that needs ten hours and saves its work when it is told to stop."""
    return running(number, {"a": [device]}, **{"p50": 10 * HOUR, "since": HOUR, "saves_on_stop": True, **more})  # type: ignore[arg-type]


def test_a_short_stage_overtakes_a_long_one_of_its_class() -> None:
    def world(**more: object) -> Snapshot:
        return Snapshot((node("a", 1),), (stage(1, p50=600.0),), (long(7, "gpu0", **more),))  # type: ignore[arg-type]

    assert stopped(world()) == [("s001", "r007")]
    assert stopped(world(), replace(ALONE, policies=())) == []
    assert stopped(world(), named("hybrid")) == [("s001", "r007")], "the default does so"
    assert stopped(world(since=9.9 * HOUR)) == [], "it is nearly done itself"
    assert stopped(world(since=5 * HOUR)) == [("s001", "r007")]
    assert stopped(world(since=5 * HOUR, saves_on_stop=False)) == [], "all that it did would be lost"
    assert stopped(world(priority=750)) == [], "never one of a higher class"
    assert stopped(world(priority=250)) == [], "that is for preempt to say"
    assert stopped(world(preemptible=False)) == []
    assert stopped(world(min_runtime_s=2 * HOUR)) == []
    assert stopped(world(preemptions=4)) == [], "over its budget"
    assert stopped(world(deadline_at=NOW + 24 * HOUR)) == [], "it has to be done by then"


def test_the_one_that_takes_longest_makes_room_for_the_shortest() -> None:
    going = (long(7, "gpu0"), long(8, "gpu1", p50=5 * HOUR), long(9, "gpu2", since=9.9 * HOUR))
    waiting = (stage(1, p50=HOUR), stage(2, p50=60.0))
    found = stopped(Snapshot((node("a", 3),), waiting, going))  # type: ignore[arg-type]
    assert found == [("s002", "r007")], "the other has not long to wait: one that runs is nearly done"


def test_nobody_who_is_nearly_done_is_stopped_beside_one_who_is_not() -> None:
    def world(since: float) -> Snapshot:
        going = (long(7, "gpu0"), long(8, "gpu1", p50=HOUR, p90=1.1 * HOUR, since=since))
        return Snapshot((node("a", 2),), (stage(1, 2, p50=600.0),), going)  # type: ignore[arg-type]

    assert stopped(world(60.0)) == [("s001", "r007"), ("s001", "r008")]
    assert stopped(world(HOUR - 300.0)) == []


def test_the_work_of_many_devices_is_not_lost_for_one() -> None:
    def world(gpus: int) -> Snapshot:
        wide = running(7, {"a": [f"gpu{i}" for i in range(8)]}, p50=4 * HOUR, since=HOUR)
        return Snapshot((node("a", 8),), (stage(1, gpus, p50=600.0),), (wide,))

    assert stopped(world(8)) == [("s001", "r007")]
    assert stopped(world(1)) == [], "eight device-hours would be lost, to save three"


def test_what_is_not_known_gives_way_when_it_has_had_much() -> None:
    """All have the same wide estimate: who has run for long will probably run for long still."""

    def world(since: float) -> Snapshot:
        wide = {"p50": HOUR, "p90": 50 * HOUR}
        return Snapshot((node("a", 1),), (stage(1, **wide),), (long(7, "gpu0", since=since, **wide),))  # type: ignore[arg-type]

    assert stopped(world(60.0)) == []
    assert stopped(world(5 * HOUR)) == [("s001", "r007")]


def test_nobody_overtakes_for_a_project_that_is_far_ahead() -> None:
    profile = Profile("one", ((FairShare(), 200.0), (Overtake(), 1.0)), timetable="repair")
    rival = stage(1, p50=600.0, project="shop")
    world = Snapshot((node("a", 1),), (rival,), (long(7, "gpu0"),))  # type: ignore[arg-type]
    assert stopped(replace(world, projects=(Project("lab", 1, 0.0), Project("shop", 1, 0.0))), profile)
    assert stopped(replace(world, projects=(Project("lab", 1, 0.0), Project("shop", 1, 1e6))), profile) == []


times = st.floats(1.0, 1e6)


@given(times, st.floats(1.06, 1e3), st.floats(0.0, 1e7))
def test_half_of_those_that_ran_so_long_end_by_the_middle(p50_s: float, spread: float, ran_s: float) -> None:
    def survive(at: float) -> float:
        return float(1.0 / (1.0 + np.exp(np.log(9.0) / np.log(spread) * np.log(max(at, 1e-3) / p50_s))))

    left_s = float(middle_left_s(np.array(p50_s), np.array(spread * p50_s), np.array(ran_s)))
    assert left_s > 0.0
    assert survive(p50_s) == pytest.approx(0.5)
    assert survive(spread * p50_s) == pytest.approx(0.1)
    if survive(ran_s) > 1e-6:
        assert survive(ran_s + left_s) == pytest.approx(0.5 * survive(ran_s), rel=1e-3)


def worlds() -> st.SearchStrategy[Snapshot]:
    spans = st.sampled_from([60.0, 600.0, HOUR, 10 * HOUR])
    classes = st.sampled_from([250, 500, 500, 500, 750])
    going = st.tuples(spans, st.sampled_from([1.2, 5.0, 50.0]), spans, classes, st.integers(0, 5), st.booleans())
    waiting = st.tuples(spans, st.sampled_from([1.2, 5.0, 50.0]), classes, st.integers(1, 3), st.booleans())

    def built(run: list[tuple], wait: list[tuple]) -> Snapshot:  # type: ignore[type-arg]
        some = [
            long(
                i,
                f"gpu{i}",
                p50=p50,
                p90=p50 * wide,
                since=since,
                priority=rank,
                preemptions=stops,
                saves_on_stop=saves,
            )
            for i, (p50, wide, since, rank, stops, saves) in enumerate(run)
        ]
        others = [
            stage(i, gpus, p50=p50, p90=p50 * wide, priority=rank, state=State.HELD if held else State.PENDING)
            for i, (p50, wide, rank, gpus, held) in enumerate(wait)
        ]
        return Snapshot((node("a", 4),), tuple(others), tuple(some))  # type: ignore[arg-type]

    return st.builds(built, st.lists(going, min_size=1, max_size=4), st.lists(waiting, min_size=1, max_size=6))


@given(worlds())
@settings(deadline=None)
def test_a_stop_is_worth_it_to_those_who_run_and_wait(world: Snapshot) -> None:
    """Whoever is stopped is of the same class, within its budget, and needs more than half as much again as the other
    takes; and nobody is stopped for who may not start."""
    policy = Overtake()
    going, waiting = {one.id: one for one in world.running}, {one.id: one for one in world.waiting}
    for one in think(world, ALONE).preempts:
        victim, other = going[one.victim], waiting[one.stage]
        assert victim.priority == other.priority
        assert victim.preemptions < policy.budget
        assert other.state is State.PENDING
        guess = victim.estimate
        left_s = middle_left_s(np.array(guess.p50_s), np.array(guess.p90_s), np.array(NOW - victim.started_at))
        assert left_s > policy.factor * other.estimate.p50_s
        assert one.gain >= one.price


@given(
    st.lists(st.tuples(st.floats(0.0, 1e4), st.sampled_from([10.0, 300.0, HOUR, 8 * HOUR])), min_size=2, max_size=25)
)
@settings(max_examples=examples(40), deadline=None)
def test_nobody_is_stopped_more_often_than_the_budget_and_all_come_to_their_end(
    lengths: list[tuple[float, float]],
) -> None:
    jobs = [Arrival(f"j{i:02}", at, took, 1, f"project-{i % 2}") for i, (at, took) in enumerate(lengths)]
    chance = Chance(stop_s=0.0, saves_on_stop=True)
    entries = RestartingWorld(cluster("1x2"), jobs, named("hybrid"), chance=chance).run().entries
    assert all(entry.state is State.COMPLETED for entry in entries)
    assert max(entry.preemptions for entry in entries) <= Overtake().budget
