"""Time sharing: who is best in the line holds the devices, whether it ran before or not."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.core.model.lifecycle import State
from scheduler.core.model.profile import Profile
from scheduler.core.model.types import Device, Estimate, Node, Plan, Running, Snapshot, Start
from scheduler.core.model.types import Quota as Right
from scheduler.core.planning import engine
from scheduler.policies.gang import Gang
from scheduler.policies.heterogeneity import Heterogeneity
from scheduler.policies.preempt import Preempt
from scheduler.policies.quota import Quota
from scheduler.policies.shortest_predicted import ShortestPredicted
from scheduler.sim.traces import Arrival
from scheduler.sim.world import Chance, SimulatedWorld
from tests.core.worlds import NOW, alternative, node, running, stage
from tests.examples_count import examples

SHORTEST = ((ShortestPredicted(), 1.0),)
FREE = Profile("free", SHORTEST, rotates="event")
PRICED = Profile("priced", (*SHORTEST, (Preempt(), 1.0)), rotates="event")


def going(number: int, devices: dict[str, list[str]], p50: float, **more: object) -> Running:
    """A running stage that can be placed anew."""
    gpus = max(len(one) for one in devices.values())
    return running(number, devices, p50=p50, alternatives=(alternative(gpus),), submitted_at=NOW - 5000, **more)  # type: ignore[arg-type]


def turn(world: Snapshot, profile: Profile = FREE) -> Plan:
    """The plan, after what holds for every rotation was checked."""
    plan = engine.plan(world, profile, NOW)
    check(world, plan)
    return plan


def check(world: Snapshot, plan: Plan) -> None:
    """Each waiting stage once; with all swaps made and all victims gone, no device is oversold."""
    assert sorted([one.stage for one in plan.starts] + [one.stage for one in plan.waits]) == sorted(
        one.id for one in world.waiting
    )
    assert all(one.reasons for one in plan.waits)
    victims = {one.victim for one in plan.stops}
    assert len(victims) == len(plan.stops)
    assert all(one.victim != one.stage for one in plan.stops), "who goes on elsewhere is stopped for nobody"
    stays = [one.placement for one in world.running if one.id not in victims]
    placements = stays + [one.placement for one in (*plan.starts, *plan.swaps)]
    devices: dict[str, Device] = {device.id: device for one in world.nodes for device in one.devices}
    used: dict[str, int] = {}
    for placement in placements:
        for rank in placement.grants:
            for grant in rank:
                used[grant.device] = used.get(grant.device, 0) + grant.milli
    assert all(milli <= devices[name].capacity_milli for name, milli in used.items())
    now_free = [one.placement for one in world.running] + [one.placement for one in plan.starts]
    held: dict[str, int] = {}
    for placement in now_free:
        for rank in placement.grants:
            for grant in rank:
                held[grant.device] = held.get(grant.device, 0) + grant.milli
    assert all(milli <= devices[name].capacity_milli for name, milli in held.items()), "starts need no victim to leave"


def swaps(plan: Plan) -> dict[str, Start]:
    return {one.stage: one for one in plan.swaps}


def test_the_shorter_displaces_the_longer_and_the_longer_does_not() -> None:
    world = Snapshot((node("a", 1),), (stage(1, p50=50),), (going(7, {"a": ["gpu0"]}, 9000),))
    plan = turn(world)
    assert [(one.victim, one.stage, one.devices) for one in plan.preempts] == [("r007", "s001", ("a/gpu0",))]
    assert set(swaps(plan)) == {"s001"}
    assert plan.waits[0].reasons[0].code == "WaitingForPreemption"
    assert not turn(replace(world, waiting=(stage(1, p50=90_000),))).preempts


def test_while_the_displaced_one_stops_nobody_else_is_displaced_for_the_same_stage() -> None:
    stops = going(7, {"a": ["gpu0"]}, 9000, state=State.STOPPING, evicted_for="s001", stop_by_at=NOW + 20)
    world = Snapshot((node("a", 2),), (stage(1, p50=50),), (stops, going(8, {"a": ["gpu1"]}, 9000)))
    plan = turn(world)
    assert (plan.preempts, plan.starts, plan.swaps) == ((), (), ())
    assert plan.waits[0].reasons[0].code == "WaitingForPreemption"


def fenced(name: str, owner: str) -> Node:
    """A node with one GPU that was freed for a stage."""
    one = node(name, 1)
    devices = tuple(replace(device, fenced_for=owner if device.kind == "gpu" else None) for device in one.devices)
    return replace(one, devices=devices)


def test_what_was_freed_for_a_stage_is_its_own_although_others_come_before_it() -> None:
    world = Snapshot((fenced("a", "s002"),), (stage(1, p50=10), stage(2, p50=50)))
    assert [one.stage for one in turn(world).starts] == ["s002"]
    assert [one.stage for one in turn(replace(world, nodes=(node("a", 1),))).starts] == ["s001"]
    partly = replace(world, waiting=(stage(1, p50=10), stage(2, gpus=2, p50=50)))
    assert turn(partly).starts == (), "the rest of it is yet to come"


def test_a_quick_world_and_a_slow_one_run_the_same_stages() -> None:
    """With real stops every stage still ends, and who was displaced comes back."""
    long, short = Arrival("long", 0.0, 4000.0, 1), Arrival("short", 100.0, 50.0, 1)
    for stop_s in (0.0, 20.0):
        chance = Chance(stop_s=stop_s, saves_on_stop=True)
        lived = SimulatedWorld((node("a", 1),), (long, short), FREE, chance=chance).run()
        by_name = {one.stage.id: one for one in lived.entries}
        assert by_name["short"].ended_at == pytest.approx(150.0 + stop_s, abs=1)
        assert by_name["long"].preemptions == 1
        assert by_name["long"].ended_at == pytest.approx(4050.0 + stop_s, abs=30)


def test_what_is_free_is_taken_before_anybody_is_displaced() -> None:
    world = Snapshot((node("a", 2),), (stage(1, p50=50),), (going(7, {"a": ["gpu0"]}, 9000),))
    plan = turn(world)
    assert ([one.stage for one in plan.starts], plan.preempts) == (["s001"], ())


def test_the_last_of_the_line_leave_and_no_more_of_them_than_needed() -> None:
    runs = tuple(going(i, {"a": [f"gpu{i}"]}, 1000.0 * (i + 1)) for i in range(4))
    world = Snapshot((node("a", 4),), (stage(1, gpus=2, p50=50),), runs)
    assert sorted(one.victim for one in turn(world).preempts) == ["r002", "r003"]


def test_the_whole_line_is_scanned_and_what_does_not_fit_is_passed_over() -> None:
    world = Snapshot(
        (node("a", 4),),
        (stage(1, gpus=4, p50=400), stage(2, gpus=2, p50=900)),
        (going(7, {"a": ["gpu0", "gpu1"]}, 60),),
    )
    assert [one.stage for one in turn(world).starts] == ["s002"]


def test_who_stays_is_moved_closer_only_where_that_makes_room() -> None:
    spread = (going(1, {"a": ["gpu0"]}, 60), going(2, {"b": ["gpu0"]}, 70))
    world = Snapshot((node("a", 2), node("b", 2)), (stage(3, gpus=2, p50=400),), spread)
    plan = turn(world)
    assert [(one.victim, one.stage) for one in plan.preempts] in ([("r001", "s003")], [("r002", "s003")])
    assert len(swaps(plan)) == 2
    fits = replace(world, waiting=(stage(3, gpus=1, p50=400),))
    assert not turn(fits).preempts


def test_a_displaced_stage_goes_elsewhere_when_its_turn_comes() -> None:
    world = Snapshot(
        (node("a", 2), node("b", 1, model="A100")),
        (stage(3, gpus=2, p50=10),),
        (going(1, {"a": ["gpu0"]}, 500),),
    )
    plan = turn(world)
    assert swaps(plan)["r001"].placement.nodes == ("b",)


def test_nobody_is_displaced_who_may_not_be() -> None:
    free = Snapshot((node("a", 1),), (stage(1, p50=50),), (going(7, {"a": ["gpu0"]}, 9000),))
    for more in ({"preemptible": False}, {"min_runtime_s": 3600.0}, {"evicted_for": "s009"}):
        assert not turn(replace(free, running=(replace(free.running[0], **more),))).preempts  # type: ignore[arg-type]


def test_a_round_protects_those_who_began_in_it() -> None:
    world = Snapshot((node("a", 1),), (stage(1, p50=50),), (going(7, {"a": ["gpu0"]}, 9000, since=60),))
    started = NOW - 60
    assert started // 1000 != NOW // 1000
    plan = turn(world, replace(FREE, rotates=1000.0))
    assert plan.preempts
    assert plan.wake_at == NOW + 1000
    assert not turn(world, replace(FREE, rotates=3000.0)).preempts


def test_a_price_holds_back_what_gains_too_little() -> None:
    unsaved = going(7, {"a": ["gpu0"]}, 90_000, since=80_000)
    world = Snapshot((node("a", 1),), (stage(1, p50=50),), (unsaved,))
    assert not turn(world, PRICED).preempts, "a day of work would be lost for the sake of ten thousand seconds"
    saved = replace(world, running=(replace(unsaved, saves_on_stop=True),))
    plan = turn(saved, PRICED)
    assert plan.preempts
    assert 0 < plan.preempts[0].price < plan.preempts[0].gain


def test_who_comes_first_has_the_first_choice_of_models() -> None:
    nodes = (node("a", 1, model="H100"), node("b", 1, model="K80"))
    profile = Profile("het", (*SHORTEST, (Gang(), 1.0), (Heterogeneity(), 1.0)), rotates="event")
    speeds = {("train", "H100"): 2.0, ("train", "K80"): 0.2}
    world = Snapshot(nodes, (stage(1, p50=50), stage(2, p50=900)), speeds=speeds)
    assert {one.stage: one.placement.nodes for one in turn(world, profile).starts} == {"s001": ("a",), "s002": ("b",)}
    slow = going(7, {"b": ["gpu0"]}, 100)
    plan = turn(Snapshot(nodes, (), (slow,), speeds=speeds), profile)
    assert swaps(plan)["r007"].placement.nodes == ("a",)
    assert [(move.victim, move.placement.nodes) for move in plan.moves] == [("r007", ("a",))]
    assert not plan.preempts


def test_conditions_and_quota_hold_for_those_who_wait() -> None:
    world = Snapshot(
        (node("a", 2),),
        (stage(1, p50=1, begin_at=NOW + 60), stage(2, p50=2), stage(3, p50=3)),
        quotas=(Right("lab", "gpu", 1000),),
    )
    plan = turn(world, replace(FREE, policies=(*SHORTEST, (Quota(), 1.0))))
    assert [one.stage for one in plan.starts] == ["s002"]
    assert plan.wake_at == NOW + 60
    assert {one.stage: one.reasons[0].code for one in plan.waits} == {"s001": "BeginTime", "s003": "QuotaExhausted"}


@settings(max_examples=examples(40), deadline=None)
@given(st.data())
def test_laws_hold_in_any_world_and_any_order(data: st.DataObject) -> None:
    nodes = (node("a", 4), node("b", 4), node("c", 2, model="A100"))
    free = {name: [f"gpu{i}" for i in range(count)] for name, count in (("a", 4), ("b", 4), ("c", 2))}
    runs, waits = [], []
    for number in range(data.draw(st.integers(0, 5))):
        name = data.draw(st.sampled_from("abc"))
        want = data.draw(st.integers(1, 4))
        if len(free[name]) >= want:
            mine, free[name] = free[name][:want], free[name][want:]
            runs.append(going(number, {name: mine}, data.draw(st.floats(10, 1e5))))
    for number in range(data.draw(st.integers(0, 6))):
        p50 = data.draw(st.floats(10, 1e5))
        gpus, count = data.draw(st.integers(1, 4)), data.draw(st.integers(1, 2))
        waits.append(stage(number, gpus=gpus, nodes=count, estimate=Estimate(p50, p50)))
    world = Snapshot(nodes, tuple(waits), tuple(runs))
    profile = data.draw(st.sampled_from([FREE, PRICED]))
    plan = turn(world, profile)
    mixed = replace(world, waiting=tuple(reversed(world.waiting)), running=tuple(reversed(world.running)))
    assert engine.plan(mixed, profile, NOW) == plan
