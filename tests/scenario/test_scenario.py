"""A scenario is refused with its place where it cannot be, and lived through the same way every time."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from scheduler import profiles
from scheduler.scenario import report, scenario
from scheduler.scenario.scenario import ScenarioError, ScenarioLimits, build

SMALL: dict[str, Any] = {
    "name": "small",
    "trace": {"generate": {"jobs": 40, "per_hour": 60, "median_s": 600, "seed": 3}},
    "world": {"nodes": "2x8", "error": 0.2},
    "profiles": ["hybrid", "fifo"],
    "loads": [1, 2],
    "seeds": [0, 1],
}
CSV = "id,submit_s,duration_s,gpus,project\nx,0,100,8,a\ny,0,100,8,a\nz,10,50,8,b\n"


def with_(**more: Any) -> dict[str, Any]:
    return {**SMALL, **more}


def test_every_world_is_lived_and_the_same_scenario_gives_the_same_bytes() -> None:
    heard: list[tuple[int, int]] = []
    first = report.simulate(build(SMALL), lambda number, done, total, cell: heard.append((number, done)))
    again = report.simulate(build(SMALL))
    assert json.dumps(first, sort_keys=True) == json.dumps(again, sort_keys=True)
    assert [(c["profile"], c["load"], c["seed"]) for c in first["cells"]] == [
        (p, load, seed) for load in (1.0, 2.0) for p in ("hybrid", "fifo") for seed in (0, 1)
    ]
    assert {number for number, _ in heard} == set(range(8))
    assert [row["seeds"] for row in first["summary"]] == [2, 2, 2, 2]


def test_what_is_shown_of_a_world_is_true() -> None:
    found = report.simulate(build({"trace": {"text": CSV}, "world": {"nodes": "1x8"}, "profiles": ["fifo"]}))
    (cell,) = found["cells"]
    assert cell["figures"]["completed"] == 3
    assert cell["figures"]["utilisation"] == pytest.approx(1.0)
    assert min(cell["utilisation"]["y"]) == pytest.approx(1.0)
    assert (cell["wait"]["x"][0], cell["wait"]["x"][-1]) == (0.0, 190.0)
    assert [(row["project"], row["completed"]) for row in cell["projects"]] == [("a", 2), ("b", 1)]
    assert [(bar["from"], bar["to"]) for bar in cell["gantt"]["bars"]] == [(0.0, 100.0), (100.0, 200.0), (200.0, 250.0)]


def test_more_load_means_the_same_stages_in_less_time() -> None:
    found = scenario.scaled(build(SMALL).trace, 2.0)
    assert [one.submit_s * 2 for one in found] == pytest.approx([one.submit_s for one in build(SMALL).trace])


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ([], "must be a mapping"),
        (with_(profile="x"), "profile: there is no such key; there are name, trace, world"),
        (with_(profiles=["magic"]), 'profiles: there is no profile "magic"; there are static, dynamic'),
        (with_(profiles={"mine": {"policies": {"guess": {}}}}), 'there is no policy "guess"; there are alternatives'),
        (with_(profiles={"mine": {"policies": {"fair_share": {"weight": "much"}}}}), "must be a number"),
        (with_(profiles={"mine": {"policies": {"alternatives": {"near": -1}}}}), "near"),
        (with_(profiles={"mine": {"drift": 7}}), "drift"),
        (with_(world={"nodes": "eight"}), 'world.nodes: "eight" does not describe nodes'),
        (with_(world={"error": -1}), "world.error: must be a number from 0 to 5"),
        (with_(loads=[0]), "loads"),
        (with_(trace={"file": "x.csv"}), "trace.file: no file may be named here"),
        (with_(trace={"text": "a,b\n1,2\n"}), "trace: "),
        (with_(trace={"generate": {"widths": {1: -1}}}), "generate.widths"),
        (with_(trace={"text": CSV, "generate": {}}), "trace: must have one of file, text and generate"),
    ],
)
def test_what_cannot_be_is_told_with_its_place(body: Any, told: str) -> None:
    with pytest.raises(ScenarioError) as caught:
        build(body)
    assert told in str(caught.value)


def test_what_is_too_large_is_refused() -> None:
    for limits, at in (
        (ScenarioLimits(arrivals=10), "trace"),
        (ScenarioLimits(devices=10), "world.nodes"),
        (ScenarioLimits(cells=7), "profiles"),
    ):
        with pytest.raises(ScenarioError) as caught:
            build(SMALL, limits=limits)
        assert caught.value.at == at
    assert len(build(with_(trace={"text": CSV, "first": 2}), limits=ScenarioLimits(arrivals=2)).trace) == 2


def test_a_file_names_its_trace_beside_itself(tmp_path: Path) -> None:
    (tmp_path / "trace.csv").write_text(CSV)
    (tmp_path / "scenario.yaml").write_text("trace: {file: trace.csv}\nprofiles: fifo, dynamic\n")
    found = scenario.read(tmp_path / "scenario.yaml")
    assert (len(found.trace), list(found.profiles)) == (3, ["fifo", "dynamic"])


def test_the_profiles_of_the_house_are_in_their_own_ranges() -> None:
    for name in profiles.PROFILES:
        assert profiles.load(name, profiles.PROFILES[name]).name == name
