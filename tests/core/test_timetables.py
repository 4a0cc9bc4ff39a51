"""Static keeps its timetable, hybrid keeps its own true, dynamic has none."""

from __future__ import annotations

from dataclasses import replace

from scheduler.core.model.types import Estimate, Snapshot
from tests.core.worlds import NOW, alternative, begun, ended, node, running, stage, starts, think, waits


def test_static_gives_each_stage_a_time_and_devices_from_the_bad_case() -> None:
    going = running(7, {"a": ["gpu0"]}, since=0, p50=100, p90=150)
    plan = think(Snapshot((node("a", 1),), (stage(1), stage(2), stage(3)), (going,)), "static")
    planned = [waits(plan)[name].planned for name in ("s001", "s002", "s003")]
    assert [one.start_at - NOW for one in planned] == [150, 300, 450]
    assert all(one.placement.grants[0][0].device == "a/gpu0" for one in planned)


def test_static_plans_dependents_after_the_predicted_end_of_what_they_need() -> None:
    chain = (stage(1), stage(2, unmet=("s001",)), stage(3, unmet=("s002", "s001")))
    plan = think(Snapshot((node("a", 4),), chain), "static")
    assert set(starts(plan)) == {"s001"}
    assert [waits(plan)[name].planned.start_at - NOW for name in ("s002", "s003")] == [150, 300]


def test_static_neither_starts_early_nor_leaves_its_devices() -> None:
    """Over three stages: an early end changes nothing, a late end makes the next one wait for that very device."""
    going = running(7, {"a": ["gpu0"]}, since=0, p50=100, p90=150)
    snap = Snapshot((node("a", 1), node("b", 0)), (stage(1), stage(2)), (going,))
    snap = begun(snap, think(snap, "static"), NOW)
    assert not think(ended(snap, "r007"), "static", NOW + 20).starts, "the device is free, but its time has not come"
    snap = ended(snap, "r007")
    plan = think(snap, "static", NOW + 150)
    assert set(starts(plan)) == {"s001"}
    snap = begun(snap, plan, NOW + 150)
    bigger = replace(snap, nodes=(*snap.nodes, node("c", 1)))
    late = think(bigger, "static", NOW + 310)  # s001 should have ended at 300; another device is free
    assert not late.starts
    assert waits(late)["s002"].planned.start_at == NOW + 300
    assert set(starts(think(ended(bigger, "s001"), "static", NOW + 320))) == {"s002"}


def test_a_newcomer_fills_a_hole_of_a_static_timetable_only_if_it_fits() -> None:
    going = running(7, {"a": ["gpu0"]}, since=0, p90=150)
    snap = Snapshot((node("a", 2),), (stage(1, gpus=2),), (going,))
    snap = begun(snap, think(snap, "static"), NOW)
    both = replace(snap, waiting=(*snap.waiting, stage(2, p50=90), stage(3, p50=200)))
    plan = think(both, "static", NOW + 1)
    assert set(starts(plan)) == {"s002"}
    assert waits(plan)["s001"].planned.start_at == NOW + 150


def test_hybrid_promises_a_range_from_the_median_to_the_bad_case() -> None:
    going = running(7, {"a": ["gpu0"]}, since=0, p50=100, p90=250)
    plan = think(Snapshot((node("a", 1),), (stage(1),), (going,)))
    planned = waits(plan)["s001"].planned
    assert (planned.start_at, planned.late_at) == (NOW + 100, NOW + 250)
    assert waits(plan)["s001"].expected.high_at == NOW + 250


def test_hybrid_starts_early_after_an_early_end_and_moves_those_behind() -> None:
    going = running(7, {"a": ["gpu0"]}, since=0)
    snap = Snapshot((node("a", 1),), (stage(1), stage(2)), (going,))
    first = think(snap)
    assert waits(first)["s002"].planned.start_at == NOW + 200
    plan = think(ended(begun(snap, first, NOW), "r007"), now=NOW + 10)
    assert set(starts(plan)) == {"s001"}
    assert waits(plan)["s002"].planned.start_at == NOW + 110


