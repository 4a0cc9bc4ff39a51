"""Every bar of a chart says what it lies on, also where its lane is split into tracks or the axis names nodes only."""

from __future__ import annotations

from typing import Any

from controlplane.pages import simulations
from controlplane.pages.timeline import chart, fitted

NOW = "2026-03-01T10:00:00+00:00"


def lane(node: str, kind: str, index: int) -> dict[str, Any]:
    return {"device": f"{node}-{kind}{index}", "node": node, "kind": kind, "index": index, "capacity_milli": 1000}


def segment(lane: str, job: int, start: int, end: int | None, milli: int = 1000) -> dict[str, Any]:
    at = "2026-03-01T{:02}:00:00+00:00".format
    return {
        "lane": lane,
        "job": job,
        "name": f"job{job}",
        "stage": "main",
        "attempt": 1,
        "user": "ada",
        "project": "lab",
        "state": "RUNNING" if end is None else "COMPLETED",
        "cause": "",
        "milli": milli,
        "planned": False,
        "start_at": at(start),
        "end_at": None if end is None else at(end),
        "expected_end_at": at(12) if end is None else None,
        "overdue_since_at": None,
    }


def drawn(
    lanes: list[dict[str, Any]], segments: list[dict[str, Any]], opened: tuple[str, ...] = (), **more: Any
) -> dict[str, Any]:
    body = {"lanes": lanes, "segments": segments, "now": NOW, "from_at": NOW, "to_at": NOW, "truncated": 0}
    return chart(body | more, opened=opened)


def on(found: dict[str, Any]) -> set[tuple[str, str]]:
    return {(bar["tip"].partition(" ")[0], bar["on"]) for bar in found["items"]}


def test_a_bar_in_a_track_lies_on_the_lane_that_was_split() -> None:
    lanes = [lane("a", "cpu", 0), lane("a", "gpu", 0), lane("b", "gpu", 0)]
    shares = [segment("a-gpu0", job, 8, None, milli=300) for job in (1, 2, 3)]
    found = drawn(lanes, [*shares, segment("a-cpu0", 5, 8, 9), segment("b-gpu0", 4, 8, 9)], ("a", "b"))
    assert on(found) == {("#5", "a cpu0"), ("#1", "a gpu0"), ("#2", "a gpu0"), ("#3", "a gpu0"), ("#4", "b gpu0")}


def test_of_more_nodes_than_there_is_room_for_the_first_are_drawn_and_the_others_counted() -> None:
    lanes = [lane(f"a{number}", "gpu", 0) for number in range(4)]
    body = {"lanes": lanes, "segments": [segment(f"a{number}-gpu0", number + 1, 8, None) for number in range(4)]}
    found = chart(body | {"now": NOW, "from_at": NOW, "to_at": NOW, "truncated": 0}, most=3)
    assert (found["rows"], found["left_out"]) == (3, 1)
    assert {name for _job, name in on(found)} == {"a0 gpu0", "a1 gpu0", "a2 gpu0"}


def test_a_bar_over_several_devices_names_the_first_and_the_last() -> None:
    lanes = [lane("a", "gpu", index) for index in range(4)]
    found = drawn(lanes, [segment(f"a-gpu{index}", 1, 8, None) for index in (1, 2, 3)])
    assert on(found) == {("#1", "a gpu1–gpu3")}


def test_a_folded_node_is_one_lane_and_its_bars_are_as_high_as_their_share_of_it() -> None:
    lanes = [lane(node, "gpu", index) for node in "abcd" for index in range(8)]
    found = drawn(lanes, [segment("a-gpu7", 1, 8, 9), segment("c-gpu0", 2, 8, 9), segment("c-gpu1", 2, 8, 9)])
    assert found["lanes"] == ["a", "b", "c", "d"]
    assert on(found) == {("#1", "a gpu7"), ("#2", "c gpu0–gpu1")}
    assert [(bar["lane"], bar["h"]) for bar in found["items"]] == [(0.875, 0.125), (2.0, 0.25)]


def test_a_gang_of_neighbouring_nodes_has_one_bar() -> None:
    lanes = [lane(node, "gpu", index) for node in "ab" for index in range(2)]
    (bar,) = drawn(lanes, [segment(f"{node}-gpu{index}", 1, 8, 9) for node in "ab" for index in range(2)])["items"]
    assert (bar["lane"], bar["h"], bar["on"]) == (0, 2, "a gpu0 – b gpu1")


