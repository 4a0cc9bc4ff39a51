"""What an installation says of itself to load balancers and to people."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.core.cache.backends.redis import RedisCache
from django.db.models import F
from django.test import Client

from controlplane.fleet.models import Heartbeat
from controlplane.observability import health
from controlplane.operations import watch
from tests.controlplane.people import Town


def said(town: Town) -> dict[str, Any]:
    return {one["name"]: one for one in town.staff.read("/health")["checks"]}


def test_all_is_well_where_scheduler_and_worker_have_just_looked(town: Town) -> None:
    watch.claim("watch", 0)
    watch.claim("housekeeping", 0)
    town.machine()
    assert [one for one in said(town).values() if not one["ok"]] == []
    assert town.staff.read("/health")["ok"]
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
