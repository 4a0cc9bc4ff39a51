"""What an installation says of itself to load balancers and to people."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from django.core.cache.backends.redis import RedisCache
from django.db.models import F
from django.test import Client

from controlplane.fleet.models import Heartbeat
from controlplane.observability import health
from controlplane.operations import watch
from controlplane.pools.models import Pool
from controlplane.providers.models import NodeProvider
from controlplane.workers import presence, task_records
from tests.controlplane.people import Person, Town


def said(town: Town) -> dict[str, Any]:
    return {one["name"]: one for one in town.staff.read("/health")["checks"]}


def browser(person: Person) -> Client:
    client = Client()
    assert person.user is not None
    client.force_login(person.user)
    return client


@pytest.fixture
def workers(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """One for all queues, and a second scheduler."""
    monkeypatch.setattr(presence, "KEY", "test:worker:")
    monkeypatch.setattr(task_records, "_well_at", {})
    monkeypatch.setattr(task_records, "_ill_at", {})
    with presence.connect() as redis:
        presence.write(
            presence.WorkerPresence("all@here", ("scheduling", "fleet", "maintenance"), stands_by=False), redis
        )
        presence.write(presence.WorkerPresence("q@here", ("questions", "simulations"), stands_by=False), redis)
        presence.write(presence.WorkerPresence("second@here", ("scheduling", "fleet"), stands_by=True), redis)
        yield
        for name in ("all@here", "q@here", "second@here"):
            presence.erase(name, redis)


def test_all_is_well_where_scheduler_and_worker_have_just_looked(town: Town, workers: None) -> None:
    watch.claim("watch", 0)
    task_records.record_success("scheduling.cycle", 0.012)
    watch.claim("housekeeping", 0)
    town.machine()
    assert [one for one in said(town).values() if not one["ok"]] == []
    assert town.staff.read("/health")["ok"]
    assert said(town)["scheduler"]["says"].endswith("s ago and took 12 ms")
    assert (Client().get("/healthz").content, Client().get("/readyz").content) == (b"ok\n", b"ready\n")


def test_a_scheduler_that_does_not_look_is_not_ready(town: Town) -> None:
    watch.claim("watch", 0)
    Heartbeat.objects.filter(name="watch").update(at=F("at") - timedelta(minutes=1))
    answer = Client().get("/readyz?verbose")
    assert answer.status_code == 503
    lines = answer.content.decode().splitlines()
    assert lines[0] == "[+] database"
    assert "[-] scheduler" in lines
    assert lines[-1] == "not ready: scheduler"
    assert "looked round 60 s ago" in said(town)["scheduler"]["says"]


def test_only_staff_are_told_why(town: Town) -> None:
    found = town.owner.read("/health")
    assert not found["ok"], "no worker has cleared up in a test"
    assert {one["says"] for one in found["checks"]} == {""}


def test_without_redis_it_serves_and_says_what_is_missing(town: Town, monkeypatch: pytest.MonkeyPatch) -> None:
    watch.claim("watch", 0)
    monkeypatch.setattr(health, "cache", RedisCache("unix:///nowhere/valkey.sock", {}))
    assert Client().get("/readyz").status_code == 200
    assert not said(town)["redis"]["ok"]


def test_a_full_disk_is_told(town: Town, monkeypatch: pytest.MonkeyPatch, settings: Any, tmp_path: Any) -> None:
    settings.BLOBS = tmp_path
    monkeypatch.setattr(health, "LEAST_FREE_BYTES", 2**62)
    assert not said(town)["storage"]["ok"]


def test_queues_say_who_takes_them_and_who_stands_by(town: Town, workers: None) -> None:
    with presence.connect() as redis:
        redis.rpush("maintenance", "a message that nobody takes")
        try:
            queues = {one["name"]: one for one in town.staff.read("/health")["queues"]}
            page = browser(town.staff).get("/health").content.decode()
        finally:
            redis.delete("maintenance")
    assert list(queues) == ["scheduling", "fleet", "questions", "simulations", "maintenance"]
    assert (queues["maintenance"]["waiting"], queues["fleet"]["standing_by"]) == (1, ["second@here"])
    assert "second@here" in page
    assert town.owner.read("/health")["queues"] == town.owner.read("/health")["tasks"] == []


def test_a_queue_that_nobody_takes_is_told(town: Town, workers: None) -> None:
    with presence.connect() as redis:
        presence.erase("all@here", redis)
    assert said(town)["workers"]["says"] == "no worker takes scheduling, fleet, maintenance"


def test_a_task_that_fails_is_told_until_it_ends_well(town: Town, workers: None) -> None:
    task_records.record_failure("maintenance.invariants", OSError("<no> room"))
    assert said(town)["tasks"]["says"] == "maintenance.invariants fails: OSError: <no> room"
    (task,) = town.staff.read("/health")["tasks"]
    assert (task["ok"], task["failures"], task["done_at"]) == (False, 1, None)
    page = browser(town.staff).get("/health", headers={"Accept-Language": "zh-hans"}).content.decode()
    assert "OSError: &lt;no&gt; room" in page
    assert "此后未成功" in page
    task_records.record_success("maintenance.invariants", 0.5)
    assert said(town)["tasks"]["ok"]
    assert town.staff.read("/health")["tasks"][0]["failures"] == 1


def test_others_see_what_works_and_no_more(town: Town, workers: None) -> None:
    task_records.record_failure("fleet.watch", ValueError("a secret of the installation"))
    page = browser(town.owner).get("/health").content.decode()
    assert "a secret" not in page


def test_a_provider_that_cannot_go_on_is_told_while_it_is_enabled(town: Town) -> None:
    assert said(town)["providers"] == {"name": "providers", "ok": True, "vital": False, "says": "none is enabled"}
    pool = Pool.objects.get(name="default")
    row = NodeProvider.objects.create(name="lab", kind="slurm", pool=pool, condition="Slurm: it is down")
    assert said(town)["providers"]["says"] == "lab: Slurm: it is down"
    assert not said(town)["providers"]["ok"]
    NodeProvider.objects.filter(pk=row.pk).update(enabled=False)
    assert said(town)["providers"]["ok"]
