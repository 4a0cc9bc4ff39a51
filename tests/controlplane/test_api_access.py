"""Who gets in: tokens, sessions, scopes, and what each kind of person may know of."""

from __future__ import annotations

import json
import re
from datetime import timedelta
from typing import Any

import pytest
from django.core.management import call_command
from django.db import connection
from django.test import Client
from django.urls import URLPattern
from django.utils import timezone

from agents.protocol import Conditions, SetAside
from controlplane.accounts import service
from controlplane.accounts.models import Member, Project, SignInLink, Token, User
from controlplane.api.urls import urlpatterns
from controlplane.fleet import fuse
from controlplane.fleet import service as fleet
from controlplane.fleet.models import Heartbeat, Node
from controlplane.pools.models import Pool
from tests.controlplane.people import Person, Town

# The version and the description of the API itself hold nothing of anybody.
OPEN = {"version", "openapi.yaml", "docs", "schemas/job.json"}
READS = [
    "jobs", "jobs/{number}", "jobs/{number}/spec", "jobs/{number}/why", "jobs/{number}/events",
    "jobs/{number}/counterfactuals",
    "jobs/{number}/attempts", "jobs/{number}/traces", "jobs/{number}/ports", "sessions",
    "jobs/{number}/checkpoints", "jobs/{number}/streams", "jobs/{number}/logs", "jobs/{number}/metrics",
    "jobs/{number}/values", "jobs/{number}/receipt", "jobs/{number}/failures", "jobs/{number}/waits",
    "jobs/{number}/pace", "usage", "nodes", "topology",
    "nodes/n1", "devices", "devices/GPU-n1-0", "devices/GPU-n1-0/metrics",
    "devices/GPU-n1-0/claims", "hardware", "pools", "pools/default", "profiles", "profiles/hybrid",
    "projects", "projects/default", "projects/default/retention", "retention/preview", "quotas", "budgets",
    "limits",
    "priority-classes", "overview", "operations", "overview/gangs", "overview/history", "overview/loads",
    "queue", "search", "timeline", "events", "decisions", "simulations", "version", "whoami",
    "maintenance-windows", "reservations", "calendar", "fuse", "health", "audit",
    "retention/preview", "projects/default/secrets",
    "projects/default/retention",
    "arrays", "openapi.yaml", "docs", "schemas/job.json",
]  # fmt: skip
WRITES = ["bundles", "fuse/release", "jobs", "jobs/batch", "jobs/bulk",
          "jobs/{number}/cancel", "jobs/{number}/hold", "jobs/{number}/release", "jobs/{number}/requeue",
          "jobs/{number}/signal", "jobs/{number}/traces", "jobs/{number}/ports",
          "nodes/drain", "nodes/n1/drain", "nodes/n1/lost", "nodes/n1/rotate", "nodes/n1/quarantine",
          "nodes/n1/resume", "devices/GPU-n1-0/cordon",
          "devices/GPU-n1-0/uncordon", "simulations", "maintenance-windows", "reservations",
          "consolidation", "profiles",
          "pools/default/profile"]  # fmt: skip
