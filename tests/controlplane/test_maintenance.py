"""Maintenance windows over REST and on the pages: staff plan and cancel them, everybody sees them."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import msgspec
import pytest
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from controlplane.accounts.models import User
from controlplane.fleet.models import MaintenanceWindow
from controlplane.queries import maintenance
from tests.controlplane.people import Town

PATH = "/maintenance-windows"
ANY = {"if-match": "*"}


def window(**changes: Any) -> dict[str, Any]:
    """A window of the first machine, from an hour on for two hours."""
    now = timezone.now()
    times = {"starts_at": now + timedelta(hours=1), "ends_at": now + timedelta(hours=3)}
    return {**{name: at.isoformat() for name, at in times.items()}, "reason": "new fans", "node": "n1", **changes}


def test_staff_plan_one_and_everybody_reads_it(town: Town) -> None:
    town.machine()
    answer = town.staff.post(PATH, window())
    assert answer.status_code == 201
    made = msgspec.json.decode(answer.content, type=maintenance.MaintenanceWindowDetail).window
    assert (made.node, made.pool, made.reason, made.made_by) == ("n1", None, "new fans", town.user.username)
    listed = town.viewer.read(PATH)["results"]
    assert [one["id"] for one in listed] == [made.id]
    assert town.viewer.read(f"{PATH}/{made.id}")["window"] == listed[0]
    assert town.viewer.read("/nodes/n1")["maintenance"] == listed
    assert town.viewer.read(f"{PATH}?node=n1")["results"] == listed
    assert town.viewer.read(f"{PATH}?node=n2")["results"] == []
    assert town.viewer.get(f"{PATH}/999").status_code == 404


def test_nobody_else_plans_or_cancels(town: Town) -> None:
    town.machine()
    made = json.loads(town.staff.post(PATH, window()).content)["window"]["id"]
    for person in (town.owner, town.lead, town.viewer, town.stranger):
        assert person.post(PATH, window()).status_code == 403
        assert person.post(f"{PATH}/{made}/cancel").status_code == 403
    assert town.anonymous.get(PATH).status_code == 401
    assert MaintenanceWindow.objects.count() == 1


def test_it_names_what_may_run_into_it_to_those_who_may_know(town: Town) -> None:
    agent = town.machine()
    long, short = town.running(agent, time_limit="2h"), town.running(agent, time_limit="30m")
    asked = window(node="", pool="default")
    told = json.loads(town.staff.post(f"{PATH}?dry_run=true", asked).content)
    assert [(one["job"], one["node"], one["user"]) for one in told["affects"]] == [(long.number, "n1", "owner")]
    assert (told["window"]["id"], told["hidden"], MaintenanceWindow.objects.count()) == (0, 0, 0)
    assert short.number != long.number
    made = json.loads(town.staff.post(PATH, asked).content)["window"]["id"]
    seen = town.stranger.read(f"{PATH}/{made}")
    assert (seen["affects"], seen["hidden"]) == ([], 1)


def test_one_that_is_cancelled_is_kept_and_no_longer_ahead(town: Town) -> None:
    town.machine()
    made = json.loads(town.staff.post(PATH, window()).content)["window"]["id"]
    assert json.loads(town.staff.post(f"{PATH}/{made}/cancel").content)["cancelled_by"] == town.user.username
    assert town.staff.post(f"{PATH}/{made}/cancel").status_code == 409
    assert town.viewer.read(PATH)["results"] == []
    assert [one["id"] for one in town.viewer.read(f"{PATH}?all=true")["results"]] == [made]
    assert town.viewer.read("/nodes/n1")["maintenance"] == []


@pytest.mark.parametrize(
    ("changes", "status", "words"),
    [
        ({"node": "n9"}, 422, "there is no node n9"),
        ({"node": "", "pool": "none"}, 422, "there is no pool none"),
        ({"pool": "default"}, 422, "either a node or a pool"),
        ({"node": ""}, 422, "either a node or a pool"),
        ({"reason": " "}, 422, "needs a reason"),
        ({"ends_at": "2020-01-01T00:00:00Z"}, 422, "must end after it starts"),
        ({"starts_at": "2020-01-01T00:00:00Z", "ends_at": "2020-01-02T00:00:00Z"}, 422, "lies in the past"),
        ({"starts_at": "2027-01-01T00:00:00"}, 400, "starts_at"),
        ({"begins": 1}, 400, "begins"),
    ],
)
def test_a_window_that_cannot_be_is_refused_with_its_field(
    town: Town, changes: dict[str, Any], status: int, words: str
) -> None:
    town.machine()
    answer = town.staff.post(PATH, window(**changes))
    assert (answer.status_code, words in json.loads(answer.content)["detail"]) == (status, True)
    assert not MaintenanceWindow.objects.exists()


def test_the_page_of_the_node_shows_it(town: Town) -> None:
    town.machine()
    client = Client()
    client.force_login(User.objects.get(username="viewer"))
    assert "new fans" not in client.get("/nodes/n1").content.decode()
    town.staff.post(PATH, window(node="", pool="default"))
    page = client.get("/nodes/n1").content.decode()
    assert "Maintenance (pool default): new fans" in page


def test_the_administration_plans_and_cancels_and_deletes_nothing(town: Town) -> None:
    agent = town.machine()
    User.objects.filter(pk=town.user.pk).update(is_superuser=True)
    root = Client()
    root.force_login(User.objects.get(pk=town.user.pk))
    now = timezone.now()
    form = {
        "node": str(agent.node.pk),
        "starts_at_0": f"{now + timedelta(hours=1):%Y-%m-%d}",
        "starts_at_1": f"{now + timedelta(hours=1):%H:%M:%S}",
        "ends_at_0": f"{now + timedelta(hours=2):%Y-%m-%d}",
        "ends_at_1": f"{now + timedelta(hours=2):%H:%M:%S}",
        "reason": "new fans",
    }
    add = reverse("admin:fleet_maintenancewindow_add")
    refused = root.post(add, {**form, "node": ""})
    assert "either a node or a pool" in refused.content.decode()
    assert root.post(add, form).status_code == 302
    made = MaintenanceWindow.objects.get()
    assert (made.node, made.made_by) == (agent.node, town.user.username)
    chosen = {"action": "call_off", "_selected_action": [made.pk]}
    root.post(reverse("admin:fleet_maintenancewindow_changelist"), chosen)
    made.refresh_from_db()
    assert made.cancelled_by == town.user.username
    assert root.post(reverse("admin:fleet_maintenancewindow_delete", args=[made.pk])).status_code == 403


def test_what_needs_attention_names_the_next_windows(town: Town) -> None:
    town.machine()
    now = timezone.now()
    town.staff.post(PATH, window())
    town.staff.post(PATH, window(node="", pool="default", starts_at=now.isoformat()))
    far = {"starts_at": (now + timedelta(days=9)).isoformat(), "ends_at": (now + timedelta(days=10)).isoformat()}
    assert town.staff.post(PATH, window(**far)).status_code == 201
    signs = [one for one in town.viewer.read("/overview")["attention"] if one["code"].startswith("Maintenance")]
    assert [(one["code"], one["level"], one["detail"], one["href"]) for one in signs] == [
        ("MaintenanceNow", "warning", "new fans", "/nodes?pool=default"),
        ("MaintenanceAhead", "note", "new fans", "/nodes/n1"),
    ]
    assert signs[0]["title"].startswith("Pool default is out of service until ")


def test_one_is_changed_also_after_it_has_begun_and_tried_before(town: Town) -> None:
    agent = town.machine()
    job = town.running(agent, time_limit="2h")
    made = town.staff.post(PATH, window()).json()["window"]["id"]
    later = (timezone.now() + timedelta(hours=5)).isoformat()
    asked = {"starts_at": later, "ends_at": (timezone.now() + timedelta(hours=6)).isoformat()}
    tried = town.staff.patch(f"{PATH}/{made}?dry_run=true", asked).json()
    assert (tried["affects"], tried["window"]["id"]) == ([], made)
    (still,) = town.viewer.read(f"{PATH}/{made}")["affects"]
    assert still["job"] == job.number
    changed = town.staff.patch(f"{PATH}/{made}", {"node": "", "pool": "default", "reason": " fans "}, **ANY).json()
    assert (changed["window"]["node"], changed["window"]["pool"], changed["window"]["reason"]) == (
        None,
        "default",
        "fans",
    )
    for wrong, field in (
        ({"node": "n1"}, "node"), ({"ends_at": "2020-01-01T00:00:00Z"}, "ends_at"), ({"reason": " "}, "reason"),
        ({"cron": "0 3 * * 1"}, "lasts_s"), ({"pool": "none"}, "pool"),
    ):  # fmt: skip
        answer = town.staff.patch(f"{PATH}/{made}", wrong, **ANY)
        assert (answer.status_code, answer.json()["errors"][0]["pointer"]) == (422, f"/{field}"), wrong
    for person in (town.owner, town.lead, town.viewer):
        assert person.patch(f"{PATH}/{made}", {"reason": "x"}).status_code == 403
    town.staff.post(f"{PATH}/{made}/cancel")
    assert town.staff.patch(f"{PATH}/{made}", {"reason": "x"}, **ANY).status_code == 409


def test_a_change_is_of_what_was_read(town: Town) -> None:
    town.machine()
    made = town.staff.post(PATH, window()).json()["window"]["id"]
    bare = town.staff.patch(f"{PATH}/{made}", {"reason": "x"})
    assert (bare.status_code, bare.json()["code"]) == (428, "precondition_required")
    read = town.staff.get(f"{PATH}/{made}")["ETag"]
    assert town.staff.patch(f"{PATH}/{made}", {"reason": "first"}, **{"if-match": read}).status_code == 200
    late = town.staff.patch(f"{PATH}/{made}", {"reason": "second"}, **{"if-match": read})
    assert (late.status_code, late.json()["code"]) == (412, "changed_meanwhile")
    assert "first" in town.staff.get(f"{PATH}/{made}").content.decode()
    assert town.staff.patch(f"{PATH}/{made}", {"reason": "third"}, **ANY).status_code == 200


@pytest.mark.parametrize(
    ("days", "changes", "status"),
    [
        (398, {"cron": "0 3 * * 1", "lasts_s": 7_200}, 201),
        (2_000, {"cron": "0 3 * * 1", "lasts_s": 7_200}, 422),
        (398, {}, 422),
    ],
)
def test_one_that_recurs_may_end_in_some_years_and_what_lasts_may_not(
    town: Town, days: int, changes: dict[str, Any], status: int
) -> None:
    town.machine()
    until = (timezone.now() + timedelta(days=days)).isoformat()
    answer = town.staff.post(PATH, window(ends_at=until, **changes))
    assert answer.status_code == status, answer.content
    if status == 422:
        fault = answer.json()["errors"][0]
        assert (fault["pointer"], "recurs" in fault["detail"]) == ("/ends_at", bool(changes))
