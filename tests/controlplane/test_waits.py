"""What a job waited for, by reason, and how fast it advances; nothing is told that is not known."""

from __future__ import annotations

import itertools
from datetime import timedelta

import pytest
from django.utils import timezone

from agents.protocol import Phase, Progress
from controlplane.jobs import curves
from controlplane.jobs.curves import MARK_EVERY_S, MARKS
from controlplane.jobs.models import Attempt, Curves, Job, Stage
from controlplane.queries.waits import OF
from scheduler.core.model.reasons import CATALOGUE
from tests.controlplane.people import Town
from tests.controlplane.test_pages import browser, text
from tests.record.yard import stage


def test_every_reason_is_of_one_kind() -> None:
    assert sorted(itertools.chain(*OF.values())) == sorted(entry.code for entry in CATALOGUE)


def look(job: Job, code: str, seconds: float) -> None:
    """What the engine writes when it looks at the stage so many seconds after it began to wait."""
    at = job.submitted_at + timedelta(seconds=seconds)
    Stage.objects.filter(job=job).update(reasons=[{"code": code, "text": code, "acts": "nobody"}], evaluated_at=at)


def test_the_time_of_a_wait_goes_to_the_reason_that_held_then(town: Town) -> None:
    town.machine()
    job = town.job(devices={"kind": "gpu"})
    Job.objects.update(submitted_at=timezone.now() - timedelta(seconds=1000))
    job.refresh_from_db()
    Stage.objects.update(reasons=[], evaluated_at=None, waited={}, waited_at=None)
    for code, at in (
        ("Held", 10),
        ("Held", 40),
        ("QuotaExhausted", 60),
        ("CapacityInsufficient", 160),
        ("QuotaExhausted", 460),
        ("QuotaExhausted", 500),
    ):
        look(job, code, at)
    (found,) = town.owner.read(f"/jobs/{job.number}/waits")["results"]
    causes = {one["code"]: (one["of"], round(one["waited_s"])) for one in found["causes"]}
    assert {code: known for code, known in causes.items() if code != "QuotaExhausted"} == {
        "Held": ("hold", 50),
        "CapacityInsufficient": ("capacity", 300),
    }
    kind, counted = causes["QuotaExhausted"]
    assert kind == "quota"
    assert 100 + 540 <= counted <= 100 + 540 + 60, "it still waits for that"
    assert 10 <= found["unrecorded_s"] < 11
    assert sum(one["share"] for one in found["causes"]) == pytest.approx(1)
    assert town.stranger.get(f"/jobs/{job.number}/waits").status_code == 404
    page = text(browser(town.owner), f"/jobs/{job.number}/waits")
    assert "reasons.html#CapacityInsufficient" in page
    assert "配额" in text(browser(town.owner), f"/jobs/{job.number}/waits", **{"Accept-Language": "zh-CN"})


def test_a_stage_that_starts_stops_counting_and_goes_on_when_it_waits_again(town: Town) -> None:
    job = town.running(town.machine(), cpus=1)
    waited = Stage.objects.get().waited
    assert Stage.objects.get().waited_at is None
    Stage.objects.update(evaluated_at=timezone.now())
    assert Stage.objects.get().waited == waited, "it runs"
    (found,) = town.owner.read(f"/jobs/{job.number}/waits")["results"]
    assert found["waited_s"] < 60


def marked(job: Job, *marks: tuple[float, int], total: int | None) -> None:
    """So many seconds ago it reported these steps."""
    now = timezone.now().timestamp()
    Curves.objects.update(marks=[[now - ago, step] for ago, step in marks])
    Stage.objects.filter(job=job).update(progress={"step": marks[-1][1], "total": total, "phase": ""})


def test_a_speed_is_told_only_where_the_reported_steps_tell_it(town: Town) -> None:
    agent = town.machine()
    job = town.running(agent, cpus=1)
    path = f"/jobs/{job.number}/pace"
    agent.set(stage(job), Phase.RUNNING, progress=Progress(step=1, total=1000))
    ((at, step),) = Curves.objects.get().marks
    assert step == 1
    assert abs(at - timezone.now().timestamp()) < 60
    assert town.owner.read(path)["results"] == [], "one report tells no speed"

    marked(job, (100, 100), (50, 200), (0, 300), total=1000)
    (pace,) = town.owner.read(path)["results"]
    assert (pace["step"], pace["total"], pace["over_s"]) == (300, 1000, 100.0)
    assert pace["steps_per_s"] == pytest.approx(2.0)
    assert pace["low_at"] == pace["high_at"], "its speed is steady"
    assert "2 steps/s" in text(browser(town.owner), f"/jobs/{job.number}")
    marked(job, (100, 100), (50, 260), (0, 300), total=1000)
    (pace,) = town.owner.read(path)["results"]
    assert pace["low_at"] < pace["high_at"], "it became slower"

    marked(job, (100, 100), (50, 200), (0, 300), total=None)
    (pace,) = town.owner.read(path)["results"]
    assert (pace["total"], pace["low_at"], pace["high_at"]) == (None, None, None)
    for marks in (
        [(20, 1), (10, 2), (0, 3)],  # too short
        [(100, 5), (50, 5), (0, 5)],  # it does not advance
        [(900, 1), (850, 2), (800, 3)],  # silent since
        [(100, 300), (50, 400), (0, 1)],  # it has begun again
    ):
        marked(job, *marks, total=1000)
        assert town.owner.read(path)["results"] == [], marks
    assert town.stranger.get(path).status_code == 404


def test_few_marks_are_kept_and_none_too_near(town: Town) -> None:
    town.running(town.machine(), cpus=1)
    attempt = Attempt.objects.get().id
    for i in range(3 * MARKS):
        curves.append([curves.Reported(attempt, i, {}, i * MARK_EVERY_S / 2)])
    marks = Curves.objects.get().marks
    assert len(marks) == MARKS
    assert {later[0] - sooner[0] for sooner, later in itertools.pairwise(marks)} == {MARK_EVERY_S}
    assert Curves.objects.get().tail == []
