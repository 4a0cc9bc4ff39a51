"""A running stage leaves a device that warns for a sound one, where that is worth its price; never for nothing."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.core.model.lifecycle import Health, State
from scheduler.core.model.profile import Profile
from scheduler.core.model.types import Node, Running, Snapshot
from scheduler.core.planning.evacuate import PER_CYCLE
from scheduler.policies.conditions import Conditions
from tests.core.worlds import NOW, alternative, node, running, stage, think
from tests.examples_count import examples

HOUR = 3600.0


def warning(found: Node, *names: str) -> Node:
    devices = (replace(one, warned=one.id.split("/")[1] in names) for one in found.devices)
    return replace(found, devices=tuple(devices))


def going(number: int, on: dict[str, list[str]], **more: Any) -> Running:
    """A stage in the middle of ten hours, that saved its work 60 s ago."""
    width = len(next(iter(on.values())))
    saved = {"checkpoint_at": NOW - 60, "checkpoints": True, "alternatives": (alternative(width),)}
    return running(number, on, **{"since": HOUR, "p50": 10 * HOUR, **saved, **more})


def unhealthy(found: Node, *names: str) -> Node:
    devices = (replace(one, health=Health.UNHEALTHY) if one.id.split("/")[1] in names else one for one in found.devices)
    return replace(found, devices=tuple(devices))


SICK = warning(node("a", 1), "gpu0")
# A day's work without a checkpoint, and an hour to go.
UNSAVED = going(1, {"a": ["gpu0"]}, since=24 * HOUR, p50=25 * HOUR, checkpoint_at=None, checkpoints=False)


@pytest.mark.parametrize("profile", ["hybrid", "dynamic", "static", "easy", "fifo"])
def test_it_leaves_for_a_sound_device_that_is_free(profile: str) -> None:
    (move,) = think(Snapshot((SICK, node("b", 1)), (), (going(1, {"a": ["gpu0"]}),)), profile).moves
    assert (move.victim, move.placement.nodes) == ("r001", ("b",))
    assert move.why == "gpu0 of a warns"
    assert 0 < move.price < move.gain


def test_without_the_policy_it_stays() -> None:
    world = Snapshot((SICK, node("b", 1)), (), (going(1, {"a": ["gpu0"]}),))
    assert think(world, Profile("with", ((Conditions(), 1.0),))).moves
    assert not think(world, Profile("without", ())).moves


@pytest.mark.parametrize(
    ("why", "world"),
    [
        ("nothing warns", Snapshot((node("a", 1), node("b", 1)), (), (going(1, {"a": ["gpu0"]}),))),
        ("its own does not", Snapshot((warning(node("a", 2), "gpu1"), node("b", 1)), (), (going(1, {"a": ["gpu0"]}),))),
        ("nothing is free", Snapshot((SICK, node("b", 1)), (), (going(1, {"a": ["gpu0"]}), going(2, {"b": ["gpu0"]})))),
        ("what is free warns", Snapshot((SICK, warning(node("b", 1), "gpu0")), (), (going(1, {"a": ["gpu0"]}),))),
        ("others wait", Snapshot((SICK, node("b", 1)), (stage(5),), (going(1, {"a": ["gpu0"]}),))),
        ("it may not", Snapshot((SICK, node("b", 1)), (), (going(1, {"a": ["gpu0"]}, preemptible=False),))),
        ("it stops", Snapshot((SICK, node("b", 1)), (), (going(1, {"a": ["gpu0"]}, state=State.STOPPING),))),
        ("it is nearly done", Snapshot((SICK, node("b", 1)), (), (going(1, {"a": ["gpu0"]}, p50=HOUR + 30),))),
        (
            "it saved nothing for long",
            Snapshot((SICK, node("b", 1)), (), (UNSAVED,)),
        ),
    ],
)
def test_it_stays_where(why: str, world: Snapshot) -> None:
    assert think(world).moves == (), why


def test_one_that_has_just_begun_leaves_although_it_saved_nothing() -> None:
    fresh = going(1, {"a": ["gpu0"]}, since=60.0, checkpoint_at=None, checkpoints=False)
    assert think(Snapshot((SICK, node("b", 1)), (), (fresh,))).moves


def test_a_gang_leaves_whole_and_two_do_not_go_to_one_place() -> None:
    nodes = (warning(node("a", 2), "gpu0", "gpu1"), node("b", 1), node("c", 1))
    two = (going(1, {"a": ["gpu0"]}), going(2, {"a": ["gpu1"]}))
    places = [move.placement.nodes for move in think(Snapshot(nodes, (), two)).moves]
    assert sorted(places) == [("b",), ("c",)]
    gang = going(3, {"a": ["gpu0"], "d": ["gpu0"]})
    (move,) = think(Snapshot((SICK, node("b", 1), node("c", 1), node("d", 1)), (), (gang,))).moves
    assert len(move.placement.nodes) == 2
    assert "a" not in move.placement.nodes


@given(st.data())
@settings(max_examples=examples(80))
def test_moves_go_to_sound_devices_that_nobody_has(data: st.DataObject) -> None:
    names = "abcd"
    nodes = [
        warning(node(name, 2), *data.draw(st.lists(st.sampled_from(["gpu0", "gpu1"]), unique=True))) for name in names
    ]
    held = data.draw(st.lists(st.sampled_from([(n, g) for n in names for g in ("gpu0", "gpu1")]), unique=True))
    runs = tuple(going(i, {name: [gpu]}) for i, (name, gpu) in enumerate(held))
    waiting = tuple(stage(50 + i) for i in range(data.draw(st.integers(0, 3))))
    world = Snapshot(tuple(nodes), waiting, runs)
    plan = think(world, data.draw(st.sampled_from(["hybrid", "dynamic", "static"])))
    taken = {f"{name}/{gpu}" for name, gpu in held}
    for placement in [one.placement for one in (*plan.starts, *plan.moves)]:
        for one in placement.grants[0]:
            if "gpu" in one.device:
                assert one.device not in taken
                taken.add(one.device)
    warned = {device.id for one in nodes for device in one.devices if device.warned}
    for move in plan.moves:
        assert not warned & {one.device for one in move.placement.grants[0]}


def test_an_unhealthy_device_is_left_too() -> None:
    world = Snapshot((unhealthy(node("a", 1), "gpu0"), node("b", 1)), (), (going(1, {"a": ["gpu0"]}),))
    (move,) = think(world).moves
    assert (move.victim, move.placement.nodes, move.why) == ("r001", ("b",), "gpu0 of a is unhealthy")


def test_who_is_more_urgent_and_then_who_stands_worse_leaves_first() -> None:
    nodes = (warning(node("a", 1), "gpu0"), unhealthy(node("c", 1), "gpu0"), node("b", 1))
    runs = (going(1, {"a": ["gpu0"]}), going(2, {"c": ["gpu0"]}))
    assert [one.victim for one in think(Snapshot(nodes, (), runs)).moves] == ["r002"]
    runs = (going(1, {"a": ["gpu0"]}, priority=750), going(2, {"c": ["gpu0"]}))
    assert [one.victim for one in think(Snapshot(nodes, (), runs)).moves] == ["r001"]


@given(st.data())
@settings(max_examples=examples(60))
def test_moves_of_a_cycle_are_few_and_none_goes_to_an_ailing_device(data: st.DataObject) -> None:
    ill = data.draw(st.lists(st.integers(0, 13), unique=True, min_size=1))
    names = [f"n{i:02}" for i in range(14)]
    nodes = [unhealthy(node(name, 1), *(["gpu0"] if i in ill else [])) for i, name in enumerate(names)]
    free = [node(f"z{i:02}", 1) for i in range(data.draw(st.integers(0, 12)))]
    classes = data.draw(st.lists(st.sampled_from([250, 500, 750]), min_size=14, max_size=14))
    runs = tuple(going(i, {name: ["gpu0"]}, priority=classes[i]) for i, name in enumerate(names))
    moves = think(Snapshot((*nodes, *free), (), runs)).moves
    assert len(moves) == min(PER_CYCLE, len(ill), len(free))
    assert all(one.placement.nodes[0].startswith("z") for one in moves)
    moved = {int(one.victim[1:]) for one in moves}
    left = [classes[i] for i in ill if i not in moved]
    assert not moves or max(left, default=0) <= min(classes[i] for i in moved)
