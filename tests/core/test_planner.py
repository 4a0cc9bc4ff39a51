"""A planner that remembers decides as one that sees the world for the first time, and is told what it knew besides."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.core.model.lifecycle import NodeState, State
from scheduler.core.model.types import Node, Plan, Snapshot, Stage
from scheduler.core.planning import aside, engine
from scheduler.profiles import named
from tests.core.test_laws import worlds
from tests.core.test_resize_stories import Story
from tests.core.worlds import NOW, begun, check_laws, ended, node, running, stage, starts, think, waits
from tests.examples_count import examples

PROFILES = st.sampled_from(["static", "dynamic", "hybrid", "fifo"])


def applied(world: Snapshot, plan: Plan, now: float) -> Snapshot:
    """As ``begun``, but what did not change stays the same object, as a store in memory would have it."""
    started = {one.stage for one in plan.starts}
    after = begun(world, plan, now)
    before = {one.id: one for one in world.waiting}
    kept = tuple(before[one.id] if before[one.id] == one else one for one in after.waiting)
    return replace(after, waiting=kept, nodes=world.nodes) if started or kept else world


@given(worlds(), PROFILES, st.lists(st.tuples(st.floats(1, 400), st.integers(0, 9)), min_size=1, max_size=8))
@settings(max_examples=examples(60), deadline=None)
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


def forgetful(before: Snapshot, after: Snapshot, dice: random.Random) -> Snapshot:
    """As if some of what a cycle said of those who wait had not been written."""
    known = {one.id: one for one in before.waiting}
    kept = tuple(known[one.id] if one.id in known and dice.random() < 0.1 else one for one in after.waiting)
    return replace(after, waiting=kept)


@pytest.mark.parametrize("profile", ["static", "dynamic", "hybrid", "fifo"])
def test_what_it_knew_besides_is_told_and_makes_the_same_plan(profile: str) -> None:
    preempted = 0
    for seed in range(15):
        story, planner = Story(seed), engine.Planner()
        for _ in range(25):
            story.come()
            planner.plan(story.world, named(profile), story.now)
            plan = planner.explained()
            assert engine.plan(planner.seen, named(profile), story.now) == plan
            preempted += len(plan.preempts) + len(plan.resizes)
            before = story.world
            story.obey(plan)
            story.world = forgetful(before, story.world, story.dice)
            story.go_on()
    assert preempted > 5 or profile in {"static", "fifo"}, "or nothing was tried here"


class Crowd:
    """Many stages on a few dozen devices: they come, are held, go and end by dice, and nodes are lost and found."""

    def __init__(self, seed: int) -> None:
        self.dice, self.now, self.number = random.Random(seed), NOW, 0
        self.world = Snapshot(tuple(node(f"n{i}", 8) for i in range(self.dice.choice([3, 8]))))
        self.come(60)

    def come(self, count: int) -> None:
        new = tuple(self._one() for _ in range(count))
        self.world = replace(self.world, waiting=(*self.world.waiting, *new))

    def _one(self) -> Stage:
        self.number += 1
        return stage(
            self.number,
            self.dice.choice([1, 1, 1, 2, 4, 8]),
            p50=self.dice.choice([600.0, 3_600.0, 20_000.0]),
            nodes=self.dice.choice([1] * 8 + [2]),
            priority=self.dice.choice([300, 500, 500, 700]),
            project=self.dice.choice(["lab", "shop", "hall"]),
            begin_at=self.dice.choice([None] * 8 + [self.now + 1000]),
            time_limit_s=self.dice.choice([None, None, 4_000.0]),
            submitted_at=self.now,
            eligible_at=self.now,
        )

    def go_on(self, plan: Plan) -> None:
        dice, before = self.dice, self.world
        told = {one.victim: one.stage for one in plan.preempts}
        after = applied(before, plan, self.now)
        self.now += dice.choice([0.5, dice.uniform(1, 400)])
        going = []
        for one in after.running:
            if one.id in told:
                one = replace(one, state=State.STOPPING, evicted_for=told[one.id], stop_by_at=self.now + 30)
            elif one.state is State.RUNNING and dice.random() < 0.1:
                one = replace(one, progress=dice.uniform(0.06, 1.0), progress_at=self.now)
            if dice.random() > (0.5 if one.state is State.STOPPING else 0.05):
                going.append(one)
        waiting = [self._moved(one) for one in after.waiting if dice.random() > 0.005]
        nodes = tuple(self._found_or_lost(one) if dice.random() < 0.01 else one for one in after.nodes)
        self.world = forgetful(before, replace(after, running=tuple(going), waiting=tuple(waiting), nodes=nodes), dice)
        if dice.random() < 0.5:
            self.come(dice.choice([1, 2, 5]))

    def _moved(self, one: Stage) -> Stage:
        if self.dice.random() > 0.01:
            return one
        return replace(one, state=State.PENDING if one.state is State.HELD else State.HELD)

    @staticmethod
    def _found_or_lost(one: Node) -> Node:
        return replace(one, state=NodeState.LOST if one.state is NodeState.READY else NodeState.READY)


@pytest.mark.parametrize("profile", ["static", "dynamic", "hybrid", "fifo"])
def test_in_a_crowd_too(profile: str) -> None:
    for seed in range(examples(2)):
        crowd, planner = Crowd(seed), engine.Planner()
        for _ in range(40):
            planner.plan(crowd.world, named(profile), crowd.now)
            plan = planner.explained()
            assert engine.plan(planner.seen, named(profile), crowd.now) == plan
            crowd.go_on(plan)


def test_after_a_while_it_begins_anew_and_says_so() -> None:
    crowd, planner, knew = Crowd(1), aside.TolerantPlanner(most=3), []
    for _ in range(7):
        planner.plan(crowd.world, named("hybrid"), crowd.now)
        plan = planner.explained()
        assert engine.plan(planner.seen, named("hybrid"), crowd.now) == plan
        knew.append(planner.seen.given_back is not None)
        crowd.go_on(plan)
    assert not any(knew[::3])
    assert knew[1], "nothing but a node that changed makes it forget before"


def test_a_plan_that_failed_leaves_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    crowd, planner = Crowd(2), aside.TolerantPlanner()
    planner.plan(crowd.world, named("hybrid"), crowd.now)
    crowd.go_on(planner.explained())
    planner.plan(crowd.world, named("hybrid"), crowd.now)
    with monkeypatch.context() as patch:
        patch.setattr(engine.why, "conclude", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            planner.explained()
    planner.plan(crowd.world, named("hybrid"), crowd.now)
    assert planner.seen.given_back is None
    assert planner.explained() == engine.plan(crowd.world, named("hybrid"), crowd.now)
