"""Who may use which pool: what is refused, what waits, and what is never placed."""

from __future__ import annotations

import json
from typing import Any

import pytest
from django.contrib.auth.models import Group
from django.http import HttpResponse
from django.test import Client
from django.urls import reverse

from controlplane.accounts.models import AuditEntry, Project, User
from controlplane.fleet.models import Node
from controlplane.jobs import spec
from controlplane.jobs.models import Job, Stage
from controlplane.pools import profiles
from controlplane.pools.models import Pool
from controlplane.scheduling.apply import apply_plan
from controlplane.scheduling.store import clock
from scheduler.core.model.types import Plan, Preempt
from scheduler.core.planning import engine
from tests.controlplane.people import Person, Town

REFUSED = "project default may not use pool default; it may use free"


def put(person: Person, body: Any, **headers: str) -> HttpResponse:
    content = json.dumps(body)
    return person.client.put("/api/v1/pools/default/access", content, content_type="application/json", headers=headers)


@pytest.fixture
def shut(town: Town) -> Town:
    """The pool is for the project of the stranger; there is another one for everybody."""
    free = Pool.objects.create(name="free")
    town.machine()
    Node.objects.get().pools.add(free)
    assert put(town.staff, {"projects": ["other"]}).status_code == 200
    return town


def test_a_pool_is_for_everybody_until_it_names_somebody(town: Town) -> None:
    town.machine()
    assert town.staff.read("/pools/default/access") == {"restricted": False, "projects": [], "groups": []}
    assert town.owner.post("/jobs", {"run": "x"}).status_code == 201
    pool = town.owner.read("/pools/default")
    assert (pool["restricted"], pool["usable"]) == (False, True)


def test_a_submission_to_it_is_refused_in_words_also_where_it_is_only_tried(shut: Town) -> None:
    for query in ("", "?dry_run=validate"):
        answer = shut.owner.post(f"/jobs{query}", {"run": "x"})
        assert answer.status_code == 422
        (fault,) = answer.json()["errors"]
        assert (fault["pointer"], fault["detail"], fault["code"]) == ("/pool", REFUSED, "pool_refused")
    with pytest.raises(spec.InvalidSpec, match="may not use pool default"):
        # The dry run that asks the engine reads the file in the same way.
        spec.resolve_all([{"run": "x"}], User.objects.get(username="owner"))
    assert shut.owner.post("/jobs/batch", {"jobs": [{"run": "x"}]}).status_code == 422
    assert shut.owner.post("/jobs", {"run": "x", "pool": "free"}).status_code == 201
    assert shut.stranger.post("/jobs", {"run": "x"}).status_code == 201
    Pool.objects.get(name="free").allowed_projects.add(Project.objects.get(name="other"))
    told = shut.owner.post("/jobs", {"run": "x"}).json()["errors"][0]["detail"]
    assert told == "project default may not use pool default, nor any other; ask an operator"


def test_the_form_and_the_list_offer_only_what_may_be_used(shut: Town) -> None:
    usable = {pool["name"]: pool["usable"] for pool in shut.owner.read("/pools")["results"]}
    assert usable == {"default": False, "free": True}
    assert all(pool["usable"] for pool in shut.stranger.read("/pools")["results"])
    # Whose the pool is, is nobody's business who does not run the cluster.
    assert "other" not in shut.owner.get("/pools").content.decode()
    browser = Client()
    browser.force_login(User.objects.get(username="owner"))
    page = browser.get("/jobs/new").content.decode()
    assert "<option>free</option>" in page
    assert page.count("<option>default</option>") == 1, "the project of this name, and not the pool"