def test_an_unfolded_node_has_a_lane_for_each_device() -> None:
    lanes = [lane(node, "gpu", index) for node in "abc" for index in range(2)]
    segments = [segment(f"{node}-gpu{index}", 1, 8, 9) for node in "abc" for index in range(2)]
    found = drawn(lanes, segments, ("b",))
    assert (found["lanes"], found["at"], found["rows"]) == (["gpu0", "gpu1"], [1, 2], 4)
    assert [(fold["name"], fold["at"], fold["rows"], fold["open"]) for fold in found["folds"]] == [
        ("a", 0, 1, False),
        ("b", 1, 2, True),
        ("c", 3, 1, False),
    ]
    assert [(bar["lane"], bar["h"]) for bar in found["items"]] == [(0, 1), (1, 2), (3, 1)]


def test_a_folded_node_shows_a_cpu_only_where_it_has_work_of_its_own() -> None:
    lanes = [lane("a", "cpu", 0), lane("a", "gpu", 0), lane("b", "cpu", 0), lane("b", "gpu", 0), lane("c", "cpu", 0)]
    beside = [segment("a-cpu0", 1, 8, 9), segment("a-gpu0", 1, 8, 9), segment("b-cpu0", 2, 8, 9)]
    found = drawn(lanes, beside)
    assert on(found) == {("#1", "a gpu0"), ("#2", "b cpu0")}
    assert found["lanes"] == ["a", "b", "c"], "a node without work has its lane too"


def test_an_ended_bar_is_hatched_from_when_it_should_have_ended() -> None:
    late = {**segment("a-gpu0", 1, 6, 9), "overdue_since_at": "2026-03-01T08:00:00+00:00", "state": "TIMEOUT"}
    bars = drawn([lane("a", "gpu", 0)], [late])["items"]
    assert [(bar["s"], bar["from"][11:16], bar["to"][11:16]) for bar in bars] == [
        ("FAILED", "06:00", "08:00"),
        ("OVERDUE", "08:00", "09:00"),
    ]


def test_the_span_is_cut_to_where_there_is_something() -> None:
    day = {"from_at": "2026-02-28T10:00:00+00:00", "to_at": "2026-03-02T10:00:00+00:00", "now": NOW}
    found = fitted(day | {"segments": [segment("a-gpu0", 1, 8, 9), segment("a-gpu0", 2, 9, None)]})
    assert (found["from_at"][:16], found["to_at"][:16]) == ("2026-03-01T07:56", "2026-03-01T12:01")
    assert fitted(day | {"segments": []})["from_at"][:16] == "2026-03-01T09:55"


def test_bars_of_a_simulation_name_their_node() -> None:
    bars = [
        {"lane": "n1", "from": 0.0, "to": 60.0, "stage": f"s{i}", "project": "p", "devices": 1, "done": True}
        for i in range(5)
    ]
    bars.append({"lane": "n2", "from": 0.0, "to": 60.0, "stage": "s9", "project": "p", "devices": 1, "done": True})
    found = simulations._gantt({"lanes": ["n1", "n2"], "bars": bars, "span_s": 60.0, "cut": 0})
    assert [(bar["tip"].partition(" ")[0], bar["on"]) for bar in found["items"]] == [
        *((f"s{i}", "n1") for i in range(5)),
        ("s9", "n2"),
    ]


def test_what_is_overdue_goes_on_up_to_the_next_plan_or_the_edge_and_says_since_when() -> None:
    """A bar that ended at "now" would say that it ends now."""
    late = {**segment("a-gpu0", 1, 6, None), "expected_end_at": None, "overdue_since_at": "2026-03-01T08:00:00+00:00"}
    alone = {**late, "lane": "a-gpu1", "job": 2}
    plan = {**segment("a-gpu0", 3, 11, 13), "planned": True, "state": "PENDING"}
    body = {
        "lanes": [lane("a", "gpu", 0), lane("a", "gpu", 1)],
        "segments": [late, alone, plan],
        "now": NOW,
        "from_at": "2026-03-01T05:00:00+00:00",
        "to_at": "2026-03-01T16:00:00+00:00",
        "truncated": 0,
    }  # two devices of one node, so each bar is half a lane
    bars = {(bar["tip"][:2], bar["s"]): bar for bar in chart(body)["items"]}
    assert [bars["#1", "RUNNING"][key][11:16] for key in ("from", "to")] == ["06:00", "08:00"]
    assert [bars["#1", "OVERDUE"][key][11:16] for key in ("from", "to")] == ["08:00", "11:00"]
    assert [bars["#2", "OVERDUE"][key][11:16] for key in ("from", "to")] == ["08:00", "16:00"]
    assert bars["#1", "OVERDUE"]["tip"].endswith("overdue since 03-01 08:00 UTC")
    assert {bar["h"] for bar in bars.values()} == {0.5}, "nothing overlaps, so no device is split"
