"""Who may use which priority class: what is refused in words, and what keeps its place."""

from __future__ import annotations

from typing import Any

import pytest
from django.contrib.auth.models import Group
from django.http import HttpResponse
from django.test import Client

from controlplane.accounts.models import AuditEntry, Project, User
from controlplane.jobs.models import Job
from controlplane.pools.models import PriorityClass
from tests.controlplane.people import Person, Town

REFUSED = "you may not use class medium in project default; you may use low"


def allow(person: Person, name: str, projects: list[str] | None) -> HttpResponse:
    return person.patch(f"/priority-classes/{name}", {"projects": projects}, **{"if-match": "*"})


def fault(answer: HttpResponse) -> tuple[str, str, str]:
    assert answer.status_code == 422, answer.content
    (found,) = answer.json()["errors"]
    return found["pointer"], found["detail"], found["code"]


@pytest.fixture(autouse=True)
def leads(town: Town) -> None:
    """The classes above medium are for leads, as a new cluster has them."""
    PriorityClass.objects.filter(value__gt=500).update(staff_only=True)


@pytest.fixture
def shut(town: Town) -> Town:
    """The class medium, which is the usual one, is for the stranger's project only."""
    town.machine()
    assert allow(town.staff, "medium", ["other"]).status_code == 200
    return town


def test_classes_are_for_all_projects_until_they_name_some(town: Town) -> None:
    town.machine()
    found = {one["name"]: (one["projects"], one["usable"]) for one in town.owner.read("/priority-classes")["results"]}
    assert found["medium"] == (None, True)
    assert found["high"] == (None, False)
    assert town.owner.post("/jobs", {"run": "x"}).status_code == 201
    assert town.staff.read("/priority-classes/medium")["projects"] is None


def test_a_submission_with_it_is_refused_with_the_classes_that_it_may_use(shut: Town) -> None:
    for query in ("", "?dry_run=validate"):
        for spec in ({"run": "x"}, {"run": "x", "priority": "medium"}):
            assert fault(shut.owner.post(f"/jobs{query}", spec)) == ("/priority", REFUSED, "denied")
    assert shut.owner.post("/jobs/batch", {"jobs": [{"run": "x"}]}).status_code == 422
    assert shut.owner.post("/jobs", {"run": "x", "priority": "low"}).status_code == 201
    assert shut.stranger.post("/jobs", {"run": "x"}).status_code == 201
    # A lead may use the classes of leads too, and who may use any priority every class.
    assert fault(shut.lead.post("/jobs", {"run": "x"}))[1].endswith("you may use urgent, high, low")
    assert shut.staff.post("/jobs", {"run": "x", "project": "default"}).status_code == 201
    PriorityClass.objects.update(projects_only=True)
    said = "you may not use class low in project default, nor any other; ask an accountant"
    assert fault(shut.owner.post("/jobs", {"run": "x", "priority": "low"}))[1] == said


def test_a_waiting_job_does_not_get_it_by_a_change_and_keeps_what_it_has(town: Town) -> None:
    town.machine()
    job, low = town.job(), town.job(priority="low")
    assert allow(town.staff, "medium", ["other"]).status_code == 200
    job.refresh_from_db()
    assert (job.priority_class, job.priority) == ("medium", 500)
    assert fault(town.owner.patch(f"/jobs/{low.number}", {"priority": "medium"})) == ("/priority", REFUSED, "denied")
    assert fault(town.owner.patch(f"/jobs/{low.number}", {"priority": None})) == ("/priority", REFUSED, "denied")
    for patch in ({"name": "another"}, {"labels": {"a": "b"}}, {"hold": True}):
        assert town.owner.patch(f"/jobs/{job.number}", patch).status_code == 200, "it keeps its class"
    assert town.owner.patch(f"/jobs/{job.number}", {"hold": False}).status_code == 200
    town.cycle()
    job.refresh_from_db()
    assert job.priority_class == "medium"
    assert job.stages.get().state == "STARTING", "and its place"


def test_a_job_is_not_moved_to_a_project_that_may_not_use_its_class(town: Town) -> None:
    town.machine()
    other = Project.objects.get(name="other")
    other.member_set.create(user=User.objects.get(username="lead"), role="member")
    job = town.lead.post("/jobs", {"run": "x", "priority": "urgent", "hold": True}).json()["number"]
    said = "you may not use class urgent in project other; you may use medium, low"
    assert fault(town.lead.patch(f"/jobs/{job}", {"project": "other"})) == ("/project", said, "denied")
    assert town.lead.patch(f"/jobs/{job}", {"project": "other", "priority": "low"}).status_code == 200
    assert allow(town.staff, "low", ["other"]).status_code == 200
    assert fault(town.lead.patch(f"/jobs/{job}", {"project": "default"}))[0] == "/project"
    assert Job.objects.get(number=job).project == other


def test_a_schedule_says_it_at_its_time(town: Town) -> None:
    town.machine()
    spec = {"name": "night", "run": "x", "priority": "medium"}
    made = town.owner.post("/schedules", {"name": "night", "cron": "30 2 * * *", "zone": "UTC", "job": spec})
    assert made.status_code == 201, made.content
    assert allow(town.staff, "medium", ["other"]).status_code == 200
    ran = town.owner.post(f"/schedules/{made.json()['schedule']['id']}/run")
    assert REFUSED in ran.content.decode()
    assert not Job.objects.exists()


def test_who_may_not_see_a_project_does_not_read_its_name_here(shut: Town) -> None:
    for path in ("/priority-classes", "/priority-classes/medium"):
        assert "other" not in shut.owner.get(path).content.decode()
        assert "other" in shut.stranger.get(path).content.decode()
        assert "other" in shut.staff.get(path).content.decode()
    browser = Client()
    browser.force_login(User.objects.get(username="owner"))
    assert "<option>medium</option>" not in browser.get("/jobs/new").content.decode()


def test_a_class_stays_closed_when_its_last_project_is_deleted(town: Town) -> None:
    town.machine()
    gone = Project.objects.create(name="gone")
    assert allow(town.staff, "medium", ["gone"]).json()["projects"] == ["gone"]
    gone.delete()
    assert town.staff.read("/priority-classes/medium")["projects"] == []
    assert town.stranger.post("/jobs", {"run": "x"}).status_code == 422
    assert allow(town.staff, "medium", None).json()["projects"] is None
    assert town.stranger.post("/jobs", {"run": "x"}).status_code == 201
    # Whoever writes a project, such as the administration, closes it.
    PriorityClass.objects.get(name="medium").allowed_projects.add(Project.objects.get(name="other"))
    assert PriorityClass.objects.get(name="medium").projects_only


def test_only_accountants_say_whose_a_class_is_and_it_is_recorded(town: Town) -> None:
    for person in (town.owner, town.lead, town.stranger):
        assert allow(person, "medium", ["other"]).status_code == 403
    ann = User.objects.create(username="ann")
    ann.groups.add(Group.objects.get(name="accountant"))
    accountant = Person(ann)
    tag = accountant.get("/priority-classes/medium")["ETag"]
    assert accountant.patch("/priority-classes/medium", {"projects": ["other"]}, **{"if-match": tag}).status_code == 200
    assert accountant.patch("/priority-classes/medium", {"projects": None}, **{"if-match": tag}).status_code == 412
    assert allow(accountant, "medium", ["nowhere"]).status_code == 400
    assert allow(accountant, "medium", ["other"] * 1_001).status_code == 400
    entry: Any = AuditEntry.objects.get(action="priorityclass.change")
    assert (entry.before, entry.after) == ({"projects": None}, {"projects": ["other"]})