def test_a_member_of_a_group_may_use_it_in_any_project(shut: Town) -> None:
    night = Group.objects.create(name="night")
    assert put(shut.staff, {"groups": ["night"]}).status_code == 200
    assert shut.owner.post("/jobs", {"run": "x"}).status_code == 422
    User.objects.get(username="owner").groups.add(night)
    assert shut.owner.post("/jobs", {"run": "x"}).status_code == 201
    assert shut.mate.post("/jobs", {"run": "x"}).status_code == 422
    assert shut.stranger.post("/jobs", {"run": "x"}).status_code == 422


def test_what_waits_when_its_project_loses_the_pool_says_so_and_is_never_placed(town: Town) -> None:
    agent = town.machine()
    job, theirs = town.job(), town.stranger.post("/jobs", {"run": "x"}).json()["number"]
    assert put(town.staff, {"projects": ["other"]}).status_code == 200
    for _ in range(2):
        town.cycle()
    stage = Stage.objects.get(job=job)
    assert stage.state == "PENDING"
    assert (stage.reasons[0]["code"], stage.reasons[0]["params"]) == (
        "PoolRefused", {"project": "default", "pool": "default"},
    )  # fmt: skip
    why = town.owner.read(f"/jobs/{job.number}/why")["reason"]
    assert why["text"] == "project default may not use pool default any more"
    assert Stage.objects.get(job__number=theirs).state == "STARTING"
    assert put(town.staff, {}).status_code == 200
    town.cycle()
    assert Stage.objects.get(job=job).state == "STARTING", "and goes on once it may again"
    assert agent


def test_what_waits_follows_the_groups_of_its_user(town: Town) -> None:
    town.machine()
    night = Group.objects.create(name="night")
    user = User.objects.get(username="owner")
    user.groups.add(night)
    put(town.staff, {"groups": ["night"]})
    job = town.job(hold=True)
    user.groups.remove(night)
    town.owner.post(f"/jobs/{job.number}/release")
    town.cycle()
    assert Stage.objects.get(job=job).state == "PENDING"
    user.groups.add(night)
    town.cycle()
    assert Stage.objects.get(job=job).state == "STARTING"


def test_a_pool_whose_last_project_is_deleted_is_nobodys_until_it_is_opened_on_purpose(shut: Town) -> None:
    brief = Project.objects.create(name="brief")
    job = Job.objects.get(number=shut.stranger.post("/jobs", {"run": "x", "hold": True}).json()["number"])
    assert put(shut.staff, {"projects": ["brief"]}).status_code == 200
    brief.delete()
    read = shut.staff.read("/pools/default/access")
    assert read == {"restricted": True, "projects": [], "groups": []}
    for person in (shut.owner, shut.stranger):
        assert person.post("/jobs", {"run": "x"}).status_code == 422
        pool = person.read("/pools/default")
        assert (pool["restricted"], pool["usable"]) == (True, False)
    shut.stranger.post(f"/jobs/{job.number}/release")
    shut.cycle()
    assert Stage.objects.get(job=job).reasons[0]["code"] == "PoolRefused"
    assert put(shut.staff, read).status_code == 200
    assert shut.owner.post("/jobs", {"run": "x"}).status_code == 422, "what was read is written as it was"
    assert put(shut.staff, {}).status_code == 200
    assert shut.owner.post("/jobs", {"run": "x"}).status_code == 201
    shut.cycle()
    assert Stage.objects.get(job=job).state == "STARTING"


def test_a_group_that_is_deleted_leaves_the_pool_closed(shut: Town) -> None:
    night = Group.objects.create(name="night")
    User.objects.get(username="owner").groups.add(night)
    assert put(shut.staff, {"groups": ["night"]}).status_code == 200
    assert shut.owner.post("/jobs", {"run": "x"}).status_code == 201
    night.delete()
    assert shut.owner.post("/jobs", {"run": "x"}).status_code == 422


