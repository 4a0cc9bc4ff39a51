"""Service accounts: leads make them and their tokens, and nobody gains rights or signs in by one."""

from __future__ import annotations

import json
from typing import Any

import pytest
from django.contrib.auth import authenticate
from django.core.management import CommandError, call_command
from django.db import IntegrityError, transaction
from django.test import Client

from controlplane.accounts import service
from controlplane.accounts.models import AuditEntry, Member, Project, Token, User
from tests.controlplane.people import Person, Town

ANY = {"If-Match": "*"}


def create(person: Person, status: int = 201, **ask: Any) -> Any:
    answer = person.post("/service-accounts", {"name": "ci", "project": "default", **ask})
    assert answer.status_code == status, answer.content
    return json.loads(answer.content)


def by_token(person: Person, account: str = "ci@default", **ask: Any) -> Person:
    answer = person.post(f"/service-accounts/{account}/tokens", {"name": "nightly", **ask})
    assert answer.status_code == 201, answer.content
    made = Person(None)
    made.client = Client(headers={"authorization": f"Bearer {json.loads(answer.content)['secret']}"})
    return made


def test_a_program_submits_in_its_project_and_sees_no_other(town: Town) -> None:
    town.machine()
    made = create(town.lead, description="tests of the main branch")
    assert (made["name"], made["role"], made["is_active"], made["tokens"]) == ("ci@default", "member", True, 0)
    program = by_token(town.lead)
    assert program.read("/whoami")["projects"] == [{"project": "default", "role": "member"}]
    answer = program.post("/jobs", {"run": "true"})
    assert answer.status_code == 201
    assert json.loads(answer.content)["user"] == "ci@default"
    assert program.post("/jobs", {"run": "true", "project": "other"}).status_code == 422
    assert program.read("/service-accounts") == {"results": []}
    assert program.post("/service-accounts/ci@default/tokens", {"name": "x"}).status_code == 404
    (listed,) = town.lead.read("/service-accounts")["results"]
    assert listed["tokens"] == 1
    assert listed["last_used_at"]
    town.lead.patch("/service-accounts/ci@default", {"role": "viewer"}, **ANY)
    refused = program.post("/jobs", {"run": "true"})
    assert (refused.status_code, json.loads(refused.content)["errors"][0]["pointer"]) == (422, "/project")


def test_disabling_refuses_its_tokens_and_leaves_its_jobs(town: Town) -> None:
    town.machine()
    create(town.lead)
    program = by_token(town.lead)
    assert program.post("/jobs", {"run": "true"}).status_code == 201
    account = "/service-accounts/ci@default"
    assert town.lead.patch(account, {"is_active": False}).status_code == 428
    assert town.lead.patch(account, {"is_active": False}, **ANY).status_code == 200
    assert program.get("/whoami").status_code == 401
    gone = town.lead.client.delete(f"/api/v1{account}", headers=ANY)
    assert gone.status_code == 409
    assert b"disable it instead" in gone.content
    assert town.lead.read("/jobs?user=ci@default")["results"][0]["state"] == "PENDING"
    assert town.lead.patch(account, {"is_active": True, "role": "viewer"}, **ANY).status_code == 200
    assert program.read("/whoami")["projects"][0]["role"] == "viewer"


def test_one_without_jobs_is_deleted_with_its_tokens(town: Town) -> None:
    create(town.lead)
    program = by_token(town.lead)
    (token,) = town.lead.read("/service-accounts/ci@default/tokens")["results"]
    other = by_token(town.lead)
    address = f"/api/v1/service-accounts/ci@default/tokens/{token['id']}"
    assert town.lead.client.delete(address).status_code == 204
    assert town.lead.client.delete(address).status_code == 404
    assert (program.get("/whoami").status_code, other.get("/whoami").status_code) == (401, 200)
    assert town.lead.client.delete("/api/v1/service-accounts/ci@default", headers=ANY).status_code == 204
    assert other.get("/whoami").status_code == 401
    assert not User.objects.filter(username="ci@default").exists()
    actions = list(AuditEntry.objects.filter(actor="lead").order_by("pk").values_list("action", flat=True))
    assert actions == [
        "service_account.add", "token.make", "token.make", "token.revoke", "service_account.delete",
    ]  # fmt: skip


@pytest.mark.parametrize("who", ["owner", "viewer", "mate"])
def test_who_leads_no_project_makes_none(town: Town, who: str) -> None:
    create(getattr(town, who), 403)
    create(town.lead)
    assert getattr(town, who).get("/service-accounts/ci@default").status_code == 404


def test_an_accountant_gains_no_role_by_a_token(town: Town) -> None:
    user = User.objects.create(username="accountant")
    user.groups.add(*type(user).groups.rel.model.objects.filter(name="accountant"))
    accountant = Person(user)
    create(accountant, 403)
    create(town.lead)
    assert accountant.post("/service-accounts/ci@default/tokens", {"name": "x"}).status_code == 404
    create(town.stranger, 404)


