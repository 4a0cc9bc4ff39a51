"""What the record predicts of a job once other things have ended: by dry run, by submit, and by the panel of a wait."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from agents.protocol import Checkpoint, Exit, Phase
from controlplane.jobs.models import Attempt, Job, Stage
from controlplane.scheduling.store import LiveStore, clock
from controlplane.whatif import answers, dry_run
from scheduler.core.model.lifecycle import Cause
from scheduler.predict import speeds
from scheduler.predict.finished import Finished
from tests.record.yard import Agent, Yard, cpu, gpu, stage


def ended(yard: Yard, agent: Agent, ran_s: float, **spec: Any) -> Job:
    """A job that ran for so long and completed."""
    job = yard.submit(**spec)
    yard.cycle()
    agent.start()
    then = timezone.now() - timedelta(seconds=ran_s)
    Attempt.objects.filter(stage=stage(job)).update(started_at=then, created_at=then)
    agent.end(stage(job))
    return job


def said(yard: Yard, **spec: Any) -> dict[str, Any]:
    """What the dry run says of the run time."""
    answers._store = LiveStore()
    (shown,) = dry_run.dry_run({"name": "job", "run": "true", **spec}, yard.user)["stages"]
    lasts: dict[str, Any] = shown["expected_s"]
    return lasts


def full_of_seconds(yard: Yard) -> Agent:
    """A yard in which many short things have ended."""
    agent = yard.agent("a", cpu("a", cores=8))
    for name in "bcdefghijklm":
        ended(yard, agent, 1.0, name=f"echo-{name}")
    for _ in range(4):
        ended(yard, agent, 1.0, name="sleep", expected="1s")
    return agent


@pytest.mark.parametrize(("expected", "seconds"), [("6m", 360), ("30s", 30)])
def test_a_declared_time_leads_although_other_things_have_ended(yard: Yard, expected: str, seconds: float) -> None:
    """Seen: 2.7 min for the first and "5m00s to 5m00s" for the second."""
    full_of_seconds(yard)
    lasts = said(yard, name="tune", expected=expected)
    assert lasts["p50"] == seconds
    assert 1.2 * seconds < lasts["p90"] < 2 * seconds
    assert lasts["basis"] == "as declared"


def test_twice_eight_minutes_are_eight_minutes(yard: Yard) -> None:
    """Seen: "predicted 1 s". The command is named for its program, as many short ones before it were."""
    agent = full_of_seconds(yard)
    assert said(yard, name="sleep", expected="8m")["p50"] == 480
    for _ in range(2):
        ended(yard, agent, 480.0, name="sleep", expected="8m")
    lasts = said(yard, name="sleep", expected="8m")
    assert lasts["p50"] == pytest.approx(480, rel=0.05)
    assert lasts["basis"] == "from 2 runs of this stage"
    job = yard.submit(name="sleep", expected="8m")
    yard.cycle()
    attempt = stage(job).attempts.get()
    assert attempt.estimate["p50_s"] == pytest.approx(480, rel=0.05)
    assert "predicted to run 8 min" in attempt.why_here


def test_what_is_like_nothing_that_ended_is_unknown(yard: Yard) -> None:
    """Seen: nine minutes for ``echo hi``."""
    agent = yard.agent("a", cpu("a", cores=8))
    for name in "bcdef":
        ended(yard, agent, 540.0, name=f"work-{name}")
    lasts = said(yard, name="echo")
    assert (lasts["p50"], lasts["p90"]) == (None, None)
    assert lasts["basis"] == "unknown: no like stage has ended"
    job = yard.submit(name="echo")
    yard.cycle()
    assert stage(job).attempts.get().why_here.endswith("how long it will run is unknown")


def test_what_did_not_run_whole_says_nothing(yard: Yard) -> None:
    """One failed after a second, one was cancelled, one ran on after a preemption: none is a run of eight minutes."""
    agent = yard.agent("a", cpu("a", cores=8))
    spec: dict[str, Any] = {"name": "tune", "expected": "8m"}
    ended(yard, agent, 480.0, **spec)
    failed = yard.submit(**spec)
    yard.cycle()
    agent.start()
    agent.end(stage(failed), code=1)
    rest = yard.submit(**spec)
    yard.cycle()
    agent.start()
    Attempt.objects.filter(stage=stage(rest)).update(stop_why=Cause.PREEMPTED, stop_at=timezone.now())
    agent.set(stage(rest), Phase.ENDED, exit=Exit(code=0, stopped=True))
    Stage.objects.update(retry_at=None)
    yard.cycle()
    agent.start()
    agent.end(stage(rest))
    assert stage(rest).state == "COMPLETED"
    lasts = said(yard, **spec)
    assert lasts["basis"] == "from 1 run of this stage"
    assert lasts["p50"] == pytest.approx(480, rel=0.15)


def test_seconds_are_those_of_the_place_where_it_would_run(yard: Yard) -> None:
    """Work on a device of speed 1 says nothing to people: on a CPU, training is taken to be fifty times slower."""
    agent = yard.agent("a", cpu("a", cores=8))
    spec: dict[str, Any] = {"stages": [{"name": "main", "kind": "train", "run": "true", "devices": {"kind": "cpu"}}]}
    for _ in range(3):
        ended(yard, agent, 480.0, name="tune", **spec)
    answers._store = LiveStore()
    (shown,) = dry_run.dry_run({"name": "tune", **spec}, yard.user)["stages"]
    assert shown["expected_s"]["p50"] == pytest.approx(480, rel=0.05)


def test_a_speed_that_changes_changes_no_run_time(yard: Yard) -> None:
    """Work counted at one speed and divided by another is another time; five runs on each model tell another speed."""
    slow, fast = yard.agent("a", cpu("a"), gpu("a", 0, "T4")), yard.agent("b", cpu("b"), gpu("b", 0, "H100"))

    def on(model: str) -> dict[str, Any]:
        devices = {"kind": "gpu", "model": model}
        return {"name": "tune", "stages": [{"name": "main", "kind": "train", "run": "true", "devices": devices}]}

    store = LiveStore()
    for agent, model, ran_s in ((slow, "T4", 400.0), (fast, "H100", 100.0)):
        for _ in range(5):
            ended(yard, agent, ran_s, **on(model))
            store.load(clock())
    yard.submit(**on("T4"), hold=True)
    store.history._read_at = float("-inf")
    world = store.load(clock())
    rate = world.speeds["train", "T4"]
    assert rate == pytest.approx(0.25 * world.speeds["train", "H100"], rel=0.05)
    (waits,) = world.waiting
    assert waits.estimate.p50_s / rate == pytest.approx(400, rel=0.05)


def test_speeds_come_from_work_that_is_long_enough_to_tell() -> None:
    runs = [Finished("lab", "echo", "train", 0.01, "H100", 1.0) for _ in range(6)]
    runs += [Finished("lab", "echo", "train", 4.0, "T4", 1.0) for _ in range(6)]
    assert speeds.speeds(runs) == {}
    apart = [Finished("lab", "sleep", "train", 900.0, "H100", expected_s=900.0) for _ in range(6)]
    apart += [Finished("lab", "sleep", "train", 9.0, "T4", expected_s=9.0) for _ in range(6)]
    assert speeds.speeds(apart) == {}, "one name, other work"
    used = {("train", "T4"): 0.25}
    assert speeds.settled(used, {("train", "T4"): 0.27}) == used
    assert speeds.settled(used, {("train", "T4"): 0.5}) == {("train", "T4"): 0.5}


def test_who_waits_is_told_how_long_it_runs_and_how_often_that_held(yard: Yard) -> None:
    agent = yard.agent("a")
    for ran_s in (60.0, 60.0, 200.0):
        ended(yard, agent, ran_s, name="tune", expected="1m", cpus=2)
    first, second = (yard.submit(name="tune", expected="1m", cpus=2) for _ in range(2))
    yard.store = LiveStore()
    yard.cycle()
    agent.start()
    assert stage(first).state == "RUNNING"
    yard.cycle()
    lasts = stage(second).lasts
    assert (lasts["held"], lasts["seen"]) == (2, 3)
    assert lasts["basis"] == "from 3 runs of this stage"
    assert stage(second).expected["held"] == stage(second).expected["seen"] == 0


def test_who_was_stopped_has_so_much_less_to_do_and_teaches_the_whole(yard: Yard) -> None:
    """Twenty of thirty minutes were done and saved when it was told to stop: ten are left. Once it is done, it is a run
    of its whole length, which two attempts made."""
    agent = yard.agent("a", cpu("a", cores=8))
    spec: dict[str, Any] = {"name": "tune", "expected": "30m", "time_limit": "2h"}
    job = yard.submit(**spec)
    yard.cycle()
    agent.start()
    now = timezone.now()
    Attempt.objects.filter(ended_at=None).update(
        started_at=now - timedelta(minutes=21),
        created_at=now - timedelta(minutes=21),
        stop_why=Cause.PREEMPTED,
        stop_at=now,
    )
    saved = [Checkpoint(1, "/shared/1", 60.0)]
    agent.set(stage(job), Phase.ENDED, exit=Exit(code=0, stopped=True), checkpoints=saved)
    (waits,) = LiveStore().load(clock()).waiting
    assert waits.estimate.p50_s == pytest.approx(600, rel=0.05)
    Stage.objects.update(retry_at=None)
    yard.cycle()
    agent.start()
    (runs,) = LiveStore().load(clock()).running
    assert runs.estimate.p50_s == pytest.approx(600, rel=0.05)
    then = timezone.now() - timedelta(minutes=12)
    Attempt.objects.filter(ended_at=None).update(started_at=then, created_at=then)
    agent.end(stage(job))
    assert stage(job).state == "COMPLETED"
    assert said(yard, **spec)["basis"] == "from 1 run of this stage"
    store = LiveStore()
    store.load(clock())
    (learned,) = store.history._finished.values()
    assert learned.work_s == pytest.approx(32 * 60, rel=0.02)