# Judged where they are tested, since they need what no other read needs.
OTHERS = {"jobs/watch", "reservations/{id}", "reservations/{id}/cancel",
          "quotas/{id}", "budgets/{id}", "limits/{id}", "priority-classes/{id}",
          "providers", "providers/{id}", "providers/{id}/pilots", "providers/{id}/settings",
          "sites", "sites/{id}", "sites/{id}/jobs", "sites/{id}/settings", "sites/{id}/token", "sites/{id}/give-up",
          "projects/{id}/settings", "projects/{id}/members/{user}",
          "projects/{id}/webhooks", "projects/{id}/webhooks/{name}", "projects/{id}/webhooks/{name}/test",
          "projects/{id}/webhooks/{name}/deliveries", "projects/{id}/webhooks/{name}/deliveries/{event}/resend",
          "device-codes", "device-codes/token", "tokens", "tokens/{id}",
          "pools/{id}/settings", "nodes/{id}/settings", "tokens/current", "pools/{id}/access",
          "projects/{id}/secrets/{name}",
          "survivors", "survivors/{id}/stop", "survivors/{id}/forget",
          "service-accounts", "service-accounts/{id}", "service-accounts/{id}/tokens",
          "service-accounts/{id}/tokens/{token}",
          "templates", "templates/{id}", "templates/{id}/fill",
          "schedules", "schedules/{id}", "schedules/{id}/run",
          "services", "services/{id}", "services/{id}/rollback",
          "functions", "functions/{id}", "functions/{id}/calls", "functions/{id}/calls/{call}",
          "functions/{id}/calls/{call}/retry",
          "maintenance-windows/{id}", "maintenance-windows/{id}/cancel",
          "arrays/{id}", "arrays/{id}/elements", "arrays/{id}/cancel", "arrays/{id}/hold", "arrays/{id}/release",
          "jobs/{number}/traces/{id}", "jobs/{number}/traces/{id}/content",
          "jobs/{number}/logs/search", "jobs/{number}/logs/follow",
          "attempts/{id}", "attempts/{id}/adjust", "bundles/{sha256}",
          "decisions/{id}", "decisions/{id}/difference", "decisions/{id}/record",
          "profiles/{id}/versions", "profiles/{id}/versions/{id}/preview", "profiles/{id}/activate",
          "profiles/{id}/delete", "profiles/{id}/settings", "operations/{id}", "operations/{id}/cancel",
          "simulations/{id}", "simulations/{id}/cancel"}  # fmt: skip


def routes() -> set[str]:
    """All addresses of the API with their parameters blanked."""
    found = set()
    for pattern in urlpatterns:
        assert isinstance(pattern, URLPattern)
        text = re.sub(r"^\^|\$$", "", str(pattern.pattern))
        found.add(re.sub(r"<[^>]+>|\(\?P<\w+>[^)]*\)", "*", text))
    return found - {"*"}


def test_every_route_stands_in_the_table() -> None:
    listed = {re.sub(r"\{\w+\}", "*", each) for each in [*READS, *WRITES, *OTHERS]}
    listed = {re.sub(r"^(nodes|devices|pools|profiles|projects)/(?!drain$)[\w-]+", r"\1/*", each) for each in listed}
    assert routes() == listed


@pytest.mark.parametrize("path", READS)
def test_reading_needs_a_name(town: Town, path: str) -> None:
    town.machine()
    job = town.job()
    answer = town.anonymous.get("/" + path.format(number=job.number))
    assert answer.status_code == (200 if path in OPEN else 401)
    if path not in OPEN:
        assert answer["WWW-Authenticate"].startswith("Bearer")
        assert json.loads(answer.content)["code"] == "not_authenticated"


@pytest.mark.parametrize("path", WRITES)
def test_writing_needs_a_name(town: Town, path: str) -> None:
    town.machine()
    job = town.job()
    assert town.anonymous.post("/" + path.format(number=job.number)).status_code == 401


@pytest.mark.parametrize("path", [path for path in READS if path.startswith(("jobs/", "projects/"))])
def test_what_belongs_to_a_project_is_unknown_to_strangers(town: Town, path: str) -> None:
    town.machine()
    address = "/" + path.format(number=town.job().number)
    answers = {
        name: getattr(town, name).get(address).status_code for name in ("owner", "mate", "lead", "viewer", "staff")
    }
    assert set(answers.values()) == {200}
    stranger, nothing = town.stranger.get(address), town.stranger.get(address.replace("default", "nowhere"))
    assert (stranger.status_code, nothing.status_code) == (404, 404)


