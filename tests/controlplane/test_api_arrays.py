"""Arrays and dependencies over REST: who sees and ends them, what a file may ask for, and what is told of elements."""

from __future__ import annotations

import json
from typing import Any

import pytest

from agents.protocol import Exit, Phase, Progress
from controlplane.jobs.models import Array, Job
from tests.controlplane.people import Person, Town
from tests.controlplane.test_api_jobs import problem
from tests.record.yard import stage

SWEEP = {
    "name": "sweep",
    "run": "train",
    "array": {"parameters": {"lr": [0.1, 0.01], "seed": [1, 2]}, "max_parallel": 2},
}

HALVING = {"metric": "loss", "goal": "minimize", "min_steps": 10, "reduction_factor": 2, "rungs": 3}
POINTS = {"parameters": {"lr": [0.1, 0.2, 0.3, 0.4]}}


def made(person: Person, spec: dict[str, Any]) -> dict[str, Any]:
    """What is answered to the submission of an array."""
    answer = person.post("/jobs", spec)
    assert answer.status_code == 201, answer.content
    found = json.loads(answer.content)
    assert answer["Location"] == f"/api/v1/arrays/{found['number']}"
    return dict(found)


def test_an_array_is_answered_and_its_elements_are_jobs(town: Town) -> None:
    agent = town.machine()
    array = made(town.owner, SWEEP)
    number = array["number"]
    assert (array["count"], array["counts"], array["state"]) == (4, {"PENDING": 4}, "PENDING")
    job = town.mate.read(f"/jobs/{number}_2")
    assert (job["array"], job["parameters"]) == ({"number": number, "index": 2}, {"lr": 0.01, "seed": 1})
    assert [one["number"] for one in town.owner.read(f"/jobs?array={number}&sort=submitted_at")["results"]] == [
        number + 1, number + 2, number + 3, number + 4,
    ]  # fmt: skip
    town.job(name="alone")
    assert [one["name"] for one in town.owner.read("/jobs?array=none")["results"]] == ["alone"]
    problem(town.owner.get("/jobs?array=x"), 400, "invalid")
    town.cycle()
    agent.start()
    for index, loss in enumerate((0.5, 0.25)):
        one = Job.objects.get(array=number, array_index=index)
        agent.set(stage(one), Phase.RUNNING, progress=Progress(step=1, values={"loss": loss, "note": "x"}))
    found = town.owner.read(f"/arrays/{number}?metric=loss")
    assert found["parameters"] == SWEEP["array"]["parameters"]  # type: ignore[index]
    assert (found["counts"], found["metrics"]) == ({"PENDING": 2, "RUNNING": 2}, ["loss"])
    best = {
        "metric": "loss",
        "goal": "min",
        "value": 0.25,
        "index": 1,
        "job": number + 2,
        "parameters": {"lr": 0.1, "seed": 2},
    }
    assert found["best"] == best
    assert town.owner.read(f"/arrays/{number}?metric=loss&goal=max")["best"]["index"] == 0
    assert town.owner.read(f"/arrays/{number}?metric=note")["best"] is None
    elements = town.owner.read(f"/arrays/{number}/elements?limit=2")
    assert [(each["index"], each["state"], each["values"]) for each in elements["results"]] == [
        (0, "RUNNING", {"loss": 0.5}), (1, "RUNNING", {"loss": 0.25}),
    ]  # fmt: skip
    assert elements["next"]
    assert town.owner.read("/arrays?state=RUNNING&user=me")["results"][0]["number"] == number
    assert town.owner.read("/arrays?state=FAILED")["results"] == []


