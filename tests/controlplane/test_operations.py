"""Actions on more jobs than one answer holds go on in the background, each job once, with the rights of the moment."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import pytest
from django.db import OperationalError
from django.utils import timezone

from controlplane.accounts.models import AuditEntry
from controlplane.api import bulk
from controlplane.bulk import service
from controlplane.bulk.action import Action
from controlplane.bulk.tasks import run
from controlplane.jobs.models import Job, Operation
from tests.controlplane.people import Person, Town
from tests.controlplane.test_pages import browser, text


@pytest.fixture(autouse=True)
def few(town: Town, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three jobs are many, so that tests need few; and a node, on which they might run."""
    town.machine()
    monkeypatch.setattr(bulk, "MOST", 3)
    monkeypatch.setattr(service, "SLICE", 2)


def begun(person: Person, action: str = "hold", **more: Any) -> dict[str, Any]:
    answer = person.post("/jobs/bulk", {"action": action, "filter": {"q": "sweep"}, **more})
    assert answer.status_code == 202, answer.content
    found = dict(json.loads(answer.content))
    assert answer["Location"] == f"/api/v1/operations/{found['id']}"
    return found


def states() -> list[str]:
    return list(Job.objects.filter(name__startswith="sweep").order_by("number").values_list("state", flat=True))


def test_an_action_on_many_jobs_goes_on_in_the_background(town: Town) -> None:
    town.running(town.machine("n2"), name="sweep r")
    jobs = [town.job(name=f"sweep {n}") for n in range(5)]
    dry = json.loads(
        town.owner.post("/jobs/bulk", {"action": "hold", "filter": {"q": "sweep"}, "dry_run": True}).content
    )
    assert (dry["done"] + dry["refused"], dry["more"]) == (3, True)
    found = begun(town.owner, reason="later")
    assert (found["phase"], found["matched"], found["progress"]) == ("WAITING", 6, 0.0)
    assert states() == ["RUNNING"] + ["PENDING"] * 5
    late = town.job(name="sweep too late")
    run()
    found = town.owner.read(f"/operations/{found['id']}")
    assert (found["phase"], found["done"], found["refused"], found["progress"]) == ("DONE", 5, 1, 1.0)
    assert [each["code"] for each in found["refusals"]] == ["illegal_transition"]
    assert states() == ["RUNNING"] + ["HELD"] * 5 + ["PENDING"]
    assert Job.objects.get(pk=late.pk).state == "PENDING", "it came after the request"
    told = town.owner.read(f"/jobs/{jobs[0].number}/events")["results"]
    assert sum("later" in json.dumps(event) for event in told) == 1
    run()
    assert town.owner.read(f"/operations/{found['id']}") == found


def test_a_change_is_audited_as_what_asked_for_it(town: Town) -> None:
    for n in range(4):
        town.job(name=f"sweep {n}")
    begun(town.owner, "change", patch={"priority": "low"}, reason="tidy")
    run()
    entries = list(AuditEntry.objects.filter(action__startswith="job.", actor="owner", reason="tidy"))
    assert len(entries) == 4
    assert {(entry.via, entry.actor_id) for entry in entries} == {(AuditEntry.Via.API, town.owner.user.pk)}  # type: ignore[union-attr]


def test_what_one_may_not_do_is_refused_job_by_job(town: Town) -> None:
    for n in range(4):
        town.job(name=f"sweep {n}")
    found = begun(town.mate, "cancel")
    run()
    found = town.mate.read(f"/operations/{found['id']}")
    assert (found["done"], found["refused"]) == (0, 4)
    assert {each["code"] for each in found["refusals"]} == {"permission_denied"}
    assert states() == ["PENDING"] * 4
    assert town.owner.get(f"/operations/{found['id']}").status_code == 404
    assert town.owner.post(f"/operations/{found['id']}/cancel").status_code == 404
    assert town.stranger.read("/operations")["results"] == []
    assert [each["id"] for each in town.staff.read("/operations")["results"]] == [found["id"]]


def test_it_ends_where_its_user_was_deactivated(town: Town) -> None:
    for n in range(4):
        town.job(name=f"sweep {n}")
    found = begun(town.owner)
    user = town.owner.user
    assert user is not None
    user.is_active = False
    user.save()
    run()
    found = town.staff.read(f"/operations/{found['id']}")
    assert (found["phase"], found["done"]) == ("FAILED", 0)
    assert "owner" in found["fault"]


