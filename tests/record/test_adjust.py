"""A running attempt is changed in place: one revision, told to its nodes, applied once, and nothing else moves."""

from __future__ import annotations

import pytest

from agents.protocol import Here, Phase, Share, Wanted
from controlplane.jobs import service
from controlplane.jobs.adjust import Unadjustable, adjust
from controlplane.jobs.models import Attempt, Claim, Part
from tests.record.yard import Agent, Yard, cpu, gpu, stage, states


def running(yard: Yard, agent: Agent) -> Attempt:
    job = yard.submit(name="loader")
    yard.cycle()
    agent.start()
    assert states(job)["main"] == "RUNNING"
    return stage(job).attempts.get()


def ordered(agent: Agent) -> Wanted:
    (wanted,) = agent.look()
    return wanted


def test_a_revision_reaches_the_node_and_moves_nothing_else(yard: Yard) -> None:
    agent = yard.agent("a")
    attempt = running(yard, agent)
    before, claims = ordered(agent), list(Claim.objects.values())
    assert (before.spec_rev, before.share) == (1, None)
    generation = agent.desired.generation if agent.desired else 0
    assert adjust(attempt.id, "engine", reason="its loader waits", cpus_milli=2000, cpu_weight=200) == 1
    after = ordered(agent)
    assert (after.part, after.epoch, after.do, after.spec_rev) == (before.part, before.epoch, "run", 2)
    assert after.share == Share(cpus_milli=2000, cpu_weight=200)
    assert agent.desired is not None
    assert agent.desired.generation > generation
    assert list(Claim.objects.values()) == claims
    job = attempt.stage.job
    assert states(job) == {"job": "RUNNING", "main": "RUNNING"}
    fact = job.events.order_by("-seq")[0]
    assert (fact.kind, fact.actor) == ("adjusted", "engine")
    assert "cpu_weight 200, cpus_milli 2000 (its loader waits)" in fact.text


def test_what_a_revision_does_not_name_stays_and_none_takes_it_back(yard: Yard) -> None:
    agent = yard.agent("a")
    attempt = running(yard, agent)
    adjust(attempt.id, "engine", cpus_milli=2000, suspended=True)
    adjust(attempt.id, "engine", suspended=False)
    assert ordered(agent).share == Share(cpus_milli=2000)
    adjust(attempt.id, "engine", cpus_milli=None)
    assert (ordered(agent).spec_rev, ordered(agent).share) == (4, Share())


def test_a_revision_that_changes_nothing_is_none(yard: Yard) -> None:
    agent = yard.agent("a")
    attempt = running(yard, agent)
    adjust(attempt.id, "engine", io_weight=50)
    events = attempt.stage.job.events.count()
    assert adjust(attempt.id, "engine", io_weight=50) == 0
    assert ordered(agent).spec_rev == 2
    assert attempt.stage.job.events.count() == events


def test_what_the_agent_applied_and_what_it_could_not_is_kept(yard: Yard) -> None:
    agent = yard.agent("a")
    attempt = running(yard, agent)
    adjust(attempt.id, "engine", cpu_weight=200)
    part = attempt.parts.get()
    note = "CPU weight 200 (nice -3) could not be set: permission denied"
    agent.set(attempt.stage, Phase.RUNNING, spec_rev=2, notes=[note])
    part.refresh_from_db()
    assert (part.spec_rev, part.seen_rev, part.notes) == (2, 2, [note])
    agent.set(attempt.stage, Phase.RUNNING, spec_rev=2)
    part.refresh_from_db()
    assert part.notes == []


def test_only_the_named_ranks_change(yard: Yard) -> None:
    one, two = yard.agent("a", cpu("a"), gpu("a")), yard.agent("b", cpu("b"), gpu("b"))
    job = yard.submit(nodes=2, devices={"kind": "gpu"})
    yard.cycle()
    for agent in (one, two):
        agent.start()
    attempt = stage(job).attempts.get()
    assert adjust(attempt.id, "engine", ranks=[1], cpu_weight=50) == 1
    assert sorted(Part.objects.values_list("rank", "spec_rev")) == [(0, 1), (1, 2)]
    assert adjust(attempt.id, "engine", cpu_weight=50) == 1


