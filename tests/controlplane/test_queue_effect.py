"""What a change of the queue would do to other jobs, told by a dry run before it is done."""

from __future__ import annotations

import json
from typing import Any

import pytest
from django.test import Client

from controlplane.jobs.models import Job
from controlplane.whatif import reorder
from controlplane.whatif.questions import NotAnswered
from tests.controlplane.people import Person, Town


def tried(person: Person, job: Job, **asked: Any) -> dict[str, Any]:
    answer = person.post("/jobs/bulk", {"action": "change", "jobs": [job.number], "dry_run": True, **asked})
    found: dict[str, Any] = json.loads(answer.content)
    return found


def waiting(town: Town) -> tuple[Job, Job]:
    """A job that is next for both GPUs, and one behind it; neither has a start in the timetable yet."""
    town.running(town.machine(), name="runs", devices={"kind": "gpu", "count": 2}, time_limit="1h", priority="high")
    jobs = [town.job(name=name, devices={"kind": "gpu", "count": 2}, time_limit="1h") for name in ("first", "second")]
    return jobs[0], jobs[1]


def test_a_higher_priority_tells_who_moves_back_and_by_how_much(town: Town) -> None:
    first, second = waiting(town)
    found = tried(town.owner, second, patch={"priority": "high"})
    assert (found["done"], found["queue"]["fault"]) == (1, "")
    assert (found["queue"]["back"], found["queue"]["forward"], found["queue"]["hidden"]) == (1, 0, 0)
    moves = {move["number"]: move for move in found["queue"]["moves"]}
    assert moves[first.number]["later_s"] >= 600 or moves[first.number]["later_s"] is None
    assert (moves[first.number]["is_chosen"], moves[second.number]["is_chosen"]) == (False, True)
    first.refresh_from_db(), second.refresh_from_db()
    assert (first.priority_class, second.priority_class) == ("medium", "medium"), "it was tried only"


def test_a_start_that_was_promised_stays_as_the_engine_keeps_it(town: Town) -> None:
    first, second = waiting(town)
    before = {wait.stage: wait.planned for wait in town.cycle().plan.waits}
    found = tried(town.owner, second, patch={"priority": "high"})["queue"]
    assert (found["back"], found["moves"]) == (0, [])
    town.owner.post("/jobs/bulk", {"action": "change", "jobs": [second.number], "patch": {"priority": "high"}})
    then = {wait.stage: wait.planned for wait in town.cycle().plan.waits}
    stage = str(first.stages.get().id)
    assert getattr(then[stage], "start_at", None) == getattr(before[stage], "start_at", 0)


def test_what_would_be_stopped_to_make_room_is_told_too(town: Town) -> None:
    _first, second = waiting(town)
    found = tried(town.owner, second, patch={"priority": 1000})
    assert found["queue"] is None, "only staff may use numbers"
    Job.objects.filter(name="runs").update(priority=500)
    queue = tried(town.owner, second, patch={"priority": "high"})["queue"]
    assert (queue["stops"], queue["stopped"]) == (1, [Job.objects.get(name="runs").number])


def test_a_hold_tells_who_comes_forward(town: Town) -> None:
    first, second = waiting(town)
    found = tried(town.owner, first, action="hold")["queue"]
    assert (found["back"], found["forward"]) == (0, 1)
    assert {move["number"] for move in found["moves"] if not move["is_chosen"]} == {second.number}


def test_what_does_not_move_the_queue_is_not_tried(town: Town, monkeypatch: pytest.MonkeyPatch) -> None:
    _first, second = waiting(town)
    monkeypatch.setattr(reorder, "tried", lambda *_: pytest.fail("it was tried"))
    assert tried(town.owner, second, patch={"name": "other"})["queue"] is None
    assert tried(town.mate, second, patch={"priority": "high"})["queue"] is None, "it may not be done at all"
    assert tried(town.owner, second, action="cancel")["queue"] is None


def test_who_may_not_see_a_job_learns_only_that_one_moves(town: Town) -> None:
    first, second = waiting(town)
    town.stranger.post("/jobs", {"run": "true", "project": "other"})
    other = Job.objects.latest("number").project
    Job.objects.filter(pk=first.pk).update(user=town.stranger.user, project=other)
    found = tried(town.owner, second, patch={"priority": "high"})["queue"]
    assert (found["hidden"], found["back"] + found["forward"]) == (1, 1)
    assert {move["number"] for move in found["moves"]} <= {second.number}


def test_without_an_answer_of_the_engine_the_rest_of_the_dry_run_stands(
    town: Town, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> None:
        raise NotAnswered(503, "busy", "the engine is busy")

    _first, second = waiting(town)
    with monkeypatch.context() as without:
        without.setattr(reorder, "tried", refuse)
        found = tried(town.owner, second, patch={"priority": "high"})
    assert (found["done"], found["queue"]["fault"], found["queue"]["moves"]) == (1, "the engine is busy", [])
    monkeypatch.setattr(reorder, "MOST_STAGES_WAITING", 0)
    assert "too many" in tried(town.owner, second, patch={"priority": "low"})["queue"]["fault"]


def test_only_who_may_use_any_number_is_offered_to_go_ahead_of_all(town: Town) -> None:
    waiting(town)
    offered = {}
    for person in (town.owner, town.staff):
        browser = Client()
        browser.force_login(person.user)
        offered[person.user.get_username()] = "ahead of all (501)" in browser.get("/queue").content.decode()
    assert list(offered.values()) == [False, True]
