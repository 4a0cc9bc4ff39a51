"""A world that learns: estimates come from what completed before, and the engine plans with them."""

from __future__ import annotations

from scheduler.core.model.types import Estimate
from scheduler.profiles import named
from scheduler.sim.cluster import cluster
from scheduler.sim.learned import LearningWorld
from scheduler.sim.traces import Arrival
from scheduler.sim.world import Chance


def alike(count: int, **more: object) -> list[Arrival]:
    given = {"duration_s": 100.0, "gpus": 4, "user": "ann", "name": "tune", "expected_s": 10_000.0}
    return [Arrival(f"s{i:03}", submit_s=500.0 * i, **{**given, **more}) for i in range(count)]  # type: ignore[arg-type]


def test_what_completed_predicts_what_comes() -> None:
    world = LearningWorld(cluster("1x4"), alike(12), named("hybrid"))
    lived = world.run()
    first, last = world.said["s000"], world.said["s011"]
    assert first.declared
    assert first.p90_s == 10_000
    assert last.likely_s == 100
    assert lived.entries[-1].stage.estimate.p50_s == last.p50_s < 200


def test_what_is_planned_with_can_be_chosen() -> None:
    world = LearningWorld(cluster("1x4"), alike(3), named("hybrid"), as_planned=lambda said: Estimate(7.0, 9.0))
    assert {entry.stage.estimate.p50_s for entry in world.run().entries} == {7.0}


def test_who_waits_is_predicted_anew_when_something_like_it_completed() -> None:
    """Both come before anything completed; only the second still waits when the first is done."""
    two = [Arrival(f"s{i}", 0.0, 100.0, 4, user="ann", name="tune", expected_s=10_000.0) for i in range(2)]
    never = LearningWorld(cluster("1x4"), two, named("hybrid")).run()
    anew = LearningWorld(cluster("1x4"), two, named("hybrid"), renew_s=0.0).run()
    assert [entry.stage.estimate.p90_s for entry in never.entries] == [10_000, 10_000]
    assert anew.entries[0].stage.estimate.p90_s == 10_000
    assert anew.entries[1].stage.estimate.p50_s < 1_000


def test_promises_are_learned_from_as_well() -> None:
    """Jobs that run ten times as long as was said: at first promises are missed, later they are wide enough."""
    jobs = [Arrival(f"s{i:03}", 2_100.0 * (i // 2), 1_000.0, 4, user=f"u{i}") for i in range(80)]
    said = Estimate(100.0, 150.0)
    lived = LearningWorld(cluster("1x4"), jobs, named("hybrid"), as_planned=lambda _: said).run()
    kept = [
        entry.started_at <= entry.promised.late_at
        for entry in lived.entries
        if entry.promised is not None and entry.started_at is not None
    ]
    assert len(kept) == 40
    assert not any(kept[:20])
    assert all(kept[-19:])


def test_the_same_trace_teaches_the_same() -> None:
    def lived() -> list[float]:
        arrivals = alike(20, duration_s=40.0) + [
            Arrival(f"t{i}", 90.0 * i, 30.0 + 7 * (i % 5), 1, user="bob", expected_s=500.0) for i in range(30)
        ]
        world = LearningWorld(cluster("1x4"), arrivals, named("easy"))
        world.run()
        return [said.likely_s for _, said in sorted(world.said.items())]

    assert lived() == lived()


def test_easy_backfill_reserves_for_the_head_only() -> None:
    """The head waits for both halves; the second in line would too, and the last one is short enough for the hole."""
    stages = [
        Arrival("long", 0, 100, 2, expected_s=100),
        Arrival("head", 1, 50, 4, expected_s=50),
        Arrival("next", 2, 50, 4, expected_s=50),
        Arrival("fits", 3, 60, 2, expected_s=60),
        Arrival("late", 4, 500, 2, expected_s=500),
    ]
    world = LearningWorld(
        cluster("1x4"),
        stages,
        named("easy"),
        as_planned=lambda said: Estimate(said.likely_s, said.likely_s),
    )
    began = {entry.stage.id: entry.started_at for entry in world.run().entries}
    assert began["fits"] == 3, "it ends before the head may start"
    assert began["head"] == 100
    assert began["next"] == 150
    assert began["late"] == 200


def test_a_stopped_stage_teaches_all_its_attempts_together() -> None:
    """The urgent one stops the first after 600 of its 1,000 seconds; it saves its work and runs 400 more."""
    jobs = [
        Arrival("long", 0.0, 1_000.0, 4, user="ann", name="tune", expected_s=5_000.0, priority=250),
        Arrival("urgent", 600.0, 50.0, 4, user="bob", name="now", expected_s=60.0, priority=1000),
        Arrival("later", 3_000.0, 1_000.0, 4, user="ann", name="tune", expected_s=5_000.0, priority=250),
    ]
    chance = Chance(stop_s=0.0, saves_on_stop=True)
    world = LearningWorld(cluster("1x4"), jobs, named("hybrid"), chance=chance)
    stopped = {entry.stage.id: entry.preemptions for entry in world.run().entries}
    assert stopped["long"] == 1
    assert world.said["later"].likely_s == 1_000
