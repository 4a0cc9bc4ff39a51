"""The administration shows every table, edits rules, shows secrets once, and never edits a state."""

from __future__ import annotations

import re
from typing import Any

import msgspec
import pytest
from django.contrib import admin
from django.contrib.admin.utils import flatten_fieldsets
from django.contrib.messages import get_messages
from django.test import Client
from django.urls import reverse
from django.utils import translation

from controlplane.accounts import service
from controlplane.accounts.models import Project, Token, User
from controlplane.fleet.models import JoinToken, Node
from controlplane.fleet.service import enrol
from controlplane.jobs.models import Job
from controlplane.pools.models import Pool, Quota
from tests.controlplane.people import Town
from tests.record.yard import gpu

OURS = ("access", "pools", "fleet", "providers", "jobs", "schedules", "sites")
MODELS = [model for model in admin.site._registry if model._meta.app_label in OURS]
RECORDED = {"Job", "Stage", "Attempt", "Event", "Decision", "Bundle", "Schedule", "ScheduleRun", "Pilot", "SiteJob"}
# What the record decides, wherever it stands.
DECIDED = {"state", "health", "phase", "cause", "claimed_milli", "claimed_memory_bytes", "generation", "digest"}


def address(model: type, page: str, *args: object) -> str:
    label = model._meta.label_lower.replace(".", "_")  # type: ignore[attr-defined]
    return reverse(f"admin:{label}_{page}", args=args)


@pytest.fixture
def root(town: Town) -> Client:
    agent = town.machine()
    town.running(agent)
    User.objects.filter(pk=town.user.pk).update(is_superuser=True)
    client = Client()
    client.force_login(User.objects.get(pk=town.user.pk))
    return client


def said(answer: object) -> str:
    return " ".join(str(message) for message in get_messages(answer.wsgi_request))  # type: ignore[attr-defined]


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.__name__)
def test_every_list_and_row_can_be_looked_at(root: Client, model: type) -> None:
    assert root.get(address(model, "changelist")).status_code == 200
    row = model.objects.first()  # type: ignore[attr-defined]
    if row is not None:
        assert root.get(address(model, "change", row.pk)).status_code == 200


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.__name__)
def test_no_form_has_a_field_that_the_record_decides(root: Client, model: type) -> None:
    pages = [address(model, "add")]
    row = model.objects.first()  # type: ignore[attr-defined]
    if row is not None:
        pages.append(address(model, "change", row.pk))
    fields = set()
    for page in pages:
        answer = root.get(page)
        if answer.status_code == 200:
            fields |= set(re.findall(r'<(?:input|select|textarea)[^>]* name="(\w+)"', answer.content.decode()))
    assert not fields & DECIDED
    if model.__name__ in RECORDED:
        assert fields <= {"csrfmiddlewaretoken", "next", "q", "action", "language"}
        assert root.get(address(model, "add")).status_code == 403
        assert row is None or root.post(address(model, "delete", row.pk), {"post": "yes"}).status_code == 403


def test_only_staff_enter(town: Town) -> None:
    client = Client()
    assert client.get("/admin/").status_code == 302
    client.force_login(User.objects.get(username="owner"))
    assert client.get("/admin/jobs/job/").status_code == 302


def test_an_access_token_is_shown_once(root: Client, town: Town) -> None:
    owner = User.objects.get(username="owner")
    form = {"user": owner.pk, "name": "ci", "scopes": ["read"], "days": 3}
    answer = root.post(address(Token, "add"), form)
    assert answer.status_code == 302
    (secret,) = re.findall(r"yard_[\w-]+", said(answer))
    token = service.token_of(secret)
    assert token is not None
    assert (token.user, token.scopes, token.name) == (owner, ["read"], "ci")
    shown = root.get(address(Token, "change", token.pk)).content.decode()
    root.get(address(Token, "changelist"))
    assert secret not in root.get(address(Token, "changelist")).content.decode()
    assert token.digest not in shown


def test_staff_cannot_make_themselves_superusers(town: Town) -> None:
    from django.contrib.auth.models import Permission

    clerk = User.objects.create(username="clerk", is_staff=True)
    clerk.user_permissions.set(
        Permission.objects.filter(codename__in=["add_token", "view_token", "change_user", "view_user"])
    )
    chief = User.objects.create(username="chief", is_staff=True, is_superuser=True)
    client = Client()
    client.force_login(clerk)
    before = Token.objects.count()
    answer = client.post(address(Token, "add"), {"user": chief.pk, "name": "x", "scopes": ["admin"], "days": 1})
    assert "no more rights than you" in answer.content.decode()
    assert Token.objects.count() == before
    form = {"action": "make_sign_in_link", "_selected_action": [chief.pk]}
    answer = client.post(address(User, "changelist"), form)
    assert "/sign-in/" not in said(answer)


def test_a_join_token_is_shown_once_and_lets_nodes_in(root: Client, town: Town) -> None:
    answer = root.post(address(JoinToken, "add"), {"pool": town.pool.pk, "uses_left": 1, "hours": 1})
    assert answer.status_code == 302
    (secret,) = re.findall(r"shown this once: (\S+)", said(answer))
    assert enrol(secret, "fresh")[0].pools.get() == town.pool


def test_a_sign_in_link_is_made_for_one_user(root: Client) -> None:
    owner = User.objects.get(username="owner")
    form = {"action": "make_sign_in_link", "_selected_action": [owner.pk]}
    link = said(root.post(address(User, "changelist"), form))
    assert service.redeem(link.rpartition("/sign-in/")[2]) == owner