def test_a_cancelled_one_stops_after_the_job_that_it_is_at(town: Town, monkeypatch: pytest.MonkeyPatch) -> None:
    for n in range(5):
        town.job(name=f"sweep {n}")
    found = begun(town.owner)
    path, act = f"/operations/{found['id']}", service._act

    def cancel_after_two(row: Operation, action: Action, job: Job) -> None:
        if Operation.objects.get().done == 2:
            assert town.owner.post(f"{path}/cancel").status_code == 200
        act(row, action, job)

    monkeypatch.setattr(service, "_act", cancel_after_two)
    run()
    found = town.owner.read(path)
    assert (found["phase"], found["done"]) == ("CANCELLED", 2)
    assert sorted(states()) == ["HELD"] * 2 + ["PENDING"] * 3
    assert town.owner.post(f"{path}/cancel").status_code == 200
    assert town.owner.read(path) == found


def test_two_workers_and_a_lost_one_do_no_job_twice(town: Town, monkeypatch: pytest.MonkeyPatch) -> None:
    for n in range(5):
        town.job(name=f"sweep {n}")
    found, apply, applied = begun(town.owner), Action.apply, []

    def failing(self: Action, job: Job, user: Any) -> Any:
        applied.append(job.number)
        if len(applied) == 3:
            raise OperationalError("the database went away")
        return apply(self, job, user)

    monkeypatch.setattr(Action, "apply", failing)
    run()
    row = Operation.objects.get()
    assert (row.phase, row.done) == ("RUNNING", 2)
    run()
    assert Operation.objects.get().done == 2, "its worker may still have it"
    Operation.objects.update(leased_until=timezone.now() - timedelta(seconds=1))
    stale = Operation.objects.select_related("user").get()
    run()
    found = town.owner.read(f"/operations/{found['id']}")
    assert (found["phase"], found["done"], found["refused"]) == ("DONE", 5, 0)
    assert len(applied) == 6
    with pytest.raises(service._Overtaken):
        service._act(
            stale, Action("release"), Job.objects.filter(name="sweep 0").select_related("project", "user").get()
        )
    assert states() == ["HELD"] * 5


def test_one_person_has_a_few_under_way(town: Town) -> None:
    for n in range(4):
        town.job(name=f"sweep {n}")
    for _n in range(service.MOST_OPEN):
        begun(town.owner)
    refused = town.owner.post("/jobs/bulk", {"action": "hold", "filter": {"q": "sweep"}})
    assert (refused.status_code, json.loads(refused.content)["code"]) == (429, "too_many_operations")
    run()
    begun(town.owner, "release")
    Operation.objects.filter(phase="DONE").update(ended_at=timezone.now() - timedelta(days=8))
    run()
    assert Operation.objects.count() == 1


def test_a_page_shows_how_far_they_are_and_what_was_refused(town: Town) -> None:
    town.running(town.machine("n2"), name="sweep r")
    for n in range(5):
        town.job(name=f"sweep {n}")
    page = text(browser(town.owner), "/operations")
    assert "No operation in the last seven days" in page
    found = begun(town.owner, reason="<b>later</b>")
    path = f"/operations/{found['id']}"
    page = text(browser(town.owner), path)
    assert f'data-call="/api/v1{path}/cancel"' in page
    assert "&lt;b&gt;later&lt;/b&gt;" in page
    run()
    page = text(browser(town.owner), path)
    assert "5 done and 1 refused of 6 jobs that matched" in page
    assert 'href="/jobs?q=sweep"' in page
    assert f'href="/jobs/{Job.objects.get(name="sweep r").number}"' in page
    assert "data-call" not in page.partition("<main")[2]
    assert f'href="{path}"' in text(browser(town.owner), "/operations")
    assert path not in text(browser(town.mate), "/operations")
    text(browser(town.mate), path, 404)
    text(browser(town.staff), path)


def test_a_page_links_to_the_jobs_of_who_asked(town: Town) -> None:
    for n in range(4):
        town.job(name=f"sweep {n}")
    answer = town.owner.post("/jobs/bulk", {"action": "hold", "filter": {"user": "me"}})
    assert 'href="/jobs?user=owner"' in text(browser(town.staff), f"/operations/{json.loads(answer.content)['id']}")
