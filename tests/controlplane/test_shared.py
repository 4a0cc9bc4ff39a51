"""What took long to find is given again: to those who see the same, and to nobody else."""

from __future__ import annotations

import pytest
from django.core.cache.backends.redis import RedisCache

from controlplane.accounts import permissions
from controlplane.accounts.models import Member
from controlplane.queries import shared as sharing
from controlplane.queries.shared import shared
from tests.controlplane.people import Town


@pytest.fixture
def found() -> list[str]:
    return []


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sharing, "QUICK_S", -1.0)


def ask(town: Town, name: str, found: list[str]) -> str:
    user = getattr(town, name).user

    def find() -> str:
        found.append(name)
        return f"as {name} sees it"

    return shared("what", user, find, str)


def test_what_is_quick_is_found_anew(town: Town, found: list[str]) -> None:
    for _ in range(3):
        ask(town, "owner", found)
    assert found == ["owner"] * 3


def test_what_is_slow_is_found_once_for_those_who_see_the_same(town: Town, found: list[str], slow: None) -> None:
    ask(town, "owner", found)
    assert ask(town, "mate", found) == "as owner sees it"
    assert ask(town, "owner", found) == "as owner sees it"
    assert ask(town, "stranger", found) == "as stranger sees it"
    assert ask(town, "staff", found) == "as staff sees it"
    assert found == ["owner", "stranger", "staff"]


def test_who_is_taken_out_of_a_project_is_given_nothing_of_it(town: Town, found: list[str], slow: None) -> None:
    ask(town, "owner", found)
    Member.objects.filter(user=town.mate.user).delete()
    assert ask(town, "mate", found) == "as mate sees it"


def test_who_has_jobs_where_they_are_no_member_is_an_audience_of_their_own(town: Town) -> None:
    before = permissions.audience(town.mate.user)
    assert before == permissions.audience(town.owner.user)
    town.machine()
    town.job()
    Member.objects.filter(user=town.owner.user).delete()
    from django.core.cache import cache

    cache.clear()
    assert permissions.audience(town.owner.user) == [str(town.owner.user.pk)]


def test_without_redis_it_is_found_anew(
    town: Town, found: list[str], slow: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sharing, "cache", RedisCache("unix:///nowhere/valkey.sock", {}))
    monkeypatch.setattr(permissions, "cache", RedisCache("unix:///nowhere/valkey.sock", {}))
    assert ask(town, "owner", found) == ask(town, "owner", found)
    assert found == ["owner"] * 2
    assert town.owner.get("/overview").status_code == 200
