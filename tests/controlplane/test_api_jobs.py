"""Submit, list, look at and end jobs over REST; who may do it, and what the answers look like."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any
from urllib.parse import urlencode

import msgspec
import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from agents.protocol import Checkpoint, Phase, Progress
from controlplane.jobs.models import Job
from controlplane.queries import attempts, job_rows, jobs
from tests.controlplane.people import Town
from tests.record.yard import stage

STAGES = [
    {"name": "prep", "kind": "preprocess", "run": "x"},
    {"name": "fit", "kind": "train", "run": "x", "needs": ["prep"]},
]


def problem(answer: Any, status: int, code: str) -> dict[str, Any]:
    """The problem document of a refusal."""
    assert answer.status_code == status, answer.content
    assert answer["Content-Type"] == "application/problem+json"
    body = json.loads(answer.content)
    assert (body["status"], body["code"]) == (status, code)
    assert body["title"]
    assert body["detail"]
    assert body["trace_id"]
    assert body["instance"].startswith("/api/v1/")
    return body


def test_a_submitted_job_is_there_at_once(town: Town) -> None:
    town.machine()
    answer = town.owner.post("/jobs", {"name": "sft", "stages": STAGES, "labels": {"team": "nlp"}})
    assert answer.status_code == 201
    job = msgspec.json.decode(answer.content, type=job_rows.Job)
    assert answer["Location"] == f"/api/v1/jobs/{job.number}"
    assert (job.name, job.user, job.project, job.state, job.labels) == (
        "sft",
        "owner",
        "default",
        "PENDING",
        {"team": "nlp"},
    )
    assert [(s.name, s.kind, s.needs, s.asks) for s in job.stages] == [
        ("prep", "preprocess", [], "1 core"),
        ("fit", "train", ["prep"], "1 gpu or cpu · 1 core"),
    ]
    for name in (job.number, job.id):
        assert town.mate.get(f"/jobs/{name}").content == town.owner.get(f"/jobs/{name}").content


def test_yaml_is_accepted_with_the_words_of_yaml_1_2(town: Town) -> None:
    town.machine()
    text = "name: y\nrun: |\n  echo on\nretry: {max: 2, on: [node_fail]}\nenv: {A: yes, B: 1e-4, C: 12:30}\n"
    answer = town.owner.post("/jobs", text, kind="application/yaml")
    assert answer.status_code == 201, answer.content
    request = Job.objects.get().stages.get().request
    assert request["alternatives"][0]["env"] == {"A": "yes", "B": "0.0001", "C": "12:30"}
    assert request["retry"]["on"] == ["node_fail"]


def test_faults_of_a_job_file_come_with_pointers(town: Town) -> None:
    body = problem(town.owner.post("/jobs", {"run": "x", "cpu": 1, "nodes": 0}), 422, "invalid_spec")
    assert {(each["pointer"], each["code"]) for each in body["errors"]} == {
        ("/cpu", "unknown_key"),
        ("/nodes", "out_of_range"),
    }
    assert Job.objects.count() == 0


def test_dry_runs_submit_nothing(town: Town) -> None:
    town.machine()
    checked = town.owner.post("/jobs?dry_run=validate", {"run": "x", "checkpoint": {"keep": 3, "framework": "auto"}})
    body = json.loads(checked.content)
    assert checked.status_code == 200
    assert body["stages"][0]["request"]["cpus_milli"] == 1000
    assert [each["pointer"] for each in body["warnings"]] == ["/checkpoint/framework"]
    placed = town.owner.post("/jobs?dry_run=placement", {"run": "x"})
    assert json.loads(placed.content)["verdict"] == "starts_now"
    problem(town.owner.post("/jobs?dry_run=perhaps", {"run": "x"}), 400, "invalid")
    assert Job.objects.count() == 0


def test_a_batch_is_accepted_whole_or_not_at_all(town: Town) -> None:
    town.machine()
    answer = town.owner.post("/jobs/batch", {"jobs": [{"run": "x"}] * 20})
    assert answer.status_code == 201
    numbers = [each["number"] for each in json.loads(answer.content)["results"]]
    assert numbers == sorted(set(numbers))
    assert len(numbers) == Job.objects.count() == 20
    body = problem(town.owner.post("/jobs/batch", {"jobs": [{"run": "x"}, {"rum": "x"}]}), 422, "invalid_spec")
    assert {each["pointer"] for each in body["errors"]} == {"/jobs/1/rum", "/jobs/1"}
    assert Job.objects.count() == 20
    problem(town.owner.post("/jobs/batch", {"jobs": []}), 422, "invalid")
    problem(town.owner.post("/jobs/batch", {"job": []}), 400, "invalid")


def test_the_list_is_paged_by_cursor_in_both_directions(town: Town) -> None:
    town.machine()
    town.owner.post("/jobs/batch", {"jobs": [{"run": "x"}] * 7})
    seen, address, pages = [], "/jobs?limit=3", []
    while address:
        page = town.owner.read(address)
        pages.append([job["number"] for job in page["results"]])
        seen += pages[-1]
        last, address = page, (page["next"] or "").removeprefix("/api/v1")
    numbers = list(Job.objects.order_by("-number").values_list("number", flat=True))
    assert seen == numbers
    back = town.owner.read(last["previous"].removeprefix("/api/v1"))
    assert [job["number"] for job in back["results"]] == pages[-2]
    oldest = town.owner.read("/jobs?limit=2&sort=submitted_at")
    assert [job["number"] for job in oldest["results"]] == numbers[::-1][:2]
    for bad in ("limit=0", "limit=501", "limit=x", "cursor=nonsense", "sort=colour", "state=ASLEEP", "stat=PENDING"):
        problem(town.owner.get(f"/jobs?{bad}"), 400, "invalid")


def test_the_list_is_narrowed(town: Town) -> None:
    agent = town.machine()
    one = town.running(agent, name="alpha", labels={"team": "nlp"})
    two = town.job(name="beta", hold=True)

    def found(query: str) -> set[int]:
        return {job["number"] for job in town.owner.read(f"/jobs?{query}")["results"]}

    assert found("state=RUNNING") == found("q=alp") == found("label=team=nlp") == found("label=team") == {one.number}
    assert found("state=HELD,FAILED") == found("state=waiting") == found(f"q={two.number}") == {two.number}
    assert found("state=active") == found("user=me") == found("project=default") == {one.number, two.number}
    late = one.submitted_at + timedelta(hours=1)
    Job.objects.filter(pk=two.pk).update(submitted_at=late)
    then = urlencode({"": late.isoformat()})
    assert (found(f"submitted_after{then}"), found(f"submitted_before{then}")) == ({two.number}, {one.number})
    assert found("state=ended") == found("user=mate") == found("project=other") == found("label=team=cv") == set()


@pytest.mark.parametrize(
    "when", ["yesterday", "2026-01-31T18:00:00", "0001-01-01T00:00:00%2B14:00", "2026-02-30T00:00:00Z"]
)
def test_a_time_of_submit_that_is_none_is_refused(town: Town, when: str) -> None:
    for path in ("/jobs", "/arrays", "/jobs/watch"):
        refused = problem(town.owner.get(f"{path}?submitted_after={when}"), 400, "invalid")
        assert refused["detail"].startswith("submitted_after must")


def test_a_running_job_shows_where_it_runs_and_how_far_it_is(town: Town) -> None:
    agent = town.machine()
    job = town.running(agent, stages=[{"name": "fit", "kind": "train", "run": "x"}])
    fit = stage(job, "fit")
    agent.set(
        fit,
        Phase.RUNNING,
        progress=Progress(step=5, total=20, phase="epoch 1", values={"loss": 0.5}),
        checkpoints=[Checkpoint(step=4, path="/shared/4")],
    )
    shown = msgspec.json.decode(town.owner.get(f"/jobs/{job.number}").content, type=job_rows.Job)
    (found,) = shown.stages
    assert (shown.state, shown.progress, found.attempts) == ("RUNNING", 0.25, 1)
    assert {device.kind for device in found.placed[0].devices} == {"gpu", "cpu"}
    assert found.placed[0].node == "n1"
    assert found.why_here
    assert found.values == {"loss": 0.5}
    assert found.checkpoint is not None
    assert (found.checkpoint.step, found.checkpoint.path) == (4, "/shared/4")
    tried = msgspec.json.decode(town.owner.get(f"/jobs/{job.number}/attempts").content, type=attempts.AttemptPage)
    assert [(each.stage, each.number, each.placed) for each in tried.results] == [("fit", 1, found.placed)]
    points = town.owner.read(f"/jobs/{job.number}/checkpoints")["results"]
    assert [(point["step"], point["attempt"]) for point in points] == [(4, 1)]
    facts = town.owner.read(f"/jobs/{job.number}/events?limit=1")
    assert [fact["seq"] for fact in facts["results"]] == [1]
    assert facts["next"]


def test_a_waiting_job_says_why(town: Town) -> None:
    agent = town.machine()
    town.running(agent, devices={"kind": "gpu", "count": 2})
    waiting = town.job(devices={"kind": "gpu", "count": 2})
    town.cycle()
    why = msgspec.json.decode(town.owner.get(f"/jobs/{waiting.number}/why").content, type=jobs.JobWhy)
    (entry,) = why.stages
    assert why.reason == entry.reasons[0]
    assert why.reason is not None
    assert why.reason.text
    assert entry.evaluated_at is not None
    assert town.owner.read(f"/jobs/{waiting.number}")["reason"]["code"] == why.reason.code


def test_a_job_tells_what_was_asked_and_how_it_was_understood(town: Town) -> None:
    town.machine()
    spec = {"name": "again", "run": "x", "cpus": 0.5}
    job = town.job(**spec)
    body = town.mate.read(f"/jobs/{job.number}/spec")
    assert body["spec"] == spec
    assert [(each["stage"], each["request"]["cpus_milli"]) for each in body["stages"]] == [("main", 500)]
    town.mate.post("/jobs", body["spec"])
    assert Job.objects.filter(name="again").count() == 2


def test_cancelling_twice_is_once(town: Town) -> None:
    town.machine()
    job = town.job()
    for _ in range(2):
        answer = town.owner.post(f"/jobs/{job.number}/cancel", {"reason": "a mistake"})
        assert answer.status_code == 200
        assert json.loads(answer.content)["state"] == "CANCELLED"
    texts = [fact["text"] for fact in town.owner.read(f"/jobs/{job.number}/events")["results"]]
    assert sum("a mistake" in text for text in texts) == 1


def test_hold_and_release(town: Town) -> None:
    town.machine()
    job = town.job()
    assert json.loads(town.owner.post(f"/jobs/{job.number}/hold").content)["state"] == "HELD"
    problem(town.owner.post(f"/jobs/{job.number}/hold"), 409, "illegal_transition")
    assert json.loads(town.owner.post(f"/jobs/{job.number}/release").content)["state"] == "PENDING"
    problem(town.owner.post(f"/jobs/{job.number}/hold", {"reasn": "x"}), 400, "invalid")
    problem(town.owner.post(f"/jobs/{job.number}/hold", {"reason": "x" * 501}), 422, "too_long")


@pytest.mark.parametrize("action", ["cancel", "hold", "release"])
def test_who_may_end_a_job(town: Town, action: str) -> None:
    town.machine()
    job = town.job(hold=action == "release")
    for person in (town.mate, town.viewer):
        problem(person.post(f"/jobs/{job.number}/{action}"), 403, "permission_denied")
    problem(town.stranger.post(f"/jobs/{job.number}/{action}"), 404, "not_found")
    problem(town.anonymous.post(f"/jobs/{job.number}/{action}"), 401, "not_authenticated")
    before = Job.objects.get().state
    assert before == ("HELD" if action == "release" else "PENDING")
    assert town.lead.post(f"/jobs/{job.number}/{action}").status_code == 200


def test_who_may_submit_where(town: Town) -> None:
    town.machine()
    assert town.lead.post("/jobs", {"run": "x"}).status_code == 201
    assert town.staff.post("/jobs", {"run": "x", "project": "other"}).status_code == 201
    for person, project in ((town.viewer, "default"), (town.owner, "other"), (town.owner, "nowhere")):
        body = problem(person.post("/jobs", {"run": "x", "project": project}), 422, "invalid_spec")
        assert body["errors"][0]["code"] == "unknown_project"


def test_a_project_that_exists_and_one_that_does_not_are_refused_alike(town: Town) -> None:
    answers = [
        problem(town.owner.post("/jobs", {"run": "x", "project": name}), 422, "invalid_spec")["errors"]
        for name in ("other", "qther")
    ]
    assert json.dumps(answers[0]).replace("other", "?") == json.dumps(answers[1]).replace("qther", "?")


def test_hundred_jobs_take_few_queries(town: Town) -> None:
    agent = town.machine()
    town.owner.post("/jobs/batch", {"jobs": [{"name": "many", "stages": STAGES}] * 100})
    town.cycle()
    agent.start()
    with CaptureQueriesContext(connection) as many:
        assert len(town.owner.read("/jobs?limit=100")["results"]) == 100
    with CaptureQueriesContext(connection) as one:
        town.owner.read(f"/jobs/{Job.objects.earliest('number').number}")
    assert len(many) < 12, [query["sql"][:120] for query in many]
    # One of them is this test's own.
    assert len(one) - 1 < 12


def test_an_unchanged_answer_is_not_sent_again(town: Town) -> None:
    town.machine()
    job = town.job()
    first = town.owner.get(f"/jobs/{job.number}")
    again = town.owner.get(f"/jobs/{job.number}", **{"If-None-Match": first["ETag"]})
    assert (again.status_code, again.content) == (304, b"")
    town.owner.post(f"/jobs/{job.number}/hold")
    changed = town.owner.get(f"/jobs/{job.number}", **{"If-None-Match": first["ETag"]})
    assert changed.status_code == 200
    assert changed["ETag"] != first["ETag"]
