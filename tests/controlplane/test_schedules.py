"""Schedules over REST: who may see, make, change and run one, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from controlplane.accounts.models import Member, Project, User
from controlplane.jobs.models import Job
from controlplane.schedules import service
from controlplane.schedules.models import Schedule
from tests.controlplane.people import Town

PATH = "/schedules"
NIGHTLY = {"name": "nightly", "job": {"run": "true"}, "cron": "30 2 * * *", "zone": "Europe/Berlin"}


def made(town: Town, **changes: Any) -> int:
    town.machine()
    answer = town.owner.post(PATH, {**NIGHTLY, **changes})
    assert answer.status_code == 201, answer.content
    return int(answer.json()["schedule"]["id"])


def test_one_is_made_read_paused_run_and_deleted(town: Town) -> None:
    number = made(town)
    told = town.viewer.read(f"{PATH}/{number}")
    assert told["schedule"] == town.viewer.read(f"{PATH}?project=default")["results"][0]
    assert (told["schedule"]["user"], told["schedule"]["paused"], told["runs"]) == ("owner", False, [])
    assert len(told["times"]) == 5
    assert told["times"][0] == told["schedule"]["next_at"]
    etag = town.owner.get(f"{PATH}/{number}")["ETag"]
    paused = town.owner.patch(f"{PATH}/{number}", {"paused": True}, **{"if-match": etag})
    assert (paused.status_code, paused.json()["schedule"]["next_at"], paused.json()["times"]) == (200, None, [])
    assert town.owner.patch(f"{PATH}/{number}", {"paused": False}, **{"if-match": etag}).status_code == 412
    assert town.owner.patch(f"{PATH}/{number}", {"paused": False}).status_code == 428
    ran = town.owner.post(f"{PATH}/{number}/run").json()
    job = Job.objects.get(number=ran["job"])
    assert (ran["outcome"], job.user.username, job.labels) == ("submitted", "owner", {"schedule": "nightly"})
    assert town.owner.client.delete(f"/api/v1{PATH}/{number}").status_code == 428
    gone = town.owner.client.delete(f"/api/v1{PATH}/{number}", headers={"if-match": "*"})
    assert (gone.status_code, Schedule.objects.count(), Job.objects.count()) == (204, 0, 1)


def test_leads_pause_it_but_only_its_owner_changes_what_is_submitted_as_them(town: Town) -> None:
    path, any_ = f"{PATH}/{made(town)}", {"if-match": "*"}
    assert town.stranger.get(path).status_code == 404
    assert town.stranger.read(PATH)["results"] == []
    for person, expected in ((town.viewer, 403), (town.stranger, 404)):
        assert person.patch(path, {"paused": True}, **any_).status_code == expected
        assert person.post(f"{path}/run").status_code == expected
        assert person.client.delete(f"/api/v1{path}", headers=any_).status_code == expected
    assert town.lead.patch(path, {"cron": "0 4 * * *"}, **any_).status_code == 200
    refused = town.lead.patch(path, {"job": {"run": "curl evil"}}, **any_)
    assert refused.status_code == 403
    assert "owner" in refused.json()["detail"]
    assert town.owner.patch(path, {"job": {"run": "date"}}, **any_).status_code == 200
    assert Schedule.objects.get().job == {"run": "date"}
    assert town.viewer.post(PATH, {**NIGHTLY, "name": "mine"}).status_code == 422


@pytest.mark.parametrize(
    ("changes", "status", "pointer"),
    [
        ({"cron": "0 3 30 2 *"}, 422, "/cron"),  # there is no 30 February
        ({"cron": "61 * * * *"}, 422, "/cron"),
        ({"cron": "@reboot"}, 422, "/cron"),
        ({"zone": "Mars/Olympus"}, 422, "/zone"),
        ({"ends_at": "2020-01-01T00:00:00Z"}, 422, "/ends_at"),
        ({"job": {"rum": "true"}}, 422, "/job/rum"),
        ({"job": {"run": "true", "env": {"API_TOKEN": "hunter2"}}}, 422, "/job"),
        ({"job": {"run": "true", "pool": "nowhere"}}, 422, "/job/pool"),
        ({"overlap": "maybe"}, 400, "/overlap"),
        ({"name": "a/b"}, 400, "/name"),
        ({"cron": "0 3 * * " + "1" * 200}, 400, "/cron"),
        ({"starts_at": "2100-01-01T00:00:00"}, 400, "/starts_at"),
        ({"forever": True}, 400, "/forever"),
    ],
)
def test_what_cannot_be_is_refused_with_its_field(town: Town, changes: Any, status: int, pointer: str) -> None:
    town.machine()
    answer = town.owner.post(PATH, {**NIGHTLY, **changes})
    assert (answer.status_code, answer.json()["errors"][0]["pointer"]) == (status, pointer)
    assert Schedule.objects.count() == 0


def test_a_name_is_used_once_in_a_project(town: Town) -> None:
    made(town)
    again = town.owner.post(PATH, NIGHTLY)
    assert (again.status_code, again.json()["code"]) == (409, "exists")


def test_the_page_makes_runs_pauses_and_deletes_one(town: Town) -> None:
    town.machine()
    browser = Client()
    browser.force_login(town.owner.user)
    asked = {"name": "nightly", "cron": "0 3 * * *", "zone": "UTC", "overlap": "skip", "catch_up": "last"}
    wrong = browser.post("/schedules/new", {**asked, "file": "rum: true"})
    assert (wrong.status_code, "/rum" in wrong.content.decode(), "nightly" in wrong.content.decode()) == (
        422,
        True,
        True,
    )
    assert browser.post("/schedules/new", {**asked, "file": "run: echo hi"}).status_code == 302
    path = f"/schedules/{Schedule.objects.get().pk}"
    assert "echo hi" in browser.get(path).content.decode()
    assert browser.post(f"{path}/run").status_code == 302
    assert f"/jobs/{Job.objects.get().number}" in browser.get(path).content.decode()
    browser.post(f"{path}/pause")
    assert Schedule.objects.get().next_at is None
    browser.post(f"{path}/resume")
    assert Schedule.objects.get().next_at is not None
    reader = Client()
    reader.force_login(town.viewer.user)
    assert (reader.get(path).status_code, reader.post(f"{path}/delete").status_code) == (200, 403)
    assert browser.post(f"{path}/delete").status_code == 302
    assert browser.get(path).status_code == 404


@pytest.mark.parametrize(
    "changes",
    [{"overlap": "maybe"}, {"catch_up": "x" * 50}, {"name": ""}, {"name": "a/b"}, {"name": "x" * 300},
     {"cron": "1" * 300}, {"zone": "Z" * 300}, {"file": "- a list"}, {"file": "a: &b [*b]"}],
)  # fmt: skip
def test_the_form_refuses_what_no_browser_sends(town: Town, changes: dict[str, str]) -> None:
    town.machine()
    browser = Client()
    browser.force_login(town.owner.user)
    asked = {"name": "nightly", "cron": "0 3 * * *", "zone": "UTC", "overlap": "skip", "catch_up": "last"}
    answer = browser.post("/schedules/new", {**asked, "file": "run: date", **changes})
    assert (answer.status_code, Schedule.objects.count()) == (422, 0)
    assert answer.context["faults"]


def test_one_stays_in_its_project_and_a_run_that_is_accepted_clears_its_fault(town: Town) -> None:
    number = made(town)
    elsewhere = Project.objects.create(name="elsewhere")
    Member.objects.create(project=elsewhere, user=town.owner.user, role="member")
    User.objects.filter(pk=town.owner.user.pk).update(default_project=elsewhere)
    path = f"{PATH}/{number}"
    assert town.owner.patch(path, {"cron": "0 4 * * *"}, **{"if-match": "*"}).json()["schedule"]["project"] == "default"
    Schedule.objects.update(fault="was refused", refusals=3)
    assert town.owner.post(f"{path}/run").json()["outcome"] == "submitted"
    assert (Job.objects.get().project.name, Schedule.objects.get().fault) == ("default", "")


def test_the_page_changes_one_as_it_was_shown_and_tells_its_next_times(town: Town) -> None:
    town.machine()
    owner, lead = Client(), Client()
    assert town.owner.user is not None
    assert town.lead.user is not None
    owner.force_login(town.owner.user)
    lead.force_login(town.lead.user)
    settings = {"cron": "0 3 * * *", "zone": "UTC", "overlap": "skip", "catch_up": "last", "file": "run: date"}
    owner.post("/schedules/new", {"name": "nightly", **settings})
    row = Schedule.objects.get()
    at, version = f"/schedules/{row.pk}", owner.get(f"/schedules/{row.pk}").context["shown_version"]
    assert owner.post(f"{at}/change", settings | {"cron": "0 4 * * *", "version": version}).status_code == 302
    row.refresh_from_db()
    assert row.cron == "0 4 * * *"
    stale = owner.post(f"{at}/change", settings | {"cron": "0 5 * * *", "version": version})
    assert (stale.status_code, "changed this schedule meanwhile" in stale.content.decode()) == (409, True)
    assert 'value="0 5 * * *"' in stale.content.decode(), "what was typed stays"
    version = lead.get(at).context["shown_version"]
    wrong = lead.post(f"{at}/change", settings | {"zone": "Mars/Olympus", "version": version})
    assert (wrong.status_code, list(wrong.context["faults"])) == (422, ["zone"])
    changed = settings | {"overlap": "allow", "file": "run: rm -rf /", "version": version}
    assert lead.post(f"{at}/change", changed).status_code == 302
    row.refresh_from_db()
    assert (row.overlap, row.job["run"]) == ("allow", "date"), "only the owner changes what runs as they"
    with pytest.raises(service.ScheduleRefused, match="only they may change it"):
        service.change(town.lead.user, row, timezone.now(), job={"run": "true"})
    told = owner.get("/schedules/times?cron=30+2+*+*+*&zone=Europe/Berlin").json()
    assert (len(told["times"]), told["field"]) == (5, "")
    assert owner.get("/schedules/times?cron=x&zone=UTC").json()["field"] == "cron"
    assert owner.get("/schedules/times?cron=0+3+*+*+*&zone=Mars").json()["field"] == "zone"
    Schedule.objects.update(is_paused=True, next_at=None, zone="Mars/Olympus")
    refused = owner.post(f"{at}/resume")
    assert (refused.status_code, refused.context["schedule"].id) == (422, row.pk)
    assert "there is no time zone Mars/Olympus" in refused.content.decode()
