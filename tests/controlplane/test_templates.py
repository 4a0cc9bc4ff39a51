"""Templates: who sees and sets them, what is refused, and what the job file is with values in its places."""

from __future__ import annotations

import json
from typing import Any

import pytest
from django.http import HttpResponse
from django.test import Client
from django.utils.translation import override

from controlplane.accounts.models import AuditEntry
from controlplane.job_templates import parameters
from controlplane.job_templates import service as job_templates
from controlplane.job_templates.models import JobTemplate
from controlplane.job_templates.shipped import shipped
from controlplane.jobs.models import Job
from tests.controlplane.people import Person, Town
from tests.controlplane.test_spec import accepted

RATE = {"name": "rate", "type": "number", "min": 0, "max": 1, "default": 0.5}
NODES = {"name": "nodes", "type": "integer", "min": 1, "max": 4}
OURS: dict[str, Any] = {
    "title": "Ours",
    "parameters": [RATE, NODES],
    "job": {"name": "sft {{rate}}", "nodes": "{{nodes}}", "run": "train --lr {{ rate }}"},
}


def put(person: Person, body: Any = OURS, name: str = "ours", query: str = "?project=default") -> HttpResponse:
    path = f"/api/v1/templates/{name}{query}"
    return person.client.put(path, json.dumps(body), content_type="application/json")


@pytest.mark.parametrize("name", sorted(shipped()))
def test_every_shipped_template_is_a_job_file_with_its_defaults(name: str) -> None:
    template = dict(shipped()[name])
    assert set(template) == {"title", "description", "parameters", "job"}
    assert "Needs" in template["description"], "it says what must be installed"
    assert parameters.check(template["parameters"]) == []
    assert parameters.check_places(template["job"], template["parameters"]) == []
    # The pool of the test allows two hours.
    short = {"hours": 1} if "hours" in parameters.places(template["job"]) else {}
    job, faults = parameters.filled(template["job"], template["parameters"], short)
    assert faults == []
    assert accepted(job).stages


def test_leads_set_those_of_their_project_and_operators_those_of_everybody(town: Town) -> None:
    town.machine()
    for person, status in ((town.anonymous, 401), (town.owner, 403), (town.viewer, 403), (town.stranger, 404)):
        assert put(person).status_code == status
    assert put(town.lead, query="").status_code == 403
    assert [put(town.lead).status_code, put(town.lead).status_code] == [201, 200]
    assert put(town.staff, {**OURS, "title": "Theirs"}, query="").status_code == 201
    assert town.owner.read("/templates/ours?project=default")["title"] == "Ours"
    assert town.stranger.read("/templates/ours")["title"] == "Theirs"
    seen = {(one["name"], one["project"]) for one in town.owner.read("/templates")["results"]}
    assert {("ours", "default"), ("ours", ""), ("torchrun", "")} <= seen
    assert ("ours", "default") not in {
        (one["name"], one["project"]) for one in town.stranger.read("/templates")["results"]
    }
    assert town.owner.client.delete("/api/v1/templates/ours?project=default").status_code == 403
    assert town.lead.client.delete("/api/v1/templates/ours?project=default").status_code == 204
    assert list(JobTemplate.objects.values_list("title", flat=True)) == ["Theirs"]
    actions = AuditEntry.objects.filter(action__startswith="template").values_list("action", flat=True).order_by("pk")
    assert list(actions) == ["template.set"] * 3 + ["template.delete"]


def test_values_come_in_their_types_and_the_file_can_be_submitted(town: Town) -> None:
    town.machine()
    put(town.lead)
    answer = town.owner.post("/templates/ours/fill", {"set": {"nodes": "1"}, "project": "default"})
    job = answer.json()["job"]
    assert job == {"name": "sft 0.5", "nodes": 1, "run": "train --lr 0.5", "project": "default"}
    assert town.owner.post("/jobs", job).status_code == 201
    assert Job.objects.get().spec["run"] == "train --lr 0.5"


@pytest.mark.parametrize(
    ("values", "pointer"),
    [({}, "/set/nodes"), ({"nodes": 5}, "/set/nodes"), ({"nodes": "two"}, "/set/nodes"),
     ({"nodes": 1, "rate": -1}, "/set/rate"), ({"nodes": 1, "rat": 1}, "/set/rat")],
)  # fmt: skip
def test_values_are_bounded(town: Town, values: Any, pointer: str) -> None:
    town.machine()
    put(town.lead)
    answer = town.owner.post("/templates/ours/fill", {"set": values, "project": "default"})
    assert (answer.status_code, answer.json()["errors"][0]["pointer"]) == (422, pointer)


