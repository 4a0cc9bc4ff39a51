"""Nothing starts that may still run when a maintenance of its nodes begins: nine of ten like it are done, or its limit
ends it. What stands in the timetable keeps to that as well, and who waits for it is told how long it may run."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.core.model.reasons import sentence
from scheduler.core.model.types import CalendarEntry, Estimate, Grant, Placement, Plan, Promise, Snapshot, Stage
from scheduler.core.planning import engine
from scheduler.profiles import named
from tests.core.test_laws import worlds
from tests.core.test_planner import applied
from tests.core.worlds import GIB, NOW, check_laws, node, running, stage, starts, think, waits
from tests.examples_count import examples

HOUR = 3600.0
LIVE = ["hybrid", "dynamic", "static", "easy", "fifo", "turns"]


def window(*nodes: str, begins: float = HOUR, lasts: float = HOUR) -> CalendarEntry:
    return CalendarEntry("m1", nodes, NOW + begins, NOW + begins + lasts)


def lasting(number: int, p50: float, p90: float, **more: object) -> Stage:
    return stage(number, estimate=Estimate(p50, p90), **more)


def entry(plan: Plan, name: str = "s001") -> Promise:
    planned = waits(plan)[name].planned
    assert planned is not None
    return planned


@pytest.mark.parametrize("profile", LIVE)
@pytest.mark.parametrize(
    ("asked", "begins"),
    [
        (lasting(1, 0.5 * HOUR, 0.9 * HOUR), True),
        (lasting(1, 0.5 * HOUR, 1.1 * HOUR), False),
        (lasting(1, 0.5 * HOUR, 1.1 * HOUR, time_limit_s=0.9 * HOUR), True),
        (lasting(1, 0.5 * HOUR, 9 * HOUR, time_limit_s=8 * HOUR), False),
        (lasting(1, 2 * HOUR, 3 * HOUR), False),
    ],
)
def test_it_starts_if_the_bad_case_or_its_limit_ends_before(profile: str, asked: Stage, begins: bool) -> None:
    plan = think(Snapshot((node("a", 1),), (asked,), maintenance=(window("a"),)), profile)
    assert bool(starts(plan)) == begins
    if not begins and profile != "turns":
        assert "MaintenanceWindow" in {one.code for one in waits(plan)["s001"].reasons}


def test_the_reason_says_how_long_it_may_run() -> None:
    plan = think(Snapshot((node("a", 1),), (lasting(1, 0.5 * HOUR, 2.5 * HOUR),), maintenance=(window("a"),)))
    (found,) = [one for one in waits(plan)["s001"].reasons if one.code == "MaintenanceWindow"]
    assert sentence(found).startswith("may run for 2.5 h and would overlap the maintenance at ")
    assert (found.params["lasts_s"], found.params["fits_s"]) == (9000.0, 3600)
    assert entry(plan).start_at == NOW + 2 * HOUR


def test_a_node_that_serves_is_taken_instead() -> None:
    world = Snapshot((node("a", 1), node("b", 1)), (lasting(1, 600.0, 2 * HOUR),), maintenance=(window("a"),))
    assert starts(think(world))["s001"].placement.nodes == ("b",)
    busy = replace(world, running=(running(1, {"b": ["gpu0"]}, p50=650.0, p90=700.0),))
    assert entry(think(busy)).placement.nodes == ("b",)
    assert entry(think(busy)).start_at == NOW + 600


@pytest.mark.parametrize("profile", ["hybrid", "dynamic", "easy"])
def test_who_was_refused_for_it_speaks_only_for_those_who_last_as_long(profile: str) -> None:
    line = (lasting(1, 600.0, 2 * HOUR), lasting(2, 600.0, 900.0), lasting(3, 500.0, 3 * HOUR), lasting(4, 600.0, 60.0))
    world = Snapshot((node("a", 3),), line, maintenance=(window("a"),))
    assert set(starts(think(world, profile))) == {"s002", "s004"}


def test_a_gang_needs_all_its_nodes() -> None:
    world = Snapshot((node("a", 1), node("b", 1)), (lasting(1, 600.0, 2 * HOUR, nodes=2),), maintenance=(window("b"),))
    assert entry(think(world)).start_at == NOW + 2 * HOUR


def promised(at: float, length: float) -> Promise:
    grants = ((Grant("a/gpu0", 1000, 0), Grant("a/cpu0", 1000, GIB)),)
    return Promise("s001", at, at + length, at + 60, Placement(0, ("a",), grants), NOW - 60)


@pytest.mark.parametrize("at", [NOW, NOW + 600])
def test_an_entry_that_a_new_window_spoils_is_made_anew(at: float) -> None:
    asked = lasting(1, 600.0, 2 * HOUR, promise=promised(at, 600.0))
    blocker = (running(1, {"a": ["gpu0"]}, p50=650.0, p90=700.0),) if at > NOW else ()
    world = Snapshot((node("a", 1),), (asked,), blocker)
    before = think(world)
    assert starts(before) if at == NOW else entry(before).start_at == at
    planner = engine.Planner()
    planner.plan(world, named("hybrid"), NOW)
    spoiled = replace(world, maintenance=(window("a"),))
    for plan in (think(spoiled), planner.plan(spoiled, named("hybrid"), NOW)):
        assert not plan.starts
        assert entry(plan).start_at == NOW + 2 * HOUR


def test_nobody_is_stopped_for_a_place_that_a_window_closes() -> None:
    victim = running(1, {"a": ["gpu0"]}, priority=250, p50=20 * HOUR, since=60.0)
    urgent = lasting(2, 600.0, 2 * HOUR, priority=1000)
    world = Snapshot((node("a", 1),), (urgent,), (victim,))
    assert think(world, "dynamic").preempts
    assert not think(replace(world, maintenance=(window("a"),)), "dynamic").preempts


@st.composite
def closings(draw: st.DrawFn) -> tuple[Snapshot, list[float]]:
    """A world with windows, and pauses after which it is looked at again."""
    world = draw(worlds())
    names = [one.id for one in world.nodes]
    spans = st.tuples(st.sets(st.sampled_from(names), min_size=1), st.floats(0, 900), st.floats(1, 900))
    found = draw(st.lists(spans, min_size=1, max_size=3))
    made = tuple(
        CalendarEntry(f"m{i}", tuple(sorted(nodes)), NOW + begins, NOW + begins + lasts)
        for i, (nodes, begins, lasts) in enumerate(found)
    )
    return replace(world, maintenance=made), draw(st.lists(st.floats(1, 300), min_size=1, max_size=5))


@given(closings(), st.sampled_from(["static", "dynamic", "hybrid", "easy", "fifo"]))
@settings(max_examples=examples(60))
def test_no_start_may_run_into_a_window_and_a_planner_that_remembers_agrees(
    story: tuple[Snapshot, list[float]], profile: str
) -> None:
    world, pauses = story
    planner, now = engine.Planner(), NOW
    for pause in pauses:
        fresh = engine.plan(world, named(profile), now)
        planner.plan(world, named(profile), now)
        assert planner.explained().starts == fresh.starts
        check_laws(world, fresh)
        for begun in fresh.starts:
            until = now + begun.lasts.p90_s
            for closed in world.maintenance:
                meets = set(closed.nodes) & set(begun.placement.nodes)
                assert not (meets and closed.start_at < until and closed.end_at > now), (begun, closed)
        world, now = applied(world, fresh, now), now + pause
