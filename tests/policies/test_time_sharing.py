"""For each policy of time sharing a world in which it alone changes the outcome."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from scheduler import profiles
from scheduler.core.matching.fair import shuffled
from scheduler.core.model.profile import Profile
from scheduler.core.model.types import Estimate, Plan, Running, Snapshot
from scheduler.core.planning import engine
from scheduler.core.world.view import View
from scheduler.policies.attained_service import AttainedService
from scheduler.policies.balance import Balance
from scheduler.policies.deadline import Deadline
from scheduler.policies.finish_time_fairness import FinishTimeFairness
from scheduler.policies.foreground import Foreground
from scheduler.policies.gang import Gang
from scheduler.policies.heterogeneity import Heterogeneity
from scheduler.policies.max_min import MaxMin
from scheduler.policies.min_runtime import MinRuntime
from scheduler.policies.preemption_budget import PreemptionBudget
from scheduler.policies.shortest_predicted import ShortestPredicted
from scheduler.research.deal import Deal
from scheduler.research.oracle_remaining_service import OracleRemainingService
from scheduler.research.oracle_remaining_time import OracleRemainingTime
from tests.core.worlds import NOW, alternative, node, running, stage, starts, think

ONE = (node("a", 1),)


def first(*policies: object, **more: object) -> set[str]:
    """Which of two stages starts where there is room for one; without policies it is the first."""
    waiting = tuple(replace(one, **(more.get(one.id) or {})) for one in (stage(1), stage(2)))  # type: ignore[arg-type]
    profile = Profile("p", tuple((one, 1.0) for one in policies))
    return set(starts(think(Snapshot(ONE, waiting), profile)))


def going(number: int, devices: dict[str, list[str]], **more: object) -> Running:
    gpus = max(len(one) for one in devices.values())
    given: dict[str, object] = {"alternatives": (alternative(gpus),), "submitted_at": NOW - 5000, **more}
    return running(number, devices, **given)  # type: ignore[arg-type]


def turn(world: Snapshot, *policies: object) -> Plan:
    return engine.plan(world, Profile("p", tuple((one, 1.0) for one in policies), rotates="event"), NOW)


def where(plan: Plan) -> dict[str, str]:
    return {one.stage: one.placement.nodes[0] for one in (*plan.starts, *plan.swaps)}


def test_without_a_policy_the_first_goes_first() -> None:
    assert first() == {"s001"}


def test_shortest_predicted_prefers_what_is_sooner_done_and_narrower() -> None:
    assert first(ShortestPredicted(), s002={"estimate": Estimate(50, 60)}) == {"s002"}
    world = Snapshot((node("a", 2),), (stage(1, gpus=2, p50=100), stage(2, p50=150)))
    assert set(starts(think(world, Profile("p", ((ShortestPredicted(), 1.0),))))) == {"s002"}
    assert set(starts(think(world, Profile("p", ((ShortestPredicted(breadth=0), 1.0),))))) == {"s001"}


@pytest.mark.parametrize("breadth", [0.0, 0.5, 1.0])
def test_shortest_predicted_judges_a_whole_queue_as_it_judges_each(breadth: float) -> None:
    waiting = tuple(
        stage(i, gpus=1 + i % 3, p50=10.0 * (1 + i), attained_device_s=7_000.0 * (i % 4), nodes=1 + i % 2)
        for i in range(30)
    )
    view = View(Snapshot(tuple(node(name, 4) for name in "abc"), waiting), profiles.named("hybrid"), NOW)
    policy = ShortestPredicted(breadth)
    slots = view.pending.slots()[::-1]
    together = policy.ranks(view.pending, slots, view)
    for rank, slot in zip(together, slots, strict=True):
        assert rank == pytest.approx(policy.rank(view.pending.stages[slot], view))


def test_who_overran_a_prediction_is_not_believed_to_be_done_any_moment() -> None:
    overran = going(7, {"a": ["gpu0"]}, p50=10, since=9000)
    world = Snapshot(ONE, (stage(1, p50=60),), (overran,))
    assert turn(world, ShortestPredicted()).preempts


def test_oracles_go_by_what_is_true_and_nowhere_else_by_anything() -> None:
    truth = {"s001": {"truth_s": 500.0}, "s002": {"truth_s": 400.0}}
    assert first(OracleRemainingTime(), **truth) == first(OracleRemainingService(), **truth) == {"s002"}
    assert first(OracleRemainingTime(), s002={"truth_s": None}) == {"s001"}
    world = Snapshot((node("a", 2),), (stage(1, gpus=2, truth_s=100.0), stage(2, truth_s=150.0)))
    assert set(starts(think(world, Profile("p", ((OracleRemainingService(), 1.0),))))) == {"s002"}
    assert set(starts(think(world, Profile("p", ((OracleRemainingTime(), 1.0),))))) == {"s001"}


def test_attained_service_puts_down_who_had_much_and_takes_no_turns_inside_a_queue() -> None:
    assert first(AttainedService(), s001={"attained_device_s": 3250.0}) == {"s002"}
    assert first(AttainedService(), s001={"attained_device_s": 3249.0}) == {"s001"}
    had = going(7, {"a": ["gpu0"]}, since=2000)
    world = Snapshot(ONE, (stage(1),), (had,))
    assert not turn(world, AttainedService()).preempts
    plan = turn(replace(world, running=(replace(had, started_at=NOW - 3300),)), AttainedService())
    assert [one.victim for one in plan.preempts] == ["r007"]
    assert turn(world, AttainedService()).wake_at == NOW + 1250


def test_attained_service_lets_those_go_on_first_who_were_stopped_last() -> None:
    old, new = {"stopped_at": NOW - 900, "attained_device_s": 50.0}, {"stopped_at": NOW - 9, "attained_device_s": 50.0}
    queue = {"attained_device_s": 4000.0}
    assert first(AttainedService(), s001={**old, **queue}, s002={**new, **queue}) == {"s002"}


def test_foreground_finishes_what_is_furthest_behind_everything_new() -> None:
    assert first(Foreground(), s001={"attained_device_s": 8e4}, s002={"attained_device_s": 9e4}) == {"s002"}
    assert first(Foreground(), s001={"attained_device_s": 8e4}) == {"s002"}
    had = going(7, {"a": ["gpu0"]}, attained_device_s=8e4)
    far = stage(1, attained_device_s=9e4)
    assert not turn(Snapshot(ONE, (far,), (had,)), Foreground()).preempts, "nobody takes turns inside a queue"
    assert turn(Snapshot(ONE, (stage(1),), (had,)), Foreground()).preempts


def test_deadline_lifts_what_would_be_late_and_not_what_is_late_anyhow() -> None:
    assert first(Deadline(), s002={"deadline_at": NOW + 200}) == {"s002"}
    assert first(Deadline(), s002={"deadline_at": NOW + 50}) == {"s001"}
    soon, later = {"deadline_at": NOW + 900}, {"deadline_at": NOW + 300}
    assert first(Deadline(), s001=soon, s002=later) == {"s002"}


def test_finish_time_fairness_prefers_who_waited_longest_beside_its_length() -> None:
    assert first(FinishTimeFairness(), s002={"estimate": Estimate(20, 30)}) == {"s002"}
    assert first(FinishTimeFairness(), s002={"estimate": Estimate(9000, 9900)}) == {"s001"}


@pytest.mark.parametrize(
    ("policy", "safe", "unsafe"),
    [(MinRuntime(600), {"since": 599}, {"since": 600}), (PreemptionBudget(2), {"preemptions": 2}, {"preemptions": 1})],
    ids=["min_runtime", "preemption_budget"],
)
def test_some_protect_who_runs(policy: object, safe: dict[str, object], unsafe: dict[str, object]) -> None:
    def victims(more: dict[str, object]) -> int:
        world = Snapshot(ONE, (stage(1, p50=10),), (going(7, {"a": ["gpu0"]}, p50=9e4, **more),))
        return len(turn(world, ShortestPredicted(), policy).preempts)

    assert (victims(safe), victims(unsafe)) == (0, 1)


MIXED = (node("a", 1, model="K80"), node("b", 1, model="V100"))
SPEEDS = {("train", "K80"): 0.1, ("train", "V100"): 1.0, ("infer", "K80"): 0.9, ("infer", "V100"): 1.0}


def test_heterogeneity_takes_the_faster_model_and_waits_for_none() -> None:
    world = Snapshot(MIXED, (stage(1),), speeds=SPEEDS)
    assert where(turn(world, Gang(), Heterogeneity())) == {"s001": "b"}
    assert where(turn(world, Gang())) == {"s001": "a"}
    both = replace(world, waiting=(stage(1), stage(2)))
    assert where(turn(both, Gang(), Heterogeneity())) == {"s001": "b", "s002": "a"}


def test_max_min_gives_models_to_those_who_lose_most_without() -> None:
    world = Snapshot(MIXED, (stage(1, kind="infer"), stage(2, kind="train")), speeds=SPEEDS)
    assert where(turn(world, Gang(), MaxMin())) == {"s001": "a", "s002": "b"}
    assert where(turn(world, Gang(), Heterogeneity())) == {"s001": "b", "s002": "a"}, "first come, first choice"


def test_max_min_rounds_give_what_is_owed() -> None:
    """Two stages alike on one device: whoever had less of it goes on."""
    had = going(7, {"a": ["gpu0"]}, since=3600, submitted_at=NOW - 3600)
    world = Snapshot(ONE, (stage(1, submitted_at=NOW - 3600),), (had,))
    assert where(turn(world, MaxMin())) == {"s001": "a"}
    rested = replace(world, waiting=(stage(1, submitted_at=NOW - 3600, received_s=(("H100", 3600.0),)),))
    fresh = replace(had, started_at=NOW - 60, submitted_at=NOW - 3600)
    assert not turn(replace(rested, running=(fresh,)), MaxMin()).preempts


def test_balance_gets_most_done_and_prefers_who_had_little() -> None:
    world = Snapshot(MIXED, (stage(1, kind="infer"), stage(2, kind="train")), speeds=SPEEDS)
    assert where(turn(world, Gang(), Balance())) == {"s001": "a", "s002": "b"}
    alike = (stage(1, attained_device_s=9e4), stage(2))
    assert where(turn(replace(world, waiting=alike), Gang(), Balance())) == {"s001": "a", "s002": "b"}


def test_balance_counts_work_done_and_not_time_spent_and_lets_nobody_starve() -> None:
    slow, fast = (("K80", 9e4),), (("V100", 9e4),)
    one = stage(1, attained_device_s=9e4, received_s=fast, submitted_at=NOW - 1e5)
    two = stage(2, attained_device_s=9e4, received_s=slow, submitted_at=NOW - 1e5)
    world = Snapshot(MIXED, (one, two), speeds=SPEEDS)
    assert where(turn(world, Gang(), Balance())) == {"s001": "a", "s002": "b"}, "a tenth of it was done on the slow one"
    old = replace(two, submitted_at=NOW - 1e6, received_s=fast)
    assert where(turn(replace(world, waiting=(stage(1), old)), Gang(), Balance())) == {"s001": "a", "s002": "b"}
    half = replace(old, submitted_at=NOW - 1e5)
    assert where(turn(replace(world, waiting=(stage(1), half)), Gang(), Balance())) == {"s001": "b", "s002": "a"}


def test_balance_shares_out_gangs_of_all_widths() -> None:
    nodes = (node("a", 2, model="K80"), node("b", 2, model="V100"))
    world = Snapshot(nodes, (stage(1, gpus=2), stage(2, kind="infer")), speeds=SPEEDS)
    assert where(turn(world, Gang(), Balance())) == {"s001": "b", "s002": "a"}


def test_deal_changes_models_from_round_to_round() -> None:
    world = Snapshot(MIXED, (stage(1),), speeds=SPEEDS)
    profile = Profile("p", ((Deal(round_s=100.0), 1.0), (Gang(), 1.0)), rotates=100.0)
    seen = {where(engine.plan(world, profile, NOW + 100.0 * turn))["s001"] for turn in range(12)}
    assert seen == {"a", "b"}
    assert engine.plan(world, profile, NOW) == engine.plan(world, profile, NOW)


def test_deal_favours_no_model() -> None:
    orders = Counter(tuple(shuffled(("V100", "K80", "P100"), 360.0 * turn, 360.0, 0)) for turn in range(6000))
    assert len(orders) == 6
    assert all(abs(seen - 1000) < 150 for seen in orders.values()), "five standard deviations"
    assert shuffled(("K80", "P100", "V100"), 90.0, 360.0, 0) == shuffled(("V100", "K80", "P100"), 0.0, 360.0, 0)


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ({"rotates": "daily"}, "none, event, or a round"),
        ({"rotates": 0}, "none, event, or a round"),
        ({"rotates": "event", "timetable": "repair"}, "its timetable must be none"),
    ],
)
def test_turns_that_make_no_sense_are_refused(spec: dict[str, object], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        profiles.load("mine", spec)
    assert profiles.load("mine", {"rotates": 360}).rotates == 360