@pytest.mark.parametrize(
    ("changes", "pointer"),
    [
        ({"parameters": [RATE]}, "/job"),
        ({"parameters": [RATE, NODES, {"name": "unused", "default": "x"}]}, "/parameters/2"),
        ({"parameters": [RATE, {**NODES, "max": None}]}, "/parameters/1/max"),
        ({"parameters": [{**RATE, "default": 2}, NODES]}, "/parameters/0/default"),
        ({"parameters": [RATE, {"name": "nodes", "type": "choice"}]}, "/parameters/1/choices"),
        ({"parameters": [RATE, {**NODES, "name": "No"}]}, "/parameters/1/name"),
        ({"parameters": [], "job": {"rum": "x"}}, "/job/rum"),
        ({"parameters": [], "job": {"run": "x", "env": {"API_TOKEN": "hunter2"}}}, "/job"),
    ],
)
def test_a_template_that_could_not_be_used_is_refused(town: Town, changes: Any, pointer: str) -> None:
    town.machine()
    answer = put(town.lead, {**OURS, **changes})
    assert (answer.status_code, json.loads(answer.content)["errors"][0]["pointer"]) == (422, pointer)
    assert not JobTemplate.objects.exists()


def test_the_form_leads_to_the_page_of_a_new_job(town: Town) -> None:
    town.machine()
    put(town.lead)
    browser = town.owner.client
    browser.force_login(town.owner.user)
    assert b"torchrun" in browser.get("/templates").content
    page = browser.get("/templates/ours?project=default").content.decode()
    assert 'name="nodes" type="number" step="1" min="1" max="4"' in page
    wrong = browser.post("/templates/ours?project=default", {"rate": "0.1", "nodes": "9"})
    assert (wrong.status_code, 'value="9"' in wrong.content.decode()) == (422, True)
    right = browser.post("/templates/ours?project=default", {"rate": "0.1", "nodes": "2"})
    assert right.status_code == 200
    assert "train --lr 0.1" in right.content.decode()
    assert not Job.objects.exists()


def test_staff_change_templates_in_the_administration_with_the_same_checks(town: Town) -> None:
    assert town.user is not None
    town.machine()
    town.user.is_superuser = town.user.is_staff = True
    town.user.save()
    browser = Client()
    browser.force_login(town.user)
    place = "/admin/job_templates/jobtemplate/"
    asked = {"name": "ours", "project": town.project.pk, "title": "Ours", "description": "", "parameters": "[]"}
    wrong = browser.post(f"{place}add/", asked | {"job": '{"rum": "true"}'})
    assert (wrong.status_code, "/job/rum" in wrong.content.decode()) == (200, True)
    assert not JobTemplate.objects.exists()
    saved = browser.post(f"{place}add/", asked | {"job": '{"run": "true"}'})
    assert saved.status_code == 302, saved.content
    row = JobTemplate.objects.get()
    assert (row.job, row.made_by) == ({"run": "true"}, town.user.get_username())
    changed = browser.post(f"{place}{row.pk}/change/", asked | {"title": "Mine", "job": '{"run": "date"}'})
    assert changed.status_code == 302
    row.refresh_from_db()
    assert (row.title, row.job["run"]) == ("Mine", "date")
    assert browser.get(place).status_code == 200
    assert browser.post(f"{place}{row.pk}/delete/", {"post": "yes"}).status_code == 302
    assert not JobTemplate.objects.exists()
    actions = set(AuditEntry.objects.values_list("action", flat=True))
    assert {"template.set", "template.delete"} <= actions


def test_those_that_are_shipped_speak_chinese(town: Town) -> None:
    assert town.owner.user is not None
    with override("zh-hans"):
        found = [one for one in job_templates.visible(town.owner.user) if one.changed_at is None]
    assert len(found) == 9
    for one in found:
        assert any("\u4e00" <= letter <= "\u9fff" for letter in one.description), one.name
        assert all(any(letter >= "\u4e00" for letter in each["title"]) for each in one.parameters), one.name