def test_a_rank_that_does_not_run_is_refused(yard: Yard) -> None:
    attempt = running(yard, yard.agent("a"))
    with pytest.raises(Unadjustable, match="there is no live rank 3; those that run are 0"):
        adjust(attempt.id, "engine", ranks=[3], cpu_weight=50)


def test_a_stage_is_suspended_while_all_of_it_is_and_runs_again(yard: Yard) -> None:
    one, two = yard.agent("a", cpu("a"), gpu("a")), yard.agent("b", cpu("b"), gpu("b"))
    job = yard.submit(nodes=2, devices={"kind": "gpu"})
    yard.cycle()
    for agent in (one, two):
        agent.start()
    attempt = stage(job).attempts.get()
    adjust(attempt.id, "engine", ranks=[1], suspended=True)
    assert states(job)["main"] == "RUNNING"
    adjust(attempt.id, "engine", suspended=True)
    assert states(job) == {"job": "SUSPENDED", "main": "SUSPENDED"}
    adjust(attempt.id, "engine", ranks=[0], suspended=False)
    assert states(job)["main"] == "RUNNING"


def test_a_suspended_stage_may_end_and_may_be_stopped(yard: Yard) -> None:
    agent = yard.agent("a")
    for end, state in (({}, "COMPLETED"), ({"signal": 9, "cause": "SIGNAL"}, "FAILED")):
        attempt = running(yard, agent)
        adjust(attempt.id, "engine", suspended=True)
        agent.end(attempt.stage, **end)
        assert states(attempt.stage.job)["main"] == state
    attempt = running(yard, agent)
    adjust(attempt.id, "engine", suspended=True)
    service.cancel(attempt.stage.job, "ada")
    assert states(attempt.stage.job)["main"] == "STOPPING"
    assert ordered(agent).do == "stop"


def test_a_stage_that_is_suspended_before_it_runs_is_so_once_it_does(yard: Yard) -> None:
    agent = yard.agent("a")
    job = yard.submit()
    yard.cycle()
    adjust(stage(job).attempts.get().id, "engine", suspended=True)
    assert states(job)["main"] == "STARTING"
    agent.start()
    assert states(job)["main"] == "SUSPENDED"


def test_an_attempt_that_stops_or_ended_is_not_adjusted(yard: Yard) -> None:
    agent = yard.agent("a")
    attempt = running(yard, agent)
    agent.end(attempt.stage)
    with pytest.raises(Unadjustable, match="has ended; only an attempt that runs"):
        adjust(attempt.id, "engine", cpu_weight=50)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({}, "say what is to change"),
        ({"cpu_wait": 3}, "a running part has no cpu_wait; did you mean cpu_weight?"),
        ({"cpu_weight": 0}, "cpu_weight must be a whole number from 1 to 10000, not '0'"),
        ({"cpus": []}, "cpus must be a list of numbers of one core or more"),
        ({"cpus": 3}, "cpus must be a list of numbers of one core or more, not '3'"),
        ({"memory_bytes": True}, "memory_bytes must be a whole number"),
        ({"queue_class": "fast"}, "queue_class must be short or long, or null, not 'fast'"),
        ({"quantum_s": 3600}, "quantum_s must be a number of seconds from 0.05 to 60, not '3600'"),
        ({"suspended": 1}, "suspended must be true or false, not '1'"),
    ],
)
def test_what_no_agent_could_apply_is_refused(yard: Yard, given: dict[str, object], says: str) -> None:
    attempt = running(yard, yard.agent("a"))
    with pytest.raises(Unadjustable, match=says):
        adjust(attempt.id, "engine", **given)


def test_a_revision_of_a_part_that_did_not_start_yet_comes_with_its_spec(yard: Yard) -> None:
    agent = yard.agent("a")
    job = yard.submit()
    yard.cycle()
    adjust(stage(job).attempts.get().id, "engine", cpu_weight=50)
    wanted = ordered(agent)
    assert wanted.spec is not None
    assert (wanted.spec_rev, wanted.share) == (2, Share(cpu_weight=50))
    agent.here[wanted.part] = Here(wanted.part, wanted.attempt, wanted.epoch, Phase.RUNNING, pid=7)
    agent.report()
    assert states(job)["main"] == "RUNNING"
