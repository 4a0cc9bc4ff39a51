"""The walk passes over those of whom others have told all, and over nobody else."""

from __future__ import annotations

from scheduler.core.model.types import Quota, Snapshot
from scheduler.profiles import PROFILES, load
from tests.core.worlds import node, running, stage, starts, think, waits

# The timetable takes one entry; with that, whole tiers are passed over.
ONE = load("one", {**PROFILES["hybrid"], "depth": 1})


def test_whoever_may_take_back_what_it_lent_is_seen_behind_one_who_may_not() -> None:
    lent = (running(7, {"a": ["gpu0"]}, project="guest"), running(8, {"a": ["gpu1"]}, project="guest"))
    rights = (Quota("guest", "gpu", 1000, cohort="all"), Quota("host", "gpu", 1000, cohort="all"))
    queue = (stage(1, gpus=2, project="free"), stage(2, project="free"), stage(3, project="host"))
    plan = think(Snapshot((node("a", 2),), queue, lent, quotas=rights), ONE)
    assert [one.stage for one in plan.preempts] == ["s003"], "the one ahead has no right to what was lent, this one has"


def test_a_shorter_one_is_seen_behind_a_longer_one_that_was_refused() -> None:
    short = stage(3, project="b", p50=50.0)
    going = (running(7, {"a": ["gpu0"]}, p50=150.0, preemptible=False),)
    promised, long = stage(1, gpus=2, priority=750), stage(2, project="a", p50=400.0)
    plan = think(Snapshot((node("a", 2),), (promised, long, short), going), ONE)
    assert set(starts(plan)) == {"s003"}, "it is done before the promise falls due"
    assert plan.waits[0].planned is not None


def test_who_waits_for_a_backoff_is_entered_though_its_project_may_have_no_more() -> None:
    rights = (Quota("lab", "gpu", 1000, 0),)
    going = (running(7, {"a": ["gpu0"]}, preemptible=False),)
    world = Snapshot((node("a", 2),), (stage(1), stage(2, retry_at=1_000_500.0)), going, quotas=rights)
    plan = waits(think(world))
    assert plan["s001"].reasons[0].code == "QuotaExhausted"
    assert plan["s002"].planned is not None, "by then it may well be allowed"
