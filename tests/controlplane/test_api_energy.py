"""What an attempt drew, as its agents told it; unknown stays unknown."""

from __future__ import annotations

from typing import Any

import pytest

from tests.controlplane.people import Town
from tests.record.yard import stage


def drawn(town: Town, **exit_fields: Any) -> tuple[dict[str, float], float | None]:
    agent = town.machine()
    job = town.running(agent, stages=[{"name": "fit", "kind": "train", "run": "x"}])
    before = town.owner.read(f"/jobs/{job.number}/attempts")["results"][0]
    assert (before["energy_j"], before["energy_measured_s"]) == ({}, None)
    agent.end(stage(job, "fit"), **exit_fields)
    after = town.owner.read(f"/jobs/{job.number}/attempts")["results"][0]
    return after["energy_j"], after["energy_measured_s"]


def test_an_attempt_tells_what_its_devices_drew(town: Town) -> None:
    told = drawn(town, energy_j={"gpu": 1200.5, "cpu": 80.0}, energy_measured_s=4.0)
    assert told == ({"cpu": 80.0, "gpu": 1200.5}, 4.0)


@pytest.mark.parametrize("told", [{}, {"energy_j": {}, "energy_measured_s": 0.0}])
def test_what_no_device_tells_is_absent_and_not_0(town: Town, told: dict[str, Any]) -> None:
    assert drawn(town, **told) == ({}, None)


def test_a_kind_is_known_only_where_every_node_tells_it(town: Town) -> None:
    agents = [town.machine("n1"), town.machine("n2")]
    job = town.job(nodes=2, devices={"kind": "gpu", "count": 1})
    town.cycle()
    for agent in agents:
        agent.start()
    agents[0].end(stage(job), energy_j={"gpu": 10.0, "cpu": 1.0}, energy_measured_s=9.0)
    agents[1].end(stage(job), energy_j={"gpu": 5.0}, energy_measured_s=3.0)
    (told,) = town.owner.read(f"/jobs/{job.number}/attempts")["results"]
    assert (told["energy_j"], told["energy_measured_s"]) == ({"gpu": 15.0}, 3.0)