def test_lists_hold_only_what_one_may_see(town: Town) -> None:
    agent = town.machine()
    job = town.running(agent, name="classified", stages=[{"name": "hushhush", "kind": "train", "run": "x"}])
    for path in ("jobs", "events", "decisions", "overview", "timeline", "devices", "nodes", "projects", "quotas"):
        text = town.stranger.get(f"/{path}").content.decode()
        assert town.stranger.get(f"/{path}").status_code == 200
        assert not re.search(r"classified|hushhush|owner", text), path
    seen = town.owner.get("/overview").content.decode() + town.owner.get("/timeline").content.decode()
    assert "classified" in seen
    # What there is and how busy it is, everybody knows.
    (claim,) = next(d for d in town.stranger.read("/devices?kind=gpu")["results"] if d["claimed_milli"])["claims"]
    assert (claim["job"], claim["project"], claim["milli"]) == (None, None, 1000)
    cells = [d for node in town.stranger.read("/overview")["nodes"] for d in node["devices"] if d["kind"] == "gpu"]
    assert sorted((d["state"], d["job"]) for d in cells) == [("allocated", None), ("free", None)]
    assert any(segment["job"] == job.number for segment in town.owner.read("/timeline")["segments"])
    assert {segment["job"] for segment in town.stranger.read("/timeline")["segments"]} == {None}


def test_only_staff_drain_and_resume(town: Town) -> None:
    town.machine()
    for name in ("owner", "lead", "stranger"):
        assert getattr(town, name).post("/nodes/n1/drain", {"reason": "x"}).status_code == 403
    answer = town.staff.post("/nodes/n1/drain", {"reason": "new cooling"})
    assert json.loads(answer.content)["state"] in {"DRAINING", "DRAINED"}
    assert json.loads(town.staff.post("/nodes/n1/resume").content)["state"] == "READY"
    assert town.staff.post("/nodes/n1/drain").status_code == 409
    assert town.lead.post("/nodes/n1/lost", {"reason": "x"}).status_code == 403
    refused = town.staff.post("/nodes/n1/lost", {"reason": "it burnt"})
    assert refused.status_code == 409
    assert "not LOST" in json.loads(refused.content)["detail"]
    assert town.staff.post("/nodes/n9/drain", {"reason": "x"}).status_code == 404


def test_only_staff_decide_about_a_part_that_is_set_aside(town: Town) -> None:
    agent = town.machine()
    agent.report(conditions=Conditions(aside=[SetAside("p1", "/state/parts/p1", "Undecodable: torn")]))
    (entry,) = town.owner.read("/nodes/n1")["conditions"]["aside"]
    assert (entry["part"], entry["reason"], entry["folder"]) == ("p1", "Undecodable: torn", "/state/parts/p1")
    wanted = {"part": "p1", "do": "release"}
    for name in ("owner", "mate", "lead", "viewer", "stranger"):
        assert getattr(town, name).post("/nodes/n1/quarantine", wanted).status_code == 403
    answer = town.staff.post("/nodes/n1/quarantine", wanted)
    assert answer.status_code == 200
    assert json.loads(answer.content)["conditions"]["aside"][0]["asked"]["do"] == "release"
    for wrong, status in (
        ({"part": "p1", "do": "discard"}, 409),
        ({"part": "p2", "do": "release"}, 409),
        ({"part": "p1", "do": "burn"}, 400),
        ({"do": "release"}, 400),
    ):
        assert town.staff.post("/nodes/n1/quarantine", wrong).status_code == status, wrong
    assert town.staff.post("/nodes/n9/quarantine", wanted).status_code == 404


@pytest.mark.parametrize(
    ("scopes", "reads", "submits", "drains"),
    [
        (["read"], 200, 403, 403),
        (["submit"], 403, 201, 403),
        (["admin"], 403, 403, 200),
        (["read", "submit"], 200, 201, 403),
    ],
)
def test_a_token_does_what_its_scopes_say(town: Town, scopes: list[str], reads: int, submits: int, drains: int) -> None:
    town.machine()
    person = Person(town.user, *scopes)
    assert person.get("/jobs").status_code == reads
    assert person.post("/jobs", {"run": "x"}).status_code == submits
    assert person.post("/nodes/n1/drain", {"reason": "x"}).status_code == drains


