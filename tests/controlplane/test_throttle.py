"""How many requests one person may send; another is answered meanwhile."""

from __future__ import annotations

from typing import Any

import pytest
from django.core.cache.backends.redis import RedisCache

from controlplane.api import throttle
from tests.controlplane.people import Town


@pytest.fixture
def at_noon(settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten requests in a window that does not end, and no window that a former test has used."""
    settings.RATE_LIMITS = {"read": 1, "write": 1, "anonymous": 1}
    monkeypatch.setattr(throttle.time, "time", lambda: 1_700_000_003.0)
    monkeypatch.setattr(throttle, "_blind_until", 0.0)


def test_a_loop_is_stopped_and_told_when_to_go_on_and_nobody_else_notices(town: Town, at_noon: None) -> None:
    town.machine()
    answers = [town.owner.get("/whoami") for _ in range(12)]
    assert [answer.status_code for answer in answers] == [200] * 10 + [429] * 2
    assert answers[-1]["Retry-After"] == "7"
    assert answers[-1].json()["code"] == "throttled"
    assert town.mate.get("/whoami").status_code == 200
    assert town.owner.post("/jobs", {"name": "a", "run": "true"}).status_code == 201, "writes are counted apart"


def test_who_names_nobody_is_counted_by_address(town: Town, at_noon: None) -> None:
    answers = [town.anonymous.get("/version").status_code for _ in range(11)]
    assert answers == [200] * 10 + [429]


def test_what_a_page_reads_counts_as_nothing_more(town: Town, at_noon: None) -> None:
    from django.test import Client

    client = Client()
    client.force_login(town.owner.user)
    assert [client.get("/").status_code for _ in range(12)] == [200] * 12


def test_without_redis_everybody_is_answered(town: Town, at_noon: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(throttle, "cache", RedisCache("unix:///nowhere/valkey.sock", {}))
    assert [town.owner.get("/whoami").status_code for _ in range(12)] == [200] * 12
