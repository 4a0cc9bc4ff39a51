"""What the engine says: the clauses and the English sentence that is made of them."""

from __future__ import annotations

from scheduler.core.model import retry
from scheduler.core.model.clauses import TEMPLATES, clause, plain, say, several, spoken
from scheduler.core.model.types import Snapshot
from tests.core.worlds import node, running, stage, starts, think


def test_a_sentence_is_its_clauses_one_after_the_other() -> None:
    said = (clause("Here", devices="2 x H100", node="a"), clause("BestFit", among=4), clause("RunsFor", lasts_s=1500.0))
    assert say(said) == "2 x H100 on a, the best fit of 4 nodes; predicted to run 25 min"


def test_what_joins_nothing_is_left_out() -> None:
    assert say((clause("RunsFor", lasts_s=90.0),)) == "predicted to run 90 s"


def test_values_in_words_come_with_their_clauses() -> None:
    found = spoken(free=(clause("CoresAndMemory", cores="4", memory_bytes=3 << 30),))
    assert found["free"] == "4 cores and 3 GiB"
    assert found["free_said"] == [{"code": "CoresAndMemory", "params": {"cores": "4", "memory_bytes": 3 << 30}}]


def test_one_and_several_have_a_code_each() -> None:
    assert [several(count, "NodeIdle", "NodesIdle") for count in (1, 2)] == ["NodeIdle", "NodesIdle"]


def test_whoever_starts_is_told_why_there_in_clauses_that_make_the_sentence() -> None:
    plan = think(Snapshot((node("a", 2), node("b", 4), node("c", 1)), (stage(1, 2), stage(2, nodes=2))))
    assert set(starts(plan)) == {"s001", "s002"}
    for start in plan.starts:
        assert start.why == say(start.said)
        assert {one.code for one in start.said} <= set(TEMPLATES)
    codes = {start.stage: [one.code for one in start.said] for start in plan.starts}
    assert codes["s001"][0] == "Here"
    assert codes["s002"][0] == "HereEach"
    assert all("RunsFor" in found for found in codes.values())


def test_whoever_makes_room_with_fewer_nodes_is_told_for_whom() -> None:
    going = running(7, {"a": ["gpu0"], "b": ["gpu0"]}, least_nodes=1, most_nodes=2, p50=100_000, saves_on_stop=True)
    plan = think(Snapshot((node("a", 1), node("b", 1)), (stage(1, priority=1000),), running=(going,)))
    (resize,) = plan.resizes
    assert resize.why == "makes room for #1 train"
    assert plain(resize.said) == [{"code": "MakesRoom", "params": {"stage": "#1 train"}}]


def test_what_follows_an_end_is_told_in_clauses() -> None:
    verdicts = [
        retry.decide("EXIT_CODE", 1, 3, ["exit_code"]),
        retry.decide("EXIT_CODE", 3, 3, ["exit_code"]),
        retry.decide("EXIT_CODE", 1, 3, []),
        retry.decide("PREEMPTED", 1, 1),
        retry.decide("NODE_FAIL", 1, 1, on_node_lost="requeue"),
        retry.decide("DEADLINE", 1, 1),
        retry.decide("CANCELLED", 1, 1),
    ]
    assert [one.why for one in verdicts] == [
        "EXIT_CODE: attempt 2 of 3 follows",
        "EXIT_CODE: attempt 3 of 3 was the last",
        "EXIT_CODE is not among the causes that it retries on",
        "PREEMPTED: queued again",
        "NODE_FAIL: queued again as on_node_lost says",
        "DEADLINE: another attempt could not end otherwise",
        "cancelled",
    ]