def test_tokens_that_are_unknown_expired_or_revoked_are_refused(town: Town) -> None:
    assert town.owner.get("/whoami").status_code == 200
    token = Token.objects.get(user__username="owner")
    Token.objects.filter(pk=token.pk).update(expires_at=timezone.now() - timedelta(seconds=1))
    assert town.owner.get("/whoami").status_code == 401
    Token.objects.filter(pk=token.pk).update(expires_at=timezone.now() + timedelta(days=1))
    assert town.owner.get("/whoami").status_code == 200
    User.objects.filter(username="owner").update(is_active=False)
    assert town.owner.get("/whoami").status_code == 401
    User.objects.filter(username="owner").update(is_active=True)
    token.delete()
    assert town.owner.get("/whoami").status_code == 401
    for wrong in ("Bearer yard_nonsense", "Bearer", "Bearer \xff", "Bearer " + "x" * 5000):
        answer = Client().get("/api/v1/whoami", headers={"authorization": wrong})
        assert answer.status_code == 401


def test_the_database_holds_no_usable_secret(town: Town) -> None:
    _, secret = service.make_token(town.user, "canary")
    link = service.make_sign_in_link(town.user).rpartition("/")[2]
    with connection.cursor() as cursor:
        for table in ("access_token", "access_signinlink"):
            cursor.execute(f"SELECT t::text FROM {table} t")
            text = "\n".join(row[0] for row in cursor.fetchall())
            assert text
            assert secret not in text
            assert secret.removeprefix(service.PREFIX) not in text
            assert link not in text


def test_use_of_a_token_is_noted_once_a_minute(town: Town) -> None:
    def used() -> Any:
        return Token.objects.get(user__username="owner").last_used_at

    town.owner.get("/whoami")
    first = used()
    assert first is not None
    town.owner.get("/whoami")
    assert used() == first
    Token.objects.filter(user__username="owner").update(last_used_at=first - timedelta(minutes=2))
    town.owner.get("/whoami")
    assert used() >= first


def test_a_browser_changes_nothing_without_its_csrf_token(town: Town) -> None:
    town.machine()
    browser = Client(enforce_csrf_checks=True)
    browser.force_login(User.objects.get(username="owner"))
    assert browser.get("/api/v1/jobs").status_code == 200
    refused = browser.post("/api/v1/jobs", json.dumps({"run": "x"}), content_type="application/json")
    assert refused.status_code == 403
    assert json.loads(refused.content)["code"] == "permission_denied"
    token = "a" * 32
    browser.cookies["yard_csrf"] = token
    accepted = browser.post(
        "/api/v1/jobs", json.dumps({"run": "x"}), content_type="application/json", headers={"X-CSRFToken": token}
    )
    assert accepted.status_code == 201


def test_nothing_changes_by_get(town: Town) -> None:
    for path in ("jobs/1/cancel", "nodes/n1/drain", "jobs/batch"):
        assert town.staff.get(f"/{path}").status_code == 405


def test_a_sign_in_link_works_once(town: Town) -> None:
    secret = service.make_sign_in_link(town.user).rpartition("/")[2]
    assert service.redeem(secret) == town.user
    assert service.redeem(secret) is None
    assert service.redeem("nonsense") is None
    late = service.make_sign_in_link(town.user).rpartition("/")[2]
    SignInLink.objects.update(expires_at=timezone.now() - timedelta(seconds=1))
    assert service.redeem(late) is None
    gone = service.make_sign_in_link(town.user).rpartition("/")[2]
    User.objects.filter(pk=town.user.pk).update(is_active=False)
    assert service.redeem(gone) is None


