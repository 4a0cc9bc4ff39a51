"""Projects, members, quotas and priority classes over REST: who may change them, and only as they were read."""

from __future__ import annotations

import json
from typing import Any

import pytest

from controlplane.accounts.models import AuditEntry, Member, Project, User
from controlplane.pools.models import PriorityClass, Quota
from tests.controlplane.people import Person, Town
from tests.controlplane.test_api_jobs import problem

QUOTA = {"project": "default", "kind": "gpu", "nominal": 8, "borrowing_limit": None, "cohort": "all"}


def made(person: Person, path: str, body: Any) -> dict[str, Any]:
    answer = person.post(path, body)
    assert answer.status_code == 201, answer.content
    return dict(json.loads(answer.content))


def test_a_quota_is_added_changed_as_it_was_read_and_deleted(town: Town) -> None:
    town.machine()
    number = made(town.staff, "/quotas", QUOTA)["number"]
    read = town.staff.get(f"/quotas/{number}")
    assert json.loads(read.content)["nominal"] == 8.0
    problem(town.staff.patch(f"/quotas/{number}", {"nominal": 4}), 428, "precondition_required")
    changed = town.staff.patch(f"/quotas/{number}", {"nominal": 4}, **{"if-match": read["ETag"]})
    assert changed.status_code == 200, changed.content
    problem(
        town.staff.patch(f"/quotas/{number}", {"nominal": 2}, **{"if-match": read["ETag"]}), 412, "changed_meanwhile"
    )
    assert Quota.objects.get().nominal == 4.0
    entry = AuditEntry.objects.get(action="quota.change")
    assert (entry.before, entry.after) == ({"nominal": 8.0}, {"nominal": 4.0})
    # What is in use changes all the time, and is no reason to refuse.
    tag = town.staff.get(f"/quotas/{number}")["ETag"]
    town.running(town.machine("n2"), devices={"kind": "gpu"})
    assert town.staff.client.delete(f"/api/v1/quotas/{number}", headers={"if-match": tag}).status_code == 204
    assert not Quota.objects.exists()
    assert {each.action for each in AuditEntry.objects.filter(kind="quota")} == {
        "quota.add",
        "quota.change",
        "quota.delete",
    }


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({**QUOTA, "kind": "gpus"}, "/kind"),
        ({**QUOTA, "project": "nobody"}, "/project"),
        ({**QUOTA, "nominal": -1}, "/nominal"),
        ({**QUOTA, "nominal": "many"}, "/nominal"),
        ({**QUOTA, "colour": "red"}, "/colour"),
        ({"kind": "gpu"}, "/project"),
    ],
)
def test_what_is_no_quota_is_refused_with_its_field(town: Town, body: Any, field: str) -> None:
    town.machine()
    faults = problem(town.staff.post("/quotas", body), 400, "invalid")["errors"]
    assert field in {each["pointer"].removesuffix("/0") for each in faults}
    assert not Quota.objects.exists()


def test_two_quotas_of_one_sort_are_refused(town: Town) -> None:
    town.machine()
    made(town.staff, "/quotas", QUOTA)
    (fault,) = problem(town.staff.post("/quotas", QUOTA), 400, "invalid")["errors"]
    assert fault["pointer"] == ""
    assert "quota of this kind and model already" in fault["detail"]
    assert Quota.objects.count() == 1


def test_a_second_limit_or_budget_of_one_sort_is_refused_in_a_sentence(town: Town) -> None:
    town.machine()
    for path, body in [
        ("/limits", {"user": town.owner.user.username, "running": 3}),
        ("/budgets", {"project": "default", "kind": "gpu", "hours": 5}),
    ]:
        made(town.staff, path, body)
        again = town.staff.post(path, body)
        (fault,) = problem(again, 400, "invalid")["errors"]
        assert fault["pointer"] == ""
        assert fault["detail"].endswith("already exists.")


def test_a_word_that_is_not_accepted_is_refused_with_those_that_are(town: Town) -> None:
    town.machine()
    budget = {"project": "default", "kind": "gpu", "hours": 5, "period": "{monthly}", "at_end": "stop"}
    (fault,) = problem(town.staff.post("/budgets", budget), 400, "invalid")["errors"]
    assert fault == {
        "pointer": "/period",
        "detail": 'must be one of month, quarter, dates, not "{monthly}"',
        "code": "invalid_choice",
    }
    (fault,) = problem(town.staff.post("/tokens", {"name": "x", "scopes": ["write"]}), 400, "invalid")["errors"]
    assert fault["pointer"] == "/scopes/0"
    assert fault["detail"].startswith("must be one of ")


