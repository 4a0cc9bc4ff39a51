"""Limits of users: who sets and sees them, what they refuse and hold back, and that they hold in a crowd."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from django.db import connections
from django.db.models import Sum

from controlplane.accounts.models import Member, Project
from controlplane.fleet.models import Node
from controlplane.jobs.models import Claim, Stage
from controlplane.pools.models import Limit, Pool, Quota
from controlplane.scheduling.store import clock
from scheduler.core.planning.cycle import run
from tests.controlplane.people import Person, Town

AT_ONCE = 64


def test_accountants_set_limits_and_people_see_what_counts_for_them(town: Town) -> None:
    machine = town.machine()
    for person in (town.owner, town.lead):
        assert person.post("/limits", {"running": 1}).status_code == 403
    made = [
        town.staff.post("/limits", body).json()["number"]
        for body in ({"pool": "default", "running": 3}, {"user": "mate", "waiting": 2}, {"project": "other"})
    ]
    assert town.staff.post("/limits", {"user": "mate"}).status_code in {400, 409}, "one of a sort"
    for wrong in ({"devices": -1}, {"running": -1}, {"user": "nobody"}, {"pool": "nowhere"}, {"most": 3}):
        assert town.staff.post("/limits", wrong).status_code == 400, wrong
    seen = {
        name: [one["number"] for one in getattr(town, name).read("/limits")["results"]]
        for name in ("owner", "mate", "stranger", "staff")
    }
    assert {name: sorted(found) for name, found in seen.items()} == {
        "owner": made[:1], "mate": made[:2], "stranger": [made[0], made[2]], "staff": made,
    }  # fmt: skip
    town.running(machine, devices={"kind": "gpu", "count": 2})
    town.job(devices={"kind": "gpu"})
    (mine,) = town.owner.read("/limits")["results"]
    assert (mine["whose"], mine["running_now"], mine["waiting_now"], mine["devices_now"]) == ("owner", 1, 1, 2.0)
    changed = town.staff.patch(f"/limits/{made[0]}", {"running": 5}, **{"if-match": "*"})
    assert changed.json()["running"] == 5
    assert town.stranger.get(f"/limits/{made[1]}").status_code == 404


def test_a_limit_keeps_stages_waiting_and_says_whose_it_is(town: Town) -> None:
    town.machine()
    limit = Limit.objects.create(pool=town.pool, running=1)
    first, second = town.job(), town.job()
    town.cycle()
    (reason, *_rest) = Stage.objects.get(job=second).reasons
    assert (reason["code"], reason["params"]["user"], reason["params"]["limit"]) == ("UserStages", "owner", 1)
    assert reason["params"]["number"] == limit.pk
    assert Stage.objects.get(job=first).state == "STARTING"
    assert town.mate.post("/jobs", {"run": "x"}).status_code == 201
    town.cycle()
    assert Stage.objects.get(job__user__username="mate").state == "STARTING", "each for themselves"


def test_more_than_may_wait_is_refused_with_the_numbers(town: Town) -> None:
    town.machine()
    limit = Limit.objects.create(project=town.project, waiting=3)
    town.job(hold=True)
    refused = town.owner.post("/jobs", {"run": "x", "array": {"indexes": "0-2"}})
    assert refused.status_code == 422
    (error,) = json.loads(refused.content)["errors"]
    assert error["code"] == "too_many_waiting"
    assert error["detail"] == f"limit {limit.pk} allows you 3 waiting stages: 1 wait, and 3 more are submitted"
    assert town.mate.post("/jobs", {"run": "x", "array": {"indexes": "0-2"}}).status_code == 201
    Limit.objects.create(project=town.project, user=town.owner.user, waiting=4)
    assert town.owner.post("/jobs", {"run": "x", "array": {"indexes": "0-2"}}).status_code == 201, "their own counts"


def test_a_job_that_is_moved_is_judged_where_it_comes_to(town: Town) -> None:
    town.machine()
    other, aside = Project.objects.get(name="other"), Pool.objects.create(name="aside")
    Node.objects.get().pools.add(aside)
    Member.objects.create(project=other, user=town.owner.user, role="member")
    of_pool, everywhere = Limit.objects.create(pool=aside, waiting=1), Limit.objects.create(waiting=3)
    of_project = Limit.objects.create(project=other, waiting=0)
    town.job(hold=True, pool="aside")
    job, third = town.job(hold=True), town.job(hold=True)
    said = "limit {} allows you {} waiting stages: {} wait, and 1 more are submitted"
    for patch, detail in (
        ({"pool": "aside"}, said.format(of_pool.pk, 1, 1)),
        ({"project": "other"}, said.format(of_project.pk, 0, 0)),
        ({"project": "other", "pool": "aside"}, said.format(of_pool.pk, 1, 1)),
    ):
        refused = town.owner.patch(f"/jobs/{job.number}", patch)
        assert refused.status_code == 422, patch
        error = refused.json()["errors"][0]
        assert (error["pointer"], error["detail"], error["code"]) == (
            f"/{next(iter(patch))}", detail, "too_many_waiting"
        )  # fmt: skip
    assert Stage.objects.filter(job__pool=aside).count() == 1, "nothing of it was written"
    # A limit that counts the job already, as that of everywhere does, sees no more of it; a lower one moves nobody out.
    Limit.objects.filter(pk__in=[of_pool.pk, of_project.pk]).update(waiting=2)
    Limit.objects.filter(pk=everywhere.pk).update(waiting=1)
    assert town.owner.patch(f"/jobs/{job.number}", {"pool": "aside"}).status_code == 200
    assert town.owner.patch(f"/jobs/{third.number}", {"pool": "aside"}).status_code == 422
    assert town.owner.patch(f"/jobs/{third.number}", {"name": "stays"}).status_code == 200
    # A lead moves the jobs of others by the limits of these.
    assert town.lead.patch(f"/jobs/{third.number}", {"pool": "aside"}).status_code == 422


@pytest.mark.django_db(transaction=True)
def test_moves_at_once_leave_no_more_than_may_wait(town: Town) -> None:
    town.machine()
    aside = Pool.objects.create(name="aside")
    Node.objects.get().pools.add(aside)
    Limit.objects.create(pool=aside, waiting=3)
    numbers = [town.job(hold=True).number for _each in range(8)]

    def move(number: int) -> int:
        try:
            return Person(town.owner.user).patch(f"/jobs/{number}", {"pool": "aside"}).status_code
        finally:
            connections.close_all()

    def submit(_number: int) -> int:
        try:
            return Person(town.owner.user).post("/jobs", {"run": "x", "hold": True, "pool": "aside"}).status_code
        finally:
            connections.close_all()

    with ThreadPoolExecutor(8) as pool:
        codes = [*pool.map(lambda n: move(n) if n % 2 else submit(n), numbers)]
    assert set(codes) <= {200, 201, 422}
    assert Stage.objects.filter(job__pool=aside).count() == 3 == sum(code < 400 for code in codes)


@pytest.mark.django_db(transaction=True)
def test_quota_limit_and_capacity_hold_under_many_submits_at_once(town: Town) -> None:
    """While 64 submits come at once from two people, cycles run: no number is ever exceeded."""
    for name in ("n1", "n2", "n3"):
        town.machine(name)
    Quota.objects.create(project=town.project, kind="gpu", nominal=4, borrowing_limit=0)
    Limit.objects.create(user=town.owner.user, waiting=20)
    Limit.objects.create(user=town.owner.user, pool=town.pool, devices=1)
    people = [town.owner, town.mate] * (AT_ONCE // 2)

    def submit(person: Person) -> Any:
        try:
            # As clients do: the database is busy, and says to try again.
            while (answer := person.post("/jobs", {"run": "x", "devices": {"kind": "gpu"}})).status_code == 503:
                pass
            return answer.status_code
        finally:
            connections.close_all()

    held = Claim.objects.filter(closed_at=None, device__kind="gpu")
    with ThreadPoolExecutor(AT_ONCE) as crowd:
        answers = crowd.map(submit, people)
        for _ in range(5):
            run(town.store, town.store.profile, clock(), town.planner)
            assert (held.aggregate(sum=Sum("milli"))["sum"] or 0) <= 4000
            owners = held.filter(part__attempt__stage__job__user=town.owner.user)
            assert (owners.aggregate(sum=Sum("milli"))["sum"] or 0) <= 1000
        codes = list(answers)
    town.cycle()
    assert set(codes) <= {201, 422}
    assert codes[1::2] == [201] * (AT_ONCE // 2), "the other has no limit"
    waiting = Stage.objects.filter(job__user=town.owner.user, state="PENDING").count()
    begun = Stage.objects.filter(job__user=town.owner.user, state="STARTING").count()
    assert (waiting <= 20, begun, waiting + begun) == (True, 1, codes[::2].count(201))
    assert codes[::2].count(201) in {20, 21}, "as many as may wait, and the one that began meanwhile"
    assert held.aggregate(sum=Sum("milli"))["sum"] == 4000
