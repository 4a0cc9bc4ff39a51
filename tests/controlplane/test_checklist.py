"""The first steps in a new cluster tick themselves, and go when they are done, dismissed, or the cluster is not new."""

from __future__ import annotations

import re
from datetime import timedelta

from django.test import Client
from django.utils import timezone

from controlplane.jobs.models import Job
from controlplane.pools.models import Quota
from controlplane.queries.checklist import NEW
from tests.controlplane.people import Person, Town
from tests.controlplane.test_pages import browser, text


def steps(person: Person) -> dict[str, bool]:
    """The steps that this person's overview shows, and whether each is done."""
    found = re.findall(r'<li id="step-(\w+)" data-s="(\w+)">', text(browser(person), "/"))
    return {name: look == "completed" for name, look in found}


def quota(town: Town) -> None:
    Quota.objects.create(project=town.project, kind="gpu", nominal=8)


def test_steps_tick_by_what_is_there_and_go_when_all_are_done(town: Town) -> None:
    assert steps(town.staff) == {"node": False, "project": False, "job": False, "result": False}
    agent = town.machine()
    assert steps(town.staff) == {"node": True, "project": False, "job": False, "result": False}
    quota(town)
    assert steps(town.staff)["project"]
    job = town.running(agent)
    assert steps(town.staff) == {"node": True, "project": True, "job": True, "result": False}
    assert f'href="/jobs/{job.number}">Open job' in text(browser(town.owner), "/")
    agent.end(job.stages.get())
    assert steps(town.staff) == {}


def test_one_reads_what_one_may_do_or_who_may(town: Town) -> None:
    page = text(browser(town.staff), "/")
    assert 'id="first-join"' in page
    assert "/admin/access/project/add/" in page
    for person in (town.owner, town.viewer, town.stranger):
        page = text(browser(person), "/")
        assert "first-join" not in page
        assert "yard quota set" not in page
        assert "Administrators of the cluster do this." in page
    assert 'href="/jobs/new">Submit the sample' in text(browser(town.owner), "/")
    page = text(browser(town.viewer), "/")
    assert "Submit the sample" not in page
    assert "Members of a project do this" in page


def test_no_job_of_strangers_is_led_to(town: Town) -> None:
    job = town.running(town.machine())
    page = text(browser(town.stranger), "/")
    assert steps(town.stranger)["job"]
    assert f"/jobs/{job.number}" not in page
    assert "You see no job yet." in page


def test_who_dismissed_them_does_not_see_them_again(town: Town) -> None:
    client = browser(town.owner)
    assert client.get("/user/checklist").status_code == 405
    assert steps(town.owner)
    assert client.post("/user/checklist").status_code == 302
    assert steps(town.owner) == {}
    assert "This yard has no node yet" in text(browser(town.owner), "/")
    assert steps(town.mate)
    assert Client().post("/user/checklist")["Location"].startswith("/sign-in")


def test_a_cluster_is_new_for_a_week(town: Town) -> None:
    town.machine()
    job = town.job()
    assert steps(town.owner)
    Job.objects.filter(pk=job.pk).update(submitted_at=timezone.now() - NEW - timedelta(hours=1))
    assert steps(town.owner) == {}
