"""A training on two agents goes on with one when a node is taken from it, and with two again when one is there."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from typing import Any

import pytest

from switchyard.client import JobRecord
from tests.chaos.stack import eventually, standing
from tests.chaos.test_gang import Gang
from tests.chaos.test_job import TIMERS, on, processes_of

pytestmark = pytest.mark.chaos
# Slow enough that it lasts until it has grown again: a stage keeps its size for a minute at least. Two share the work
# of a step, so that two are faster: who is not does not grow again. One that only shrinks need not last so long.
STEPS, FEW_STEPS, WORK = 1000, 500, "0.16"


@pytest.fixture(scope="module")
def gang() -> Iterator[Gang]:
    with pytest.MonkeyPatch.context() as environment, standing() as up:
        environment.setenv("YARD_TIMERS", TIMERS)
        up.started()
        for yard in on(up):
            yield Gang(yard)


@pytest.fixture(scope="module")
def calm(gang: Gang) -> str:
    """The digest of the weights when nothing happens, on one node."""
    return weights_of_calm(gang, STEPS)


def weights_of_calm(gang: Gang, steps: int) -> str:
    # Under a name of its own: what takes a moment here would be what is expected of the others.
    return gang.weights(submit(gang, nodes=1, work="0", steps=steps, name="calm"))


def submit(gang: Gang, nodes: int | dict[str, int], work: str, steps: int = STEPS, name: str = "ddp") -> JobRecord:
    return gang.submit(nodes=nodes, name=name, DDP_PAUSE="0", DDP_STEPS=str(steps), DDP_WORK=work)


def submitted(gang: Gang, step: int = 30, steps: int = STEPS) -> JobRecord:
    job = submit(gang, {"min": 1, "max": 2}, WORK, steps)
    stage = gang.until_under_way(job, step)
    assert placed(stage) == {"left", "right"}
    return job


def placed(stage: dict[str, Any]) -> set[str]:
    return {each["node"] for each in stage["placed"]}


def until_size(gang: Gang, job: JobRecord, size: int, after: int) -> dict[str, Any]:
    """Wait until a later attempt than that runs on so many nodes; a stage may take its minute first."""

    def holds(stage: dict[str, Any]) -> bool:
        return stage["state"] == "RUNNING" and stage["nodes"] == size and stage["attempts"] > after

    eventually(lambda: holds(gang.yard.stage(job, "train")) or job.is_final)
    stage = gang.yard.until(job, "train", holds)
    assert (stage["least_nodes"], stage["most_nodes"]) == (1, 2)
    return stage


def facts(gang: Gang, job: JobRecord, kind: str) -> list[str]:
    return [each["text"] for each in gang.yard.client.jobs.events(job) if each["kind"] == kind]


@pytest.mark.long
def test_a_drained_node_is_left_and_taken_back(gang: Gang, calm: str) -> None:
    job = submitted(gang, step=200)  # long enough to be measured on two
    gang.yard.client.nodes.drain("right", "new memory")
    narrow = until_size(gang, job, 1, after=1)
    assert placed(narrow) == {"left"}
    gang.yard.client.nodes.resume("right", "")
    assert placed(until_size(gang, job, 2, after=2)) == {"left", "right"}
    assert gang.weights(job) == calm
    assert [each["cause"] for each in gang.attempts(job)] == ["RESIZE", "RESIZE", ""]
    assert [each["detail"] for each in gang.attempts(job)[:2]] == [
        "resized 2 -> 1: right drains",
        "resized 1 -> 2: right is idle",
    ]
    assert facts(gang, job, "resized") == ["train resized 2 -> 1 nodes of 1-2", "train resized 1 -> 2 nodes of 1-2"]
    for attempt, size in ((2, 1), (3, 2)):
        log = gang.log(job, attempt)
        assert "resuming from step" in log
        assert f"on {size} process(es)" in log


def test_it_makes_room_for_somebody_who_waits(gang: Gang) -> None:
    calm = weights_of_calm(gang, FEW_STEPS)
    job = submitted(gang, steps=FEW_STEPS)
    whole = {"cpus": 2, "expected": "40m", "time_limit": "1h", "priority": "high", "run": "sleep 3"}
    other = gang.yard.client.jobs.submit({"name": "other", **whole})
    other.wait(timeout_s=240)
    assert other.refresh().state == "COMPLETED"
    assert gang.attempts(job)[0]["cause"] == "RESIZE"
    assert "makes room for" in gang.attempts(job)[0]["detail"]
    assert gang.yard.until(job, "train", lambda s: s["attempts"] >= 2)["preemptions"] == 0
    assert gang.weights(job) == calm


@pytest.mark.long
def test_a_machine_that_vanishes_leaves_it_on_one_and_another_takes_its_place(gang: Gang, calm: str) -> None:
    job = submitted(gang)
    for process in processes_of(str(gang.yard.up.home / "agents" / "right")):
        process.send_signal(signal.SIGKILL)
    # The rank that is left sees its peer go before anybody gives the node up, so another attempt may be made on both.
    alone = until_size(gang, job, 1, after=1)
    assert placed(alone) == {"left"}
    gang.yard.agent("third")
    assert placed(until_size(gang, job, 2, after=alone["attempts"])) == {"left", "third"}
    assert gang.weights(job) == calm
