"""Consolidation is advice that is true: when those who are named have moved, the stage starts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.core.model.profile import Profile
from scheduler.core.model.types import Running, Snapshot
from scheduler.core.planning.consolidate import advise
from scheduler.profiles import named
from tests.core.worlds import NOW, STEADY, alternative, node, running, stage, starts, think
from tests.examples_count import examples


def going(number: int, on: str, gpu: int, **more: Any) -> Running:
    saved = {"checkpoint_at": NOW - 60, "checkpoints": True, "alternatives": (alternative(1),)}
    return running(number, {on: [f"gpu{gpu}"]}, **{"since": 600.0, "p50": 20_000.0, **saved, **more})


def moved(world: Snapshot, advice: Any) -> Snapshot:
    """The world once this advice has been followed."""
    to = {move.victim: move.placement for move in advice.moves}
    return replace(world, running=tuple(replace(r, placement=to.get(r.id, r.placement)) for r in world.running))


SCATTERED = Snapshot((node("a", 2), node("b", 2)), (stage(1, 2),), (going(1, "a", 0), going(2, "b", 1)))
FIXED = tuple(replace(one, preemptible=False) for one in SCATTERED.running)


@pytest.mark.parametrize("profile", [STEADY, named("dynamic")], ids=lambda one: one.name)
def test_one_moves_to_the_other_so_that_two_devices_stand_together(profile: Profile) -> None:
    assert "s001" not in starts(think(SCATTERED, profile))
    (advice,) = advise(SCATTERED, profile, NOW)
    assert (advice.stage, len(advice.moves)) == ("s001", 1)
    assert advice.is_worth
    assert advice.price > 0
    assert starts(think(moved(SCATTERED, advice), profile))["s001"].placement.nodes == advice.placement.nodes


def test_the_cheaper_one_moves() -> None:
    dear = replace(SCATTERED, running=(going(1, "a", 0, checkpoint_at=NOW - 500), going(2, "b", 1)))
    (advice,) = advise(dear, STEADY, NOW)
    assert [move.victim for move in advice.moves] == ["r002"]


@pytest.mark.parametrize(
    ("why", "world"),
    [
        ("too little is free in all", replace(SCATTERED, waiting=(stage(1, 3),))),
        ("it starts anyway", Snapshot((node("a", 2),), (stage(1, 2),))),
        (
            "nobody may be moved",
            replace(SCATTERED, running=FIXED),
        ),
        ("it is held", replace(SCATTERED, waiting=(stage(1, 2, begin_at=NOW + 900),))),
    ],
)
def test_there_is_nothing_to_advise_where(why: str, world: Snapshot) -> None:
    assert advise(world, STEADY, NOW) == (), why


@given(st.data())
@settings(max_examples=examples(60))
def test_who_follows_the_advice_sees_it_start(data: st.DataObject) -> None:
    names = "abc"
    held = data.draw(st.lists(st.sampled_from([(n, g) for n in names for g in range(3)]), unique=True, max_size=6))
    runs = tuple(going(i, name, gpu) for i, (name, gpu) in enumerate(held))
    world = Snapshot(tuple(node(name, 3) for name in names), (stage(70, data.draw(st.integers(1, 3))),), runs)
    before = starts(think(world, "dynamic"))
    for advice in advise(world, named("dynamic"), NOW):
        assert advice.stage not in before
        after = moved(world, advice)
        taken = [
            one.device for r in after.running for rank in r.placement.grants for one in rank if "gpu" in one.device
        ]
        assert len(taken) == len(set(taken))
        assert advice.stage in starts(think(after, "dynamic"))
