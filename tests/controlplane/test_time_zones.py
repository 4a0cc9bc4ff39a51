"""The time zone that a person chooses: pages tell times in it, to them alone; the API tells UTC."""

from __future__ import annotations

import zoneinfo
from datetime import UTC, datetime

import pytest
from django.test import Client
from django.utils import timezone

from controlplane.accounts import time_zones
from controlplane.accounts.models import Token, User
from controlplane.pages import gantt
from controlplane.pages.templatetags.yard import when
from controlplane.queries import snapshots
from tests.controlplane.people import Town

AT = datetime(2026, 7, 1, 22, 30, tzinfo=UTC)


def browser(user: User | None) -> Client:
    assert user is not None
    client = Client()
    client.force_login(user)
    return client


def choose(client: Client, zone: str) -> int:
    return client.post("/user/time-zone", {"time_zone": zone}).status_code


def test_pages_tell_times_in_the_zone_that_was_chosen(town: Town) -> None:
    client, mate = browser(town.owner.user), browser(town.mate.user)
    Token.objects.filter(user__username__in=("owner", "mate")).update(last_used_at=AT)
    assert "last used 2026-07-01 22:30 UTC" in client.get("/user").content.decode()
    assert "data-zone" not in client.get("/user").content.decode(), "scripts take the zone of the browser"
    assert choose(client, "Europe/Berlin") == 302
    page = client.get("/user").content.decode()
    assert "last used 2026-07-02 00:30 CEST" in page
    assert '<html lang="en" data-zone="Europe/Berlin">' in page
    assert '<option value="Europe/Berlin" selected>' in page
    assert "last used 2026-07-01 22:30 UTC" in mate.get("/user").content.decode(), "nobody else's"
    told = town.owner.read("/whoami")
    assert "+02:00" not in str(told)
    assert choose(client, "") == 302
    assert "data-zone" not in client.get("/user").content.decode()
    assert timezone.get_current_timezone_name() == "UTC", "no thread keeps the zone of its last reader"


@pytest.mark.parametrize(
    "wrong",
    ["Mars/Olympus", "europe/berlin", "../../etc/passwd", "/etc/localtime", "UTC\0", "Factory", "x" * 5000, " "],
)
def test_what_is_no_zone_is_refused_with_a_sentence(town: Town, wrong: str) -> None:
    client = browser(town.owner.user)
    answer = client.post("/user/time-zone", {"time_zone": wrong})
    assert answer.status_code in {400, 422}
    assert "no time zone" in answer.content.decode() or answer.status_code == 400
    assert User.objects.get(username="owner").time_zone == ""


def test_nothing_is_chosen_by_get_by_a_stranger_or_without_the_csrf_token(town: Town) -> None:
    assert browser(town.owner.user).get("/user/time-zone").status_code == 405
    assert Client().post("/user/time-zone", {"time_zone": "UTC"})["Location"].startswith("/sign-in")
    client = Client(enforce_csrf_checks=True)
    client.force_login(User.objects.get(username="owner"))
    assert choose(client, "UTC") == 403


def test_a_zone_that_the_host_does_not_know_any_more_is_none(town: Town) -> None:
    User.objects.filter(username="owner").update(time_zone="Atlantis/Poseidonis")
    assert time_zones.zone_of(User.objects.get(username="owner")) is None
    assert browser(User.objects.get(username="owner")).get("/").status_code == 200


def test_moments_and_bars_are_told_in_the_zone_of_the_reader() -> None:
    with timezone.override(zoneinfo.ZoneInfo("Asia/Shanghai")):
        assert ">07-02 06:30 CST</time>" in when(AT)
        told = {"ended_at": None, "overdue_since_at": AT.isoformat(), "expected_end_at": None}
        bars = gantt.bars_of({"from": AT.isoformat(), "tip": "a"}, told, AT, AT)
        assert bars[1]["tip"] == "a · overdue since 07-02 06:30 CST"
    assert ">07-01 22:30 UTC</time>" in when(AT)


def test_a_snapshot_for_many_has_nobodys_zone(town: Town) -> None:
    assert town.owner.user is not None

    def make(_user: User) -> dict[str, str]:
        return {"at": f'"{timezone.localtime(AT):%H:%M %Z}"'}

    shared = snapshots.Shared.of(snapshots.TopicSource("/of-this-test", make, ()), town.owner.user)
    with timezone.override(zoneinfo.ZoneInfo("Asia/Shanghai")):
        assert bytes(shared.now().parts["at"]) == b'"22:30 UTC"'


def test_the_filters_of_the_audit_log_are_times_of_the_reader(town: Town) -> None:
    User.objects.filter(pk=town.user.pk).update(is_superuser=True, time_zone="Asia/Shanghai")
    client = browser(User.objects.get(pk=town.user.pk))
    town.machine()
    town.job()
    now = timezone.now().astimezone(zoneinfo.ZoneInfo("Asia/Shanghai"))
    for since, is_there in ((f"{now:%Y-%m-%dT}00:00", True), ("2099-01-01T00:00", False)):
        page = client.get("/audit", {"since": since}).content.decode()
        assert ("job.submit" in page, f'name="since" value="{since}"' in page) == (is_there, True)
        assert "From (Asia/Shanghai)" in page
