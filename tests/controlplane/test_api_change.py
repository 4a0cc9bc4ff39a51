"""Changing a job after its submission: what may change and when, by whom, and that what follows knows it at once."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agents.protocol import Checkpoint, Exit, Phase
from controlplane.accounts.models import AuditEntry, Member, Project
from controlplane.jobs.models import Attempt, Job
from controlplane.pools import profiles
from controlplane.pools.models import Pool
from controlplane.scheduling.apply import apply_plan
from controlplane.scheduling.store import clock
from scheduler.core.planning import engine
from tests.controlplane.people import Person, Town
from tests.controlplane.test_api_jobs import STAGES, problem
from tests.examples_count import examples
from tests.record.yard import stage, states


def changed(person: Person, job: Job, patch: Any, path: str = "", **headers: str) -> dict[str, Any]:
    answer = person.patch(f"/jobs/{job.number}{path}", patch, **headers)
    assert answer.status_code == 200, answer.content
    job.refresh_from_db()
    return dict(json.loads(answer.content))


def refused(person: Person, job: Job, patch: Any, status: int, code: str) -> dict[str, Any]:
    before = (Job.objects.get(id=job.id).version, list(job.stages.values_list("request", "begin_at")))
    body = problem(person.patch(f"/jobs/{job.number}", patch), status, code)
    assert before == (Job.objects.get(id=job.id).version, list(job.stages.values_list("request", "begin_at")))
    return body


def test_a_waiting_job_takes_another_priority_limit_and_labels(town: Town) -> None:
    town.machine()
    job = town.job(
        stages=STAGES, labels={"a": "1", "b": "2"}, time_limit="1h", priority="low", begin="2100-01-01T00:00:00Z"
    )
    town.cycle()
    changed(
        town.owner,
        job,
        {"priority": "high", "labels": {"b": None, "c": "3"}, "time_limit": "2h", "name": "other"},
        "?reason=it+grew",
    )
    assert (job.priority_class, job.labels, job.name) == ("high", {"a": "1", "c": "3"}, "other")
    assert [each["time_limit_s"] for each in job.stages.values_list("request", flat=True)] == [7200.0, 7200.0]
    event = job.events.get(kind="changed")
    assert "priority low -> high" in event.text
    assert event.text.endswith("(it grew)")
    entry = AuditEntry.objects.get(action="job.change")
    assert (entry.before["priority"], entry.after["priority"], entry.reason) == ("low", "high", "it grew")
    assert town.owner.read(f"/jobs/{job.number}/spec")["spec"]["time_limit"] == "2h"
    # The scheduler knows it at once; the yard compares with a store that reads everything anew.
    waiting = {one.name: one for one in town.cycle().snapshot.waiting}
    assert {(one.priority, one.time_limit_s) for one in waiting.values()} == {(750, 7200.0)}


def test_times_of_one_stage_change_by_its_name(town: Town) -> None:
    town.machine()
    job = town.job(stages=[{**STAGES[0], "time_limit": "10m"}, STAGES[1]], time_limit="1h")
    changed(town.owner, job, {"time_limit": "3h", "stages": {"fit": {"begin": "2100-01-01T00:00:00Z"}}})
    prep, fit = stage(job, "prep"), stage(job, "fit")
    assert (prep.request["time_limit_s"], fit.request["time_limit_s"]) == (600.0, 10_800.0)
    assert (prep.begin_at, fit.begin_at and fit.begin_at.year) == (None, 2100)
    changed(town.owner, job, {"stages": {"prep": {"time_limit": None}, "fit": {"begin": None}}})
    assert (stage(job, "prep").request["time_limit_s"], stage(job, "fit").begin_at) == (10_800.0, None)


def test_a_stage_of_another_size_does_the_same_work_with_the_same_secrets(town: Town) -> None:
    agent = town.machine()
    job = town.job(devices={"kind": "gpu", "count": 2}, env={"A_TOKEN": "hush", "B": "2"}, hold=True, run="echo hi")
    any_of = [{"kind": "gpu", "model": "H100"}, {"kind": "gpu"}]
    changed(town.owner, job, {"devices": {"kind": None, "count": None, "any_of": any_of}, "hold": False})
    town.cycle()
    (wanted,) = agent.look()
    assert wanted.spec is not None
    assert sorted(device.kind for device in wanted.spec.devices) == ["cpu", "gpu"]
    assert (wanted.spec.argv[-1], wanted.spec.env["A_TOKEN"], wanted.spec.env["B"]) == ("echo hi", "hush", "2")
    assert "hush" not in json.dumps(stage(job).request)
    agent.start()
    refused(town.owner, job, {"nodes": 2}, 409, "unchangeable")


def test_what_runs_keeps_its_times_and_its_place(town: Town) -> None:
    agent = town.machine()
    Pool.objects.create(name="second")
    job = town.running(agent, stages=STAGES)
    body = refused(town.owner, job, {"stages": {"prep": {"time_limit": "3h"}}}, 409, "unchangeable")
    assert body["errors"][0]["pointer"] == "/stages/prep/time_limit"
    assert "RUNNING" in body["detail"]
    refused(town.owner, job, {"time_limit": "3h"}, 409, "unchangeable")
    refused(town.owner, job, {"pool": "second"}, 409, "unchangeable")
    changed(town.owner, job, {"stages": {"fit": {"time_limit": "3h"}}, "priority": "high"})
    assert stage(job, "fit").request["time_limit_s"] == 10_800.0
    assert [run.priority for run in town.cycle().snapshot.running] == [750]
    town.owner.post(f"/jobs/{job.number}/cancel")
    agent.end(stage(job, "prep"), -15, cause="SIGNAL", stopped=True)
    refused(town.owner, job, {"priority": "low"}, 409, "unchangeable")
    changed(town.owner, job, {"labels": {"kept": "yes"}})
    assert job.labels == {"kept": "yes"}


def test_another_project_needs_the_rights_of_both_who_act_and_own(town: Town) -> None:
    town.machine()
    job = town.job()
    project = Project.objects.create(name="second")
    refused(town.owner, job, {"project": "second"}, 422, "invalid_spec")
    assert town.lead.user is not None
    Member.objects.create(project=project, user=town.lead.user, role="lead")
    body = refused(town.lead, job, {"project": "second"}, 422, "invalid_spec")
    assert "owner, whose job it is, may not submit to project second" in body["errors"][0]["detail"]
    assert town.owner.user is not None
    Member.objects.create(project=project, user=town.owner.user, role="member")
    changed(town.owner, job, {"project": "second"})
    assert job.project == project
    refused(town.mate, job, {"name": "mine"}, 404, "not_found")


def test_a_pool_where_it_could_never_start_is_refused(town: Town) -> None:
    town.machine()
    Pool.objects.create(name="empty")
    job = town.job(devices={"kind": "gpu"})
    assert refused(town.owner, job, {"pool": "empty"}, 422, "invalid_spec")["errors"][0]["pointer"] == "/pool"
    refused(town.owner, job, {"pool": "nowhere"}, 422, "invalid_spec")


def test_who_may_not_end_a_job_may_not_change_it(town: Town) -> None:
    town.machine()
    job = town.job()
    for person in (town.mate, town.viewer):
        refused(person, job, {"priority": "high"}, 403, "permission_denied")
    refused(town.stranger, job, {"priority": "high"}, 404, "not_found")
    changed(town.lead, job, {"priority": "high"})
    refused(town.owner, job, {"priority": 9_999}, 422, "invalid_spec")


@pytest.mark.parametrize(
    ("patch", "pointer"),
    [
        ({"devices": {"kind": "gpu", "count": 64}}, "/stages/0/devices"),
        ({"devices": {"any_of": [{"kind": "gpu", "run": "other"}]}}, "/devices"),
        ({"run": "rm -rf /"}, "/run"),
        ({"stages": {"main": {"cpus": 0}}}, "/cpus"),
        ({"stages": {"main": {"image": "other"}}}, "/stages/main/image"),
        ({"stages": {"else": {"time_limit": "1h"}}}, "/stages/else"),
        ({"stages": []}, "/stages"),
        ({"time_limit": "for ever"}, "/time_limit"),
        ({"time_limit": "9999d"}, "/time_limit"),
        ({"labels": {"a": []}}, "/labels/a"),
        ({"hold": "perhaps"}, "/hold"),
        ([], ""),
    ],
)
def test_what_cannot_change_is_refused_with_its_place(town: Town, patch: Any, pointer: str) -> None:
    town.machine()
    body = refused(town.owner, town.job(), patch, 422, "invalid_spec")
    assert pointer in {each["pointer"] for each in body["errors"]}


def test_a_change_of_what_somebody_else_changed_is_refused(town: Town) -> None:
    town.machine()
    job = town.job()
    read = town.owner.get(f"/jobs/{job.number}")["ETag"]
    changed(town.lead, job, {"priority": "low"})
    problem(
        town.owner.patch(f"/jobs/{job.number}", {"priority": "high"}, **{"if-match": read}), 412, "changed_meanwhile"
    )
    now = town.owner.get(f"/jobs/{job.number}")["ETag"]
    changed(town.owner, job, {"priority": "high"}, **{"if-match": now})
    assert job.priority_class == "high"


def test_hold_is_a_key_like_the_others(town: Town) -> None:
    agent = town.machine()
    job = town.job()
    changed(town.owner, job, {"hold": True, "priority": "low"})
    assert states(job) == {"job": "HELD", "main": "HELD"}
    changed(town.owner, job, {"hold": True})
    changed(town.owner, job, {"hold": False})
    assert states(job)["main"] == "PENDING"
    town.cycle()
    agent.start()
    refused(town.owner, job, {"hold": True}, 409, "unchangeable")


def test_a_plan_made_before_the_change_does_not_start_it(town: Town) -> None:
    """The scheduler read the job, its owner moved it to another pool, and only then is the plan applied."""
    town.machine()
    pool = Pool.objects.create(name="second")
    other = town.machine("n2")
    other.node.pools.set([pool])
    job = town.job()
    snapshot = town.store.load(clock())
    plan = engine.plan(snapshot, profiles.of(snapshot.pools), clock())
    assert [start.stage for start in plan.starts] == [str(stage(job).id)]
    changed(town.owner, job, {"pool": "second"})
    assert apply_plan(snapshot, plan, clock()).skipped == (str(stage(job).id),)
    assert states(job)["main"] == "PENDING"
    assert town.cycle().applied.started == (str(stage(job).id),)
    assert Attempt.objects.get().parts.get().node == other.node


def test_an_unchanged_job_is_not_written(town: Town) -> None:
    town.machine()
    job = town.job(priority="high", time_limit="1h")
    before = (job.version, job.events.count())
    for patch in ({"priority": "high", "time_limit": "1h"}, {}):
        changed(town.owner, job, patch)
        assert (job.version, job.events.count()) == before
    changed(town.owner, job, {"priority": "high", "time_limit": "60m"})
    assert job.events.filter(kind="changed").count() <= 1


def test_queued_again_it_resumes_at_no_cost(town: Town) -> None:
    agent = town.machine()
    job = town.running(agent, stages=[{"name": "main", "run": "x", "retry": {"max": 2}}])
    agent.set(stage(job), Phase.RUNNING, checkpoints=[Checkpoint(step=10, path="/shared/10", age_s=0.1)])
    answer = town.owner.post(f"/jobs/{job.number}/requeue", {"reason": "a bad link"})
    assert answer.status_code == 200, answer.content
    assert states(job) == {"job": "STOPPING", "main": "STOPPING"}
    (order,) = agent.look()
    assert (order.do, order.why, order.save) == ("stop", "MOVE", True)
    agent.set(stage(job), Phase.ENDED, exit=Exit(code=143, cause="SIGNAL", signal=15, stopped=True))
    assert states(job)["main"] == "PENDING"
    assert (stage(job).failures, stage(job).preemptions, Attempt.objects.get().cause) == (0, 0, "REQUEUED")
    assert Attempt.objects.get().detail == "a bad link"
    problem(town.owner.post(f"/jobs/{job.number}/requeue"), 409, "illegal_transition")
    problem(town.mate.post(f"/jobs/{job.number}/requeue"), 403, "permission_denied")
    town.cycle()
    (again,) = [wanted for wanted in agent.look() if wanted.do == "run"]
    assert again.spec is not None
    assert again.spec.resume_from == "/shared/10"


def test_many_jobs_are_acted_on_each_by_itself(town: Town) -> None:
    agent = town.machine()
    runs = town.running(agent)
    waiting = [town.job(name=f"sweep {n}", hold=n == 2) for n in range(3)]
    foreign = town.stranger.post("/jobs", {"run": "true", "project": "other"})
    theirs = json.loads(foreign.content)["number"]
    numbers = [runs.number, *(job.number for job in waiting), theirs, 999_999]
    asked = {"action": "hold", "jobs": numbers, "dry_run": True, "reason": "later"}
    tried = json.loads(town.owner.post("/jobs/bulk", asked).content)
    assert [each["outcome"] for each in tried["results"]] == [
        "refused",
        "done",
        "done",
        "refused",
        "refused",
        "refused",
    ]
    assert (tried["done"], tried["refused"], tried["left"]) == (2, 4, 0)
    assert {each["code"] for each in tried["results"]} == {"illegal_transition", "", "not_found"}
    assert states(waiting[0])["job"] == "PENDING", "a dry run holds nothing"
    done = json.loads(town.owner.post("/jobs/bulk", {**asked, "dry_run": False}).content)
    assert [each["state"] for each in done["results"][1:3]] == ["HELD", "HELD"]
    assert states(waiting[0])["job"] == "HELD"
    by_filter = {"action": "change", "filter": {"q": "sweep"}, "patch": {"priority": "low"}}
    answer = json.loads(town.owner.post("/jobs/bulk", by_filter).content)
    assert (answer["done"], answer["more"]) == (3, False)
    assert set(Job.objects.filter(name__startswith="sweep").values_list("priority_class", flat=True)) == {"low"}
    refusals = json.loads(town.mate.post("/jobs/bulk", {"action": "cancel", "filter": {"state": "waiting"}}).content)
    assert {each["code"] for each in refusals["results"]} == {"permission_denied"}


@pytest.mark.parametrize(
    ("asked", "status"),
    [
        ({"action": "cancel"}, 422),
        ({"action": "cancel", "jobs": [1], "filter": {"q": "x"}}, 422),
        ({"action": "cancel", "filter": {}}, 422),
        ({"action": "cancel", "filter": {"q": ""}}, 400),
        ({"action": "cancel", "filter": {"colour": "red"}}, 400),
        ({"action": "cancel", "jobs": [1], "patch": {}}, 422),
        ({"action": "change", "jobs": [1]}, 422),
        ({"action": "destroy", "jobs": [1]}, 400),
        ({"action": "cancel", "jobs": list(range(1, 502))}, 400),
        ({"action": "cancel", "jobs": [-1]}, 400),
        ({"action": "cancel", "jobs": ["x"]}, 400),
        ({"action": "cancel", "jobs": [2**70]}, 400),
    ],
)
def test_a_bulk_action_that_makes_no_sense_is_refused_whole(town: Town, asked: Any, status: int) -> None:
    assert town.owner.post("/jobs/bulk", asked).status_code == status


_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.text(max_size=8)
    | st.sampled_from(["1h", "high", "default"]),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["main", "time_limit", "x"]), inner, max_size=3)
    ),
    max_leaves=6,
)
_PATCHES = st.dictionaries(
    st.sampled_from(
        [
            "name",
            "labels",
            "priority",
            "hold",
            "project",
            "pool",
            "time_limit",
            "expected",
            "deadline",
            "begin",
            "stages",
            "run",
        ]
    ),
    _VALUES,
    max_size=4,
)


@given(patch=_PATCHES)
@settings(max_examples=examples(40), suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_any_patch_is_applied_or_refused_with_its_place(town: Town, patch: dict[str, Any]) -> None:
    job = Job.objects.first()
    if job is None:
        town.machine()
        job = town.job()
    answer = town.owner.patch(f"/jobs/{job.number}", patch)
    assert answer.status_code in {200, 400, 409, 422}, answer.content
    if answer.status_code != 200:
        assert json.loads(answer.content)["errors"]
    town.store.load(clock())


def test_a_signal_is_an_order_beside_the_others(town: Town) -> None:
    agent = town.machine()
    job = town.running(agent, stages=STAGES)
    answer = town.owner.post(f"/jobs/{job.number}/signal", {"signal": "SIGUSR1", "stage": "prep", "reason": "save"})
    assert json.loads(answer.content) == {"number": job.number, "signal": "SIGUSR1", "processes": 1}
    (order,) = agent.look()
    assert (order.do, order.signal, order.signal_rev) == ("run", "SIGUSR1", 1)
    assert town.owner.post(f"/jobs/{job.number}/signal", {"signal": "SIGUSR2"}).status_code == 200
    (order,) = agent.look()
    assert (order.signal, order.signal_rev) == ("SIGUSR2", 2)
    assert [event.text for event in job.events.filter(kind="signal")] == [
        "owner sent SIGUSR1 to prep (save)",
        "owner sent SIGUSR2 to prep",
    ]
    problem(town.owner.post(f"/jobs/{job.number}/signal", {"signal": "SIGUSR1", "stage": "fit"}), 409, "nothing_runs")
    problem(town.owner.post(f"/jobs/{job.number}/signal", {"signal": "SIGKILL"}), 400, "invalid")
    problem(town.owner.post(f"/jobs/{job.number}/signal", {}), 400, "invalid")
    problem(town.mate.post(f"/jobs/{job.number}/signal", {"signal": "SIGUSR1"}), 403, "permission_denied")
    problem(town.owner.post(f"/jobs/{town.job().number}/signal", {"signal": "SIGUSR1"}), 409, "nothing_runs")