def test_a_sweep_tells_its_rungs_and_whom_it_stopped(town: Town) -> None:
    agent = town.machine()
    spec = {"name": "sweep", "run": "x", "array": {**POINTS, "halving": HALVING}}
    checked = json.loads(town.owner.post("/jobs?dry_run=validate", spec).content)
    assert checked["array"]["halving"] == {**HALVING, "steps": [10, 20, 40]}
    number = made(town.owner, spec)["number"]
    town.cycle()
    agent.start()
    for index, loss in enumerate((0.5, 0.75)):
        one = Job.objects.get(array=number, array_index=index)
        agent.set(stage(one), Phase.RUNNING, progress=Progress(step=12, values={"loss": loss}))
    town.cycle()
    found = town.mate.read(f"/arrays/{number}")
    assert found["halving"]["rungs"][:2] == [
        {"rung": 1, "step": 10, "reached": 2, "stopped": 0, "best": 0.5},
        {"rung": 2, "step": 20, "reached": 0, "stopped": 0, "best": None},
    ]
    agent.set(stage(one), Phase.ENDED, exit=Exit(code=0, stopped=True))
    found = town.mate.read(f"/arrays/{number}")
    assert (found["stopped_early"], found["halving"]["rungs"][0]["stopped"]) == (1, 1)
    first, second, third, _last = town.mate.read(f"/arrays/{number}/elements")["results"]
    assert (first["rung"]["verdict"], third["rung"]) == ("goes_on", None)
    assert (second["state"], second["cause"]) == ("CANCELLED", "EARLY_STOPPED")
    assert second["rung"] == {
        "rung": 1, "step": 12, "value": 0.75, "verdict": "stopped", "among": 2, "cutoff": 0.5,
    }  # fmt: skip
    problem(town.stranger.get(f"/arrays/{number}"), 404, "not_found")


def test_who_may_not_see_an_array_finds_nothing_and_who_only_sees_it_ends_nothing(town: Town) -> None:
    town.machine()
    number = made(town.owner, SWEEP)["number"]
    for path in (f"/arrays/{number}", f"/arrays/{number}/elements", f"/jobs/{number}_0", f"/jobs/{number}"):
        problem(town.stranger.get(path), 404, "not_found")
    assert town.stranger.read("/arrays")["results"] == []
    problem(town.stranger.post(f"/arrays/{number}/cancel"), 404, "not_found")
    problem(town.mate.post(f"/arrays/{number}/cancel"), 403, "permission_denied")
    body = problem(town.stranger.post("/jobs", {"run": "x", "depends_on": [{"job": number}]}), 422, "invalid_spec")
    assert body["errors"][0]["code"] == "unknown_job"
    assert json.loads(town.lead.post(f"/arrays/{number}/hold", {"reason": "later"}).content)["counts"] == {"HELD": 4}
    assert json.loads(town.owner.post(f"/arrays/{number}/release").content)["counts"] == {"PENDING": 4}
    for _twice in range(2):
        assert json.loads(town.owner.post(f"/arrays/{number}/cancel").content)["counts"] == {"CANCELLED": 4}
    problem(town.owner.post(f"/arrays/{number}/hold"), 409, "illegal_transition")


def test_a_number_that_a_reader_may_not_see_is_hidden_in_reasons(town: Town) -> None:
    town.machine()
    number = made(town.owner, {**SWEEP, "hold": True})["number"]
    waits = town.job(depends_on=[{"job": number}])
    town.cycle()
    assert town.owner.read(f"/jobs/{waits.number}/why")["reason"]["text"] == f"waits for #{number} (afterok)"
    assert town.owner.read(f"/jobs/{waits.number}")["depends_on"] == [
        {"job": str(number), "when": "afterok", "verdict": ""}
    ]