def test_a_start_whose_project_lost_the_pool_since_the_snapshot_is_skipped(town: Town) -> None:
    town.machine()
    job, theirs = town.job(), town.stranger.post("/jobs", {"run": "x"}).json()["number"]
    now = clock()
    snapshot = town.store.load(now)
    plan = engine.plan(snapshot, profiles.of(snapshot.pools), now)
    assert len(plan.starts) == 2
    assert put(town.staff, {"projects": ["other"]}).status_code == 200
    applied = apply_plan(snapshot, plan, now)
    ours, other = Stage.objects.get(job=job), Stage.objects.get(job__number=theirs)
    assert (applied.skipped, applied.started) == ((str(ours.pk),), (str(other.pk),))
    assert (ours.state, other.state) == ("PENDING", "STARTING")


def test_nothing_is_stopped_for_a_stage_that_lost_the_pool_since_the_snapshot(town: Town) -> None:
    agent = town.machine()
    running = town.running(agent, devices={"kind": "gpu", "count": 2})
    victim = Stage.objects.get(job=running)
    wants = Stage.objects.get(job=town.job(name="wants", devices={"kind": "gpu"}))
    now = clock()
    snapshot = town.store.load(now)
    stop = Preempt(victim=str(victim.pk), stage=str(wants.pk), price=0.0, gain=1.0, devices=())
    put(town.staff, {"projects": ["other"]})
    assert apply_plan(snapshot, Plan(preempts=(stop,)), now).stopped == ()
    victim.refresh_from_db()
    assert victim.state == "RUNNING"


def test_what_runs_goes_on(town: Town) -> None:
    job = town.running(town.machine())
    put(town.staff, {"projects": ["other"]})
    town.cycle()
    assert Job.objects.get(pk=job.pk).state == "RUNNING"


def test_who_may_use_it_is_set_with_a_permission_and_as_it_was_read(town: Town) -> None:
    read = town.staff.get("/pools/default/access")
    for person, status in ((town.owner, 403), (town.lead, 403), (town.staff, 200)):
        assert put(person, {"projects": ["other"]}).status_code == status
    stale = put(town.staff, {"projects": []}, **{"If-Match": read["ETag"]})
    assert (stale.status_code, stale.json()["code"]) == (412, "changed_meanwhile")
    fresh = town.staff.get("/pools/default/access")["ETag"]
    assert put(town.staff, {"projects": []}, **{"If-Match": fresh}).status_code == 200
    for body, pointer in (({"projects": ["nowhere"]}, "/projects/0"), ({"groups": ["nobody"]}, "/groups/0")):
        answer = put(town.staff, body)
        assert (answer.status_code, answer.json()["errors"][0]["pointer"]) == (400, pointer)
    assert put(town.staff, {"projects": ["x"] * 2000}).status_code == 400
    entry = AuditEntry.objects.filter(action="pool.allow").latest("id")
    assert (entry.before["projects"], entry.after["projects"]) == (["other"], [])


def test_it_is_set_in_the_administration_too(town: Town) -> None:
    User.objects.filter(pk=town.user.pk).update(is_superuser=True)
    browser = Client()
    browser.force_login(User.objects.get(pk=town.user.pk))
    form = {"name": "default", "profile": "hybrid", "storage_path": "/s", "default_limit_s": 60, "max_limit_s": 90}
    form |= {"on_node_lost": "wait", "isolation": "none", "min_runtime_s": 0}
    form |= {"allowed_projects": [Project.objects.get(name="other").pk]}
    change = reverse("admin:pools_pool_change", args=[town.pool.pk])
    assert browser.post(change, form).status_code == 302
    assert town.owner.read("/pools/default")["usable"] is False
    entry = AuditEntry.objects.latest("id")
    assert entry.after["allowed_projects"] == ["other"]
    form["allowed_projects"] = []
    assert browser.post(change, form | {"restricted": "on"}).status_code == 302
    assert town.stranger.read("/pools/default")["usable"] is False, "it names nobody and is restricted"
    assert browser.post(change, form).status_code == 302
    assert town.stranger.read("/pools/default")["usable"] is True
    assert town.owner.read("/pools/default")["usable"] is True
