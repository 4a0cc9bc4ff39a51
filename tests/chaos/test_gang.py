"""A gang on two agents survives what clusters do to it, and ends with the same weights as if nothing had happened."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from deploy.local.service import ROOT
from switchyard import jobfile
from switchyard.client import JobRecord
from tests.chaos.stack import eventually, long, standing
from tests.chaos.test_job import TIMERS, Yard, on, processes_of

pytestmark = pytest.mark.chaos
STEPS = 240


class Gang:
    """A stack whose own node is drained, and two agents that are machines of their own."""

    def __init__(self, yard: Yard) -> None:
        self.yard = yard
        (local,) = [node["name"] for node in yard.client.nodes.list()]
        yard.agent("left")
        yard.agent("right")
        yard.client.nodes.drain(local, "the test uses agents of its own")

    def submit(
        self,
        nodes: int | dict[str, int] = 2,
        resume: str = "",
        framework: str = "numpy",
        priority: str = "medium",
        name: str = "ddp",
        **env: str,
    ) -> JobRecord:
        spec = jobfile.read(str(ROOT / "examples" / "ddp" / "job.yaml"))
        settings = {"DDP_STEPS": STEPS, "DDP_PAUSE": "0.02", "DDP_CHECKPOINT_EVERY": "0.3"}
        spec["env"] = {**settings, "DDP_FRAMEWORK": framework, "DDP_RESUME": resume, **env}
        spec["stages"][0]["nodes"] = nodes
        spec["stages"][0]["preemption"] = {"grace": "20s"}
        spec["priority"], spec["name"] = priority, name
        return self.yard.client.jobs.submit(spec)

    def until_under_way(self, job: JobRecord, step: int = 30) -> dict[str, Any]:
        """Wait until it has confirmed a checkpoint and is at work after it."""
        return self.yard.until(
            job,
            "train",
            lambda s: s["state"] == "RUNNING" and s["checkpoint"] and ((s["progress"] or {}).get("step") or 0) >= step,
        )

    def attempts(self, job: JobRecord) -> list[dict[str, Any]]:
        return list(self.yard.client.jobs.attempts(job))

    def log(self, job: JobRecord, attempt: int | None = None) -> str:
        """What rank 0 said, in the newest attempt or in another."""
        return "".join(self.yard.client.jobs.logs(job, stage="train", rank=0, attempt=attempt))

    def weights(self, job: JobRecord) -> str:
        """Wait for the end, which must be good; the digest of the weights."""
        job.wait(timeout_s=240)
        job.refresh()
        assert job.state == "COMPLETED", [(s["state"], s["cause"], s["detail"]) for s in job.stages]
        return str(self.yard.stage(job, "train")["values"]["digest"])

    def process(self, job: JobRecord, rank: int) -> psutil.Process:
        """The process of one rank."""
        for process in processes_of("ddp.train"):
            told = process.environ()
            if (told.get("YARD_JOB_ID"), told.get("YARD_NODE_RANK")) == (str(job.number), str(rank)):
                return process
        pytest.fail(f"rank {rank} is said to run, but no process of it is there")


@pytest.fixture(scope="module")
def gang() -> Iterator[Gang]:
    with pytest.MonkeyPatch.context() as environment, standing() as up:
        environment.setenv("YARD_TIMERS", TIMERS)
        if torch := os.environ.get("YARD_TEST_TORCH"):
            # A virtual environment with PyTorch, for the test that runs torchrun.
            environment.setenv("PATH", f"{torch}/bin:{os.environ['PATH']}")
        up.started()
        for yard in on(up):
            yield Gang(yard)


@pytest.fixture(scope="module")
def calm(gang: Gang) -> str:
    """The digest of the weights when nothing happens, on one node."""
    return gang.weights(gang.submit(nodes=1, DDP_PAUSE="0"))


def test_two_nodes_compute_what_one_does(gang: Gang, calm: str) -> None:
    job = gang.submit(DDP_PAUSE="0")
    assert gang.weights(job) == calm
    placed = {each["node"] for each in gang.yard.stage(job, "train")["placed"]}
    assert placed == {"left", "right"}
    assert "rank 0 of 2" in gang.log(job)


@pytest.mark.parametrize("victim", [0, long(1)])
def test_a_killed_rank_ends_the_attempt_everywhere_and_is_named(gang: Gang, calm: str, victim: int) -> None:
    job = gang.submit()
    gang.until_under_way(job)
    other = gang.process(job, 1 - victim)
    gang.process(job, victim).send_signal(signal.SIGKILL)
    gang.yard.until(job, "train", lambda s: s["attempts"] == 2)
    first = gang.attempts(job)[0]
    # The other rank sees its peer go and may be the faster to tell: whichever told first is named.
    assert first["cause"] in {"SIGNAL", "EXIT_CODE"}
    assert first["detail"].startswith("rank ")
    assert eventually(lambda: not other.is_running())
    assert gang.weights(job) == calm
    assert "resuming from step" in gang.log(job)


@pytest.mark.long
def test_a_machine_that_vanishes_is_replaced(gang: Gang, calm: str) -> None:
    job = gang.submit()
    gang.until_under_way(job)
    for process in processes_of(str(gang.yard.up.home / "agents" / "right")):
        process.kill()
    gang.yard.agent("third")
    again = gang.yard.until(job, "train", lambda s: s["attempts"] == 2 and s["state"] == "RUNNING")
    assert {each["node"] for each in again["placed"]} == {"left", "third"}
    assert gang.weights(job) == calm


@pytest.mark.long
def test_two_nodes_then_one_then_two_go_on_from_each_others_checkpoints(gang: Gang, calm: str) -> None:
    def until_cancelled(job: JobRecord, step: int) -> str:
        gang.until_under_way(job, step)
        job.cancel()
        job.wait(timeout_s=240)
        path = gang.yard.stage(job, "train")["checkpoint"]["path"]
        assert Path(path).exists()
        return str(path)

    first = until_cancelled(gang.submit(), 40)
    second = until_cancelled(gang.submit(nodes=1, resume=first), 120)
    last = gang.submit(resume=second)
    assert gang.weights(last) == calm
    assert "on 2 process(es)" in gang.log(last)


def preempted(gang: Gang, job: JobRecord) -> None:
    """Have something urgent take both machines for a moment."""
    gang.until_under_way(job)
    short = {"cpus": 2, "nodes": 2, "expected": "2s", "time_limit": "1m", "run": "sleep 2"}
    urgent = gang.yard.client.jobs.submit({"name": "urgent", "priority": "urgent", **short})
    urgent.wait(timeout_s=240)
    assert urgent.refresh().state == "COMPLETED"
    gang.yard.until(job, "train", lambda s: s["attempts"] == 2)
    assert gang.attempts(job)[0]["cause"] == "PREEMPTED"


def test_a_preempted_gang_saves_at_one_step_and_goes_on(gang: Gang, calm: str) -> None:
    # Long enough that waiting for its end would be worse.
    job = gang.submit(priority="low", DDP_PAUSE="0.2")
    preempted(gang, job)
    assert gang.weights(job) == calm
    assert "was asked to stop" in gang.log(job, attempt=1)


@pytest.mark.skipif(
    not (os.environ.get("YARD_TEST_TORCH") or shutil.which("torchrun")),
    reason="no torchrun: name a virtual environment with PyTorch in YARD_TEST_TORCH",
)
def test_a_bare_torchrun_stops_and_goes_on_on_two_nodes(gang: Gang) -> None:
    undisturbed = gang.weights(gang.submit(nodes=1, framework="torch", DDP_PAUSE="0"))
    job = gang.submit(framework="torch")
    gang.until_under_way(job)
    gang.process(job, 1).send_signal(signal.SIGKILL)
    gang.yard.until(job, "train", lambda s: s["attempts"] == 2)
    assert gang.weights(job) == undisturbed
    assert "gloo, TorchModel" in gang.log(job)
    again = gang.submit(framework="torch", priority="low", DDP_PAUSE="0.2")
    preempted(gang, again)
    assert "was asked to stop" in gang.log(again, attempt=1)
    assert gang.weights(again) == undisturbed
