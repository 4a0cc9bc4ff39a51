"""What the REST interface says of jobs and nodes is what the commands of Slurm's names read."""

from __future__ import annotations

import json
from typing import Any

from controlplane.fleet import world
from controlplane.fleet.models import Node
from switchyard.slurm.commands import as_json
from switchyard.slurm.commands.records import SlurmJob, SlurmNode
from switchyard.slurm.sbatch import convert
from tests.controlplane.people import Town


def submitted(town: Town, *directives: str) -> int:
    script = "\n".join(["#!/bin/sh", *(f"#SBATCH {one}" for one in directives), "true"])
    made = convert(script, name="fit", key="k" * 64)
    answer = town.owner.post("/jobs", {**made.spec, "project": town.project.name})
    assert answer.status_code == 201, answer.content
    return int(json.loads(answer.content)["number"])


def read(town: Town, number: int) -> SlurmJob:
    return SlurmJob(town.owner.read(f"/jobs/{number}"))


def two_racks(town: Town) -> list[Any]:
    agents = [town.machine(name) for name in ("n1", "n2")]
    for name, rack in (("n1", "r1"), ("n2", "r2")):
        Node.objects.filter(name=name).update(labels={"rack": rack, "ib": "yes"})
    world.recent_nodes(within_s=0.0)
    return agents


def test_a_batch_script_runs_where_it_says(town: Town) -> None:
    two_racks(town)
    by_name = submitted(town, "-w n[2]", "-t 60")
    by_label = submitted(town, "-C 'ib&r1'", "-t 60")
    apart = submitted(town, "-x n1", "-t 60")
    town.cycle()
    assert [read(town, number).node_list for number in (by_name, by_label, apart)] == ["n2", "n1", "n2"]
    shown = as_json.job(read(town, by_label))
    assert (shown["job_state"], shown["features"], shown["required_nodes"]) == (["CONFIGURING"], "ib&r1", "")
    assert shown["memory_per_node"]["number"] == 1024
    assert shown["time_limit"] == {"set": True, "infinite": False, "number": 60}
    assert as_json.job(read(town, by_name))["required_nodes"] == "n2"
    assert as_json.job(read(town, apart))["excluded_nodes"] == "n1"


def test_the_steps_of_a_job_are_its_stages(town: Town) -> None:
    agents = two_racks(town)
    number = submitted(town, "-w n1", "-t 60")
    town.cycle()
    agents[0].start()
    running = read(town, number)
    assert [(step.id, step.state, step.node_list) for step in running.steps] == [(f"{number}.batch", "R", "n1")]
    assert [one["state"] for one in as_json.accounted(running)["steps"]] == [["RUNNING"]]
    waiting = submitted(town, "-w n1", "-n 8", "-t 60")
    town.cycle()
    assert read(town, waiting).steps == []
    assert read(town, waiting).reason == "Resources"


def test_labels_of_nodes_are_features(town: Town) -> None:
    two_racks(town)
    nodes = [SlurmNode(one) for one in town.owner.read("/nodes")["results"]]
    assert [one.features for one in nodes] == [["ib=yes", "rack=r1"], ["ib=yes", "rack=r2"]]
    assert as_json.node(nodes[0])["state"] == ["IDLE"]
