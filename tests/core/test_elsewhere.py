"""Where a stage may not go: it never does, and where nothing else keeps it waiting it is told so."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.core.matching.feasible import never_fits
from scheduler.core.model.reasons import sentence
from scheduler.core.model.types import Node, Plan, Reason, Running, Snapshot
from tests.core.worlds import NOW, STEADY, alternative, node, primary, running, stage, starts, think, waits

HOUR = 3600.0
A = node("a", 1, labels={"rack": "r1", "site": "east"})
B = node("b", 1, labels={"rack": "r2", "site": "east"})
C = node("c", 1, labels={"rack": "r2", "site": "west"})
D = node("d", 1)
ALL = (A, B, C, D)
MAY_NOT: list[tuple[dict[str, Any], set[str]]] = [
    ({"avoid": ("a",)}, {"a"}),
    ({"avoid": ("rack=r2",)}, {"b", "c"}),
    ({"avoid": ("a", "rack=r2")}, {"a", "b", "c"}),
    ({"avoid": ("rack=r9", "gone")}, set()),
    ({"site": "east"}, {"c", "d"}),
    ({"site": "east", "avoid": ("a",)}, {"a", "c", "d"}),
    ({"only": (("a", "rack=r2"),)}, {"d"}),
    ({"only": (("*=r1", "r1=*"),)}, {"b", "c", "d"}),
    ({"only": (("*=rack", "rack=*"),)}, {"d"}),
    ({"only": (("rack=r1", "rack=r2"), ("site=east",))}, {"c", "d"}),
    ({"only": (("rack=r2",),), "avoid": ("c",)}, {"a", "c", "d"}),
    ({"only": (("rack=r2",),), "site": "west"}, {"a", "b", "d"}),
]


def places(plan: Plan) -> set[str]:
    return {name for one in plan.starts for name in one.placement.nodes}


@pytest.mark.parametrize("profile", ["hybrid", "dynamic", "static", "turns", "fifo"])
@pytest.mark.parametrize(("asked", "barred"), MAY_NOT)
def test_it_starts_on_every_other_node_and_on_none_of_these(
    profile: str, asked: dict[str, Any], barred: set[str]
) -> None:
    world = Snapshot(ALL, tuple(stage(i, **asked) for i in range(1, 6)))
    assert places(think(world, profile)) == {"a", "b", "c", "d"} - barred


@given(st.sampled_from(MAY_NOT), st.sets(st.sampled_from("abcd"), min_size=1), st.integers(1, 3))
def test_what_is_refused_at_submit_is_what_could_never_start(
    asked: tuple[dict[str, Any], set[str]], there: set[str], size: int
) -> None:
    """The check at submit, a placement on an empty cluster, and the count by hand agree."""
    nodes = tuple(one for one in ALL if one.id in there)
    gang = stage(1, nodes=size, **asked[0])
    left = there - asked[1]
    never = never_fits(gang, Snapshot(nodes))
    assert (never is None) == (len(left) >= size) == bool(starts(think(Snapshot(nodes, (gang,)), "dynamic")))
    if never is not None and len(there) >= size:
        codes = {"avoid": "NodesAvoided", "only": "NodesRestricted", "site": "DataResidency"}
        assert never.code in {codes[key] for key in asked[0]}
        assert primary(think(Snapshot(nodes, (gang,))), "s001") == never.code


def only(plan: Plan, code: str) -> Reason:
    (found,) = [one for one in waits(plan)["s001"].reasons if one.code == code]
    assert "?" not in sentence(found)
    return found


def test_the_reason_names_what_it_avoids_with_numbers() -> None:
    plan = think(Snapshot((A, B), (stage(1, nodes=2, avoid=("rack=r2",)),)))
    assert waits(plan)["s001"].reasons[0].params == {"avoided": "rack=r2", "nodes": 1, "needed": 2, "pool": "default"}
    said = "avoids rack=r2; of the other nodes 1 would do, and it needs 2"
    assert sentence(only(plan, "NodesAvoided")) == said


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ((("a", "rack=r1"),), "a|rack=r1"),
        ((("*=r1", "r1=*"),), "r1"),
        ((("*=r1", "r1=*"), ("a", "b")), "r1 & (a|b)"),
        ((tuple(f"n{i}" for i in range(100)), ("rack=r1",)), "(n0|n1|n2|n3|n4|n5|n6|n7|...) & rack=r1"),
    ],
)
def test_the_reason_tells_what_it_is_restricted_to(asked: tuple[tuple[str, ...], ...], said: str) -> None:
    plan = think(Snapshot((A, B), (stage(1, nodes=2, only=asked),)))
    assert sentence(only(plan, "NodesRestricted")).startswith(f"runs only on nodes with {said}; of those ")


def busy(*names: str) -> tuple[Running, ...]:
    return tuple(running(i, {name: ["gpu0"]}, p50=9000) for i, name in enumerate(names, 1))


def test_it_is_told_where_only_what_it_avoids_is_free() -> None:
    plan = think(Snapshot((A, B), (stage(1, avoid=("a",)),), busy("b")), STEADY)
    assert [one.code for one in waits(plan)["s001"].reasons] == ["NodesAvoided", "CapacityInsufficient"]
    assert only(plan, "NodesAvoided").params["nodes"] == 0
    plan = think(Snapshot((A, B), (stage(1, only=(("b",),)),), busy("b")), STEADY)
    assert only(plan, "NodesRestricted").params == {"only": "b", "nodes": 0, "needed": 1, "pool": "default"}
    plan = think(Snapshot((A, C), (stage(1, site="east"),), busy("a")), STEADY)
    assert primary(plan, "s001") == "DataResidency"


def test_it_is_not_told_where_other_things_keep_it_waiting_too() -> None:
    plan = think(Snapshot((A, B), (stage(1, avoid=("a",)),), busy("a", "b")), STEADY)
    assert [one.code for one in waits(plan)["s001"].reasons] == ["CapacityInsufficient"]
    plan = think(Snapshot((A, B), (stage(1, gpus=2, avoid=("a",)),)), STEADY)
    assert primary(plan, "s001") == "NoMatchingDevice"


def warning(found: Node) -> Node:
    return replace(found, devices=tuple(replace(one, warned=one.kind == "gpu") for one in found.devices))


@pytest.mark.parametrize(
    ("more", "moves"), [({}, 1), ({"avoid": ("b",)}, 0), ({"only": (("a",),)}, 0), ({"site": "east"}, 0)]
)
def test_a_running_stage_moves_to_no_node_where_it_may_not_go(more: dict[str, Any], moves: int) -> None:
    here, there = warning(node("a", 1, labels={"site": "east"})), node("b", 1, labels={"site": "west"})
    saved = {"checkpoint_at": NOW - 60, "checkpoints": True, "alternatives": (alternative(1),)}
    going = running(1, {"a": ["gpu0"]}, since=HOUR, p50=10 * HOUR, **saved, **more)
    assert len(think(Snapshot((here, there), (), (going,))).moves) == moves


@pytest.mark.parametrize(
    ("more", "grows"),
    [({}, True), ({"avoid": ("rack=r2",)}, False), ({"only": (("rack=r1",),)}, False), ({"site": "east"}, True)],
)
def test_an_elastic_stage_grows_onto_no_node_where_it_may_not_go(more: dict[str, Any], grows: bool) -> None:
    both = {"least_nodes": 1, "most_nodes": 2, "checkpoint_at": NOW - 5, "checkpoints": True, "saves_on_stop": True}
    going = running(1, {"a": ["gpu0"]}, since=HOUR, p50=20 * HOUR, alternatives=(alternative(1),), **both, **more)
    plan = think(Snapshot((A, B), (), (going,)))
    assert [one.size for one in plan.resizes] == ([2] if grows else [])