@pytest.mark.parametrize(
    ("array", "pointer", "code"),
    [
        ({"indexes": "0-999999"}, "/array/indexes", "too_many"),
        ({"indexes": "0-9999,0"}, "/array/indexes", "too_many"),
        ({"indexes": "5-1"}, "/array/indexes", "out_of_range"),
        ({"indexes": "0-3%2"}, "/array/indexes", "invalid"),
        ({"indexes": "0", "parameters": {"a": [1]}}, "/array/indexes", "exclusive"),
        ({"max_parallel": 2}, "/array", "missing"),
        ({"parameters": {f"p{n}": list(range(10)) for n in range(9)}}, "/array/parameters", "too_many"),
        ({"parameters": {"lr": [1], "LR": [2]}}, "/array/parameters/LR", "duplicate"),
        ({"parameters": {"a-b": [1]}}, "/array/parameters/a-b", "invalid_name"),
        ({"parameters": {"a": [[1]]}}, "/array/parameters/a", "invalid"),
        ({"parameters": {"a": {"uniform": [0, 1]}}}, "/array/parameters/a", "missing"),
        ({"parameters": {"a": {"log_uniform": [0, 1]}}, "sample": 2}, "/array/parameters/a", "invalid"),
        ({"parameters": {"a": [1, 2]}, "sample": 3}, "/array/sample", "out_of_range"),
        ({"parameters": {"a": [1, 2]}, "seed": 3}, "/array/seed", "missing"),
        ({"parameters": {"a": {"uniform": [0, 1]}}, "sample": 10_001}, "/array/sample", "out_of_range"),
        ({"indexes": "0-9", "halving": HALVING}, "/array/halving", "exclusive"),
        ({**POINTS, "halving": 3}, "/array/halving", "not_a_mapping"),
        ({**POINTS, "halving": {"metric": "loss"}}, "/array/halving/min_steps", "missing"),
        ({**POINTS, "halving": {"min_steps": 1}}, "/array/halving/metric", "missing"),
        ({**POINTS, "halving": {**HALVING, "metric": "a\nb"}}, "/array/halving/metric", "invalid"),
        ({**POINTS, "halving": {**HALVING, "metric": "x" * 65}}, "/array/halving/metric", "too_long"),
        ({**POINTS, "halving": {**HALVING, "goal": "min"}}, "/array/halving/goal", "unknown_value"),
        ({**POINTS, "halving": {**HALVING, "eta": 3}}, "/array/halving/eta", "unknown_key"),
        ({**POINTS, "halving": {**HALVING, "rungs": 11}}, "/array/halving/rungs", "out_of_range"),
        ({**POINTS, "halving": {**HALVING, "min_steps": 2**53}}, "/array/halving/rungs", "out_of_range"),
        ({**POINTS, "halving": {**HALVING, "reduction_factor": 5}}, "/array/halving/reduction_factor", "out_of_range"),
        (
            {"parameters": {f"p{n}": list(range(10)) for n in range(9)}, "halving": HALVING},
            "/array/parameters",
            "too_many",
        ),
    ],
)
def test_what_is_too_much_or_unclear_is_refused_where_it_stands(
    town: Town, array: dict[str, Any], pointer: str, code: str
) -> None:
    body = problem(town.owner.post("/jobs", {"run": "x", "array": array}), 422, "invalid_spec")
    assert [(each["pointer"], each["code"]) for each in body["errors"]] == [(pointer, code)]
    assert not Array.objects.exists()


def test_long_files_have_few_elements_and_batches_count_them_all(town: Town) -> None:
    town.machine()
    long = {"run": "x" * 60_000, "array": {"indexes": "0-9999"}}
    body = problem(town.owner.post("/jobs", long), 422, "invalid_spec")
    assert [(each["pointer"], each["code"]) for each in body["errors"]] == [("/array", "too_large")]
    half = {"run": "x", "array": {"indexes": "0-5999"}}
    body = problem(town.owner.post("/jobs/batch", {"jobs": [half, half]}), 422, "invalid_spec")
    assert body["errors"][0]["code"] == "too_many"
    answer = town.owner.post("/jobs/batch", {"jobs": [{"run": "x"}, {"run": "x", "array": {"indexes": "1,2"}}]})
    one, two = json.loads(answer.content)["results"]
    assert (one["id"] is None, two["id"] is None) == (False, True)
    assert two["number"] == one["number"] + 1


def test_a_dry_run_tells_how_many_there_would_be(town: Town) -> None:
    town.machine()
    checked = json.loads(town.owner.post("/jobs?dry_run=validate", SWEEP).content)
    assert (checked["array"]["count"], checked["array"]["first"][3]["parameters"]) == (4, {"lr": 0.01, "seed": 2})
    assert json.loads(town.owner.post("/jobs?dry_run=placement", SWEEP).content)["verdict"] == "starts_now"
    assert not Array.objects.exists()
