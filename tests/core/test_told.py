"""What a cycle says of some of those who wait is what the whole plan says of them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from scheduler.core.model.lifecycle import State
from scheduler.core.model.types import Plan, Pool, Snapshot, Stage
from scheduler.core.planning import engine
from scheduler.core.resources.timetable import DeviceLane, Timetable
from tests.core.test_deltas import KNOWN, Town
from tests.core.worlds import NOW, node, running, stage, think
from tests.examples_count import examples


class Gates(Town):
    """The same town with a longer queue, in which much is kept back by more than what is free."""

    def __init__(self, seed: int, profile: str) -> None:
        super().__init__(seed, profile)
        self.come(60)

    def _stage(self) -> Stage:
        dice, one = self.dice, super()._stage()
        earlier = f"s{dice.randrange(1, self.number + 1):03}"
        more: list[dict[str, Any]] = [
            {"unmet": (earlier,)} if earlier != one.id else {},
            {"begin_at": self.now + dice.choice([-5.0, 300.0, 5000.0])},
            {"retry_at": self.now + 300.0},
            {"state": State.HELD},
            {"blocked_by": "s000"},
            {"bundle_gone": True},
        ]
        limit_s = dice.choice([None, None, 3_600.0, 90_000.0])
        return replace(one, time_limit_s=limit_s, **dice.choice([{}] * 8 + more))

    def go_on(self, plan: Plan) -> None:
        super().go_on(plan)
        if self.dice.random() < 0.3:
            most = self.dice.choice([None, 7_200.0])
            pools = (replace(one, max_limit_s=most) if one.name == "default" else one for one in self.world.pools)
            self.world = replace(self.world, pools=tuple(pools))


def check_lanes(table: Timetable) -> None:
    """What each device is said to have free follows from the entries on it, and from nothing that was left behind."""
    for row, lane in enumerate(table._lanes):
        if lane is None:
            continue
        anew = DeviceLane(table.fleet.devices[row])
        for start, end, held in (table._entries[owner] for owner in table._on[row]):
            for _, one in [each for each in held if each[0] == row]:
                anew.take(start, end, one.milli, one.memory_bytes)
        assert (min(lane.milli), min(lane.memory)) == (min(anew.milli), min(anew.memory))


@example(152076740, "dynamic", 0)  # two pools that take turns, each with the fences to close
@given(st.integers(0, 2**32), st.sampled_from(sorted(KNOWN)), st.integers(0, 12))
@settings(max_examples=examples(5), deadline=None)
def test_some_are_told_what_the_whole_plan_says_of_them(seed: int, profile: str, count: int) -> None:
    town, planner = Gates(seed, profile), engine.Planner()
    for _ in range(12):
        planner.plan(town.world, town.profiles, town.now)
        assert planner._view is not None
        check_lanes(planner._view.table)
        everybody = [one.id for one in town.world.waiting]
        asked = frozenset([*town.dice.sample(everybody, min(count, len(everybody))), "nobody"])
        some, whole = planner.explained(asked), planner.explained()
        assert some == replace(whole, waits=tuple(one for one in whole.waits if one.stage in asked))
        assert whole == engine.plan(planner.seen, town.profiles, town.now)
        town.go_on(whole)


@pytest.mark.parametrize("profile", ["dynamic", "fifo"])
def test_who_cannot_come_is_ahead_of_nobody(profile: str) -> None:
    later = {2: {"state": State.HELD}, 3: {"unmet": ("s002",)}, 4: {"pool": "other"}, 6: {"begin_at": NOW + 50.0}}
    world = Snapshot(
        (node("a", 1),),
        tuple(stage(number, **later.get(number, {})) for number in range(1, 9)),
        (running(9, {"a": ["gpu0"]}),),
        pools=(Pool("default"), Pool("other")),
    )
    ahead = {
        wait.stage: reason.params["ahead"]
        for wait in think(world, profile).waits
        for reason in wait.reasons
        if reason.code == "PriorityBehind"
    }
    assert ahead == {"s005": 1, "s007": 3, "s008": 4}, "1, 5 and 6, which has a time, count for those behind them"
