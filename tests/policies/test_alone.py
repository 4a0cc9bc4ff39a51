"""For each policy a world in which it alone changes the outcome."""

from __future__ import annotations

from dataclasses import replace

from scheduler.core.model.profile import Profile
from scheduler.core.model.types import Plan, Project, Quota, Snapshot
from scheduler.core.planning import engine
from scheduler.policies.alternatives import Alternatives
from scheduler.policies.backfill import Backfill
from scheduler.policies.cycle_guard import CycleGuard
from scheduler.policies.elastic import Elastic
from scheduler.policies.fair_share import FairShare
from scheduler.policies.fifo import Fifo
from scheduler.policies.gang import Gang
from scheduler.policies.pack import Pack
from scheduler.policies.preempt import Preempt
from scheduler.policies.priority import Priority
from scheduler.policies.quota import Quota as QuotaPolicy
from scheduler.policies.reclaim import Reclaim
from scheduler.profiles import named
from tests.core.worlds import NOW, STEADY, alternative, begun, node, primary, running, stage, starts, think, waits


def with_and_without(world: Snapshot, policy: object, timetable: str = "none") -> tuple[Plan, Plan]:
    return (
        think(world, Profile("with", ((policy, 1.0),), timetable=timetable)),  # type: ignore[arg-type]
        think(world, Profile("without", (), timetable=timetable)),  # type: ignore[arg-type]
    )


def test_priority_lets_the_urgent_go_first_and_waiting_lifts_nobody() -> None:
    world = Snapshot((node("a", 1),), (stage(1), stage(2, priority=750)))
    there, gone = with_and_without(world, Priority())
    assert (set(starts(there)), set(starts(gone))) == ({"s002"}, {"s001"})
    patient = replace(world.waiting[0], eligible_at=NOW - 48 * 3600)
    assert set(starts(think(replace(world, waiting=(patient, world.waiting[1])), "dynamic"))) == {"s002"}


def test_who_waited_too_long_gets_a_part_of_the_pool_and_is_not_stopped_there() -> None:
    low = tuple(stage(i, priority=250, eligible_at=NOW - 4 * 86_400 + i) for i in range(1, 9))
    high = tuple(stage(i, priority=750) for i in range(11, 19))
    world = Snapshot((node("a", 4),), (*low, *high))
    first = think(world, "hybrid")
    served = {name for name in starts(first) if name < "s010"}
    assert served == {"s001"}, "a twentieth of four devices is one stage at a time, the one that has waited longest"
    assert "guaranteed after waiting" in starts(first)["s001"].why
    later = begun(world, first, NOW)
    later = replace(later, running=tuple(replace(one, eligible_at=NOW - 4 * 86_400) for one in later.running))
    urgent = replace(later, waiting=tuple(stage(i, 1, priority=750, p50=9e4) for i in range(21, 23)))
    assert "s001" not in {one.victim for one in think(urgent, "hybrid", NOW + 1).preempts}
    beside = replace(urgent, running=tuple(replace(one, eligible_at=one.started_at) for one in urgent.running))
    assert "s001" in {one.victim for one in think(beside, "hybrid", NOW + 1).preempts}, "only the guarantee saves it"


def test_priority_never_lifts_to_urgent() -> None:
    ancient = stage(1, priority=750, eligible_at=NOW - 1e7)
    world = Snapshot((node("a", 1),), (ancient, stage(2, priority=1000)))
    assert set(starts(think(world, "dynamic"))) == {"s002"}


def test_fair_share_lets_those_go_first_who_used_less() -> None:
    projects = (Project("lab", 1, 9000), Project("shop", 1, 1000))
    world = Snapshot((node("a", 1),), (stage(1), stage(2, project="shop")), projects=projects)
    there, gone = with_and_without(world, FairShare())
    assert (set(starts(there)), set(starts(gone))) == ({"s002"}, {"s001"})
    heavier = (Project("lab", 100, 9000), Project("shop", 1, 1000))
    assert set(starts(think(replace(world, projects=heavier), Profile("w", ((FairShare(), 1.0),))))) == {"s001"}


def test_a_promise_stands_against_a_little_more_fairness_and_yields_to_much_more() -> None:
    def plan_with(used: float) -> Plan:
        projects = (Project("lab", 1, 0.0), Project("shop", 1, 0.0))
        busy = (running(7, {"a": ["gpu0"]}, since=0, preemptible=False, project="else"),)
        snap = Snapshot((node("a", 1),), (stage(1),), busy, projects=projects)
        snap = begun(snap, think(snap), NOW)
        lab = Project("lab", 1, used)
        later = replace(snap, waiting=(*snap.waiting, stage(2, project="shop")), projects=(lab, projects[1]))
        return think(later, "hybrid", NOW + 1)

    near, far = plan_with(60.0), plan_with(9000.0)
    assert waits(near)["s001"].planned.start_at == NOW + 100, "a minute of the pool is less than the hysteresis"
    assert waits(far)["s002"].planned.start_at == NOW + 100
    assert waits(far)["s001"].planned.yielded_to == "shop"
    assert primary(far, "s001") == "PromiseYielded"
    assert "s001" in far.replanned or "#1" in far.replanned


