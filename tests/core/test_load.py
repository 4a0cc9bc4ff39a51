"""Nodes that have more to do than they can: starts keep away from them, who runs there may leave, nothing flaps."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.core.model.types import Node, Running, Snapshot
from tests.core.worlds import NOW, alternative, node, running, stage, think
from tests.examples_count import examples

HOUR = 3600.0


def loaded(name: str, load: float, gpus: int = 1) -> Node:
    return replace(node(name, gpus), load=load)


def going(number: int, on: str, gpu: int = 0, **more: Any) -> Running:
    """A stage in the middle of ten hours, that saved its work 60 s ago."""
    saved = {"checkpoint_at": NOW - 60, "checkpoints": True, "alternatives": (alternative(1),)}
    return running(number, {on: [f"gpu{gpu}"]}, **{"since": HOUR, "p50": 10 * HOUR, **saved, **more})


def moves(*nodes: Node, runs: tuple[Running, ...], now: float = NOW) -> list[tuple[str, str]]:
    plan = think(Snapshot(nodes, (), runs), now=now)
    return [(one.victim, one.placement.nodes[0]) for one in plan.moves]


def test_a_start_keeps_away_from_a_hot_node() -> None:
    (start,) = think(Snapshot((loaded("a", 2.0), node("b", 8)), (stage(1),))).starts
    assert start.placement.nodes == ("b",)
    (start,) = think(Snapshot((loaded("a", 1.0), node("b", 1)), (stage(1),))).starts
    assert start.placement.nodes == ("a",), "a node that is merely full is as good as any"


def test_a_hot_node_is_better_than_none() -> None:
    assert think(Snapshot((loaded("a", 3.0),), (stage(1),))).starts


def test_a_running_stage_leaves_a_hot_node_for_a_cold_one() -> None:
    assert moves(loaded("a", 2.0), node("b", 1), runs=(going(1, "a"),)) == [("r001", "b")]


def test_it_stays_where_that_would_win_too_little() -> None:
    assert not moves(loaded("a", 1.5), node("b", 1), runs=(going(1, "a"),)), "not hot enough"
    assert not moves(loaded("a", 2.0), loaded("b", 1.5), runs=(going(1, "a"),)), "hardly colder there"
    assert not moves(loaded("a", 2.0), node("b", 1), runs=(going(1, "a", p50=HOUR + 30),)), "nearly done"
    assert not moves(loaded("a", 2.0), node("b", 1), runs=(going(1, "a", preemptible=False),)), "may not"
    assert not moves(loaded("a", 2.0), node("b", 1), runs=(going(1, "a", since=60.0),)), "has just begun there"


def test_one_at_a_time_leaves_a_node_or_goes_to_one() -> None:
    hot = loaded("a", 3.0, 2)
    assert len(moves(hot, node("b", 1), node("c", 1), runs=(going(1, "a"), going(2, "a", 1)))) == 1
    assert len(moves(loaded("a", 3.0), loaded("d", 3.0), node("b", 4), runs=(going(1, "a"), going(2, "d")))) == 1


@given(st.data())
@settings(max_examples=examples(60), deadline=None)
def test_under_constant_loads_moves_end_and_nothing_goes_back(data: st.DataObject) -> None:
    """What others have to do on each node stays as it is; each stage adds its cores. Whoever is told to move goes."""
    eighths = st.integers(0, 32).map(lambda i: i / 8)
    others = {name: data.draw(eighths, name) for name in "abcd"}
    cores = data.draw(st.sampled_from([2, 4, 16]))
    at = dict(enumerate(data.draw(st.lists(st.sampled_from("abcd"), min_size=1, max_size=6), "where")))
    been = {number: [name] for number, name in at.items()}
    now = NOW
    for _ in range(40):
        shares = {name: sum(where == name for where in at.values()) / cores for name in others}
        nodes = [
            replace(node(name, 6, cores=cores * 6), load=round(8 * (own + shares[name] / 6)) / 8)
            for name, own in others.items()
        ]
        slot = {number: sum(at[k] == at[number] for k in at if k < number) for number in at}
        runs = tuple(
            going(number, at[number], slot[number], since=HOUR, p50=100 * HOUR, checkpoint_at=now - 60) for number in at
        )
        runs = tuple(replace(one, started_at=now - HOUR) for one in runs)
        found = moves(*nodes, runs=runs, now=now)
        if not found:
            break
        for victim, where in found:
            number = int(victim[1:])
            assert where not in been[number], f"{victim} goes back to {where}"
            at[number] = where
            been[number].append(where)
        now += HOUR
    else:
        raise AssertionError("stages still move although nothing changes")
