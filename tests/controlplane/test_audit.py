"""The audit log: each change that a person makes is an entry, by whatever way, and nobody changes or removes one."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from allauth.mfa.models import Authenticator
from allauth.socialaccount.models import SocialAccount
from django.contrib import admin
from django.contrib.auth.models import Group, Permission
from django.core.management import call_command
from django.db import IntegrityError, transaction
from django.http import HttpResponse
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from agents.protocol import Conditions, SetAside
from controlplane.accounts import audit, device_codes, roles, service
from controlplane.accounts.admin import Audited
from controlplane.accounts.models import AuditEntry, Member, Project, Token, User
from controlplane.bulk import service as operations
from controlplane.bulk.action import Action
from controlplane.fleet import fuse
from controlplane.fleet.models import Device, Heartbeat, JoinToken, MaintenanceWindow, Node, Reservation
from controlplane.functions.models import DeployedFunction
from controlplane.job_templates.admin import JobTemplateAdmin
from controlplane.job_templates.models import JobTemplate
from controlplane.jobs.models import Attempt, Job
from controlplane.local_jobs.models import LocalGrant
from controlplane.notifications.models import TriedDelivery
from controlplane.pools.models import Budget, Limit, Pool, PriorityClass, Profile, Quota
from controlplane.providers.models import NodeProvider
from controlplane.retention.models import Override
from controlplane.schedules.models import Schedule
from controlplane.services.models import InferenceService
from controlplane.sites.models import Site
from controlplane.usage.models import Price
from controlplane.whatif import consolidation
from tests.controlplane.people import Person, Town
from tests.controlplane.test_roles import routes, somebody

SITE = {"name": "berlin", "url": "https://yard.example.org"}
PROVIDER = {"name": "hpc", "kind": "slurm", "pool": "default", "settings": {"python": "/usr/bin/python3"},
            "shapes": [{"name": "small", "cpus": 1, "memory_gib": 1}]}  # fmt: skip

Deed = Callable[[], HttpResponse]
PART = "5f1c0f0e-5a4e-4d7e-9a53-0c2f5d1b8c11"
TOLD = {"attempt": PART, "epoch": 1, "phase": 50, "pid": 7, "devices": [], "since": "2026-01-01T00:00:00+00:00",
        "stopped_by": "", "forgotten_by": ""}  # fmt: skip
WHY = {"reason": "the fan is loud"}


def last() -> AuditEntry:
    return AuditEntry.objects.latest("id")


# -- every route of the API that changes something


def _given_up(staff: Any) -> Any:
    Site.objects.update(failures=1)
    return staff.post("/sites/berlin/give-up", {"reason": "it burnt down"})


def deeds(town: Town, monkeypatch: pytest.MonkeyPatch) -> dict[tuple[str, str], tuple[Deed, str]]:
    """A request to each route that changes something, and the action that the log has of it; in this order."""
    agent = town.machine()
    town.running(agent, profiling={"allow": ["py-spy"]}, ports=[{"name": "lab", "port": 8888}])
    attempt = Attempt.objects.get()
    staff, owner = town.staff, town.owner

    def quarantine() -> HttpResponse:
        agent.report(conditions=Conditions(aside=[SetAside("p1", "/state/parts/p1", "Undecodable: torn")]))
        return staff.post("/nodes/n1/quarantine", {"part": "p1", "do": "release"})

    def survivor(phase: int) -> None:
        Node.objects.filter(name="n1").update(survivors={PART: {**TOLD, "phase": phase}})

    def stop() -> HttpResponse:
        survivor(50)
        return staff.post(f"/survivors/{PART}/stop", WHY)

    def forget() -> HttpResponse:
        survivor(100)
        return staff.post(f"/survivors/{PART}/forget", WHY)

    def release() -> HttpResponse:
        Heartbeat.objects.create(name=fuse.BLOWN, at=timezone.now())
        return staff.post("/fuse/release", WHY)

    def lost() -> HttpResponse:
        Node.objects.filter(name="n1").update(state="LOST")
        return staff.post("/nodes/n1/lost", WHY)

    def hold(verb: str) -> HttpResponse:
        return owner.post(f"/jobs/{Job.objects.latest('number').number}/{verb}", WHY)

    def follow() -> HttpResponse:
        advice = _Advice(str(attempt.stage_id))
        monkeypatch.setattr(consolidation, "ask", lambda *a, **k: _Thought((advice,), {advice.stage: "#1/train"}))
        return staff.post("/consolidation", {"stage": advice.stage})

    def window() -> int:
        return MaintenanceWindow.objects.latest("id").pk

    array = owner.post("/jobs", {"run": "x", "array": {"indexes": "0-2"}}).json()["number"]
    starts, ends, more = ((timezone.now() + timedelta(hours=n)).isoformat() for n in (1, 2, 3))
    tar = gzip.compress(b"x" * 100)
    small = {"trace": {"generate": {"jobs": 5}}, "world": {"nodes": "1x1", "cores": 4}}
    monkeypatch.setattr("controlplane.simulations.service.ask_to_run", lambda pk: None)

    def simulate() -> HttpResponse:
        return owner.post("/simulations", small)

    def preview() -> HttpResponse:
        from controlplane.simulations import preview as previews

        def begun(version: Any, user: User, **given: Any) -> Any:
            from controlplane.simulations import service as simulations

            return simulations.submit(small, user)

        monkeypatch.setattr(previews, "begin", begun)
        return staff.post("/profiles/mine/versions/1/preview", {"pool": "default", "days": 1})

    def collect() -> HttpResponse:
        grant = town.anonymous.post("/device-codes", {"name": "laptop"}).json()
        code = device_codes.waiting(grant["user_code"])
        assert code is not None
        device_codes.answer(code, User.objects.get(username="owner"), confirmed=True)
        return town.anonymous.post("/device-codes/token", {"device_code": grant["device_code"]})

    def number() -> int:
        return Job.objects.latest("number").number

    def change(path: str, patch: dict[str, Any]) -> HttpResponse:
        return staff.patch(path, patch, **{"if-match": "*"})

    def delete(path: str) -> HttpResponse:
        return staff.client.delete(f"/api/v1{path}", headers={"if-match": "*"})

    account = "/service-accounts/ci@default"

    def quota() -> int:
        return Quota.objects.latest("id").pk

    def schedule() -> int:
        return Schedule.objects.latest("id").pk

    def service() -> int:
        return InferenceService.objects.latest("id").pk

    def updated() -> Any:
        """A service whose former revision has served."""
        InferenceService.objects.filter(pk=service()).update(former=1)
        file = {"name": "chat", "template": {"run": "other"}}
        return owner.patch(f"/services/{service()}", {"file": file}, **{"if-match": "*"})

    def returned() -> Any:
        InferenceService.objects.filter(pk=service()).update(former=1)
        return owner.post(f"/services/{service()}/rollback")

    def function() -> int:
        return DeployedFunction.objects.latest("service_id").pk

    def retried() -> Any:
        """A queued call that was given up."""
        row = DeployedFunction.objects.latest("service_id")
        call = row.calls.create(event="1", size_bytes=1, state="DEAD", ended_at=timezone.now())
        return owner.post(f"/functions/{row.pk}/calls/{call.pk}/retry")

    def budget() -> int:
        return Budget.objects.latest("id").pk

    def limit() -> int:
        return Limit.objects.latest("id").pk

    def tried_event() -> Any:
        return TriedDelivery.objects.latest("id").event

    def token() -> HttpResponse:
        return owner.post("/tokens", {"name": "ci", "days": 1})

    runs, member = attempt.stage.job.number, "/projects/default/members/stranger"
    found: dict[tuple[str, str], tuple[Deed, str]] = {
        ("PUT", "projects/{name}/secrets/{secret}"): (
            lambda: owner.client.put(
                "/api/v1/projects/default/secrets/HF", '{"value": "hf_canary"}', content_type="application/json"
            ),
            "secret.set",
        ),
        ("DELETE", "projects/{name}/secrets/{secret}"): (
            lambda: town.lead.client.delete("/api/v1/projects/default/secrets/HF"),
            "secret.delete",
        ),
        ("PUT", "projects/{name}/webhooks/{webhook}"): (
            lambda: town.lead.client.put(
                "/api/v1/projects/default/webhooks/chat",
                '{"url": "https://example.org"}',
                content_type="application/json",
            ),
            "webhook.set",
        ),
        ("PATCH", "projects/{name}/webhooks/{webhook}"): (
            lambda: town.lead.patch("/projects/default/webhooks/chat", {"states": ["FAILED"]}),
            "webhook.set",
        ),
        ("POST", "projects/{name}/webhooks/{webhook}/test"): (
            lambda: town.lead.post("/projects/default/webhooks/chat/test"),
            "webhook.test",
        ),
        ("POST", "projects/{name}/webhooks/{webhook}/deliveries/{event}/resend"): (
            lambda: town.lead.post(f"/projects/default/webhooks/chat/deliveries/{tried_event()}/resend"),
            "webhook.resend",
        ),
        ("DELETE", "projects/{name}/webhooks/{webhook}"): (
            lambda: town.lead.client.delete("/api/v1/projects/default/webhooks/chat"),
            "webhook.delete",
        ),
        ("PUT", "templates/{template}"): (
            lambda: town.lead.client.put(
                "/api/v1/templates/ours?project=default",
                '{"title": "Ours", "job": {"run": "true"}}',
                content_type="application/json",
            ),
            "template.set",
        ),
        ("DELETE", "templates/{template}"): (
            lambda: town.lead.client.delete("/api/v1/templates/ours?project=default"),
            "template.delete",
        ),
        ("POST", "device-codes/token"): (collect, "token.make"),
        ("DELETE", "tokens/current"): (
            lambda: Person(User.objects.get(username="owner")).client.delete("/api/v1/tokens/current"),
            "token.revoke",
        ),
        ("POST", "bundles"): (
            lambda: owner.client.post("/api/v1/bundles", tar, content_type="application/gzip"),
            "bundle.upload",
        ),
        ("POST", "jobs"): (lambda: owner.post("/jobs", {"run": "x"}), "job.submit"),
        ("PATCH", "jobs/{name}"): (lambda: owner.patch(f"/jobs/{number()}", {"labels": {"a": "b"}}), "job.change"),
        ("POST", "jobs/bulk"): (
            lambda: owner.post("/jobs/bulk", {"action": "change", "jobs": [number()], "patch": {"priority": "low"}}),
            "job.change",
        ),
        ("POST", "jobs/{name}/hold"): (lambda: hold("hold"), "job.hold"),
        ("POST", "jobs/{name}/release"): (lambda: hold("release"), "job.release"),
        ("POST", "jobs/{name}/cancel"): (lambda: hold("cancel"), "job.cancel"),
        ("POST", "jobs/batch"): (lambda: owner.post("/jobs/batch", {"jobs": [{"run": "x"}] * 3}), "job.submit"),
        ("POST", "arrays/{name}/hold"): (lambda: owner.post(f"/arrays/{array}/hold", WHY), "array.hold"),
        ("POST", "arrays/{name}/release"): (lambda: owner.post(f"/arrays/{array}/release", WHY), "array.release"),
        ("POST", "arrays/{name}/cancel"): (lambda: owner.post(f"/arrays/{array}/cancel", WHY), "array.cancel"),
        ("POST", "attempts/{name}/adjust"): (
            lambda: owner.post(f"/attempts/{attempt.pk}/adjust", {"cpu_weight": 5, **WHY}),
            "attempt.adjust",
        ),
        ("POST", "jobs/{name}/signal"): (
            lambda: owner.post(f"/jobs/{runs}/signal", {"signal": "SIGUSR1", **WHY}),
            "job.signal",
        ),
        ("POST", "jobs/{name}/traces"): (
            lambda: owner.post(f"/jobs/{runs}/traces", {"seconds": 5, **WHY}),
            "job.trace",
        ),
        ("POST", "jobs/{name}/ports"): (
            lambda: owner.post(f"/jobs/{runs}/ports", {"port": "lab", **WHY}),
            "session.open",
        ),
        ("POST", "jobs/{name}/requeue"): (lambda: owner.post(f"/jobs/{runs}/requeue", WHY), "job.requeue"),
        ("POST", "projects"): (lambda: staff.post("/projects", {"name": "fresh"}), "project.add"),
        ("PATCH", "projects/{name}"): (lambda: change("/projects/fresh", {"weight": 2}), "project.change"),
        ("DELETE", "projects/{name}"): (lambda: delete("/projects/fresh"), "project.delete"),
        ("PUT", "projects/{name}/members/{user}"): (
            lambda: staff.client.put(f"/api/v1{member}", '{"role": "viewer"}', content_type="application/json"),
            "member.add",
        ),
        ("DELETE", "projects/{name}/members/{user}"): (lambda: delete(member), "member.delete"),
        ("POST", "quotas"): (lambda: staff.post("/quotas", {"project": "default", "kind": "gpu"}), "quota.add"),
        ("PATCH", "quotas/{number}"): (lambda: change(f"/quotas/{quota()}", {"nominal": 2}), "quota.change"),
        ("DELETE", "quotas/{number}"): (lambda: delete(f"/quotas/{quota()}"), "quota.delete"),
        ("POST", "budgets"): (lambda: staff.post("/budgets", {"project": "default", "hours": 5}), "budget.add"),
        ("PATCH", "budgets/{number}"): (lambda: change(f"/budgets/{budget()}", {"hours": 6}), "budget.change"),
        ("DELETE", "budgets/{number}"): (lambda: delete(f"/budgets/{budget()}"), "budget.delete"),
        ("POST", "limits"): (lambda: staff.post("/limits", {"running": 3}), "limit.add"),
        ("PATCH", "limits/{number}"): (lambda: change(f"/limits/{limit()}", {"running": 2}), "limit.change"),
        ("DELETE", "limits/{number}"): (lambda: delete(f"/limits/{limit()}"), "limit.delete"),
        ("POST", "priority-classes"): (
            lambda: staff.post("/priority-classes", {"name": "night", "value": 100}),
            "priorityclass.add",
        ),
        ("PATCH", "priority-classes/{name}"): (
            lambda: change("/priority-classes/night", {"value": 90}),
            "priorityclass.change",
        ),
        ("DELETE", "priority-classes/{name}"): (lambda: delete("/priority-classes/night"), "priorityclass.delete"),
        ("POST", "tokens"): (token, "token.make"),
        ("DELETE", "tokens/{id}"): (
            lambda: owner.client.delete(f"/api/v1/tokens/{Token.objects.get(name='ci').pk}"),
            "token.revoke",
        ),
        ("POST", "nodes/{name}/quarantine"): (quarantine, "node.aside"),
        ("POST", "nodes/drain"): (
            lambda: staff.post("/nodes/drain", {"nodes": ["n1"], **WHY}, **{"If-Match": "*"}),
            "node.drain",
        ),
        ("POST", "nodes/{name}/drain"): (lambda: staff.post("/nodes/n1/drain", WHY), "node.drain"),
        ("POST", "nodes/{name}/resume"): (lambda: staff.post("/nodes/n1/resume"), "node.resume"),
        ("POST", "nodes/{name}/rotate"): (lambda: staff.post("/nodes/n1/rotate"), "node.rotate"),
        ("POST", "devices/{name}/cordon"): (lambda: staff.post("/devices/GPU-n1-0/cordon", WHY), "device.cordon"),
        ("POST", "devices/{name}/uncordon"): (lambda: staff.post("/devices/GPU-n1-0/uncordon"), "device.uncordon"),
        ("POST", "maintenance-windows"): (
            lambda: staff.post("/maintenance-windows", {"node": "n1", "starts_at": starts, "ends_at": ends, **WHY}),
            "maintenance.plan",
        ),
        ("PATCH", "maintenance-windows/{number}"): (
            lambda: change(f"/maintenance-windows/{window()}", {"reason": "new fans"}),
            "maintenance.change",
        ),
        ("POST", "maintenance-windows/{number}/cancel"): (
            lambda: staff.post(f"/maintenance-windows/{window()}/cancel"),
            "maintenance.cancel",
        ),
        ("POST", "reservations"): (
            lambda: staff.post(
                "/reservations",
                {"name": "demo", "project": "default", "nodes": ["n1"], "starts_at": ends, "ends_at": more, **WHY},
            ),
            "reservation.plan",
        ),
        ("PATCH", "reservations/{name}"): (
            lambda: change("/reservations/demo", {"reason": "another one"}),
            "reservation.change",
        ),
        ("POST", "reservations/{name}/cancel"): (
            lambda: staff.post("/reservations/demo/cancel"),
            "reservation.cancel",
        ),
        ("POST", "profiles"): (
            lambda: staff.post("/profiles", {"name": "mine", "copy_of": "fifo"}),
            "profile.create",
        ),
        ("POST", "profiles/{name}/versions"): (
            lambda: staff.post("/profiles/mine/versions", {"spec": staff.read("/profiles/mine")["spec"]}),
            "profile.revise",
        ),
        ("POST", "profiles/{name}/versions/{number}/preview"): (preview, "simulation.begin"),
        ("PATCH", "profiles/{name}"): (lambda: change("/profiles/mine", {"description": "d"}), "profile.change"),
        ("POST", "profiles/{name}/activate"): (
            lambda: staff.post("/profiles/mine/activate", {"version": 1, "unseen": True}),
            "profile.activate",
        ),
        ("POST", "pools"): (lambda: staff.post("/pools", {"name": "short"}), "pool.add"),
        ("PATCH", "pools/{name}"): (lambda: change("/pools/short", {"max_limit_s": 90_000}), "pool.change"),
        ("DELETE", "pools/{name}"): (lambda: delete("/pools/short"), "pool.delete"),
        ("PATCH", "nodes/{name}"): (lambda: change("/nodes/n1", {"labels": {"rack": "3"}}), "node.change"),
        ("POST", "pools/{name}/profile"): (
            lambda: staff.post("/pools/default/profile", {"profile": "fifo"}),
            "pool.profile",
        ),
        ("PUT", "pools/{name}/access"): (
            lambda: staff.client.put(
                "/api/v1/pools/default/access", '{"projects": ["default"]}', content_type="application/json"
            ),
            "pool.allow",
        ),
        ("POST", "providers"): (lambda: staff.post("/providers", PROVIDER), "nodeprovider.add"),
        ("PATCH", "providers/{name}"): (lambda: change("/providers/hpc", {"max_nodes": 3}), "nodeprovider.change"),
        ("DELETE", "providers/{name}"): (lambda: delete("/providers/hpc"), "nodeprovider.delete"),
        ("POST", "sites"): (lambda: staff.post("/sites", SITE), "site.add"),
        ("PATCH", "sites/{name}"): (lambda: change("/sites/berlin", {"price": 3}), "site.change"),
        ("PUT", "sites/{name}/token"): (
            lambda: staff.client.put(
                "/api/v1/sites/berlin/token", '{"token": "yard_a_token"}', content_type="application/json"
            ),
            "site.token",
        ),
        ("POST", "sites/{name}/give-up"): (lambda: _given_up(staff), "site.give_up"),
        ("DELETE", "sites/{name}"): (lambda: delete("/sites/berlin"), "site.delete"),
        ("POST", "profiles/{name}/delete"): (lambda: staff.post("/profiles/mine/delete"), "profile.delete"),
        ("PUT", "projects/{name}/retention"): (
            lambda: staff.client.put(
                "/api/v1/projects/default/retention", '{"days": {"logs": 7}}', content_type="application/json"
            ),
            "project.retention",
        ),
        ("POST", "service-accounts"): (
            lambda: town.lead.post("/service-accounts", {"name": "ci", "project": "default"}),
            "service_account.add",
        ),
        ("PATCH", "service-accounts/{name}"): (
            lambda: town.lead.patch(account, {"is_active": False}, **{"if-match": "*"}),
            "service_account.change",
        ),
        ("POST", "service-accounts/{name}/tokens"): (
            lambda: town.lead.post(f"{account}/tokens", {"name": "robot", "days": 1}),
            "token.make",
        ),
        ("DELETE", "service-accounts/{name}/tokens/{token}"): (
            lambda: town.lead.client.delete(f"/api/v1{account}/tokens/{Token.objects.get(name='robot').pk}"),
            "token.revoke",
        ),
        ("DELETE", "service-accounts/{name}"): (
            lambda: town.lead.client.delete(f"/api/v1{account}", headers={"if-match": "*"}),
            "service_account.delete",
        ),
        ("POST", "services"): (
            lambda: owner.post("/services", {"file": {"name": "chat", "template": {"run": "x"}}}),
            "service.add",
        ),
        ("PATCH", "services/{number}"): (updated, "service.change"),
        ("POST", "services/{number}/rollback"): (returned, "service.rollback"),
        ("DELETE", "services/{number}"): (lambda: delete(f"/services/{service()}"), "service.delete"),
        ("POST", "functions"): (lambda: owner.post("/functions", {"name": "add", "code": "x"}), "function.add"),
        ("PATCH", "functions/{number}"): (
            lambda: owner.patch(f"/functions/{function()}", {"options": {"max": 2}, "code": "y"}, **{"if-match": "*"}),
            "function.change",
        ),
        ("POST", "functions/{number}/calls/{call}/retry"): (retried, "function.retry"),
        ("DELETE", "functions/{number}"): (lambda: delete(f"/functions/{function()}"), "function.delete"),
        ("POST", "schedules"): (
            lambda: owner.post("/schedules", {"name": "nightly", "job": {"run": "x"}, "cron": "0 3 * * *"}),
            "schedule.add",
        ),
        ("PATCH", "schedules/{number}"): (
            lambda: owner.patch(f"/schedules/{schedule()}", {"paused": True}, **{"if-match": "*"}),
            "schedule.change",
        ),
        ("POST", "schedules/{number}/run"): (lambda: owner.post(f"/schedules/{schedule()}/run"), "job.submit"),
        ("DELETE", "schedules/{number}"): (
            lambda: owner.client.delete(f"/api/v1/schedules/{schedule()}", headers={"if-match": "*"}),
            "schedule.delete",
        ),
        ("POST", "simulations"): (simulate, "simulation.begin"),
        ("POST", "simulations/{number}/cancel"): (
            lambda: owner.post(f"/simulations/{last().object_id}/cancel"),
            "simulation.cancel",
        ),
        ("POST", "operations/{number}/cancel"): (
            lambda: owner.post(f"/operations/{operations.begin(owner.user, Action('hold'), {'q': 'x'}).pk}/cancel"),
            "operation.cancel",
        ),
        ("POST", "survivors/{name}/stop"): (stop, "survivor.stop"),
        ("POST", "survivors/{name}/forget"): (forget, "survivor.forget"),
        ("POST", "consolidation"): (follow, "consolidation.follow"),
        ("POST", "fuse/release"): (release, "fuse.release"),
        ("POST", "nodes/{name}/lost"): (lost, "node.lost"),
    }
    return found


class _Advice:
    """An advice that moves nobody."""

    moves: tuple[Any, ...] = ()
    price = gain = wait_s = 0.0
    is_worth = True

    def __init__(self, stage: str) -> None:
        self.stage = stage
        self.placement = type("Placement", (), {"nodes": ()})()


class _Thought:
    nodes: dict[str, str] = {}
    where: dict[str, tuple[str, ...]] = {}
    at, too_large = 0.0, False

    def __init__(self, advice: tuple[Any, ...], stages: dict[str, str]) -> None:
        self.advice, self.stages = advice, stages


def test_every_route_that_changes_something_writes_an_entry(town: Town, monkeypatch: pytest.MonkeyPatch) -> None:
    found = deeds(town, monkeypatch)
    # A program that asks for a code has no user yet: the code's answer and the token are entries. Filling a template
    # only answers.
    # A call of a function is a row of its own, with its user.
    calls = ("POST", "functions/{number}/calls")
    silent = {("POST", "device-codes"), ("POST", "templates/{template}/fill"), calls}
    assert {route for route in routes() if route[0] != "GET"} == {*found, *silent}
    for route, (deed, action) in found.items():
        before = last().pk
        answer = deed()
        assert answer.status_code < 300, (route, answer.content)
        written = AuditEntry.objects.filter(pk__gt=before)
        assert [one.action for one in written] == [action], route
        entry = written.get()
        assert entry.actor in {"owner", "lead", "ada"}
        assert "hf_canary" not in json.dumps([entry.before, entry.after, entry.name, entry.reason])
        if action != "token.make":
            assert (entry.via, entry.request_id) == ("api", answer["X-Request-ID"])
            assert entry.credential.endswith(" test")
        assert entry.actor_id == User.objects.get(username=entry.actor).pk


def test_what_is_refused_or_only_tried_leaves_none(town: Town) -> None:
    town.machine()
    count = AuditEntry.objects.count()
    assert town.owner.post("/nodes/n1/drain", WHY).status_code == 403
    assert town.staff.post("/nodes/n1/drain", {}).status_code == 409
    assert town.owner.post("/jobs?dry_run=validate", {"run": "x"}).status_code == 200
    assert town.owner.post("/jobs", {"rin": "x"}).status_code == 422
    starts, ends = ((timezone.now() + timedelta(hours=n)).isoformat() for n in (1, 2))
    body = {"node": "n1", "starts_at": starts, "ends_at": ends, **WHY}
    assert town.staff.post("/maintenance-windows?dry_run=true", body).status_code == 200
    assert AuditEntry.objects.count() == count


def test_a_repeated_request_is_one_change_and_one_entry(town: Town) -> None:
    town.machine()
    count = AuditEntry.objects.count()
    for _ in range(2):
        assert town.owner.post("/jobs", {"run": "x"}, **{"Idempotency-Key": "k"}).status_code == 201
    assert AuditEntry.objects.count() == count + 1


def test_before_and_after_tell_what_changed_and_how_it_was_asked(town: Town) -> None:
    town.machine()
    town.staff.post("/nodes/n1/drain", WHY, **{"User-Agent": "yard/1.2", "X-Request-ID": "proxy-7"})
    entry = last()
    assert (entry.kind, entry.name, entry.reason) == ("node", "n1", "the fan is loud")
    assert (entry.before["state"], entry.after["state"]) == ("READY", "DRAINING")
    assert (entry.via, entry.request_id) == ("cli", "proxy-7")
    browser = Client(headers={"X-Request-ID": "evil id"})
    browser.force_login(town.user)
    sent = browser.post("/api/v1/nodes/n1/resume", "{}", content_type="application/json")
    entry = last()
    assert (entry.action, entry.via, entry.request_id) == ("node.resume", "page", sent["X-Request-ID"])
    assert entry.credential.startswith("session ")
    assert (browser.session.session_key or "-") not in entry.credential


def test_the_control_planes_own_deeds_are_no_entries(town: Town) -> None:
    count = AuditEntry.objects.count()
    town.running(town.machine())
    assert AuditEntry.objects.count() == count + 1, "the submission, and nothing of enrolling, placing and running"
    assert audit.record("node.drain", ("node", 1, "n1")) is None


# -- every form of the administration


def drive_admin(town: Town, browser: Client, model: type) -> list[tuple[HttpResponse, str]]:
    """What a person does in the administration of a model, and the action that the log has of it."""

    def at(page: str, *args: object) -> str:
        label = model._meta.label_lower.replace(".", "_")  # type: ignore[attr-defined]
        return reverse(f"admin:{label}_{page}", args=args)

    def add(action: str, **form: Any) -> tuple[HttpResponse, str]:
        return browser.post(at("add"), form), action

    def change(row: Any, action: str, **form: Any) -> tuple[HttpResponse, str]:
        return browser.post(at("change", row.pk), form), action

    def delete(row: Any, action: str) -> tuple[HttpResponse, str]:
        return browser.post(at("delete", row.pk), {"post": "yes"}), action

    def do(row: Any, deed: str, action: str) -> tuple[HttpResponse, str]:
        return browser.post(at("changelist"), {"action": deed, "_selected_action": [row.pk]}), action

    def remove(row: Any, action: str) -> tuple[HttpResponse, str]:
        form = {"action": "delete_selected", "_selected_action": [row.pk], "post": "yes"}
        return browser.post(at("changelist"), form), action

    none = {"member_set-TOTAL_FORMS": 0, "member_set-INITIAL_FORMS": 0}
    joined = {"date_joined_0": "2026-01-01", "date_joined_1": "00:00:00", "theme": ""}
    pool = {"name": "default", "profile": "fifo", "storage_path": "/s", "default_limit_s": 60, "max_limit_s": 90}
    pool |= {"on_node_lost": "requeue", "isolation": "private", "min_runtime_s": 0}
    match model.__name__:
        case "User":
            mate = User.objects.get(username="mate")
            new = {"password1": "a-very-long-secret-1", "password2": "a-very-long-secret-1", "usable_password": "true"}
            gone = User.objects.create(username="gone")
            return [
                change(mate, "user.change", username="mate", is_active="on", first_name="M", **joined),
                (browser.post(at("change", mate.pk).replace("change/", "password/"), new), "user.change"),
                do(mate, "make_sign_in_link", "user.sign_in_link"),
                add("user.add", username="new", **new),
                remove(gone, "user.delete"),
            ]
        case "Group":
            return [add("group.add", name="g"), delete(Group.objects.get(name="g"), "group.delete")]
        case "Project":
            row = {"member_set-TOTAL_FORMS": 1, "member_set-INITIAL_FORMS": 0, "member_set-0-role": "lead"}
            row |= {"member_set-0-user": User.objects.get(username="mate").pk}
            vision = {"name": "vision", "weight": 1, "description": ""}
            return [
                add("project.add", **vision, **none),
                change(Project.objects.get(name="vision"), "member.add", **vision, **row),
                delete(Project.objects.get(name="vision"), "project.delete"),
            ]
        case "Token":
            made = add("token.make", user=town.user.pk, name="x", scopes=["read"], days=1)
            return [made, delete(Token.objects.get(name="x"), "token.revoke")]
        case "Pool":
            return [
                change(town.pool, "pool.change", **pool, user_limit=3),
                add("pool.add", **{**pool, "name": "p2"}),
                delete(Pool.objects.get(name="p2"), "pool.delete"),
            ]
        case "Profile":
            form = {"name": "own", "description": "", "copy_of": "fifo"}
            return [
                add("profile.create", **form),
                change(
                    Profile.objects.get(), "profile.describe", name="own", description="d", spec=json.dumps(_spec())
                ),
                delete(Profile.objects.get(), "profile.delete"),
            ]
        case "Quota":
            made = add("quota.add", project=town.project.pk, kind="gpu", nominal=4)
            quota = Quota.objects.get()
            form = {"form-TOTAL_FORMS": 1, "form-INITIAL_FORMS": 1, "form-0-id": quota.pk, "form-0-nominal": 6}
            return [made, (browser.post(at("changelist"), {**form, "_save": "Save"}), "quota.change")]
        case "Budget":
            row = {"project": town.project.pk, "kind": "gpu", "period": "month", "at_end": "hold"}
            return [
                add("budget.add", **row, hours=4),
                change(Budget.objects.get(), "budget.change", **row, hours=5),
                delete(Budget.objects.get(), "budget.delete"),
            ]
        case "Limit":
            made = add("limit.add", running=4)
            return [
                made,
                change(Limit.objects.get(), "limit.change", running=5),
                delete(Limit.objects.get(), "limit.delete"),
            ]
        case "PriorityClass":
            made = add("priorityclass.add", name="p", value=5)
            return [made, change(PriorityClass.objects.get(name="p"), "priorityclass.change", name="p", value=6)]
        case "NodeProvider":
            form = {
                "name": "hpc",
                "kind": "slurm",
                "pool": town.pool.pk,
                "settings": '{"python": "/usr/bin/python3"}',
                "shapes": '[{"name": "small", "cpus": 1, "memory_gib": 1}]',
                "min_nodes": 0,
                "max_nodes": 1,
                "hours": 1,
                "idle_s": 300,
                "wait_s": 3600,
            }
            made = add("nodeprovider.add", **form)
            row = NodeProvider.objects.get(name="hpc")
            changed = change(row, "nodeprovider.change", **{**form, "max_nodes": 2})
            return [made, changed, delete(row, "nodeprovider.delete")]
        case "LocalGrant":
            form = {"node": Node.objects.get(name="n1").pk, "project": town.project.pk, "user": town.user.pk}
            made = add("localgrant.add", **form)
            row = LocalGrant.objects.get()
            mate = User.objects.get(username="mate")
            changed = change(row, "localgrant.change", **{**form, "user": mate.pk})
            return [made, changed, delete(row, "localgrant.delete")]
        case "Site":
            form = {
                **SITE, "pools": "[]", "locations": "[]", "price": 0, "patience_s": 60, "gain_s": 60, "most_jobs": 9,
                "lost_after_s": 900,
            }  # fmt: skip
            made = add("site.add", **form)
            row = Site.objects.get(name="berlin")
            changed = change(row, "site.change", **{**form, "price": 2})
            return [made, changed, delete(row, "site.delete")]
        case "Node":
            node = Node.objects.get(name="n1")
            return [
                change(node, "node.change", pools=[town.pool.pk], labels='{"a": "b"}'),
                do(node, "drain", "node.drain"),
                do(node, "resume", "node.resume"),
                do(node, "make_return_token", "jointoken.make"),
                do(node, "rotate", "node.rotate"),
                do(node, "revoke", "node.revoke"),
            ]
        case "Device":
            device = Device.objects.get(uuid="GPU-n1-0")
            return [
                do(device, "cordon", "device.cordon"),
                do(device, "uncordon", "device.uncordon"),
                change(device, "device.change", mode="exclusive" if device.mode == "shared" else "shared"),
            ]
        case "MaintenanceWindow":
            form = {"node": Node.objects.get().pk, "reason": "fans", "starts_at_0": "2030-01-01"}
            form |= {"ends_at_0": "2030-01-02"}
            made = add("maintenance.plan", **form, starts_at_1="00:00:00", ends_at_1="00:00:00")
            return [made, do(MaintenanceWindow.objects.get(), "call_off", "maintenance.cancel")]
        case "Reservation":
            now = timezone.now()
            row = Reservation.objects.create(
                name="demo", project=town.project, starts_at=now, ends_at=now + timedelta(hours=1), reason="the demo"
            )
            return [do(row, "call_off", "reservation.cancel")]
        case "JoinToken":
            made = add("jointoken.make", pool=town.pool.pk, uses_left=1, hours=1)
            return [made, delete(JoinToken.objects.latest("created_at"), "jointoken.delete")]
        case "Authenticator":
            factor = Authenticator.objects.create(user=User.objects.get(username="mate"), type="totp", data={})
            return [delete(factor, "authenticator.delete")]
        case "SocialAccount":
            account = SocialAccount.objects.create(user=User.objects.get(username="mate"), provider="p", uid="u")
            return [remove(account, "socialaccount.delete")]
        case "Override":
            made = add("override.add", project=town.project.pk, kind="logs", days=7)
            row = Override.objects.get()
            return [
                made,
                change(row, "override.change", project=town.project.pk, kind="logs", days=5),
                delete(row, "override.delete"),
            ]
        case "Price":
            form = {"kind": "gpu", "model": "H100", "per_device_hour": "2.5", "valid_from": "2027-01-01"}
            made = add("price.add", **form)
            row = Price.objects.get()
            return [made, change(row, "price.change", **{**form, "per_device_hour": "3"}), delete(row, "price.delete")]
        case "JobTemplate":
            form = {"name": "ours", "project": town.project.pk, "title": "Ours", "parameters": "[]"}
            made = add("template.set", **form, job='{"run": "true"}')
            row = JobTemplate.objects.get()
            return [
                made,
                change(row, "template.set", **form, job='{"run": "date"}'),
                delete(row, "template.delete"),
            ]
        case "Job":
            return [do(Job.objects.get(), "cancel", "job.cancel")]
    return []


def _spec() -> Any:
    from controlplane.pools import profiles

    return dict(profiles.spec_of("fifo"))


def changes_something(model_admin: Any) -> bool:
    """Whether a superuser may add, change or delete here, or has a deed of their own."""
    request = Client().get("/healthz").wsgi_request
    request.user = User(username="root", is_superuser=True, is_active=True)
    may = (model_admin.has_add_permission, model_admin.has_change_permission, model_admin.has_delete_permission)
    return any(each(request) for each in may) or bool(set(model_admin.actions or ()))


EDITED = [
    model for model, one in admin.site._registry.items() if isinstance(one, Audited | JobTemplateAdmin) or one.actions
]


def test_every_form_of_the_administration_is_audited(db: None) -> None:
    edited = {model for model, one in admin.site._registry.items() if changes_something(one)}
    assert edited == set(EDITED)


@pytest.mark.parametrize("model", EDITED, ids=lambda model: model.__name__)
def test_every_change_in_the_administration_writes_an_entry(town: Town, model: type) -> None:
    agent = town.machine()
    town.running(agent) if model is Job else None
    User.objects.filter(pk=town.user.pk).update(is_superuser=True)
    browser = Client()
    browser.force_login(User.objects.get(pk=town.user.pk))
    # What a form of the node's row needs is there before: entries of making it are not counted.
    first = last().pk if AuditEntry.objects.exists() else 0
    done = drive_admin(town, browser, model)
    assert done, f"say what is done with {model.__name__}"
    for answer, action in done:
        assert answer.status_code == 302, (action, answer.content.decode()[-3000:])
    written = AuditEntry.objects.filter(pk__gt=first).order_by("id")
    assert [one.action for one in written] == [action for _answer, action in done]
    for entry in written:
        assert (entry.actor, entry.via) == ("ada", "admin")
        assert "a-very-long-secret-1" not in json.dumps([entry.before, entry.after])


def test_a_role_in_a_project_is_told_with_before_and_after(town: Town) -> None:
    User.objects.filter(pk=town.user.pk).update(is_superuser=True)
    browser = Client()
    browser.force_login(User.objects.get(pk=town.user.pk))
    project = Project.objects.create(name="vision")
    member = Member.objects.create(project=project, user=User.objects.get(username="mate"), role="viewer")
    form = {"name": "vision", "weight": 1, "description": "", "member_set-TOTAL_FORMS": 1}
    form |= {"member_set-INITIAL_FORMS": 1, "member_set-0-id": member.pk, "member_set-0-project": project.pk}
    form |= {"member_set-0-user": member.user_id, "member_set-0-role": "lead"}
    assert browser.post(reverse("admin:access_project_change", args=[project.pk]), form).status_code == 302
    entry = last()
    assert (entry.action, entry.name) == ("member.change", "mate in vision")
    assert (entry.before, entry.after) == ({"role": "viewer"}, {"role": "lead"})


# -- pages and commands


def test_what_people_do_on_their_page_is_told_and_no_secret_of_it(town: Town) -> None:
    browser, owner = Client(), User.objects.get(username="owner")
    browser.force_login(owner)
    made = browser.post("/user/tokens", {"name": "ci", "scopes": ["read"], "days": "3"})
    assert (made.status_code, last().action, last().via, last().name) == (201, "token.make", "page", "ci")
    assert last().after["user"] == "owner"
    browser.post(f"/user/tokens/{Token.objects.get(name='ci').pk}/revoke")
    assert last().action == "token.revoke"
    browser.post("/user/sign-out-everywhere")
    assert (last().action, last().name) == ("user.end_sessions", "owner")


def test_commands_on_the_server_are_told_with_who_ran_them(town: Town, capsys: pytest.CaptureFixture[str]) -> None:
    town.machine()
    for command, *args, action in (
        ("yard_token", "owner", "token.make"),
        ("sign_in_link", "owner", "user.sign_in_link"),
        ("join_token", "jointoken.make"),
        ("join_token", "--node", "n1", "jointoken.make"),
        ("restored", "server.restored"),
        ("bootstrap", "jointoken.make"),
    ):
        call_command(command, *args)
        entry = last()
        assert (entry.action, entry.via, entry.credential) == (action, "system", f"manage.py {command}")
        assert entry.actor.endswith("@server")
        for word in capsys.readouterr().out.split():
            assert word.rpartition("/")[2] not in json.dumps([entry.before, entry.after]) or len(word) < 20


# -- what an entry may be


def test_nobody_changes_an_entry_or_removes_a_young_one(town: Town) -> None:
    town.machine()
    assert town.owner.post("/jobs", {"run": "x"}).status_code == 201
    for deed in (lambda: AuditEntry.objects.update(actor="x"), lambda: AuditEntry.objects.all().delete()):
        with pytest.raises(IntegrityError, match="append-only"), transaction.atomic():
            deed()
    at = timezone.now() - timedelta(days=31)
    old = AuditEntry.objects.create(at=at, actor="x", via="api", action="a.b", kind="a")
    assert AuditEntry.objects.filter(pk=old.pk).delete()[0] == 1, "retention may"


def test_what_is_kept_is_bounded_and_masked() -> None:
    deep = {"env": {"HF_TOKEN": "hf_x", "MODE": "a"}, "list": list(range(500)), "text": "x" * 9000, "nul": "a\0b"}
    kept = audit.side({"password": "p", "digest": "d", "api_key": "k", "monkey": "m", "empty_token": "", **deep})
    assert (kept["password"], kept["digest"], kept["api_key"], kept["empty_token"]) == ("***", "***", "***", "")
    assert (kept["monkey"], kept["env"], kept["nul"]) == ("m", {"HF_TOKEN": "***", "MODE": "a"}, "ab")
    assert (len(kept["list"]), len(kept["text"])) == (50, 501)
    assert set(audit.side({f"f{n}": "x" * 500 for n in range(40)})) == {"cut", "fields"}


# -- who reads it


@pytest.fixture
def auditor(town: Town) -> Any:
    roles.install(Group, Permission)
    return somebody("auditor")


def test_auditors_and_superusers_read_it_and_nobody_else(town: Town, auditor: Any) -> None:
    town.machine()
    town.staff.post("/nodes/n1/drain", WHY)
    for person, status in (
        (town.anonymous, 401),
        (town.owner, 403),
        (town.lead, 403),
        (town.staff, 403),
        (auditor, 200),
        (somebody(username="root", is_superuser=True), 200),
    ):
        assert person.get("/audit").status_code == status
    assert town.staff.get("/audit").json()["detail"] == "only the role auditor may read the audit log"
    assert auditor.read("/audit")["results"][0]["action"] in {"node.drain", "token.make"}


def test_it_is_narrowed_and_paged(town: Town, auditor: Any) -> None:
    town.machine()
    for _ in range(3):
        town.staff.post("/nodes/n1/drain", WHY)
        town.owner.post("/jobs", {"run": "x"})

    def read(**query: Any) -> list[tuple[str, str]]:
        address = "/audit?" + "&".join(f"{key}={value}" for key, value in query.items())
        return [(one["actor"], one["action"]) for one in auditor.read(address)["results"]]

    assert read(action="node.drain") == [("ada", "node.drain")] * 3
    assert read(action="node.", actor="owner") == []
    assert read(actor="owner", action="job.submit") == [("owner", "job.submit")] * 3
    assert read(object="n1") == read(kind="node") == [("ada", "node.drain")] * 3
    assert read(object=f"%23{Job.objects.latest('number').number}") == [("owner", "job.submit")]
    assert read(via="admin") == read(until="2020-01-01T00:00:00Z") == []
    assert len(read(since="2020-01-01T00:00:00Z", limit=500)) == AuditEntry.objects.count()
    for wrong in ("since=yesterday", "since=2020-01-01T00:00:00", "until=2020-13-01T00:00:00Z", "who=x"):
        assert auditor.get(f"/audit?{wrong}").status_code == 400, wrong
    first = auditor.read("/audit?kind=node&limit=2")
    assert len(first["results"]) == 2
    second = auditor.read(first["next"].removeprefix("/api/v1"))
    assert [one["id"] for one in first["results"] + second["results"]] == sorted(
        AuditEntry.objects.filter(kind="node").values_list("pk", flat=True), reverse=True
    )


def test_the_page_shows_it_to_auditors_and_escapes_what_people_wrote(town: Town, auditor: Any) -> None:
    town.machine()
    town.staff.post("/nodes/n1/drain", {"reason": "<script>alert(1)</script>"})
    browser = Client()
    browser.force_login(User.objects.get(username="owner"))
    assert browser.get("/audit").status_code == 403
    assert "/audit" not in browser.get("/").content.decode()
    browser.force_login(auditor.user)
    page = browser.get("/audit").content.decode()
    assert "&lt;script&gt;alert(1)" in page
    assert "<script>alert(1)" not in page
    assert 'href="/nodes/n1"' in page
    assert '<a href="/audit" aria-current="page">' in page
    for query in ("since=2020-01-01T00:00", "since=nonsense&via=nonsense", "actor=ada&object=n1&action=node.drain"):
        assert browser.get(f"/audit?{query}").status_code == 200
    assert "No change matches these filters" in browser.get("/audit?actor=nobody").content.decode()
    browser.cookies["django_language"] = "zh-hans"
    assert "审计日志" in browser.get("/audit", headers={"accept-language": "zh-hans"}).content.decode()


def test_an_entry_is_written_with_the_change_or_not_at_all(town: Town) -> None:
    town.machine()
    count = AuditEntry.objects.count()

    def fail() -> None:
        with audit.command("test"):
            service.make_token(town.user, "x")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert (AuditEntry.objects.count(), Token.objects.filter(name="x").count()) == (count, 0)
