"""What holds in every world, searched for by Hypothesis."""

from __future__ import annotations

import random
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.core.model.lifecycle import Health, NodeState, State
from scheduler.core.model.types import Device, Quota, Running, Snapshot, Stage
from scheduler.core.world.view import View
from scheduler.profiles import named
from tests.core.worlds import (
    GIB,
    NOW,
    STEADY,
    alternative,
    begun,
    ended,
    node,
    on_disk,
    running,
    stage,
    think,
    with_disk,
)
from tests.examples_count import examples

PROFILES = st.sampled_from(["static", "dynamic", "hybrid", "fifo"])


@st.composite
def stages(draw: st.DrawFn, number: int) -> Stage:
    kind = draw(st.sampled_from(["gpu", "gpu", "npu"]))
    milli = draw(st.sampled_from([1000, 1000, 500, 250]))
    first = alternative(
        draw(st.integers(0, 4)), draw(st.integers(1, 8)), kind=kind, milli=milli, memory=milli * GIB // 50
    )
    second = alternative(0, draw(st.integers(1, 16)), index=1)
    ways = (first, second) if draw(st.booleans()) else (first,)
    space = draw(st.sampled_from([0, 0, 0, 100 * GIB, 300 * GIB]))
    return stage(
        number,
        alternatives=on_disk(ways, space, draw(st.sampled_from([0, 500]))) if space else ways,
        nodes=(nodes := draw(st.sampled_from([1, 1, 1, 2, 3]))),
        most_nodes=draw(st.sampled_from([0, 0, 0, nodes + 1, nodes + 4])),
        p50=draw(st.sampled_from([10.0, 100.0, 1000.0])),
        priority=draw(st.sampled_from([250, 500, 750, 1000])),
        project=draw(st.sampled_from(["lab", "shop"])),
        time_limit_s=draw(st.sampled_from([None, 50.0, 5000.0])),
        state=draw(st.sampled_from([State.PENDING] * 5 + [State.HELD])),
        unmet=draw(st.sampled_from([(), (), (), ("s000",), ("r000",)])) if number else (),
        begin_at=draw(st.sampled_from([None, None, NOW + 30])),
    )


@st.composite
def worlds(draw: st.DrawFn) -> Snapshot:
    nodes = []
    for i in range(draw(st.integers(1, 4))):
        one = node(f"n{i}", draw(st.integers(0, 4)), draw(st.integers(2, 16)), npus=draw(st.integers(0, 2)))
        state = draw(st.sampled_from([NodeState.READY] * 5 + [NodeState.LOST]))
        devices = [draw(_spoiled(device)) for device in one.devices]
        there = replace(one, state=state, devices=tuple(devices))
        nodes.append(with_disk(there, 400 * GIB, 1000) if draw(st.booleans()) else there)
    going = tuple(
        running(
            i,
            {one.id: [f"gpu{g}" for g in range(draw(st.integers(0, gpus)))]},
            priority=draw(st.sampled_from([250, 500])),
        )
        for i, one in enumerate(nodes)
        if (gpus := sum(device.kind == "gpu" for device in one.devices)) and draw(st.booleans())
    )
    waiting = tuple(draw(stages(number)) for number in range(draw(st.integers(0, 9))))
    quotas = (Quota("lab", "gpu", 2000), Quota("shop", "gpu", 1000, 1000)) if draw(st.booleans()) else ()
    return Snapshot(tuple(nodes), waiting, going, quotas=quotas)


@st.composite
def _spoiled(draw: st.DrawFn, device: Device) -> Device:
    health = draw(st.sampled_from([Health.OK] * 9 + [Health.UNHEALTHY]))
    return replace(device, health=health, fenced_for=draw(st.sampled_from([None] * 9 + ["s001"])))


@given(worlds(), PROFILES)
@settings(max_examples=examples(60), deadline=None)
def test_no_plan_breaks_a_law(world: Snapshot, profile: str) -> None:
    plan = think(world, profile)
    # ... and neither does the next one, which sees what the first began and promised.
    think(begun(world, plan, NOW), profile, NOW + 7)


@given(worlds(), PROFILES, st.randoms(use_true_random=False))
@settings(max_examples=examples(40), deadline=None)
def test_the_order_of_the_snapshot_does_not_matter(world: Snapshot, profile: str, dice: random.Random) -> None:
    def shuffled(items: tuple) -> tuple:
        return tuple(dice.sample(items, len(items)))

    other = replace(
        world,
        nodes=shuffled(tuple(replace(one, devices=shuffled(one.devices)) for one in world.nodes)),
        waiting=shuffled(world.waiting),
        running=shuffled(world.running),
        quotas=shuffled(world.quotas),
    )
    assert think(world, profile) == think(other, profile)


@given(worlds())
@settings(max_examples=examples(40), deadline=None)
def test_higher_priority_is_never_stopped_and_equal_one_only_by_who_will_soon_be_done(world: Snapshot) -> None:
    going = {one.id: one for one in world.running}
    waiting = {one.id: one for one in world.waiting}
    for profile in ("dynamic", "hybrid"):
        for one in think(world, profile).preempts:
            victim, other = going[one.victim], waiting[one.stage]
            assert victim.priority <= other.priority
            if victim.priority == other.priority:
                assert profile == "hybrid"
                assert victim.estimate.p90_s > other.estimate.p50_s
            assert one.gain >= one.price


@given(worlds())
@settings(max_examples=examples(60), deadline=None)
def test_no_promise_is_delayed_while_all_goes_as_predicted(world: Snapshot) -> None:
    """Hybrid, without arrivals and evictions: once promised, an entry only ever moves to an earlier time."""
    world = replace(
        world,
        waiting=tuple(replace(one, priority=500, unmet=()) for one in world.waiting),
        running=tuple(replace(one, priority=500) for one in world.running),
        nodes=tuple(replace(n, devices=tuple(replace(d, fenced_for=None) for d in n.devices)) for n in world.nodes),
        quotas=(),
    )
    now, promised = NOW, {}
    for _ in range(12):
        plan = think(world, STEADY, now)
        for start in plan.starts:
            assert now <= promised.get(start.stage, now) + 0.01
        for one in plan.waits:
            if one.planned:
                assert one.planned.start_at <= promised.get(one.stage, one.planned.start_at) + 0.01
                promised[one.stage] = one.planned.start_at
            else:
                assert one.stage not in promised
        world = begun(world, plan, now)
        ends = {one.id: one.started_at + _length(one, world) for one in world.running}
        moments = [*ends.values(), *((plan.wake_at,) if plan.wake_at else ())]
        if not moments:
            break
        now = min(moments)
        world = ended(world, *(name for name, end in ends.items() if end <= now))


def _length(one: Running, world: Snapshot) -> float:
    """What the engine predicts is what happens in this test: P50 on the device that it got, at most the limit."""
    return View(world, named("hybrid"), one.started_at).predicted_end(one, "p50") - one.started_at
