"""What is reserved is given only to who holds the reservation, in its time and on its nodes; others use it before, as
far as they are done by then, and after."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.core.model.reasons import sentence
from scheduler.core.model.types import CalendarEntry, Estimate, Plan, Snapshot, Stage
from scheduler.core.planning import engine
from scheduler.profiles import named
from tests.core.test_laws import worlds
from tests.core.test_planner import applied
from tests.core.worlds import NOW, check_laws, node, running, stage, starts, think, waits
from tests.examples_count import examples

HOUR = 3600.0
LIVE = ["hybrid", "dynamic", "static", "easy", "fifo", "turns"]


def held(*nodes: str, begins: float = 0.0, lasts: float = HOUR, name: str = "demo") -> CalendarEntry:
    return CalendarEntry(f"{name}@{begins}", nodes, NOW + begins, NOW + begins + lasts, "", name, "vision")


def lasting(number: int, seconds: float, **more: object) -> Stage:
    return stage(number, estimate=Estimate(seconds, seconds), **more)


def reasons(plan: Plan, name: str) -> dict[str, str]:
    return {one.code: sentence(one) for one in waits(plan)[name].reasons}


@pytest.mark.parametrize("profile", [name for name in LIVE if name != "fifo"])  # which starts nobody out of turn
def test_only_its_stages_start_in_a_reservation(profile: str) -> None:
    line = (lasting(1, 600.0, priority=1000), lasting(2, 600.0, reservation="demo"))
    plan = think(Snapshot((node("a", 2),), line, maintenance=(held("a"),)), profile)
    assert set(starts(plan)) == {"s002"}
    if profile == "hybrid":
        assert reasons(plan, "s001")["Reserved"].startswith("reserved for project vision from ")


@pytest.mark.parametrize("profile", LIVE)
def test_until_it_begins_others_use_it_if_they_are_done_by_then(profile: str) -> None:
    line = (lasting(1, 0.5 * HOUR), lasting(2, 2 * HOUR), lasting(3, 600.0, reservation="demo"))
    plan = think(Snapshot((node("a", 3),), line, maintenance=(held("a", begins=HOUR),)), profile)
    assert set(starts(plan)) == {"s001"}
    assert reasons(plan, "s003")["ReservationAhead"].startswith("its reservation demo begins at ")


@pytest.mark.parametrize("profile", ["hybrid", "static"])
def test_the_timetable_lets_its_stages_begin_with_it_and_others_after_it(profile: str) -> None:
    line = (lasting(1, 2 * HOUR), lasting(2, 600.0, reservation="demo"))
    found = waits(think(Snapshot((node("a", 1),), line, maintenance=(held("a", begins=HOUR),)), profile))
    assert [found[name].planned.start_at - NOW for name in ("s002", "s001")] == [HOUR, 2 * HOUR]  # type: ignore[union-attr]


def test_its_stages_go_to_no_other_nodes_and_wait_for_each_other_there() -> None:
    line = (lasting(1, 600.0, reservation="demo"), lasting(2, 600.0, reservation="demo"), lasting(3, 600.0))
    plan = think(Snapshot((node("a", 1), node("b", 1)), line, maintenance=(held("a"),)))
    assert {name: one.placement.nodes for name, one in starts(plan).items()} == {"s001": ("a",), "s003": ("b",)}
    assert waits(plan)["s002"].planned.start_at == NOW + 600  # type: ignore[union-attr]


def test_who_holds_it_may_run_on_after_its_end_but_not_into_another_entry() -> None:
    world = Snapshot((node("a", 1),), (lasting(1, 2 * HOUR, reservation="demo"),), maintenance=(held("a"),))
    assert starts(think(world))
    for after in (held("a", begins=HOUR, name="other"), CalendarEntry("m", ("a",), NOW + HOUR, NOW + 2 * HOUR)):
        assert not starts(think(replace(world, maintenance=(held("a"), after))))


def test_of_one_that_recurs_the_next_time_counts_and_of_one_that_is_over_none() -> None:
    asked = lasting(1, 600.0, reservation="demo")
    world = Snapshot((node("a", 1),), (asked,), maintenance=(held("a", begins=HOUR), held("a", begins=5 * HOUR)))
    assert waits(think(world))["s001"].planned.start_at == NOW + HOUR  # type: ignore[union-attr]
    over = think(replace(world, maintenance=()))
    assert not starts(over)
    assert reasons(over, "s001") == {"ReservationOver": "its reservation demo has ended or was cancelled"}


def test_nobody_is_stopped_for_a_place_that_is_reserved_for_others() -> None:
    victim = running(1, {"a": ["gpu0"]}, priority=250, p50=20 * HOUR, since=60.0)
    urgent = lasting(2, 600.0, priority=1000)
    world = Snapshot((node("a", 1),), (urgent,), (victim,))
    assert think(world, "dynamic").preempts
    assert not think(replace(world, maintenance=(held("a"),)), "dynamic").preempts


@st.composite
def calendars(draw: st.DrawFn) -> tuple[Snapshot, list[float]]:
    """A world with reservations and windows, some of whose stages hold one, and pauses between looks at it."""
    world = draw(worlds())
    names = [one.id for one in world.nodes]
    spans = st.tuples(st.sets(st.sampled_from(names), min_size=1), st.floats(0, 900), st.floats(1, 900), st.booleans())
    entries = tuple(
        CalendarEntry(f"e{i}", tuple(sorted(nodes)), NOW + begins, NOW + begins + lasts, "", f"r{i}" * kept, "p" * kept)
        for i, (nodes, begins, lasts, kept) in enumerate(draw(st.lists(spans, min_size=1, max_size=3)))
    )
    holds = st.sampled_from(["", "", *(one.reserved for one in entries), "gone"])
    waiting = tuple(replace(one, reservation=draw(holds), promise=None) for one in world.waiting)
    return replace(world, waiting=waiting, maintenance=entries), draw(
        st.lists(st.floats(1, 300), min_size=1, max_size=5)
    )


@given(calendars(), st.sampled_from(["static", "dynamic", "hybrid", "easy", "fifo"]))
@settings(max_examples=examples(60))
def test_nothing_starts_in_what_is_kept_for_others_and_a_planner_that_remembers_agrees(
    story: tuple[Snapshot, list[float]], profile: str
) -> None:
    world, pauses = story
    planner, now = engine.Planner(), NOW
    for pause in pauses:
        fresh = engine.plan(world, named(profile), now)
        planner.plan(world, named(profile), now)
        assert planner.explained().starts == fresh.starts
        check_laws(world, fresh)
        asked = {one.id: one for one in world.waiting}
        for begun in fresh.starts:
            mine, until = asked[begun.stage].reservation, now + begun.lasts.p90_s
            for entry in world.maintenance:
                meets = set(entry.nodes) & set(begun.placement.nodes)
                inside = entry.reserved != "" and entry.reserved == mine
                assert inside or not (meets and entry.start_at < until and entry.end_at > now), (begun, entry)
            if mine:
                (own,) = [one for one in world.maintenance if one.reserved == mine]
                assert own.start_at <= now < own.end_at
                assert set(begun.placement.nodes) <= set(own.nodes)
        world, now = applied(world, fresh, now), now + pause