def test_nodes_are_drained_and_jobs_cancelled_the_usual_way(root: Client, town: Town) -> None:
    node, job = Node.objects.get(), Job.objects.get()
    root.post(address(Node, "changelist"), {"action": "drain", "_selected_action": [node.pk]})
    node.refresh_from_db()
    assert node.state in {"DRAINING", "DRAINED"}
    root.post(address(Node, "changelist"), {"action": "resume", "_selected_action": [node.pk]})
    node.refresh_from_db()
    assert node.state == "READY"
    root.post(address(Job, "changelist"), {"action": "cancel", "_selected_action": [job.pk]})
    job.refresh_from_db()
    assert job.state == "STOPPING"
    event = job.events.get(kind="cancel")
    assert event.text.endswith(": from the administration")
    assert event.said[-1]["params"]["why"]["said"] == [{"code": "InAdministration", "params": {}}]


def test_rules_are_edited(root: Client, town: Town) -> None:
    members = {"member_set-TOTAL_FORMS": 0, "member_set-INITIAL_FORMS": 0}
    form = {"name": "vision", "weight": "2.5", "description": "", **members}
    assert root.post(address(Project, "add"), form).status_code == 302
    assert Project.objects.get(name="vision").weight == 2.5
    page = address(Pool, "change", town.pool.pk)
    form = {"name": "default", "profile": "turns", "storage_path": "/shared", "default_limit_s": 60, "max_limit_s": 90}
    form |= {"on_node_lost": "requeue", "isolation": "private"}
    assert "Ensure this value is less" in root.post(page, {**form, "min_runtime_s": 10**7}).content.decode()
    assert root.post(page, {**form, "min_runtime_s": 900, "user_limit": 3}).status_code == 302
    shown = town.owner.read("/pools/default")
    assert (shown["profile"], shown["min_runtime_s"]) == ("turns", 900)
    assert (shown["on_node_lost"], shown["isolation"]) == ("requeue", "private")
    assert "not one of the available choices" in root.post(page, {**form, "on_node_lost": "panic"}).content.decode()
    assert Pool.objects.get().user_limit == 3


@pytest.mark.parametrize(
    ("kind", "accepted"), [("gpuu", False), ("GPU", False), ("tpu", True), ("gpu", True), ("fpga", True), ("", False)]
)
def test_a_quota_is_of_a_kind_that_somebody_knows(town: Town, settings: Any, kind: str, accepted: bool) -> None:
    town.agent("f1", msgspec.structs.replace(gpu("f1"), kind="fpga"))
    settings.DEVICE_KINDS = frozenset({"tpu"})
    User.objects.filter(pk=town.user.pk).update(is_superuser=True)
    client = Client()
    client.force_login(town.user)
    answer = client.post("/admin/pools/quota/add/", {"project": town.project.pk, "kind": kind, "nominal": "4"})
    assert Quota.objects.filter(kind=kind).exists() is accepted
    if kind == "gpuu":
        said = answer.context["adminform"].form.errors["kind"][0]
        assert "accepted are cpu, gpu, npu, tpu, or a kind that a device of this cluster has" in said


def test_a_named_kind_may_stand_in_a_job_file_too(town: Town, settings: Any) -> None:
    town.machine()
    body = {"run": "true", "devices": {"kind": "tpu"}}
    assert "no kind of device is called" in town.owner.post("/jobs?dry_run=validate", body).content.decode()
    settings.DEVICE_KINDS = frozenset({"tpu"})
    assert town.owner.post("/jobs?dry_run=validate", body).status_code == 200


@pytest.mark.parametrize("field", ["", "nothing", "password"])
def test_a_row_by_a_field_that_names_none_is_refused_in_words(root: Client, field: str) -> None:
    answer = root.get(address(Pool, "change", 1), {"_to_field": field})
    assert answer.status_code == 400


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.__name__)
def test_what_a_form_names_has_its_chinese(model: type) -> None:
    """Django names models and fields after those of the code, which is English only."""
    meta: Any = model._meta  # type: ignore[attr-defined]
    shown = set(flatten_fieldsets(admin.site._registry[model].fieldsets or ())) | set(
        admin.site._registry[model].list_display
    )
    fields = [field for field in meta.get_fields() if field.concrete and field.name in shown]
    with translation.override("zh-hans"):
        names = [meta.app_config.verbose_name, meta.verbose_name, meta.verbose_name_plural]
        names += [field.verbose_name for field in fields if field.name != "uuid"]
        assert [str(name) for name in names if not re.search("[\u4e00-\u9fff]", str(name))] == []
    with translation.override("en"):
        assert str(meta.verbose_name).isascii()


def test_the_administration_leads_back_to_the_pages(root: Client) -> None:
    page = root.get("/admin/", headers={"Accept-Language": "zh-CN"}).content.decode()
    assert '<div id="site-name"><a href="/">' in page
    assert "yard/admin" in page
    assert "资源池" in page
    assert "Job_Templates" not in page


def test_a_quota_is_listed_with_what_is_used_of_it_and_too_much_is_warned_of(root: Client, town: Town) -> None:
    quota = Quota.objects.create(project=town.project, kind="gpu", nominal=1)
    Quota.objects.create(project=Project.objects.create(name="second"), kind="gpu", nominal=1)
    town.running(town.agent("n9", gpu("n9")), devices={"kind": "gpu"})
    page = root.get(address(Quota, "changelist")).content.decode()
    assert '<td class="field-used">1</td>' in page
    assert '<td class="field-used">0</td>' in page
    form = {"project": town.project.pk, "kind": "gpu", "model": "", "cohort": ""}
    assert "promise" not in said(root.post(address(Quota, "change", quota.pk), {**form, "nominal": 2}))
    warned = said(root.post(address(Quota, "change", quota.pk), {**form, "nominal": 7}))
    assert "Quotas of gpu promise 8 together, and there are 3." in warned
    assert all(field.help_text for field in root.get(address(Quota, "add")).context["adminform"].form.fields.values())