def test_bootstrap_makes_all_that_is_needed_and_may_be_repeated(db: None, capsys: pytest.CaptureFixture[str]) -> None:
    for _ in range(2):
        call_command("bootstrap", "--json", "--storage", "/shared")
        secrets = json.loads(capsys.readouterr().out)
        assert set(secrets) == {"sign_in_path", "api_token", "join_token", "simulated_join_token"}
        admin = service.redeem(secrets["sign_in_path"].removeprefix("/sign-in/"))
        assert admin is not None
        assert (admin.username, admin.is_superuser, admin.has_usable_password()) == ("admin", True, False)
        client = Client(headers={"authorization": f"Bearer {secrets['api_token']}"})
        whoami = json.loads(client.get("/api/v1/whoami").content)
        assert (whoami["default_project"], whoami["projects"]) == ("default", [{"project": "default", "role": "lead"}])
        names = [each["name"] for each in json.loads(client.get("/api/v1/priority-classes").content)["results"]]
        assert names == ["urgent", "high", "medium", "low"]
        pools = json.loads(client.get("/api/v1/pools").content)["results"]
        assert [(pool["name"], pool["shared_storage"]) for pool in pools] == [("default", True), ("simulated", True)]
    assert (User.objects.count(), Project.objects.count(), Member.objects.count()) == (1, 1, 1)
    call_command("bootstrap", "--json", "--no-tokens", "--storage", "/other", "--keep-storage")
    assert set(Pool.objects.values_list("storage_path", flat=True)) == {"/shared"}
    call_command("bootstrap", "--json", "--no-tokens", "--storage", "/other")
    assert set(Pool.objects.values_list("storage_path", flat=True)) == {"/other"}
    assert [json.loads(line) for line in capsys.readouterr().out.splitlines()] == [{}, {}]
    call_command("bootstrap", "--json", "--no-tokens")
    assert json.loads(capsys.readouterr().out) == {}


def test_secrets_from_the_command_line_work(town: Town, capsys: pytest.CaptureFixture[str]) -> None:
    call_command("yard_token", "owner", "--scope", "read")
    client = Client(headers={"authorization": f"Bearer {capsys.readouterr().out.strip()}"})
    assert json.loads(client.get("/api/v1/whoami").content)["scopes"] == ["read"]
    call_command("sign_in_link", "owner")
    user = service.redeem(capsys.readouterr().out.strip().rpartition("/")[2])
    assert user is not None
    assert user.username == "owner"
    call_command("join_token", "--pool", "default", "--uses", "2")
    from controlplane.fleet.service import enrol

    secret = capsys.readouterr().out.strip()
    assert enrol(secret, "a")[0].name == "a"
    assert enrol(secret, "b")[0].name == "b"


def test_survivors_are_staffs(town: Town) -> None:
    part = "5f1c0f0e-5a4e-4d7e-9a53-0c2f5d1b8c11"
    told = {"attempt": part, "epoch": 1, "phase": 50, "pid": 7, "devices": [], "since": "2026-01-01T00:00:00+00:00",
            "stopped_by": "", "forgotten_by": ""}  # fmt: skip
    fleet.enrol(fleet.make_join_token(town.pool), "n1")
    Node.objects.filter(name="n1").update(survivors={part: told})
    assert town.lead.get("/survivors").status_code == 403
    assert town.lead.read("/nodes/n1")["survivors"] == []
    for deed in ("stop", "forget"):
        assert town.lead.post(f"/survivors/{part}/{deed}", {"reason": "x"}).status_code == 403
        assert town.staff.post(f"/survivors/other/{deed}", {"reason": "x"}).status_code == 404
    assert [one["part"] for one in town.staff.read("/survivors")["results"]] == [part]
    assert town.staff.post(f"/survivors/{part}/stop", {}).status_code == 409
    assert town.staff.post(f"/survivors/{part}/stop", {"reason": "old"}).json()["stopped_by"] == "old (ada)"
    assert town.staff.read("/nodes/n1")["survivors"][0]["ended"] is False


def test_the_fuse_is_seen_by_all_and_released_by_staff_with_a_reason(town: Town) -> None:
    assert town.owner.read("/fuse") == {"blown_at": None, "silent": [], "nodes": 0}
    assert town.staff.post("/fuse/release", {"reason": "x"}).status_code == 409
    Heartbeat.objects.create(name=fuse.BLOWN, at=timezone.now())
    for lead, reason, status in ((town.lead, "x", 403), (town.staff, " ", 422), (town.staff, "x", 200)):
        assert town.owner.read("/fuse")["blown_at"]
        assert lead.post("/fuse/release", {"reason": reason}).status_code == status
    assert town.owner.read("/fuse")["blown_at"] is None
