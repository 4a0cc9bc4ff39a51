"""The pages of the calendar: days in the reader's zone, and forms that tell what an entry meets before it is saved."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from django.test import Client
from django.utils import timezone

from controlplane.fleet.models import MaintenanceWindow, Reservation
from tests.controlplane.people import Person, Town


def browser(person: Person) -> Client:
    client = Client()
    assert person.user is not None
    client.force_login(person.user)
    return client


def wish(**more: Any) -> dict[str, Any]:
    now = timezone.now()
    return {
        "starts_at": f"{now + timedelta(hours=1):%Y-%m-%dT%H:%M}",
        "ends_at": f"{now + timedelta(hours=3):%Y-%m-%dT%H:%M}",
        "reason": "new <fans>",
        "time_zone": "UTC",
        **more,
    }


def test_days_are_those_of_the_readers_zone(town: Town) -> None:
    town.machine()
    town.staff.post(
        "/maintenance-windows",
        {"node": "n1", "starts_at": "2100-03-01T23:30:00Z", "ends_at": "2100-03-02T01:00:00Z", "reason": "x"},
    )
    mine = browser(town.viewer)
    shown = mine.get("/calendar?at=2100-03-05").content.decode()
    assert ("from 23:30" in shown, "until 01:00" in shown) == (True, True)
    assert town.viewer.user is not None
    town.viewer.user.time_zone = "Asia/Shanghai"
    town.viewer.user.save()
    shown = mine.get("/calendar?at=2100-03-10&view=week").content.decode()
    assert "07:30–09:00" not in shown, "it is in the week before"
    assert "07:30–09:00" in mine.get("/calendar?at=2100-03-02&view=week").content.decode()
    for wrong in ("at=yesterday", "at=9999-12-31", "view=year", "pool=none"):
        assert mine.get(f"/calendar?{wrong}").status_code == 400, wrong
    assert "/calendar/new/" not in shown
    assert "/calendar/new/reservation" in browser(town.staff).get("/calendar").content.decode()


def test_a_window_is_planned_once_its_effect_was_seen_then_changed_and_ended(town: Town) -> None:
    job = town.running(town.machine(), time_limit="2h")
    staff = browser(town.staff)
    asked = wish(node="n1")
    tried = staff.post("/calendar/new/maintenance", asked | {"do": "save"})
    assert f'href="/jobs/{job.number}"' in tried.content.decode()
    assert not MaintenanceWindow.objects.exists(), "its effect was not seen yet"
    seen = {"do": "save", "seen": tried.context["seen"]}
    staff.post("/calendar/new/maintenance", asked | seen | {"reason": "another"})
    assert not MaintenanceWindow.objects.exists(), "other fields than those that were seen"
    assert staff.post("/calendar/new/maintenance", asked | seen).status_code == 302
    row = MaintenanceWindow.objects.get()
    at = f"/calendar/maintenance/{row.pk}"
    shown = browser(town.viewer).get(at).content.decode()
    assert "new &lt;fans&gt;" in shown
    assert '<form method="post" action="/calendar' not in shown
    tried = staff.post(f"{at}/change", wish(pool="default"))
    assert staff.post(f"{at}/change", wish(pool="default", do="save", seen=tried.context["seen"])).status_code == 302
    row.refresh_from_db()
    assert (row.node, row.pool is not None) == (None, True)
    for path in (f"{at}/change", f"{at}/end", "/calendar/new/maintenance"):
        assert browser(town.lead).post(path, wish(node="n1")).status_code == 403
    assert staff.post(f"{at}/end").status_code == 302
    assert staff.post(f"{at}/end").status_code == 409


def test_a_reservation_is_planned_and_errors_stand_beside_their_fields(town: Town) -> None:
    town.machine()
    staff = browser(town.staff)
    asked = wish(name="demo", project="default", nodes="n1", users="owner")
    for wrong, field in (
        ({"name": "Not a slug"}, "name"), ({"project": ""}, "project"), ({"nodes": "n9"}, "nodes"),
        ({"users": "nobody"}, "users"), ({"starts_at": "soon"}, "starts_at"), ({"ends_at": "1999-01-01"}, "ends_at"),
        ({"cron": "0 3 * * *"}, "minutes"), ({"minutes": "many"}, "minutes"), ({"reason": " "}, "reason"),
        ({"nodes": "", "count": "0"}, "count"), ({"starts_at": "0001-01-01T00:00"}, "ends_at"),
    ):  # fmt: skip
        answer = staff.post("/calendar/new/reservation", asked | wrong)
        assert (answer.status_code, list(answer.context["faults"])) == (422, [field]), wrong
    tried = staff.post("/calendar/new/reservation", asked)
    assert tried.context["effect"]["nodes"] == ["n1"]
    assert not Reservation.objects.exists()
    assert (
        staff.post("/calendar/new/reservation", asked | {"do": "save", "seen": tried.context["seen"]}).status_code
        == 302
    )
    shown = browser(town.stranger).get("/calendar/reservations/demo").content.decode()
    assert "owner" not in shown, "users are named to those who see the project"
    assert browser(town.viewer).get("/calendar/reservations/none").status_code == 404