def test_fifo_lets_nobody_pass() -> None:
    world = Snapshot((node("a", 2),), (stage(1, gpus=2), stage(2)), (running(7, {"a": ["gpu0"]}),))
    there, gone = with_and_without(world, Fifo())
    assert (set(starts(there)), set(starts(gone))) == (set(), {"s002"})
    assert primary(there, "s002") == "PriorityBehind"


def test_quota_bounds_a_project() -> None:
    world = Snapshot((node("a", 4),), tuple(stage(i) for i in (1, 2, 3)), quotas=(Quota("lab", "gpu", 2000),))
    there, gone = with_and_without(world, QuotaPolicy())
    assert (len(there.starts), len(gone.starts)) == (2, 3)


def test_quota_lends_what_others_do_not_use_within_both_limits() -> None:
    def started(borrowing: int | None, lending: int | None, used: int = 0, cohort: str = "") -> int:
        rights = (Quota("lab", "gpu", 1000, borrowing), Quota("shop", "gpu", 3000, None, lending, cohort))
        going = (running(7, {"a": [f"gpu{i}" for i in range(used)]}, project="shop"),) if used else ()
        world = Snapshot((node("a", 4),), tuple(stage(i) for i in (1, 2, 3, 4)), going, quotas=rights)
        return len(think(world, Profile("q", ((QuotaPolicy(), 1.0),))).starts)

    assert started(None, None) == 4
    assert started(1000, None) == 2
    assert started(None, 2000) == 3
    assert started(None, None, used=2) == 2
    assert started(None, None, cohort="elsewhere") == 1


def test_gang_keeps_all_ranks_on_one_sort_of_device() -> None:
    world = Snapshot((node("a", 1), node("b", 1, model="A100")), (stage(1, nodes=2),))
    there, gone = with_and_without(world, Gang())
    assert (len(there.starts), len(gone.starts)) == (0, 1)
    twin = replace(world, nodes=(*world.nodes, node("c", 1)))
    assert starts(with_and_without(twin, Gang())[0])["s001"].placement.nodes == ("a", "c")


def test_backfill_delays_no_promise() -> None:
    world = Snapshot((node("a", 2),), (stage(1, gpus=2), stage(2, p50=900)), (running(7, {"a": ["gpu0"]}),))
    there, gone = with_and_without(world, Backfill(), "repair")
    assert (set(starts(there)), set(starts(gone))) == (set(), {"s002"})


def test_pack_fills_what_is_in_use_and_spares_accelerators() -> None:
    going = (running(7, {"b": ["gpu0"]}),)
    world = Snapshot((node("a", 4), node("b", 4), node("c", 0)), (stage(1), stage(2, gpus=0)), going)
    there, gone = with_and_without(world, Pack())
    assert [starts(there)[name].placement.nodes for name in ("s001", "s002")] == [("b",), ("c",)]
    assert starts(gone)["s001"].placement.nodes == ("a",)


def test_alternatives_waits_for_a_fast_device_where_that_ends_sooner() -> None:
    alternatives = (alternative(0, 4, index=0), alternative(1, index=1))
    world = Snapshot((node("a", 1),), (stage(1, alternatives=alternatives),), (running(7, {"a": ["gpu0"]}, since=95),))
    there, gone = with_and_without(world, Alternatives())
    assert (len(there.starts), len(gone.starts)) == (0, 1), "5 s until the GPU is free, and it is fifty times as fast"
    unhurried = replace(world, waiting=(replace(world.waiting[0], kind="generic"),))
    assert starts(with_and_without(unhurried, Alternatives())[0])["s001"].placement.alternative == 0


def test_reclaim_takes_back_what_was_lent_and_no_more() -> None:
    going = tuple(running(i, {"a": [f"gpu{i}"]}, p50=9e4, since=600.0 - 100 * i) for i in range(4))
    rights = (Quota("lab", "gpu", 2000, cohort="all"), Quota("shop", "gpu", 2000, cohort="all"))
    asked = tuple(stage(i, project="shop", p50=50.0) for i in (1, 2, 3))
    world = Snapshot((node("a", 4),), asked, going, quotas=rights)
    there, gone = with_and_without(world, Reclaim())
    assert sorted(one.victim for one in there.preempts) == ["r002", "r003"], "the youngest, and two are lab's own"
    assert not gone.preempts
    owned = replace(world, quotas=(Quota("lab", "gpu", 4000, cohort="all"), rights[1]))
    assert not think(owned, Profile("r", ((Reclaim(), 1.0),))).preempts, "nothing was lent"


