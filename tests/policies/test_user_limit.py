"""A user's stages are counted as they come and go, in each pool."""

from __future__ import annotations

from dataclasses import replace

import pytest

from scheduler.core.model.types import Limit, Pool, Snapshot
from scheduler.core.planning import engine
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


@pytest.mark.parametrize(
    ("limits", "starts", "why"),
    [
        ((Limit(1, running=2),), ["s001"], "UserStages"),
        ((Limit(1, devices_milli=3000),), ["s001", "s002"], "UserDevices"),
        ((Limit(1, pool="other", running=0), Limit(2, project="other", devices_milli=0)), ["s001", "s002", "s003"], ""),
        ((Limit(1, running=0), Limit(2, user="ada", running=3)), ["s001", "s002"], "UserStages"),
        ((Limit(1, user="bob", running=0),), ["s001", "s002", "s003"], ""),
    ],
    ids=["stages", "devices", "elsewhere", "own limit instead of that of all", "of another user"],
)
def test_a_limit_counts_what_runs_and_what_starts_in_this_cycle(
    limits: tuple[Limit, ...], starts: list[str], why: str
) -> None:
    profile = load("one", {"policies": {"user_limit": {}}, "timetable": "none"})
    waiting = tuple(stage(number, user="ada") for number in (1, 2, 3))
    world = Snapshot((node("a", 8),), waiting, (running(7, {"a": ["gpu0"]}, user="ada"),), limits=limits)
    plan = engine.plan(world, profile, NOW)
    assert sorted(one.stage for one in plan.starts) == starts
    assert {one.reasons[0].code for one in plan.waits} == ({why} if why else set())
