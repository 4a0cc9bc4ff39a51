"""Changing a running attempt over REST: who may, what is refused and with which field, and what the answer tells."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from agents.protocol import PartSample, Phase, Share
from controlplane.fleet import models as fleet
from controlplane.jobs.models import Attempt, Job, Part
from controlplane.queries import attempts
from tests.controlplane.people import Person, Town
from tests.controlplane.test_api_jobs import problem
from tests.record.yard import Agent, stage, states


def running(town: Town) -> tuple[Agent, Job, Attempt]:
    agent = town.machine()
    job = town.running(agent, cpus=2, memory="2GiB")
    return agent, job, Attempt.objects.get()


def adjust(who: Person, attempt: Attempt, body: Any, **headers: str) -> Any:
    return who.post(f"/attempts/{attempt.id}/adjust", body, **headers)


def test_the_owner_pauses_it_and_lets_it_go_on(town: Town) -> None:
    agent, job, attempt = running(town)
    answer = adjust(town.owner, attempt, {"suspended": True, "reason": "a demonstration"})
    assert answer.status_code == 200, answer.content
    told = msgspec.json.decode(answer.content, type=attempts.Attempt)
    assert [(part.rank, part.node, part.phase, part.spec_rev, part.seen_rev, part.share) for part in told.parts] == [
        (0, "n1", "RUNNING", 2, 1, {"suspended": True})
    ]
    assert states(job)["main"] == "SUSPENDED"
    (wanted,) = agent.look()
    assert (wanted.spec_rev, wanted.share) == (2, Share(suspended=True))
    fact = town.owner.read(f"/jobs/{job.number}/events")["results"][-1]
    assert (fact["kind"], fact["actor"], fact["attempt"]) == ("adjusted", "owner", 1)
    assert fact["text"] == "main adjusted in place: suspended (a demonstration)"
    agent.set(stage(job), Phase.RUNNING, spec_rev=2, notes=["it forks faster than it can be suspended"])
    told = msgspec.json.decode(town.mate.get(f"/attempts/{attempt.id}").content, type=attempts.Attempt)
    assert (told.parts[0].seen_rev, told.parts[0].notes) == (2, ["it forks faster than it can be suspended"])
    assert adjust(town.lead, attempt, {"suspended": None}).status_code == 200
    assert states(job)["main"] == "RUNNING"


def test_all_that_a_revision_can_say_reaches_the_node(town: Town) -> None:
    agent, _job, attempt = running(town)
    body = {
        "cpus": [1],
        "cpus_milli": 3000,
        "cpu_weight": 300,
        "io_weight": 20,
        "memory_bytes": 1 << 30,
        "queue_class": "short",
        "quantum_s": 2.5,
    }
    assert adjust(town.staff, attempt, body).status_code == 200
    (wanted,) = agent.look()
    assert wanted.share == Share(**body)  # type: ignore[arg-type]


def test_the_same_key_takes_effect_once(town: Town) -> None:
    _agent, _job, attempt = running(town)
    for replayed in (None, "true"):
        answer = adjust(town.owner, attempt, {"cpu_weight": 50}, **{"Idempotency-Key": "k"})
        assert (answer.status_code, answer.get("Idempotency-Replayed")) == (200, replayed)
    assert Part.objects.get().spec_rev == 2


def test_who_may_not_is_told_who_may(town: Town) -> None:
    _agent, _job, attempt = running(town)
    for person in (town.mate, town.viewer):
        body = problem(adjust(person, attempt, {"suspended": True}), 403, "permission_denied")
        assert body["detail"] == "only owner, a lead of project default or staff may adjust this attempt"
    problem(adjust(town.stranger, attempt, {"suspended": True}), 404, "not_found")
    problem(adjust(town.anonymous, attempt, {"suspended": True}), 401, "not_authenticated")
    problem(town.stranger.get(f"/attempts/{attempt.id}"), 404, "not_found")
    assert Part.objects.get().spec_rev == 1


@pytest.mark.parametrize(
    "more",
    [
        {"cpus_milli": 2001},
        {"cpus": [0]},
        {"cpu_weight": 101},
        {"io_weight": 101},
        {"memory_bytes": (2 << 30) + 1},
        {"queue_class": "short"},
        {"quantum_s": 9},
    ],
)
def test_what_takes_from_others_only_staff_may_give(town: Town, more: dict[str, Any]) -> None:
    _agent, _job, attempt = running(town)
    body = problem(adjust(town.owner, attempt, more), 403, "permission_denied")
    assert [each["pointer"] for each in body["errors"]] == [f"/{next(iter(more))}"]
    assert adjust(town.staff, attempt, more).status_code == 200


def test_more_weight_than_that_of_its_class_only_staff_may_give(town: Town) -> None:
    agent = town.machine()
    town.running(agent, priority="low")
    attempt = Attempt.objects.get()
    problem(adjust(town.owner, attempt, {"cpu_weight": 51}), 403, "permission_denied")
    assert adjust(town.owner, attempt, {"cpu_weight": 50}).status_code == 200


def test_the_owner_may_take_less(town: Town) -> None:
    _agent, _job, attempt = running(town)
    body = {"cpus_milli": 1000, "cpu_weight": 100, "io_weight": 1, "memory_bytes": 1 << 30, "queue_class": "long"}
    assert adjust(town.owner, attempt, body).status_code == 200


@pytest.mark.parametrize(
    ("body", "pointer", "says"),
    [
        ([1], "", "the body must be an object"),
        ({}, "", "say what is to change: some of cpu_weight"),
        ({"cpu_wieght": 3}, "/cpu_wieght", "did you mean cpu_weight?"),
        ({"cpu_weight": "much"}, "/cpu_weight", "cpu_weight must be a whole number from 1 to 10000"),
        ({"memory_bytes": 1}, "/memory_bytes", "memory_bytes must be a whole number from 1048576"),
        ({"suspended": "yes"}, "/suspended", "suspended must be true or false"),
        ({"queue_class": "fast"}, "/queue_class", "queue_class must be short or long, or null"),
        ({"quantum_s": 0}, "/quantum_s", "quantum_s must be a number of seconds from 0.05 to 60"),
        ({"suspended": True, "ranks": []}, "/ranks", "ranks must list the numbers of one rank or more"),
        ({"suspended": True, "ranks": [7]}, "/ranks", "there is no live rank 7; those that run are 0"),
        ({"suspended": True, "reason": 3}, "/reason", "reason must be a text of at most 500 characters"),
    ],
)
def test_a_wrong_wish_is_refused_with_its_field(town: Town, body: Any, pointer: str, says: str) -> None:
    _agent, _job, attempt = running(town)
    told = problem(adjust(town.owner, attempt, body), 422, "invalid")
    assert says in told["detail"]
    assert [each["pointer"] for each in told["errors"]] == [pointer]
    assert Part.objects.get().spec_rev == 1


def test_an_attempt_that_has_ended_is_not_adjusted(town: Town) -> None:
    agent, job, attempt = running(town)
    agent.end(stage(job))
    told = problem(adjust(town.owner, attempt, {"suspended": True}), 409, "not_adjustable")
    assert "has ended; only an attempt that runs" in told["detail"]


def test_a_running_attempt_tells_what_it_has_drawn_so_far(town: Town) -> None:
    _agent, job, _attempt = running(town)
    part = Part.objects.get()
    told = town.owner.read(f"/jobs/{job.number}/attempts")["results"][0]
    assert (told["energy_j"], told["idle_devices"]) == ({}, [])
    sample = PartSample(str(part.id), 0.0, energy_j={"cpu": 12.5})
    fleet.PartSample.objects.create(part_id=part.id, at=part.attempt.created_at, energy_j=sample.energy_j)
    told = town.owner.read(f"/jobs/{job.number}/attempts")["results"][0]
    assert (told["energy_j"], told["energy_measured_s"]) == ({"cpu": 12.5}, None)
