"""A dry run by a planner that remembers says what one would say that begins anew."""

from __future__ import annotations

import random
from typing import Any

import pytest

from controlplane.jobs import service
from controlplane.jobs.models import Job
from controlplane.whatif import dry_run
from scheduler.core.planning import aside
from tests.record.yard import Yard, cpu, gpu

ASKS: tuple[dict[str, Any], ...] = (
    {"devices": {"kind": "gpu"}},
    {"devices": {"kind": "gpu", "count": 2}, "time_limit": "2h"},
    {"devices": {"kind": "gpu", "count": 4}, "priority": "high"},
    {"cpus": 2, "priority": "low"},
    {"devices": {"kind": "gpu", "count": 2}, "nodes": 2, "priority": "urgent"},
    {"devices": {"kind": "gpu", "count": 9}},
)


def without_time(found: dict[str, Any]) -> dict[str, Any]:
    """The answer without moments: two looks are not at one."""
    stages = [{**one, "expected_start": one["expected_start"] is not None} for one in found["stages"]]
    return {**found, "at": None, "stages": stages}


@pytest.mark.parametrize("seed", range(4))
def test_what_is_remembered_changes_no_answer(yard: Yard, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    dice = random.Random(seed)
    agents = [yard.agent(name, cpu(name, 8), *(gpu(name, index) for index in range(4))) for name in ("n1", "n2", "n3")]
    warm = dry_run._planner
    compared = 0
    for _ in range(12):
        match dice.randrange(4):
            case 0 | 1:
                yard.submit(**dice.choice(ASKS[:5]))
            case 2:
                yard.cycle()
                for agent in agents:
                    agent.start()
            case 3:
                running = list(Job.objects.filter(state="RUNNING").order_by("number"))
                if running:
                    service.cancel(dice.choice(running), "ada", "enough")
        spec = {"name": "trial", "run": "true", **dice.choice(ASKS)}
        answers = []
        for planner in (warm, aside.TolerantPlanner()):
            monkeypatch.setattr(dry_run, "_planner", planner)
            answers.append(without_time(dry_run.dry_run(spec, yard.user)))
        assert answers[0] == answers[1]
        compared += 1
    assert compared == 12
    assert warm._cycles > 1, "it remembered"
