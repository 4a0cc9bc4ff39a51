"""Jobs that were submitted on a node while it was cut off come into the record once, with their real times."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from agents import protocol
from agents.protocol import Exit, Here, LocalAnswer, LocalClaim, LocalJob, LocalOffer, Phase, local_ids
from controlplane.fleet.models import Alarm, Device
from controlplane.jobs.models import Attempt, Claim, Job, Part
from controlplane.local_jobs import models as rows
from controlplane.local_jobs.join import join
from controlplane.queries import job_rows
from switchyard.node_socket import uuid7
from tests.record.yard import Agent, Yard, cpu, gpu, states


@dataclass
class Edge:
    """A node with a card, on which jobs of the project ``default`` may be submitted."""

    agent: Agent
    here: dict[str, LocalOffer] = field(default_factory=dict)

    def accept(self, *, begun_s: float = 100.0, end: Exit | None = None, **more: Any) -> str:
        """A job that began here so long ago, and ended if it has an exit."""
        job = uuid7()
        spec = {"name": "weld", "run": "true", "devices": {"kind": "gpu"}}
        claims = [LocalClaim("GPU-a-0", 1000), LocalClaim("cpu-a", 1000, 2**30)]
        fields: dict[str, Any] = {"account": "line3", "project": "default", "spec": spec, "claims": claims}
        offered = LocalJob(**{**fields, "accepted_s": begun_s + 20, "begun_s": begun_s, "exit": end, **more})
        self.here[job] = LocalOffer(job, offered)
        if claims:
            ids, phase = local_ids(job), Phase.ENDED if end else Phase.RUNNING
            devices = [claim.uuid for claim in offered.claims]
            self.agent.here[ids.part] = Here(ids.part, ids.attempt, 1, phase, pid=7, exit=end, devices=devices)
        return job

    def offer(self, *jobs: str) -> dict[str, LocalAnswer]:
        found = join(self.agent.node.id, [self.here[job] for job in jobs or self.here])
        return {answer.id: answer for answer in found}


@pytest.fixture
def edge(yard: Yard) -> Edge:
    agent = yard.agent("a", cpu("a"), gpu("a"))
    rows.LocalGrant.objects.create(node=agent.node, project=yard.project, user=yard.user)
    return Edge(agent)


def test_what_ended_while_it_was_cut_off_is_an_ordinary_job_with_the_times_of_its_host(edge: Edge) -> None:
    job = edge.accept(begun_s=7_200, end=Exit(code=0, ran_s=3_600.0))
    number = edge.offer()[job].number
    found = Job.objects.get(number=number)
    now = timezone.now()
    assert str(found.id) == job
    assert (found.state, found.stages.get().state) == ("COMPLETED", "COMPLETED")
    (attempt,) = Attempt.objects.filter(stage__job=found)
    for begun in (found.started_at, attempt.started_at):
        assert abs(begun - (now - timedelta(hours=2))) < timedelta(seconds=30)
    for ended in (found.ended_at, attempt.ended_at, attempt.stage.ended_at):
        assert abs(ended - (now - timedelta(hours=1))) < timedelta(seconds=30)
    assert found.submitted_at < found.started_at
    held = Claim.objects.filter(part__attempt=attempt)
    assert {claim.device.uuid for claim in held} == {"GPU-a-0", "cpu-a"}
    assert all(claim.closed_at - claim.opened_at == timedelta(hours=1) for claim in held), "charged for an hour"
    assert not any(Device.objects.values_list("claimed_milli", flat=True))
    (shown,) = job_rows.shown(job_rows.whole(Job.objects.filter(id=job)))
    assert shown.submitted_on is not None
    assert (shown.submitted_on.node, shown.submitted_on.account) == ("a", "line3")
    assert "joined" in found.events.values_list("kind", flat=True)
    # The node is told to forget the part only now.
    assert edge.agent.report().forget == [local_ids(job).part]


def test_an_offer_that_comes_again_is_the_same_job(edge: Edge) -> None:
    job = edge.accept(end=Exit(code=0, ran_s=1.0))
    first, again = edge.offer()[job], edge.offer()[job]
    assert first.number == again.number
    assert (Job.objects.count(), Part.objects.count()) == (1, 1)
    Job.objects.all().delete()
    assert edge.offer()[job].number == first.number, "its id was taken once, also after the job was removed"
    assert not Job.objects.exists()


def test_what_a_restored_record_does_not_know_is_asked_for_and_made_anew_with_the_same_ids(edge: Edge) -> None:
    job = edge.accept(end=Exit(code=3, cause="EXIT_CODE", ran_s=1.0))
    edge.offer()
    Job.objects.all().delete()
    rows.LocalJob.objects.all().delete()
    whole, edge.here[job] = edge.here[job], LocalOffer(job)
    assert edge.offer()[job].wants
    edge.here[job] = whole
    assert edge.offer()[job].number
    assert str(Job.objects.get(state="FAILED").id) == job


def test_its_devices_are_held_until_it_ends(edge: Edge, yard: Yard) -> None:
    job = edge.accept()
    edge.agent.report()
    waiting = yard.submit(devices={"kind": "gpu"})
    yard.cycle()
    assert states(waiting)["main"] == "PENDING", "before the offer was taken too"
    edge.offer()
    edge.agent.report()
    found = Job.objects.get(id=job)
    assert found.state == "RUNNING"
    yard.cycle()
    assert states(waiting)["main"] == "PENDING"
    stage = found.stages.get()
    edge.agent.end(stage)
    assert states(found)["job"] == "COMPLETED"
    yard.cycle()
    assert states(waiting)["main"] == "STARTING"


def test_what_was_placed_there_meanwhile_and_has_not_begun_gives_way(edge: Edge, yard: Yard) -> None:
    planned = yard.submit(devices={"kind": "gpu"})
    yard.cycle()
    assert states(planned)["main"] == "STARTING"
    job = edge.accept()
    answer = edge.offer()[job]
    assert answer.number is None
    assert answer.why
    (order,) = [wanted for wanted in edge.agent.look() if wanted.do == "stop"]
    edge.agent.here[order.part] = Here(order.part, order.attempt, order.epoch, Phase.ENDED, exit=Exit(stopped=True))
    edge.agent.report()
    assert states(planned)["main"] == "PENDING"
    yard.cycle()
    assert states(planned)["main"] == "PENDING", "it is not placed there again"
    assert edge.offer()[job].number
    assert not Alarm.objects.filter(kind="local").exists()


def test_without_a_grant_it_stays_on_its_node_as_a_condition_for_people(edge: Edge, yard: Yard) -> None:
    job = edge.accept(end=Exit(code=0, ran_s=1.0), project="gone")
    answer = edge.offer()[job]
    assert answer.number is None
    assert "gone" in answer.why
    assert not Job.objects.exists()
    assert "gone" in Alarm.objects.get(kind="local", subject="a").says
    yard.project.name = "gone"
    yard.project.save()
    assert edge.offer()[job].number
    assert not Alarm.objects.filter(kind="local").exists()


def test_the_user_of_a_grant_may_not_be_locked_out(edge: Edge, yard: Yard) -> None:
    job = edge.accept(end=Exit(code=0, ran_s=1.0))
    yard.user.is_active = False
    yard.user.save()
    assert "not active" in edge.offer()[job].why
    assert not Job.objects.exists()


def test_what_was_cancelled_before_it_began_is_a_cancelled_job(edge: Edge) -> None:
    job = edge.accept(end=Exit(cause="CANCELLED", stopped=True), claims=[])
    edge.agent.here.clear()
    edge.offer()
    assert Job.objects.get(id=job).state == "CANCELLED"
    assert not Attempt.objects.exists()


def test_a_node_cannot_claim_more_than_its_devices_have_nor_those_of_another(edge: Edge, yard: Yard) -> None:
    yard.agent("b", cpu("b"), gpu("b"))
    claims = [LocalClaim("GPU-b-0", 1000), LocalClaim("cpu-a", protocol.MOST_MILLI, 2**50)]
    job = edge.accept(end=Exit(code=0, ran_s=5.0), claims=claims)
    edge.offer()
    (claim,) = Claim.objects.filter(part=local_ids(job).part)
    assert (claim.device.uuid, claim.milli, claim.memory_bytes) == ("cpu-a", 2_000, 8 * 2**30)


def test_an_id_of_another_node_is_told_nothing(edge: Edge, yard: Yard) -> None:
    job = edge.accept(end=Exit(code=0, ran_s=1.0))
    edge.offer()
    other = Edge(yard.agent("b", cpu("b"), gpu("b")), here={job: LocalOffer(job)})
    assert other.offer()[job].number is None


def test_a_failed_job_is_not_run_again_by_anybody(edge: Edge, yard: Yard) -> None:
    for cause in ("NODE_REBOOT", "SUPERVISOR_LOST", "EXIT_CODE"):
        job = edge.accept(end=Exit(cause=cause, ran_s=1.0))
        edge.offer(job)
        assert Job.objects.get(id=job).state == "FAILED", cause


def _deep() -> dict[str, Any]:
    nested: Any = "x"
    for _ in range(400):
        nested = {"a": nested}
    return dict(nested)


@pytest.mark.parametrize(
    "spec",
    [
        {},
        {"run": "true", "name": 5},
        {"run": "\0"},
        {"run": "true", "name": "a\0b"},
        {"run": "true", "devices": {"kind": "gpu", "model": "\0"}},
        {"run": "true", "devices": [[[]]]},
        {"run": "true", "env": {"A": "\0", "YARD_X": []}},
        {"run": "true", "cpus": 1e300, "memory": -1},
        {"run": "true", "devices": _deep(), "env": _deep()},
        {"run": "x" * 70_000},
        {"run": "true", "time_limit": "999999999h"},
        {
            "run": "true",
            "project": "another",
            "user": "root",
            "priority": 9_999,
            "secrets": ["KEY"],
            "bundle": "x" * 64,
        },
    ],
)
def test_a_hostile_job_file_costs_its_own_job_and_nothing_else(edge: Edge, spec: dict[str, Any]) -> None:
    bad, good = edge.accept(spec=spec), edge.accept(end=Exit(code=0, ran_s=1.0))
    answers = edge.offer()
    assert answers[good].number
    assert answers[bad].why or Job.objects.get(id=bad).project.name == "default"
    assert Job.objects.filter(priority__gt=1_000).count() == 0
