"""Consolidation over REST and on its page: staff see who could move, and what they follow is done."""

from __future__ import annotations

import json
from functools import partial

import pytest
from django.test import Client

from agents.protocol import Checkpoint, Exit, Phase
from controlplane.jobs.models import Job
from controlplane.whatif import consolidation
from tests.controlplane.people import Town
from tests.record.yard import Agent, stage, states

PATH = "/consolidation"
ASKED = {"devices": {"kind": "gpu", "count": 1}, "expected": "5h", "time_limit": "10h"}


@pytest.fixture(autouse=True)
def _nothing_is_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(consolidation, "ask", partial(consolidation.ask, anew=True))


def scattered(town: Town) -> tuple[dict[str, Agent], list[Job], Job]:
    """Two machines of two GPUs with one stage each, and a stage that waits for two GPUs on one machine."""
    machines = {name: town.machine(name) for name in ("n1", "n2")}
    jobs = [town.job(**ASKED) for _ in range(4)]
    town.cycle()
    for agent in machines.values():
        agent.start()
    left: dict[str, Job] = {}
    for job in jobs:
        node = stage(job).attempts.get().parts.get().node.name
        agent = machines[node]
        if node in left:
            agent.end(stage(job))
        else:
            left[node] = job
            agent.set(stage(job), Phase.RUNNING, checkpoints=[Checkpoint(step=1, path="/shared/1", age_s=0.1)])
    # It needs longer than those that run, so that nobody is stopped for it.
    wide = town.job(devices={"kind": "gpu", "count": 2}, expected="12h", time_limit="24h")
    town.cycle()
    assert states(wide)["main"] == "PENDING"
    return machines, list(left.values()), wide


def test_who_moves_makes_room(town: Town) -> None:
    machines, jobs, wide = scattered(town)
    (advice,) = town.staff.read(PATH)["advice"]
    assert (advice["stage"], advice["worth"]) == (f"#{wide.number}/main", True)
    (move,) = advice["moves"]
    victim = next(job for job in jobs if move["stage"] == f"#{job.number}/main")
    ((source,), (target,)) = move["nodes"], move["to"]
    assert {source, target} == {"n1", "n2"}
    assert advice["nodes"] == [source]
    browser = Client()
    browser.force_login(town.user)
    assert f"#{wide.number} main" in browser.get(PATH).content.decode()

    assert town.staff.post(PATH, {"stage": advice["id"]}).status_code == 200
    assert states(victim)["main"] == "STOPPING"
    text = victim.events.get(kind="stop").text
    assert text == f"main was asked to stop (MOVE): makes room for #{wide.number} main, as {town.user.username} asked"
    machines[source].set(stage(victim), Phase.ENDED, exit=Exit(code=85, cause="CHECKPOINTED", stopped=True))
    town.cycle()
    assert states(wide)["main"] == "STARTING"
    assert states(victim)["main"] == "STARTING"
    assert stage(victim).attempts.get(number=2).parts.get().node.name == target
    assert stage(victim).failures == 0


def test_what_does_not_hold_any_more_is_refused(town: Town) -> None:
    scattered(town)
    answer = town.staff.post(PATH, {"stage": "0198c000-0000-7000-8000-000000000000"})
    assert answer.status_code == 409
    assert json.loads(answer.content)["code"] == "advice_gone"
    assert town.staff.post(PATH, {"stag": "x"}).status_code == 400


def test_only_staff_may_ask(town: Town) -> None:
    for person in (town.owner, town.lead, town.viewer, town.stranger):
        assert person.get(PATH).status_code == 403
        assert person.post(PATH, {"stage": "x"}).status_code == 403
    assert town.anonymous.get(PATH).status_code == 401
