"""A planner that is told what changed decides as one that sees the whole world for the first time."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from scheduler.core.model.lifecycle import Health, NodeState, State
from scheduler.core.model.profile import Profile
from scheduler.core.model.types import CalendarEntry, Device, News, Node, Plan, Pool, Project, Snapshot, Stage, Typical
from scheduler.core.planning import engine
from scheduler.core.world import deltas, world
from scheduler.core.world.request_class import RequestClass
from scheduler.core.world.view import View
from scheduler.policies.fair_share import FairShare
from scheduler.policies.fragmentation import Fragmentation
from scheduler.policies.locality import Locality
from scheduler.policies.power import Power
from scheduler.profiles import named
from tests.core.worlds import NOW, alternative, begun, node, stage
from tests.examples_count import examples

OWN = Profile(
    "own",
    (*named("hybrid").policies, (Fragmentation(), 1.0), (Locality(), 2.0), (Power(), 0.5)),
    timetable="repair",
    repair_depth=2,
)
NODE_CHANGES = ("state", "health", "warned", "label", "cached", "awake", "pools", "memory", "fewer", "fence")
# What nodes the stages want, in turn: any, or now and then some by rack and by name.
GROUPS = (((),), ((), (("rack=a", "n3"),), (("rack=*",), ("n2", "n3", "n4", "rack=c"))))
KNOWN = {
    "turns": named("turns"),
    "static": named("static"),
    "dynamic": named("dynamic"),
    "hybrid": named("hybrid"),
    "own": OWN,
}


class Town:
    """A cluster of two pools in which everything changes by dice: nodes come, go, fail and are relabelled, devices
    break, pools change profile, speeds are measured, maintenance is announced, and stages come, run and end."""

    def __init__(self, seed: int, profile: str, groups: Sequence[tuple[tuple[str, ...], ...]] = ((),)) -> None:
        self.dice, self.now, self.number, self.groups = random.Random(seed), NOW, 0, groups
        self.profiles = {"default": KNOWN[profile], "other": named("hybrid")}
        nodes = tuple(self._node(f"n{i}") for i in range(0, 12, 2))
        self.world = Snapshot(nodes, pools=(Pool("default"), Pool("other")))
        self.come(25)

    def _node(self, name: str) -> Node:
        made = node(name, self.dice.choice([2, 4]), model=self.dice.choice(["H100", "A100"]))
        pools = self.dice.choice([("default",), ("default", "other")])
        return replace(made, pools=pools, labels={"rack": self.dice.choice("ab")})

    def come(self, count: int) -> None:
        new = tuple(self._stage() for _ in range(count))
        self.world = replace(self.world, waiting=(*self.world.waiting, *new))

    def _stage(self) -> Stage:
        self.number += 1
        dice, gpus = self.dice, self.dice.choice([1, 1, 2, 4])
        either = (alternative(gpus, model="H100"), alternative(gpus, index=1, model="A100"))
        more: dict[str, Any] = dice.choice(
            [
                {},
                {},
                {},
                {"avoid": ("rack=a",)},
                {"pinned": ("n2", "n5")},
                {"inputs": ("sha",)},
                {"alternatives": either},
            ]
        )
        if dice.random() < 0.1:
            more |= {"nodes": 2, "within": "rack", "within_required": dice.random() < 0.5}
        return stage(
            self.number,
            gpus,
            p50=dice.choice([600.0, 3_600.0, 20_000.0]),
            priority=dice.choice([300, 500, 500, 700]),
            project=dice.choice(["lab", "shop"]),
            pool=dice.choice(["default", "default", "other"]),
            kind=dice.choice(["train", "infer"]),
            submitted_at=self.now,
            eligible_at=self.now,
            only=self.groups[self.number % len(self.groups)],
            **more,
        )

    def go_on(self, plan: Plan) -> None:
        """What becomes of the plan, and whatever else happens until the next look."""
        told = {one.victim: one.stage for one in plan.preempts}
        after, dice = begun(self.world, plan, self.now), self.dice
        before = {one.id: one for one in self.world.waiting}
        self.now += dice.choice([0.5, dice.uniform(1, 600)])
        going = []
        for run in after.running:
            if run.id in told:
                run = replace(run, state=State.STOPPING, evicted_for=told[run.id], stop_by_at=self.now + 30)
            if dice.random() > (0.5 if run.state is State.STOPPING else 0.05):
                going.append(run)
        # Some of what the cycle said of those who wait is not written.
        kept = [before[one.id] if before[one.id] == one or dice.random() < 0.05 else one for one in after.waiting]
        self.world = replace(after, running=tuple(going), waiting=tuple(kept), nodes=self.world.nodes)
        if dice.random() < 0.5:
            self.come(dice.choice([1, 3]))
        for _ in range(dice.choice([0, 1, 1, 3])):
            self.change()

    def change(self) -> None:
        """One thing is not what it was."""
        dice, world = self.dice, self.world
        what = dice.choice(["node"] * 8 + ["come", "go", "speed", "profile", "pool", "maintenance"])
        if what == "node" and world.nodes:
            at = dice.randrange(len(world.nodes))
            self.world = replace(world, nodes=(*world.nodes[:at], self._other(world.nodes[at]), *world.nodes[at + 1 :]))
        elif what == "come":
            absent = sorted({f"n{i}" for i in range(12)} - {one.id for one in world.nodes})
            new = (self._node(dice.choice(absent)),) if absent else ()
            self.world = replace(world, nodes=(*world.nodes, *new))
        elif what == "go" and len(world.nodes) > 2:
            gone = dice.choice(world.nodes)
            self.world = replace(world, nodes=tuple(one for one in world.nodes if one is not gone))
        elif what == "speed":
            key = dice.choice(["train", "infer"]), dice.choice(["H100", "A100"])
            self.world = replace(world, speeds={**world.speeds, key: dice.choice([0.5, 1.0, 2.0])})
        elif what == "profile":
            self.profiles = {**self.profiles, dice.choice(["default", "other"]): dice.choice(list(KNOWN.values()))}
        elif what == "pool":
            usual = dice.choice([(), (Typical("gpu", 2, 1000, 2000, 1.0),), (Typical("gpu", 1, 500, 2000, 1.0),)])
            stopped = dice.choice(["", "", "ann"])
            self.world = replace(world, pools=(Pool("default", typical=usual), Pool("other", stopped_by=stopped)))
        elif what == "maintenance":
            names, at = [one.id for one in world.nodes], self.now + dice.uniform(-100, 5000)
            window = CalendarEntry("m", tuple(dice.sample(names, min(2, len(names)))), at, at + dice.uniform(100, 5000))
            self.world = replace(world, maintenance=dice.choice([(), (window,)]))

    def _other(self, one: Node) -> Node:
        """The same node as it is after something happened to it."""
        dice = self.dice
        match dice.choice(NODE_CHANGES):
            case "state":
                return replace(one, state=dice.choice([NodeState.READY, NodeState.LOST, NodeState.DRAINING]))
            case "label":
                return replace(one, labels={"rack": dice.choice("abc")})
            case "cached":
                return replace(one, cached=dice.choice([(), ("sha",)]))
            case "awake":
                return replace(one, awake=not one.awake)
            case "pools":
                return replace(one, pools=dice.choice([("default",), ("other",), ("default", "other")]))
            case "fewer":
                return replace(one, devices=one.devices[:-1] if len(one.devices) > 2 else one.devices)
            case what:
                at = dice.randrange(len(one.devices))
                devices = (*one.devices[:at], self._device(one.devices[at], what), *one.devices[at + 1 :])
                return replace(one, devices=devices)

    def _device(self, one: Device, what: str) -> Device:
        if what == "health":
            return replace(one, health=self.dice.choice([Health.OK, Health.UNHEALTHY]))
        if what == "warned":
            return replace(one, warned=not one.warned)
        if what == "memory":
            return replace(one, memory_bytes=one.memory_bytes // self.dice.choice([1, 2]) or 1)
        return replace(one, fenced_for=self.dice.choice([None, f"s{self.dice.randrange(1, self.number + 1):03}"]))


def told(before: Snapshot, after: Snapshot, serial: int) -> News:
    """What changed between two worlds, as a store tells it."""
    changed: list[dict[str, Any]] = []
    for old, new in ((before.waiting, after.waiting), (before.running, after.running), (before.nodes, after.nodes)):
        known: dict[str, Any] = {one.id: one for one in old}  # type: ignore[attr-defined]
        here: dict[str, Any] = {one.id: one for one in new}  # type: ignore[attr-defined]
        gone = dict.fromkeys(name for name in known if name not in here)
        changed.append(gone | {name: one for name, one in here.items() if known.get(name) is not one})
    return News(serial, *changed)


class Passing(Town):
    """A cluster whose people and requests change: hardly a stage asks for what one before it asked for, most are
    cancelled before they start, and projects come, wait and go."""

    def _stage(self) -> Stage:
        made, dice = super()._stage(), self.dice
        asks = alternative(dice.choice([1, 2]), memory=dice.randrange(1, 10**9))
        fresh = {"alternatives": (asks,)} if dice.random() < 0.8 else {}
        return replace(made, project=dice.choice("abcdefgh"), user=f"u{dice.randrange(20)}", **fresh)

    def go_on(self, plan: Plan) -> None:
        super().go_on(plan)
        dice = self.dice
        stays = dice.choice([0.1, 0.9])
        self.world = replace(self.world, waiting=tuple(one for one in self.world.waiting if dice.random() < stays))
        self.come(dice.choice([0, 3, 12]))


@given(st.integers(0, 2**32), st.sampled_from(sorted(KNOWN)), st.booleans())
@settings(max_examples=examples(20), deadline=None)
def test_of_stages_that_left_little_is_kept_and_it_changes_nothing(seed: int, profile: str, is_told: bool) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(world, "SPARE", 4)
        patch.setattr(deltas, "SPARE", 4)
        town, planner, before = Passing(seed, profile), engine.Planner(), None
        asked: set[RequestClass] = set()
        for serial in range(15):
            news = None
            if is_told:
                news = told(before, town.world, serial) if before else News(serial)
            before = town.world
            view = planner.think(town.world, town.profiles, town.now, news)
            check_what_is_kept(view, asked)
            plan = planner.explained()
            asked = {one for one in view._requests.values() if one.asked_in == view._looks}
            assert plan == engine.plan(planner.seen, town.profiles, town.now)
            town.go_on(plan)


def check_what_is_kept(view: View, asked: set[RequestClass], spare: int = 4) -> None:
    """No more request classes without a waiting stage than ``spare`` or than others, but for those that were ``asked``
    for since the look before; and no more groups than twice those of stages that wait, and ``spare``."""
    waiting = set(view._request_here.values())
    assert {one: one.members for one in view._requests.values() if one.members} == Counter(view._request_here.values())
    idle = set(view._requests.values()) - waiting
    entered = {one.option.feasible for one in view.reservations.values()}
    by_now = {one for one in idle if one.asked_in == view._looks or not entered.isdisjoint(one.every)}
    assert len(idle - asked - by_now) <= max(spare, len(waiting))
    pending = view.pending
    assert len(pending.groups) <= 2 * len(pending) + spare
    assert max(map(len, (pending.tiers, pending.owners, pending.projects, pending.pools))) <= max(
        1, len(pending.groups)
    )
    assert {request for request, _ in pending.tiers} <= set(view._requests.values())
    assert len(view._request_of) <= 2 * (len(view.waiting) + len(view.running)) + spare + len(view._requests)


def test_a_planner_keeps_as_much_after_a_thousand_requests_as_after_a_hundred() -> None:
    planner, world_ = engine.Planner(), Snapshot((node("n0", 2),), pools=(Pool("default"),))
    kept = []
    for number in range(1_000):
        asks = (alternative(4, memory=number + 1),)
        view = planner.think(
            replace(world_, waiting=(stage(number, alternatives=asks),)), named("hybrid"), NOW + number
        )
        kept.append((len(view._requests), len(view._request_of), len(view.pending.tiers), len(view.pending.groups)))
    assert max(kept[900:]) <= max(kept[:100])


def test_a_project_of_which_none_waits_any_more_weighs_nothing() -> None:
    """By how much more another must be due for a promise to yield is measured in the mean weight of those that wait."""
    policy, planner = FairShare(), engine.Planner()
    stages = (stage(1, 4, project="lab"), stage(2, 4, project="heavy"))
    both = Snapshot((node("n0", 2),), stages, pools=(Pool("default"),), projects=(Project("heavy", weight=99.0),))
    planner.plan(both, named("hybrid"), NOW)
    after = replace(both, waiting=stages[:1])
    assert policy.hysteresis("default", planner.think(after, named("hybrid"), NOW + 1)) == policy.hysteresis(
        "default", View(after, named("hybrid"), NOW + 1)
    )


@given(st.integers(0, 2**32), st.sampled_from(sorted(KNOWN)), st.booleans(), st.sampled_from(GROUPS))
@settings(max_examples=examples(20), deadline=None)
@example(3217, "turns", False, GROUPS[0])  # a cycle within a millisecond of a predicted end
def test_whatever_changes_the_plan_is_that_of_one_who_sees_it_for_the_first_time(
    seed: int, profile: str, is_told: bool, groups: Sequence[tuple[tuple[str, ...], ...]]
) -> None:
    town, planner, before = Town(seed, profile, groups), engine.Planner(), None
    for serial in range(15):
        news = None
        if is_told:
            news = told(before, town.world, serial) if before else News(serial)
        before = town.world
        planner.plan(town.world, town.profiles, town.now, news)
        plan = planner.explained()
        assert plan == engine.plan(planner.seen, town.profiles, town.now)
        town.go_on(plan)


@pytest.mark.parametrize("profile", sorted(KNOWN))
def test_with_news_nobody_looks_through_the_stages_and_nodes_of_a_snapshot(profile: str) -> None:
    for seed in range(4):
        town, knows, is_told, before = Town(seed, profile), engine.Planner(), engine.Planner(), None
        for serial in range(20):
            news = told(before, town.world, serial) if before else News(serial)
            bare = replace(town.world, waiting=(), running=(), nodes=()) if before else town.world
            before = town.world
            plan = knows.plan(town.world, town.profiles, town.now, news)
            assert is_told.plan(bare, town.profiles, town.now, news) == plan
            town.go_on(knows.explained())