def test_hybrid_repairs_an_overrun_within_the_range_and_says_when_the_range_is_left() -> None:
    going = running(7, {"a": ["gpu0"]}, since=0, p50=100, p90=150)
    after = stage(2, unmet=("s001",))
    snap = Snapshot((node("a", 1),), (stage(1), after), (going,))
    snap = begun(snap, think(snap), NOW)
    soon = think(snap, now=NOW + 120)
    assert waits(soon)["s001"].planned.start_at == NOW + 150, "at the bad-case end of the one that overruns"
    assert waits(soon)["s002"].planned.start_at == NOW + 250, "the dependent moves with it"
    assert not soon.replanned
    late = think(begun(snap, soon, NOW + 120), now=NOW + 400)
    assert waits(late)["s001"].planned.start_at > NOW + 400
    assert "#1 train" in late.replanned


def test_hybrid_moves_an_entry_away_from_a_node_that_was_lost() -> None:
    going = (running(7, {"a": ["gpu0"]}, since=0), running(8, {"b": ["gpu0"]}, since=0, p50=300))
    snap = Snapshot((node("a", 1), node("b", 1)), (stage(1),), going)
    first = think(snap)
    assert waits(first)["s001"].planned.placement.nodes == ("a",)
    snap = begun(snap, first, NOW)
    lost = replace(snap, nodes=(replace(snap.nodes[0], state="LOST"), snap.nodes[1]))
    plan = think(lost, now=NOW + 5)
    assert waits(plan)["s001"].planned.placement.nodes == ("b",)


def test_an_urgent_arrival_goes_before_promises_of_less_urgent_stages() -> None:
    going = running(7, {"a": ["gpu0"]}, since=0, priority=1000)
    snap = Snapshot((node("a", 1),), (stage(1),), (going,))
    snap = begun(snap, think(snap), NOW)
    plan = think(replace(snap, waiting=(*snap.waiting, stage(2, priority=750))), now=NOW + 1)
    assert waits(plan)["s002"].planned.start_at == NOW + 100
    assert waits(plan)["s001"].planned.start_at == NOW + 200
    assert "#1 train" in plan.replanned


def test_dynamic_promises_nothing_and_lets_the_gang_starve() -> None:
    going = running(7, {"a": ["gpu0"]}, since=0)
    snap = Snapshot((node("a", 2),), (stage(1, gpus=2), stage(2, p50=5000)), (going,))
    dynamic, hybrid = think(snap, "dynamic"), think(snap, "hybrid")
    assert set(starts(dynamic)) == {"s002"}
    assert waits(dynamic)["s001"].planned is None
    assert not hybrid.starts


def test_the_timetable_is_as_deep_as_the_profile_says() -> None:
    from scheduler.profiles import PROFILES, load

    shallow = load("shallow", {**PROFILES["hybrid"], "depth": 2})
    plan = think(Snapshot((node("a", 1),), tuple(stage(i) for i in range(6))), shallow)
    assert [one.planned is not None for one in plan.waits] == [True, True, False, False, False]


def test_what_a_person_declares_means_the_fastest_device_that_is_there() -> None:
    """On a node without any GPU, ``expected: 20s`` is twenty seconds, however slow a CPU is beside a GPU."""
    said = Estimate(20.0, 30.0, "expected duration", declared=True)
    wanted = stage(1, alternatives=(alternative(1), alternative(0, index=1)), estimate=said)
    lasts = think(Snapshot((node("a", 0),), (wanted,)), "hybrid").starts[0].lasts
    assert (lasts.p50_s, lasts.p90_s) == (20.0, 30.0)
    measured = replace(wanted, estimate=Estimate(20.0, 30.0, "5 finished stages"))
    assert think(Snapshot((node("a", 0),), (measured,)), "hybrid").starts[0].lasts.p50_s == 1000.0
