"""Live sizes: wide where nodes are idle, narrow before anybody waits or is stopped, and never for nothing."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.core.model.lifecycle import NodeState, State
from scheduler.core.model.types import Grant, Plan, Pool, Project, Quota, Running, Snapshot, Stage
from scheduler.core.resources.elastic import faster
from tests.core.worlds import GIB, NOW, alternative, begun, node, running, stage, starts, think, waits
from tests.examples_count import examples

LONG = 20_000.0


def elastic(number: int, least: int, most: int, **more: Any) -> Stage:
    return stage(number, nodes=least, most_nodes=most, p50=more.pop("p50", LONG), **more)


def going(number: int, on: str, least: int = 1, most: int = 4, **more: Any) -> Running:
    """An elastic stage that runs on the first GPU of each of these nodes and saved its work 5 s ago."""
    saved = {"checkpoint_at": NOW - 5, "checkpoints": True}
    given_: dict[str, Any] = {"since": 600.0, "p50": LONG, "alternatives": (alternative(1),), **saved, **more}
    return running(number, {name: ["gpu0"] for name in on}, least_nodes=least, most_nodes=most, **given_)


def nodes(names: str, **states: NodeState) -> tuple:
    return tuple(node(name, 1, state=states.get(name, NodeState.READY)) for name in names)


def sizes(plan: Plan) -> dict[str, int]:
    return {one.stage: len(one.placement.nodes) for one in plan.starts}


def resized(plan: Plan) -> list[tuple[str, int, int]]:
    return [(one.victim, one.was, one.size) for one in plan.resizes]


@pytest.mark.parametrize("profile", ["hybrid", "dynamic", "static", "fifo"])
def test_it_starts_on_all_that_is_idle_up_to_its_most(profile: str) -> None:
    plan = think(Snapshot(nodes("abc"), (elastic(1, 1, 2),)), profile)
    assert sizes(plan) == {"s001": 2}
    assert "2 of 1 to 2 nodes" in plan.starts[0].why
    assert plan.starts[0].lasts.p50_s == pytest.approx(LONG / faster(1, 2))
    assert sizes(think(Snapshot(nodes("abc"), (elastic(1, 1, 8),)), profile)) == {"s001": 3}


def test_less_than_its_least_is_no_start() -> None:
    plan = think(Snapshot(nodes("a"), (elastic(1, 2, 4),)))
    assert waits(plan)["s001"].reasons[0].code == "ExceedsClusterMax"


def test_everybody_else_has_a_turn_before_it_is_widened() -> None:
    plan = think(Snapshot(nodes("abc"), (elastic(1, 1, 3), stage(2), stage(3, priority=250))))
    assert sizes(plan) == {"s001": 1, "s002": 1, "s003": 1}


def test_what_is_over_goes_where_it_is_worth_most() -> None:
    near, far = elastic(1, 1, 2, p50=1_000.0), elastic(2, 1, 2, p50=50_000.0)
    assert sizes(think(Snapshot(nodes("abc"), (near, far)))) == {"s001": 2, "s002": 1}


def test_it_is_widened_only_where_that_delays_no_promise() -> None:
    later = stage(1, pinned=("c",), begin_at=NOW + 60)
    long = think(Snapshot(nodes("abc"), (later, elastic(2, 1, 3, p50=400.0))), "hybrid")
    assert starts(long)["s002"].placement.nodes == ("a", "b")
    short = think(Snapshot(nodes("abc"), (later, elastic(2, 1, 3, p50=50.0))), "hybrid")
    assert sizes(short) == {"s002": 3}


def test_nor_over_the_quota_of_its_project() -> None:
    world = Snapshot(nodes("abc"), (elastic(1, 1, 3),), quotas=(Quota("lab", "gpu", 2000),))
    assert sizes(think(world)) == {"s001": 2}
    grown = Snapshot(nodes("abc"), (), (going(1, "ab", project="lab"),), quotas=(Quota("lab", "gpu", 2000),))
    assert resized(think(grown)) == []


def test_a_limit_on_stages_counts_it_once() -> None:
    world = Snapshot(nodes("abc"), (elastic(1, 1, 3),), pools=(Pool("default", user_limit=1),))
    assert sizes(think(world)) == {"s001": 3}
    assert resized(think(Snapshot(nodes("abc"), (), (going(1, "a"),), pools=world.pools))) == [("r001", 1, 3)]


def test_a_running_stage_grows_into_idle_nodes_and_says_why() -> None:
    plan = think(Snapshot(nodes("abc"), (), (going(1, "a", most=2),)))
    (one,) = plan.resizes
    assert (one.victim, one.was, one.size, one.stage) == ("r001", 1, 2, "")
    assert one.why == "b is idle"
    assert one.gain > one.price > 0
    assert think(Snapshot(nodes("abc"), (), (going(1, "a", most=2),)), "fifo").resizes == (), "no policy for it"


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({"since": 10.0}, "it has its size since 10 s"),
        ({"p50": 620.0}, "it ends in 20 s"),
        ({"checkpoint_at": None, "since": 9_000.0}, "two hours and a half would be lost"),
        ({"preemptible": False}, "it may not be stopped"),
        ({"state": State.STARTING}, "it does not run yet"),
        ({"evicted_for": "s009", "state": State.STOPPING}, "it stops already"),
        ({"min_runtime_s": 3_600.0}, "it has a minimum run time"),
        ({"pinned": ("a",)}, "its data lie there"),
        ({"most": 1}, "it has its most"),
        ({"alternatives": (alternative(2),)}, "no node has that"),
    ],
)
def test_it_does_not_grow(more: dict[str, Any], why: str) -> None:
    assert resized(think(Snapshot(nodes("ab"), (), (going(1, "a", **more),)))) == [], why


def test_who_was_measured_not_to_scale_is_left_as_it_is() -> None:
    assert resized(think(Snapshot(nodes("ab"), (), (going(1, "a", scaling=0.1),)))) == []
    assert resized(think(Snapshot(nodes("ab"), (), (going(1, "a", scaling=0.3),)))) == [("r001", 1, 2)]
    assert sizes(think(Snapshot(nodes("abc"), (elastic(1, 1, 3, scaling=0.1),)))) == {"s001": 1}
    flat, steep = elastic(1, 1, 2, scaling=0.3), elastic(2, 1, 2, scaling=0.9)
    assert sizes(think(Snapshot(nodes("abc"), (flat, steep)))) == {"s001": 1, "s002": 2}
    plan = think(Snapshot(nodes("ab"), (elastic(1, 1, 2, scaling=0.5),)))
    assert plan.starts[0].lasts.p50_s == pytest.approx(LONG / 2**0.5)


def test_it_asks_for_a_look_when_its_time_has_come() -> None:
    plan = think(Snapshot(nodes("ab"), (), (going(1, "a", since=10.0),)))
    assert plan.wake_at == NOW + 50
    later = think(Snapshot(nodes("ab"), (), (going(1, "a", since=10.0),)), now=NOW + 50)
    assert resized(later) == [("r001", 1, 2)]


def test_who_gives_back_often_waits_longer_to_grow() -> None:
    def of(*ago: float, since: float = 600.0) -> Plan:
        gave = tuple(NOW - one for one in ago)
        return think(Snapshot(nodes("ab"), (), (going(1, "a", since=since, gave_back_at=gave),)))

    assert resized(of(700.0, 1_500.0)) == [("r001", 1, 2)], "4 minutes have passed"
    assert resized(of(700.0, 1_500.0, since=239.0)) == []
    assert of(700.0, 1_500.0, since=239.0).wake_at == NOW + 1
    assert resized(of(4_000.0, since=61.0)) == [("r001", 1, 2)], "that was long ago"
    assert resized(of(*range(610, 3_000, 10), since=1_920.0)) == [("r001", 1, 2)], "half an hour is the most"


def test_nobody_grows_while_somebody_could_use_the_node() -> None:
    plan = think(Snapshot(nodes("ab"), (stage(1, priority=250),), (going(1, "a"),)))
    assert set(starts(plan)) == {"s001"}
    assert plan.resizes == ()


@pytest.mark.parametrize("profile", ["hybrid", "dynamic"])
def test_it_gives_back_before_anybody_is_stopped(profile: str) -> None:
    cheap = running(7, {"d": ["gpu0"]}, priority=250, p50=LONG, since=1.0)
    world = Snapshot(nodes("abcd"), (stage(1, priority=750, p50=LONG),), (going(1, "abc"), cheap))
    plan = think(world, profile)
    assert plan.preempts == ()
    (one,) = plan.resizes
    assert (one.victim, one.was, one.size, one.stage, one.why) == ("r001", 3, 2, "s001", "makes room for #1 train")
    assert one.devices == ("c/gpu0",)
    assert waits(plan)["s001"].reasons[0].code == "WaitingForPreemption"


def test_no_more_than_is_needed_and_the_cheapest_first() -> None:
    dear = going(1, "ab", checkpoint_at=NOW - 500)
    cheap = going(2, "cd", checkpoint_at=NOW - 1)
    plan = think(Snapshot(nodes("abcd"), (stage(1, p50=LONG),), (dear, cheap)))
    assert resized(plan) == [("r002", 2, 1)]
    both = think(Snapshot(nodes("abcd"), (stage(1, nodes=2, p50=LONG),), (dear, cheap)))
    assert resized(both) == [("r002", 2, 1), ("r001", 2, 1)]
    assert resized(think(Snapshot(nodes("abcd"), (stage(1, nodes=3, p50=LONG),), (dear, cheap)))) == []


@pytest.mark.parametrize(
    ("more", "asked"),
    [
        ({"priority": 750}, {}),
        ({"p50": 640.0}, {}),
        ({"checkpoint_at": None, "since": 19_000.0}, {"p50": 10.0}),
        ({"least": 2}, {}),
        ({"since": 30.0}, {}),
        ({"preemptible": False}, {}),
    ],
    ids=["less urgent", "it ends soon", "costs more than it gains", "it has its least", "just begun", "not stoppable"],
)
def test_it_does_not_give_back(more: dict[str, Any], asked: dict[str, Any]) -> None:
    world = Snapshot(nodes("ab"), (stage(1, **{"p50": LONG, **asked}),), (going(1, "ab", **more),))
    assert think(world).resizes == ()


@pytest.mark.parametrize("profile", ["hybrid", "dynamic"])
def test_who_came_when_it_had_just_begun_is_served_when_it_may_give(profile: str) -> None:
    world = Snapshot(nodes("ab"), (stage(1, p50=LONG),), (going(1, "ab", since=20.0),))
    plan = think(world, profile)
    assert plan.resizes == ()
    assert plan.wake_at == NOW + 40
    after = begun(world, plan, NOW)
    assert think(after, profile, NOW + 39).resizes == ()
    later = think(after, profile, NOW + 40)
    assert [(one.victim, one.size, one.stage) for one in later.resizes] == [("r001", 1, "s001")]
    assert waits(later)["s001"].reasons[0].code == "WaitingForPreemption"


def test_a_newcomer_of_a_higher_class_is_served_before_one_with_an_entry() -> None:
    world = Snapshot(nodes("ab"), (stage(1, p50=LONG),), (going(1, "ab", since=20.0),))
    known = begun(world, think(world), NOW)
    urgent = replace(known, waiting=(*known.waiting, stage(2, priority=1000, p50=LONG)))
    assert [one.stage for one in think(urgent, now=NOW + 40).resizes] == ["s002"]
    held = replace(known, waiting=(*known.waiting, stage(2, priority=1000, state=State.HELD)))
    assert [one.stage for one in think(held, now=NOW + 40).resizes] == ["s001"]


def test_to_a_higher_class_it_gives_back_at_once() -> None:
    world = Snapshot(nodes("ab"), (stage(1, priority=1000, p50=LONG),), (going(1, "ab", since=5.0),))
    assert resized(think(world)) == [("r001", 2, 1)]


def test_what_it_gave_back_is_taken_and_it_goes_on_with_the_rest() -> None:
    world = Snapshot(nodes("ab"), (stage(1, p50=LONG),), (going(1, "ab"),))
    plan = think(world)
    stopping = replace(world.running[0], state=State.STOPPING, evicted_for="s001", stop_by_at=NOW + 30)
    between = replace(begun(world, plan, NOW), running=(stopping,))
    assert think(between, now=NOW + 5).resizes == (), "it was told already"
    again = elastic(2, 1, 4, submitted_at=NOW - 9_000)
    after = think(replace(between, running=(), waiting=(*between.waiting, again)), now=NOW + 9)
    assert sizes(after) == {"s001": 1, "s002": 1}


def test_while_it_stops_to_go_on_nobody_is_promised_its_place() -> None:
    stopping = going(1, "a", state=State.STOPPING, evicted_for="r001", stop_by_at=NOW + 20, keeps=1)
    plan = think(Snapshot(nodes("a"), (stage(1),), (stopping,)))
    planned = waits(plan)["s001"].planned
    assert planned is not None
    assert planned.start_at > NOW + 10_000


def test_what_it_keeps_while_it_makes_room_is_promised_to_nobody_either() -> None:
    """On cores no fence keeps its place for it, so the timetable must."""
    cores = {"alternatives": (alternative(0, 32),), "kind": "generic"}
    held = going(1, "ab", p50=9_000.0, **cores)
    whole = tuple((Grant(f"{name}/cpu0", 32_000, GIB),) for name in "ab")
    held = replace(held, placement=replace(held.placement, grants=whole))
    others = (stage(1, p50=LONG, **cores), stage(2, p50=LONG, **cores))
    plan = think(Snapshot(nodes("ab"), others, (held,)))
    assert resized(plan) == [("r001", 2, 1)]
    stopping = replace(held, state=State.STOPPING, evicted_for="s001", stop_by_at=NOW + 30, keeps=1)
    for seen in (plan, think(replace(begun(Snapshot(nodes("ab"), others), plan, NOW), running=(stopping,)))):
        first, second = (waits(seen)[name].planned for name in ("s001", "s002"))
        assert first is not None
        assert second is not None
        assert first.start_at <= NOW + 30 < NOW + 1_000 < second.start_at


@pytest.mark.parametrize("state", [NodeState.DRAINING, NodeState.DRAINED])
def test_it_leaves_a_node_that_drains(state: NodeState) -> None:
    plan = think(Snapshot(nodes("ab", b=state), (), (going(1, "ab"),)))
    assert [(one.was, one.size, one.why) for one in plan.resizes] == [(2, 1, "b drains")]
    moved = think(Snapshot(nodes("abc", b=state), (), (going(1, "ab", most=2),)))
    assert [(one.was, one.size) for one in moved.resizes] == [(2, 2)]
    away = think(Snapshot(nodes("ab", a=state), (), (going(1, "a"),)))
    assert [(one.was, one.size, one.why) for one in away.resizes] == [(1, 1, "a drains")]


def test_it_stays_where_leaving_would_cost_all_or_nothing_is_left() -> None:
    drains = nodes("ab", b=NodeState.DRAINING)
    assert think(Snapshot(drains, (), (going(1, "ab", checkpoints=False),))).resizes == ()
    assert think(Snapshot(drains, (), (going(1, "ab", least=2),))).resizes == ()
    assert think(Snapshot(nodes("ab", b=NodeState.SUSPECT), (), (going(1, "ab"),))).resizes == (), "nobody knows"
    assert think(Snapshot(nodes("abc", b=NodeState.LOST), (), (going(1, "ab"),))).resizes == ()


def test_ranks_of_accelerators_stay_on_one_sort() -> None:
    others = (*nodes("a"), node("b", 1, model="A100"))
    assert think(Snapshot(others, (), (going(1, "a"),))).resizes == ()


@given(
    ranks=st.lists(st.tuples(st.integers(1, 3), st.integers(1, 4), st.booleans()), max_size=4),
    extra=st.integers(0, 4),
    asked=st.lists(st.tuples(st.integers(1, 3), st.sampled_from([250, 500, 750]), st.integers(0, 5)), max_size=5),
    drained=st.booleans(),
)
@settings(max_examples=examples(60), deadline=None)
def test_laws_of_every_resize(
    ranks: list[tuple[int, int, bool]], extra: int, asked: list[tuple[int, int, int]], drained: bool
) -> None:
    """Only sizes that it may have; a price below the gain; nobody is stopped altogether where giving back would do; the
    node that would be taken is free of everything else, which the laws of every plan see to."""
    fleet, runs = [], []
    for number, (size, least, saved) in enumerate(ranks):
        names = [f"n{number}x{i}" for i in range(size)]
        fleet += [node(name, 1) for name in names]
        runs.append(
            replace(
                running(number, {name: ["gpu0"] for name in names}, since=600.0, p50=LONG, priority=500),
                least_nodes=min(least, size),
                most_nodes=size + 2,
                alternatives=(alternative(1),),
                checkpoint_at=NOW - 5 if saved else None,
                checkpoints=saved,
            )
        )
    fleet += [node(f"free{i}", 1) for i in range(extra)]
    if drained and fleet:
        fleet[0] = replace(fleet[0], state=NodeState.DRAINING)
    waiting = tuple(
        stage(i, nodes=nodes_, most_nodes=most and nodes_ + most, priority=priority, p50=LONG)
        for i, (nodes_, priority, most) in enumerate(asked)
    )
    world = Snapshot(tuple(fleet), waiting, tuple(runs), projects=(Project("lab"),))
    for profile in ("hybrid", "dynamic"):
        plan = think(world, profile)
        before = {one.id: one for one in world.running}
        for one in plan.resizes:
            leaves = any(name == fleet[0].id for name in before[one.victim].placement.nodes) and drained
            assert one.gain >= one.price or leaves
            assert one.size != one.was or leaves
            assert not one.stage or one.size < one.was
        idle = {one.id for one in fleet if one.state is NodeState.READY}
        idle -= {name for one in world.running for name in one.placement.nodes}
        idle -= {name for one in plan.starts for name in one.placement.nodes}
        grown = sum(one.size - one.was for one in plan.resizes if one.size > one.was)
        assert grown <= len(idle)
        assert plan == think(world, profile)


def test_more_nodes_do_not_shorten_what_its_limit_ends() -> None:
    """A stage that its limit will end runs until then, on however many nodes: nobody is promised an earlier start."""
    limited = elastic(1, 1, 2, p50=LONG, time_limit_s=1000.0)
    plan = think(Snapshot(nodes("ab"), (limited, stage(2, p50=100.0)), ()))
    assert sizes(plan)["s001"] == 1
    alone = think(Snapshot(nodes("ab"), (limited,)))
    assert alone.starts[0].lasts.p50_s == 1000.0
