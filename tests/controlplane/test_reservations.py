"""Reservations and the calendar over REST: operators plan and cancel, everybody sees what keeps nodes."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from controlplane.fleet.models import Reservation
from controlplane.workers.leader import Leader
from tests.controlplane.people import Town

PATH = "/reservations"
ANY = {"if-match": "*"}


def wish(**changes: Any) -> dict[str, Any]:
    """A reservation of the first machine, from an hour on for two hours."""
    now = timezone.now()
    times = {"starts_at": now + timedelta(hours=1), "ends_at": now + timedelta(hours=3)}
    plain = {name: at.isoformat() for name, at in times.items()}
    return {**plain, "name": "demo", "project": "default", "nodes": ["n1"], "reason": "the demo", **changes}


def test_operators_plan_and_cancel_one_and_everybody_sees_it(town: Town) -> None:
    town.machine()
    for person in (town.owner, town.lead, town.viewer, town.stranger):
        assert person.post(PATH, wish()).status_code == 403
    tried = town.staff.post(f"{PATH}?dry_run=true", wish(nodes=[], pool="default", device="gpu", count=2))
    assert (tried.status_code, json.loads(tried.content)["nodes"]) == (200, ["n1"])
    assert not Reservation.objects.exists()
    made = town.staff.post(PATH, wish(users=["owner"]))
    assert made.status_code == 201, made.content
    assert town.lead.read(PATH)["results"] == [json.loads(made.content)]
    seen = town.stranger.read(f"{PATH}/demo")
    assert (seen["nodes"], seen["project"], seen["users"]) == (["n1"], "default", [])
    assert town.owner.post(f"{PATH}/demo/cancel").status_code == 403
    assert json.loads(town.staff.post(f"{PATH}/demo/cancel").content)["cancelled_by"] == town.user.username
    assert town.staff.post(f"{PATH}/demo/cancel").status_code == 409
    assert town.viewer.read(PATH)["results"] == []
    assert [one["name"] for one in town.viewer.read(f"{PATH}?all=true&pool=default")["results"]] == ["demo"]


def test_one_is_planned_while_a_worker_leads(town: Town) -> None:
    """The leader keeps its lock for as long as it lives."""
    leader = Leader()
    leader.wait(lambda: pytest.fail("another worker leads"))
    try:
        town.machine()
        assert town.staff.post(PATH, wish()).status_code == 201
    finally:
        leader.close()


@pytest.mark.parametrize(
    ("changes", "status", "words"),
    [
        ({"nodes": ["n9"]}, 422, "there is no node n9"),
        ({"project": "none"}, 422, "there is no project none"),
        ({"users": ["nobody"]}, 422, "there is no user nobody"),
        ({"nodes": []}, 422, "either nodes, or a count"),
        ({"nodes": [], "count": 1}, 422, "needs a pool"),
        ({"nodes": [], "count": 9, "pool": "default", "device": "gpu"}, 422, "9 are asked for"),
        ({"ends_at": None}, 400, "ends_at"),
        ({"name": "A b"}, 400, "name"),
        ({"reason": " "}, 422, "needs a reason"),
    ],
)
def test_one_that_cannot_be_is_refused_with_its_field(
    town: Town, changes: dict[str, Any], status: int, words: str
) -> None:
    town.machine()
    answer = town.staff.post(PATH, wish(**changes))
    assert (answer.status_code, words in answer.content.decode()) == (status, True), answer.content
    assert not Reservation.objects.exists()


def test_the_calendar_has_each_time_of_a_range(town: Town) -> None:
    town.machine()
    now = timezone.now()
    recurs = {
        "cron": f"0 {(now + timedelta(hours=12)).hour} * * *",
        "time_zone": "UTC",
        "lasts_s": 3600,
        "ends_at": (now + timedelta(days=9)).isoformat(),
    }
    assert town.staff.post(PATH, wish(**recurs)).status_code == 201
    window = {key: value for key, value in wish().items() if key not in ("name", "project", "nodes")}
    assert town.staff.post("/maintenance-windows", {**window, "node": "n1"}).status_code == 201
    found = town.viewer.read("/calendar")
    kinds = [one["kind"] for one in found["results"]]
    assert (kinds.count("reservation"), kinds.count("maintenance"), found["more"]) == (9, 1, False)
    assert [one["starts_at"] for one in found["results"]] == sorted(one["starts_at"] for one in found["results"])
    assert town.viewer.read("/calendar?pool=none")["results"] == []
    for wrong in ("since=2026-01-01T00:00:00Z&until=2027-06-01T00:00:00Z", "until=2020-01-01T00:00:00Z", "days=3"):
        assert town.viewer.get(f"/calendar?{wrong}").status_code == 400


def test_one_is_changed_where_nothing_else_keeps_its_nodes(town: Town) -> None:
    town.machine()
    town.machine("n2")
    town.staff.post(PATH, wish())
    hour = timezone.now() + timedelta(hours=2)
    asked = {"ends_at": (hour + timedelta(hours=4)).isoformat(), "nodes": ["n1", "n2"], "users": ["owner"]}
    tried = town.staff.patch(f"{PATH}/demo?dry_run=true", asked).json()
    assert tried["nodes"] == ["n1", "n2"]
    assert town.staff.read(f"{PATH}/demo")["nodes"] == ["n1"], "nothing is stored"
    assert town.staff.patch(f"{PATH}/demo", asked, **ANY).json()["users"] == ["owner"]
    later = {"starts_at": hour + timedelta(hours=5), "ends_at": hour + timedelta(hours=6)}
    town.staff.post(PATH, wish(name="next", nodes=["n2"], **{name: at.isoformat() for name, at in later.items()}))
    for wrong, field in (
        ({"ends_at": (hour + timedelta(hours=6)).isoformat()}, "nodes"), ({"nodes": []}, "nodes"),
        ({"nodes": ["n9"]}, "nodes"), ({"users": ["nobody"]}, "users"), ({"reason": ""}, "reason"),
    ):  # fmt: skip
        answer = town.staff.patch(f"{PATH}/demo", wrong, **ANY)
        assert (answer.status_code, answer.json()["errors"][0]["pointer"]) == (422, f"/{field}"), wrong
    assert town.owner.patch(f"{PATH}/demo", {"reason": "mine"}).status_code == 403
    town.staff.post(f"{PATH}/demo/cancel")
    assert town.staff.patch(f"{PATH}/demo", {"reason": "x"}, **ANY).status_code == 409


def test_a_change_is_of_what_was_read(town: Town) -> None:
    town.machine()
    town.staff.post(PATH, wish())
    bare = town.staff.patch(f"{PATH}/demo", {"reason": "x"})
    assert (bare.status_code, bare.json()["code"]) == (428, "precondition_required")
    read = town.staff.get(f"{PATH}/demo")["ETag"]
    assert town.staff.patch(f"{PATH}/demo", {"reason": "first"}, **{"if-match": read}).status_code == 200
    late = town.staff.patch(f"{PATH}/demo", {"reason": "second"}, **{"if-match": read})
    assert (late.status_code, late.json()["code"]) == (412, "changed_meanwhile")
    assert "first" in town.staff.get(f"{PATH}/demo").content.decode()
    assert town.staff.patch(f"{PATH}/demo", {"reason": "third"}, **ANY).status_code == 200