def test_elastic_lets_stages_grow_and_give_back() -> None:
    sizes, saved = {"least_nodes": 1, "most_nodes": 2}, {"checkpoint_at": NOW - 5, "checkpoints": True}
    grown = {"alternatives": (alternative(1),), **sizes, **saved}
    small = running(1, {"a": ["gpu0"]}, p50=9e4, since=600.0, **grown)
    there, gone = with_and_without(Snapshot((node("a", 1), node("b", 1)), (), (small,)), Elastic())
    assert [(one.was, one.size) for one in there.resizes] == [(1, 2)]
    assert not gone.resizes
    wide = running(1, {"a": ["gpu0"], "b": ["gpu0"]}, p50=9e4, since=600.0, **grown)
    there, gone = with_and_without(Snapshot((node("a", 1), node("b", 1)), (stage(1, p50=9e4),), (wide,)), Elastic())
    assert [(one.was, one.size, one.stage) for one in there.resizes] == [(2, 1, "s001")]
    assert not gone.resizes


def test_preempt_stops_the_least_that_makes_room() -> None:
    going = tuple(running(i, {"a": [f"gpu{i}"]}, priority=250, p50=9e4, since=60.0 * (i + 1)) for i in range(4))
    world = Snapshot((node("a", 4),), (stage(1, gpus=2, priority=1000),), going)
    there, gone = with_and_without(world, Preempt())
    assert [one.victim for one in there.preempts] == ["r000", "r001"], "those that lose the least work"
    assert not gone.preempts
    assert all({"a/gpu0", "a/gpu1"} >= set(one.devices) for one in there.preempts)


def test_preempt_asks_for_nobody_who_could_be_left_out() -> None:
    small = running(1, {"a": ["gpu0"]}, priority=250, p50=9e4, since=10)
    large = running(2, {"a": ["gpu1", "gpu2", "gpu3"]}, priority=250, p50=9e4, since=10)
    world = Snapshot((node("a", 4),), (stage(1, gpus=3, priority=1000),), (small, large))
    assert [one.victim for one in think(world, "hybrid").preempts] == ["r002"]


def test_preempt_refuses_what_costs_more_than_it_gains() -> None:
    def victims(**more: object) -> list[str]:
        going = running(7, {"a": ["gpu0"]}, **{"priority": 250, "p50": 9e4, "since": 600, **more})  # type: ignore[arg-type]
        world = Snapshot((node("a", 1),), (stage(1, priority=1000),), (going,))
        return [one.victim for one in think(world, STEADY).preempts]

    assert victims() == ["r007"]
    assert victims(since=89_900) == [], "it ends in 100 s, and a day of work would be lost"
    assert victims(since=89_900, p50=2e5, checkpoint_at=NOW - 5) == ["r007"], "its work is saved"
    assert victims(priority=1000) == [], "equal priority never preempts"
    assert victims(preemptible=False) == []
    assert victims(min_runtime_s=3600) == []
    assert victims(preemptions=5) == [], "over its budget"


def test_preempt_is_asked_again_when_a_minimum_run_time_is_over() -> None:
    young = running(7, {"a": ["gpu0"]}, priority=250, p50=4e4, since=600.0, min_runtime_s=3600.0)
    world = Snapshot((node("a", 1),), (stage(1, priority=1000),), (young,))
    first = think(world)
    assert (first.preempts, first.wake_at) == ((), NOW + 3000.0)
    (wait,) = first.waits
    assert wait.planned is not None
    promised = begun(world, first, NOW)
    assert think(promised, now=NOW + 2999.0).preempts == ()
    assert [one.victim for one in think(promised, now=NOW + 3000.0).preempts] == ["r007"]
    planner = engine.Planner()
    planner.plan(world, named("hybrid"), NOW)
    assert planner.plan(promised, named("hybrid"), NOW + 2999.0).preempts == ()
    assert [one.victim for one in planner.plan(promised, named("hybrid"), NOW + 3000.0).preempts] == ["r007"]


def test_the_cycle_guard_ends_what_priority_and_quota_take_from_each_other() -> None:
    tired = replace(running(7, {"a": ["gpu0"]}, priority=250, since=600.0, p50=50_000.0), preemptions=1, in_circle=True)
    world = Snapshot((node("a", 1),), (stage(1, priority=1000),), (tired,))
    policies = ((Priority(), 1.0), (Preempt(), 1.0))
    assert [one.victim for one in think(world, Profile("without", policies)).preempts] == ["r007"]
    assert think(world, Profile("with", (*policies, (CycleGuard(), 1.0)))).preempts == ()


def test_the_gain_of_an_eviction_counts_those_promised_behind_it() -> None:
    """One stage alone is not worth what is lost; with the queue that waits behind it, it is."""
    busy = (running(7, {"a": ["gpu0"]}, since=3000, p50=4000.0, priority=250),)
    first = stage(1, priority=500, p50=600.0)
    behind = tuple(stage(i, priority=500, p50=600.0) for i in range(2, 12))
    alone = think(Snapshot((node("a", 1),), (first,), busy), "hybrid")
    assert alone.preempts == ()
    world = begun(Snapshot((node("a", 1),), (first,), busy), alone, NOW)
    assert think(world, "hybrid", NOW + 1).preempts == ()
    followed = think(replace(world, waiting=(*world.waiting, *behind)), "hybrid", NOW + 1)
    assert [(one.victim, one.stage) for one in followed.preempts] == [("r007", "s001")]
    assert followed.preempts[0].gain > followed.preempts[0].price
