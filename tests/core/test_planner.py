"""A planner that remembers decides as one that sees the world for the first time."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.core import engine
from scheduler.core.types import Plan, Snapshot
from scheduler.profiles import named
from tests.core.test_laws import worlds
from tests.core.worlds import NOW, begun, check_laws, ended, node, running, stage, starts, think, waits

PROFILES = st.sampled_from(["static", "dynamic", "hybrid", "fifo"])


def applied(world: Snapshot, plan: Plan, now: float) -> Snapshot:
    """As ``begun``, but what did not change stays the same object, as a store in memory would have it."""
    started = {one.stage for one in plan.starts}
    after = begun(world, plan, now)
    before = {one.id: one for one in world.waiting}
    kept = tuple(before[one.id] if before[one.id] == one else one for one in after.waiting)
    return replace(after, waiting=kept, nodes=world.nodes) if started or kept else world


@given(worlds(), PROFILES, st.lists(st.tuples(st.floats(1, 400), st.integers(0, 9)), min_size=1, max_size=8))
@settings(max_examples=60, deadline=None)
def test_what_it_remembers_changes_no_decision(world: Snapshot, profile: str, story: list[tuple[float, int]]) -> None:
    planner, now = engine.Planner(), NOW
    for pause_s, ends in story:
        planner.plan(world, named(profile), now)
        remembered = planner.explained()
        check_laws(world, remembered)
        fresh = engine.plan(world, named(profile), now)
        assert remembered.starts == fresh.starts
        assert remembered.stops == fresh.stops
        assert {one.stage: one.planned for one in remembered.waits} == {one.stage: one.planned for one in fresh.waits}
        world = applied(world, fresh, now)
        now += pause_s
        names = sorted(one.id for one in world.running)
        if names and ends < len(names):
            world = ended(world, names[ends])


def test_it_names_only_what_changed_and_explains_the_rest_on_demand() -> None:
    planner = engine.Planner()
    world = Snapshot((node("a", 1),), (stage(1), stage(2)), (running(7, {"a": ["gpu0"]}, since=0),))
    first = planner.plan(world, named("hybrid"), NOW)
    assert {one.stage for one in first.waits} == {"s001", "s002"}, "both were promised a time just now"
    world = begun(world, think(world), NOW)
    assert not planner.plan(world, named("hybrid"), NOW + 1).waits, "nothing changed"
    assert set(waits(planner.explained())) == {"s001", "s002"}
    world = ended(world, "r007")
    assert set(starts(planner.plan(world, named("hybrid"), NOW + 10))) == {"s001"}