@pytest.mark.parametrize(("kind", "name", "read"), [("nodes", "n1", "/settings"), ("priority-classes", "high", "")])
def test_who_changed_an_old_version_is_told_where_the_new_one_is(town: Town, kind: str, name: str, read: str) -> None:
    town.machine()
    refused = problem(town.staff.patch(f"/{kind}/{name}", {}, **{"if-match": '"old"'}), 412, "changed_meanwhile")
    path = f"/{kind}/{name}{read}"
    assert refused["hint"] == f"GET /api/v1{path} has the ETag of what it is now"
    tag = town.staff.get(path)["ETag"]
    assert town.staff.patch(f"/{kind}/{name}", {}, **{"if-match": tag}).status_code == 200


def test_only_accountants_change_quotas_classes_and_projects(town: Town) -> None:
    town.machine()
    number = made(town.staff, "/quotas", QUOTA)["number"]
    for person in (town.owner, town.lead):
        problem(person.post("/quotas", {**QUOTA, "kind": "cpu"}), 403, "permission_denied")
        problem(person.patch(f"/quotas/{number}", {"nominal": 99}, **{"if-match": "*"}), 403, "permission_denied")
        problem(person.post("/priority-classes", {"name": "first", "value": 9_999}), 403, "permission_denied")
        problem(person.patch("/priority-classes/low", {"value": 9_999}, **{"if-match": "*"}), 403, "permission_denied")
        problem(person.post("/projects", {"name": "mine"}), 403, "permission_denied")
        problem(person.patch("/projects/default", {"weight": 99}, **{"if-match": "*"}), 403, "permission_denied")
    problem(town.stranger.get(f"/quotas/{number}"), 404, "not_found")


def test_a_priority_class_keeps_its_name(town: Town) -> None:
    made(town.staff, "/priority-classes", {"name": "night", "value": 100, "restricted": True})
    assert PriorityClass.objects.get(name="night").staff_only
    tag = town.staff.get("/priority-classes/night")["ETag"]
    assert town.staff.patch("/priority-classes/night", {"value": 90}, **{"if-match": tag}).status_code == 200
    problem(town.staff.patch("/priority-classes/night", {"name": "day"}, **{"if-match": "*"}), 400, "invalid")
    problem(town.staff.patch("/priority-classes/night", {"value": 10_001}, **{"if-match": "*"}), 400, "invalid")
    assert PriorityClass.objects.get(name="night").value == 90


def test_a_project_is_added_changed_and_deleted_while_it_has_no_jobs(town: Town) -> None:
    town.machine()
    assert made(town.staff, "/projects", {"name": "vision", "weight": 2})["weight"] == 2.0
    problem(town.staff.post("/projects", {"name": "No Slug"}), 400, "invalid")
    problem(town.staff.post("/projects", {"name": "x", "weight": 0}), 400, "invalid")
    tag = town.staff.get("/projects/vision/settings")["ETag"]
    assert town.staff.patch("/projects/vision", {"weight": 3}, **{"if-match": tag}).status_code == 200
    problem(town.staff.patch("/projects/vision", {"weight": 4}, **{"if-match": tag}), 412, "changed_meanwhile")
    assert town.staff.client.delete("/api/v1/projects/vision", headers={"if-match": "*"}).status_code == 204
    town.job()
    problem(town.staff.client.delete("/api/v1/projects/default", headers={"if-match": "*"}), 409, "in_use")
    assert Project.objects.filter(name="default").exists()


def role(name: str) -> str | None:
    return Member.objects.filter(project__name="default", user__username=name).values_list("role", flat=True).first()


def test_leads_give_roles_below_their_own_and_nobody_changes_their_own(town: Town) -> None:
    User.objects.create(username="new")
    put = lambda person, name, wanted: person.client.put(  # noqa: E731
        f"/api/v1/projects/default/members/{name}", json.dumps({"role": wanted}), content_type="application/json"
    )
    assert put(town.lead, "new", "viewer").status_code == 201
    assert put(town.lead, "new", "member").status_code == 200
    assert role("new") == "member"
    problem(put(town.lead, "new", "lead"), 403, "permission_denied")
    problem(put(town.lead, "lead", "viewer"), 403, "permission_denied")
    problem(put(town.mate, "new", "viewer"), 403, "permission_denied")
    problem(put(town.mate, "nobody", "viewer"), 403, "permission_denied")
    problem(put(town.stranger, "new", "viewer"), 404, "not_found")
    problem(put(town.lead, "nobody", "viewer"), 404, "unknown_user")
    problem(put(town.lead, "new", "king"), 400, "invalid")
    assert put(town.staff, "new", "lead").status_code == 200
    problem(town.lead.client.delete("/api/v1/projects/default/members/new"), 403, "permission_denied")
    assert town.staff.client.delete("/api/v1/projects/default/members/new").status_code == 204
    assert role("new") is None
    assert town.lead.client.delete("/api/v1/projects/default/members/mate").status_code == 204
    kinds = list(AuditEntry.objects.filter(kind="member").order_by("id").values_list("action", flat=True))
    assert kinds == ["member.add", "member.change", "member.change", "member.delete", "member.delete"]
