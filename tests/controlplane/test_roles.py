"""Roles: the matrix in docs/reference/roles.md is what the API does, and nobody raises themselves."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import Group, Permission
from django.db import connection
from django.db.migrations.executor import MigrationExecutor
from django.test import Client
from django.urls import URLPattern, reverse

from controlplane.accounts import permissions, rights, roles
from controlplane.accounts.models import Member, Project, Token, User
from controlplane.accounts.permissions import Permit
from controlplane.api.urls import urlpatterns
from tests.controlplane.people import Person, Town

DOC = Path(__file__).parents[2] / "docs" / "reference" / "roles.md"
PERMIT = re.compile(r"`(\w+\.\w+)`")
OF_PROJECT = {"project", "member", "lead", "owner or lead", "own"}


def documented() -> Iterator[tuple[str, str, str, str]]:
    """Method, route, need and who may, of each row of the matrix."""
    for line in DOC.read_text().splitlines():
        if found := re.match(r"\| (GET|POST|PUT|PATCH|DELETE) \| `/(\S+)` \| (.+?) \| (.+?) \|$", line):
            yield found[1], found[2], found[3], found[4]


def routes() -> set[tuple[str, str]]:
    found = set()
    for pattern in urlpatterns:
        assert isinstance(pattern, URLPattern)
        view = getattr(pattern.callback, "view_class", None) or pattern.callback.cls
        if view.__name__ == "UnknownAddressViewSet":
            continue
        # Of a view set a route has the methods that the router gave it.
        methods = getattr(pattern.callback, "actions", None) or {m for m in view.http_method_names if hasattr(view, m)}
        path = re.sub(r"\(\?P<(\w+)>[^)]*\)|<\w+:(\w+)>", lambda m: f"{{{m[1] or m[2]}}}", str(pattern.pattern))
        found |= {(method.upper(), path.strip("^$")) for method in methods if method not in {"head", "options"}}
    return found


def test_every_route_and_method_stands_in_the_matrix() -> None:
    rows = [(method, path) for method, path, _needs, _who in documented()]
    assert sorted(rows) == sorted(routes())


def test_the_matrix_names_the_roles_that_have_the_permission() -> None:
    for _method, path, needs, who in documented():
        for permit in PERMIT.findall(needs):
            assert {role for role in roles.ROLES if re.search(rf"\b{role}\b", who)} == {
                role for role, given in roles.ROLES.items() if permit in given
            }, path
        assert PERMIT.search(needs) or needs in {"-", "sign-in", *OF_PROJECT}, path


def test_the_list_of_permissions_is_that_of_the_groups(db: None) -> None:
    listed = {role: set() for role in roles.ROLES}  # type: ignore[var-annotated]
    for line in DOC.read_text().partition("## What each group has")[2].splitlines():
        if found := re.match(r"\| `([\w.]+)` \| (.*?) ?\| (.*?) ?\| (.*?) ?\|$", line):
            for role, cell in zip(roles.ROLES, found.groups()[1:], strict=True):
                listed[role] |= {found[1]} if cell else set()
    assert listed == roles.ROLES
    known = {".".join(one) for one in Permission.objects.values_list("content_type__app_label", "codename")}
    assert set().union(*roles.ROLES.values()) | set(Permit) <= known
    for name, given in roles.ROLES.items():
        user = User.objects.create(username=name)
        roles.install(Group, Permission)
        user.groups.add(Group.objects.get(name=name))
        assert user.get_all_permissions() == given == permissions.held([user.pk])[user.pk]


def somebody(*names: str, username: str = "", **flags: Any) -> Person:
    """A person of no project in the groups of these names."""
    roles.install(Group, Permission)
    user = User.objects.create(username=username or "-".join(names) or "plain", **flags)
    user.groups.set(Group.objects.filter(name__in=names))
    return Person(user)


def test_each_role_may_what_the_matrix_says_and_no_more(town: Town) -> None:
    town.machine()
    people = {name: somebody(name) for name in roles.ROLES}
    people |= {"nobody": somebody(), "root": somebody(is_superuser=True, username="root")}
    given = roles.ROLES | {"nobody": frozenset(), "root": frozenset(Permit)}
    values = {"{name}": "n1", "{number}": "1", "{sha256}": "0" * 64}
    asked = 0
    for method, path, needs, _who in documented():
        permit = PERMIT.fullmatch(needs)
        if permit is None:
            continue
        for part, value in values.items():
            path = path.replace(part, value)
        for name, person in people.items():
            answer = person.client.generic(method, f"/api/v1/{path}", "{}", content_type="application/json")
            assert (answer.status_code != 403) is (permit[1] in given[name]), (method, path, name, answer.content)
            asked += 1
    assert asked > 100


def test_what_belongs_to_projects_is_seen_by_operators_and_auditors_and_ended_by_operators(town: Town) -> None:
    job = town.running(town.machine())
    plain, accountant, auditor, operator = (somebody(*n) for n in ((), ("accountant",), ("auditor",), ("operator",)))
    seen = {who: who.get(f"/jobs/{job.number}").status_code for who in (plain, accountant, auditor, operator)}
    assert list(seen.values()) == [404, 404, 200, 200]
    assert [who.get("/projects/other").status_code for who in seen] == [404, 200, 200, 200]
    assert [len(who.read("/events")["results"]) > 0 for who in seen] == [False, False, True, True]
    assert [who.post(f"/jobs/{job.number}/cancel").status_code for who in seen] == [404, 404, 403, 200]
    submitted = [who.post("/jobs", {"run": "true", "project": "other"}).status_code for who in seen]
    assert submitted == [422, 422, 422, 201]
    named = {"run": "true", "project": "other", "priority": 900}
    assert [who.post("/jobs", named).status_code for who in seen] == [422, 422, 422, 201]
    own = somebody("auditor", username="second")
    number = operator.post("/simulations", {"trace": {"generate": {"jobs": 5}}}).json()["id"]
    assert own.get(f"/simulations/{number}").status_code == 200
    assert own.post(f"/simulations/{number}/cancel").status_code == 403


def test_the_administrations_flag_gives_nothing_by_itself(town: Town) -> None:
    job = town.running(town.machine())
    clerk = somebody(is_staff=True, username="clerk")
    assert clerk.get(f"/jobs/{job.number}").status_code == 404
    assert clerk.post("/nodes/n1/drain", {"reason": "x"}).status_code == 403
    said = clerk.read("/whoami")
    assert (said["staff"], said["roles"]) == (True, [])
    refused = clerk.post("/nodes/n1/drain", {"reason": "x"}).json()
    assert refused["detail"] == "only the role operator may drain a node"


def test_a_role_that_is_taken_away_is_gone_at_the_next_request_and_for_sockets(town: Town) -> None:
    town.machine()
    operator = somebody("operator")
    assert operator.user is not None
    browser = Client()
    browser.force_login(operator.user)
    key = (browser.session.session_key or "", operator.user.pk)
    before = rights.rights({key})[key]
    assert Permit.OPERATE_NODES in before.permissions
    assert operator.post("/nodes/n1/rotate").status_code != 403
    group = Group.objects.get(name="operator")
    group.permissions.remove(Permission.objects.get(codename="operate_node"))
    changed = rights.rights({key})[key]
    assert changed != before, "a permission that the group lost is noticed"
    assert operator.post("/nodes/n1/rotate").status_code == 403
    operator.user.groups.clear()
    after = rights.rights({key})[key]
    assert (after != changed, after.permissions) == (True, frozenset())
    assert operator.get("/survivors").status_code == 403


# -- nobody raises themselves


def clerk(*codenames: str) -> tuple[User, Client]:
    """Somebody who may open the administration, with these permissions of their own."""
    user = User.objects.create(username="clerk", is_staff=True)
    user.user_permissions.set(Permission.objects.filter(codename__in=codenames))
    browser = Client()
    browser.force_login(user)
    return user, browser


USERS = ("view_user", "change_user", "add_user", "delete_user", "view_group", "change_group", "add_group", "view_token",
         "add_token", "view_project", "change_project", "view_member", "add_member", "change_member",
         "delete_member")  # fmt: skip


def change(model: Any, pk: Any) -> str:
    return reverse(f"admin:{model._meta.label_lower.replace('.', '_')}_change", args=[pk])


def form_of(user: User, **more: Any) -> dict[str, Any]:
    joined = {"date_joined_0": "2026-01-01", "date_joined_1": "00:00:00", "username": user.username}
    return {**joined, "is_active": "on", "is_staff": "on" if user.is_staff else "", "theme": "", **more}


def test_nobody_changes_their_own_rights(town: Town) -> None:
    user, browser = clerk(*USERS)
    roles.install(Group, Permission)
    operator = Group.objects.get(name="operator")
    drain = Permission.objects.get(codename="operate_node")
    wish = {"is_superuser": "on", "groups": [operator.pk], "user_permissions": [drain.pk], "first_name": "Ada"}
    assert browser.post(change(User, user.pk), form_of(user, **wish)).status_code == 302
    user = User.objects.get(pk=user.pk)
    assert (user.first_name, user.is_superuser, user.groups.count()) == ("Ada", False, 0)
    assert user.user_permissions.count() == len(USERS), "what they had is kept, and nothing came"
    own = Group.objects.create(name="clerks")
    user.groups.add(own)
    assert browser.post(change(Group, own.pk), {"name": "clerks", "permissions": [drain.pk]}).status_code == 403


def test_nobody_hands_out_what_they_do_not_have(town: Town) -> None:
    _clerk, browser = clerk(*USERS)
    roles.install(Group, Permission)
    operator, accountant = (Group.objects.get(name=name) for name in ("operator", "accountant"))
    drain, view = (Permission.objects.get(codename=name) for name in ("operate_node", "view_user"))
    puppet = User.objects.create(username="puppet")
    for wish in ({"groups": [operator.pk]}, {"groups": [accountant.pk]}, {"user_permissions": [drain.pk]}):
        answer = browser.post(change(User, puppet.pk), form_of(puppet, **wish))
        assert "Select a valid choice" in answer.content.decode(), wish
    assert browser.post(change(User, puppet.pk), form_of(puppet, is_superuser="on")).status_code == 302
    assert browser.post(change(User, puppet.pk), form_of(puppet, user_permissions=[view.pk])).status_code == 302
    puppet = User.objects.get(pk=puppet.pk)
    assert (puppet.is_superuser, puppet.get_all_permissions()) == (False, {"access.view_user"})
    assert browser.post(change(Group, operator.pk), {"name": "operator"}).status_code == 403
    answer = browser.post(reverse("admin:auth_group_add"), {"name": "mine", "permissions": [drain.pk]})
    assert "Select a valid choice" in answer.content.decode()


@pytest.mark.parametrize("who", ["root", "operator", "lead"])
def test_nobody_acts_in_the_name_of_somebody_with_more_rights(town: Town, who: str) -> None:
    _clerk, browser = clerk(*USERS)
    other = town.lead.user if who == "lead" else somebody(who, is_superuser=who == "root").user
    assert other is not None
    page = change(User, other.pk)
    assert browser.post(page, form_of(other, first_name="x")).status_code == 403
    new = {"password1": "a-very-long-secret-1", "password2": "a-very-long-secret-1", "usable_password": "true"}
    assert browser.post(page.replace("change/", "password/"), new).status_code == 403
    assert browser.post(page.replace("change/", "delete/"), {"post": "yes"}).status_code == 403
    form = {"user": other.pk, "name": "x", "scopes": ["admin"], "days": 1}
    answer = browser.post(reverse("admin:access_token_add"), form)
    assert "no more rights than you" in answer.content.decode()
    chosen = {"action": "make_sign_in_link", "_selected_action": [other.pk]}
    browser.post(reverse("admin:access_user_changelist"), chosen)
    assert not other.signinlink_set.exists()
    gone = {"action": "delete_selected", "_selected_action": [other.pk], "post": "yes"}
    browser.post(reverse("admin:access_user_changelist"), gone)
    other.refresh_from_db()
    assert (other.first_name, Token.objects.filter(user=other, name="x").exists()) == ("", False)


def test_an_accountant_gives_roles_in_projects_to_others_only(town: Town) -> None:
    accountant = somebody("accountant", is_staff=True)
    assert accountant.user is not None
    browser, project = Client(), Project.objects.get(name="other")
    browser.force_login(accountant.user)
    mate = User.objects.get(username="mate")
    Member.objects.create(project=project, user=accountant.user, role="viewer")
    rows = list(Member.objects.filter(project=project))

    def send(**roles_by_user: tuple[int, str]) -> str:
        form: dict[str, Any] = {"name": "other", "weight": "1", "description": ""}
        form |= {"member_set-TOTAL_FORMS": len(rows) + 1, "member_set-INITIAL_FORMS": len(rows)}
        for n, row in enumerate(rows):
            role = roles_by_user.get(row.user.username, (row.user_id, row.role))[1]
            form |= {f"member_set-{n}-id": row.pk, f"member_set-{n}-project": project.pk}
            form |= {f"member_set-{n}-user": row.user_id, f"member_set-{n}-role": role}
        if added := roles_by_user.get("added"):
            n = len(rows)
            form |= {f"member_set-{n}-project": project.pk, f"member_set-{n}-user": added[0]}
            form |= {f"member_set-{n}-role": added[1]}
        return browser.post(change(Project, project.pk), form).content.decode()

    assert "may not change your own role" in send(accountant=(accountant.user.pk, "lead"))
    assert Member.objects.get(project=project, user=accountant.user).role == "viewer"
    send(added=(mate.pk, "lead"))
    assert Member.objects.get(project=project, user=mate).role == "lead"


# -- what was there before


@pytest.mark.django_db(transaction=True)
def test_who_was_staff_keeps_what_they_could_do() -> None:
    executor = MigrationExecutor(connection)
    newest = executor.loader.graph.leaf_nodes()
    try:
        executor.migrate([("access", "0003_project_number")])
        old = executor.loader.project_state([("access", "0003_project_number")]).apps.get_model("access", "User")
        old.objects.create(username="chief", is_staff=True)
        old.objects.create(username="worker")
        executor = MigrationExecutor(connection)
        executor.migrate(newest)
        kept = {user.username: set(permissions.roles(user)) for user in User.objects.all()}
        assert kept == {"chief": {"operator", "accountant"}, "worker": set()}
        chief = User.objects.get(username="chief")
        assert chief.get_all_permissions() == roles.ROLES["operator"] | roles.ROLES["accountant"]
    finally:
        executor = MigrationExecutor(connection)
        executor.migrate(executor.loader.graph.leaf_nodes())