@pytest.mark.parametrize(
    ("ask", "status"),
    [
        ({"name": "CI"}, 400),
        ({"name": "a@b"}, 400),
        ({"name": ""}, 400),
        ({"role": "lead"}, 400),
        ({"project": "nowhere"}, 404),
        ({"description": "x" * 201}, 400),
        ({"is_staff": True}, 400),
    ],
)
def test_what_is_no_service_account_is_refused(town: Town, ask: dict[str, Any], status: int) -> None:
    create(town.lead, status, **ask)
    assert not User.objects.exclude(service_of=None).exists()


def test_a_name_is_taken_once(town: Town) -> None:
    create(town.lead)
    assert create(town.lead, 409)["code"] == "exists"


def test_no_token_of_it_may_do_more_or_lives_longer_than_the_one_that_makes_it(town: Town) -> None:
    create(town.lead)
    assert town.lead.user is not None
    weak = Person(town.lead.user, "submit")
    answer = weak.post("/service-accounts/ci@default/tokens", {"name": "x", "scopes": ["read"]})
    assert answer.status_code == 403
    answer = town.lead.post("/service-accounts/ci@default/tokens", {"name": "x", "scopes": ["admin"]})
    assert answer.status_code == 403
    assert town.lead.post("/service-accounts/ci@default/tokens", {"name": "x", "days": 366}).status_code == 403


def test_it_has_no_role_elsewhere_and_leads_nothing(town: Town) -> None:
    create(town.lead)
    put = {"content_type": "application/json"}
    for address in ("projects/other/members/ci@default", "projects/default/members/ci@default"):
        answer = town.staff.client.put(f"/api/v1/{address}", '{"role": "lead"}', **put)
        assert answer.status_code == 409
        assert b"service_account" in answer.content
    assert (
        town.staff.client.put("/api/v1/projects/other/members/ci@default", '{"role": "viewer"}', **put).status_code
        == 409
    )
    assert Member.objects.filter(user__username="ci@default").values_list("project__name", "role").get() == (
        "default", "member",
    )  # fmt: skip


def test_it_cannot_sign_in(town: Town) -> None:
    create(town.lead)
    account = User.objects.get(username="ci@default")
    account.set_password("correct horse")
    with pytest.raises(IntegrityError), transaction.atomic():
        account.save()
    with pytest.raises(IntegrityError), transaction.atomic():
        User.objects.filter(pk=account.pk).update(is_staff=True)
    assert authenticate(None, username="ci@default", password="correct horse") is None
    with pytest.raises(CommandError):
        call_command("sign_in_link", "ci@default")
    path = service.make_sign_in_link(account)
    assert service.user_of_link(path.rpartition("/")[2]) is None
    assert service.redeem(path.rpartition("/")[2]) is None


def test_it_goes_with_its_project(town: Town) -> None:
    Member.objects.create(project=Project.objects.create(name="fresh"), user=town.lead.user, role="lead")
    create(town.lead, name="bot", project="fresh")
    by_token(town.lead, "bot@fresh")
    assert town.staff.client.delete("/api/v1/projects/fresh", headers=ANY).status_code == 204
    assert not User.objects.filter(username="bot@fresh").exists()
    assert not Token.objects.filter(user__username="bot@fresh").exists()


def test_the_pages_make_one_and_show_its_token_once(town: Town) -> None:
    browser = Client()
    assert town.lead.user is not None
    browser.force_login(town.lead.user)
    made = browser.post(
        "/service-accounts/create", {"name": "ci", "project": "default", "role": "member", "description": "=1+1"}
    )
    assert (made.status_code, made["Location"]) == (302, "/service-accounts/ci@default")
    shown = browser.post("/service-accounts/ci@default/tokens", {"name": "t", "scopes": "read", "days": "9"})
    assert shown.status_code == 201
    assert service.PREFIX in shown.content.decode()
    assert service.PREFIX not in browser.get("/service-accounts/ci@default").content.decode()
    wrong = browser.post("/service-accounts/ci@default/tokens", {"name": "t", "scopes": "admin", "days": "9"})
    assert wrong.status_code == 422
    browser.post("/service-accounts/ci@default/change", {"active": "no"})
    assert "disabled" in browser.get("/service-accounts").content.decode()
    assert (
        browser.post("/service-accounts/create", {"name": "ci", "project": "default", "role": "lead"}).status_code
        == 422
    )
    assert browser.post("/service-accounts/ci@default/change", {"role": "lead"}).status_code == 422
    token = Token.objects.get(user__username="ci@default")
    assert browser.post(f"/service-accounts/ci@default/tokens/{token.pk}/revoke").status_code == 302
    assert browser.post("/service-accounts/ci@default/delete").status_code == 302
    stranger = Client()
    assert town.viewer.user is not None
    stranger.force_login(town.viewer.user)
    assert "you lead none" in stranger.get("/service-accounts").content.decode()
    assert stranger.get("/service-accounts/ci@default").status_code == 404
