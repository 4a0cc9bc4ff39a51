"""Pools that take turns beside pools that do not: one plan for both, and no device twice in it."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.core.model.types import Pool, Snapshot
from scheduler.core.planning import engine
from scheduler.profiles import named
from tests.core.test_laws import worlds
from tests.core.worlds import NOW, alternative, check_laws, node, running, stage, starts, waits
from tests.examples_count import examples

BOTH = (Pool("default"), Pool("turns", "turns"))
PROFILES = {"default": named("hybrid"), "turns": named("turns")}


def test_each_pool_goes_by_its_own_mode() -> None:
    runs = {"alternatives": (alternative(1),), "since": 4000.0, "p50": 90_000.0, "checkpoint_at": NOW - 1}
    world = Snapshot(
        (node("a", 1), node("b", 1, pools=("turns",))),
        (stage(1, p50=80_000.0), stage(2, p50=60, pool="turns")),
        (
            running(7, {"a": ["gpu0"]}, **runs),
            running(8, {"b": ["gpu0"]}, pool="turns", attained_device_s=9000.0, **runs),
        ),
        pools=BOTH,
    )
    plan = engine.plan(world, PROFILES, NOW)
    assert [(one.victim, one.stage) for one in plan.preempts] == [("r008", "s002")], (
        "equals who need as long never preempt, but turns come"
    )
    assert {name: one.reasons[0].code for name, one in waits(plan).items()} == {
        "s001": "CapacityInsufficient",
        "s002": "WaitingForPreemption",
    }


def test_on_shared_nodes_the_pool_that_takes_turns_gets_what_the_other_left() -> None:
    both = node("a", 2, pools=("default", "turns"))
    world = Snapshot((both,), (stage(1), stage(2, gpus=2, pool="turns"), stage(3, pool="turns")), pools=BOTH)
    assert set(starts(engine.plan(world, PROFILES, NOW))) == {"s001", "s003"}


def test_what_was_freed_for_a_stage_that_takes_turns_goes_to_it_and_not_to_the_other_pool() -> None:
    both = node("a", 1, pools=("default", "turns"))
    fenced = tuple(replace(one, fenced_for="s002") if one.kind == "gpu" else one for one in both.devices)
    world = Snapshot((replace(both, devices=fenced),), (stage(1), stage(2, pool="turns")), pools=BOTH)
    assert set(starts(engine.plan(world, PROFILES, NOW))) == {"s002"}


@given(worlds(), st.sets(st.integers(0, 40)))
@settings(max_examples=examples(60), deadline=None)
def test_the_laws_hold_for_both_together(world: Snapshot, moved: set[int]) -> None:
    waiting = tuple(
        replace(one, pool="turns", promise=None) if i in moved else one for i, one in enumerate(world.waiting)
    )
    nodes = tuple(replace(one, pools=("default", "turns")) for one in world.nodes)
    world = replace(world, waiting=waiting, nodes=nodes, pools=BOTH)
    check_laws(world, engine.plan(world, PROFILES, NOW))
