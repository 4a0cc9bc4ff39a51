"""A user's stages are counted as they come and go, in each pool."""

from __future__ import annotations

from dataclasses import replace

from scheduler.core.model.types import Pool, Snapshot
from scheduler.core.planning.engine import Planner
from scheduler.profiles import load
from tests.core.worlds import NOW, node, running, stage


def test_who_runs_as_much_as_the_pool_allows_waits_until_something_of_theirs_ends() -> None:
    planner, profile = Planner(), load("one", {"policies": {"user_limit": {}}, "timetable": "none"})
    mine, theirs = running(7, {"a": ["gpu0"]}, user="ada"), running(8, {"a": ["gpu1"]}, user="bob")
    world = Snapshot((node("a", 4),), (stage(1, user="ada"),), (mine, theirs), pools=(Pool("default", user_limit=1),))

    def begin(seen: Snapshot, now: float) -> list[str]:
        return [one.stage for one in planner.plan(seen, profile, now).starts]

    assert begin(world, NOW) == []
    assert begin(replace(world, running=(mine,)), NOW + 1) == [], "bob's end is nothing to ada"
    assert begin(replace(world, running=(replace(mine, priority=750),)), NOW + 2) == [], "counted once"
    assert begin(replace(world, running=(theirs,)), NOW + 3) == ["s001"]
