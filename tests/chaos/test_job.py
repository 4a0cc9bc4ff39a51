"""The example fine-tune survives what clusters do to jobs, and ends with the same result as if nothing had happened."""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import pytest

from deploy.local.service import ROOT
from switchyard import jobfile
from switchyard.client import Client, JobRecord
from tests.chaos.stack import Up, eventually, long, standing

pytestmark = pytest.mark.chaos

# Long enough to be hit in the middle of its training, and to be worth stopping: its steps tell the engine when it will
# end, and nothing is stopped that ends in a moment. Short enough to be run five times.
# Enough that a training lasts until it has been looked at; what it starts from need not have learned much.
STEPS, STEPS_BEFORE = "800", "100"
# What changed is told at once, and a machine that vanished is given up soon, but none that was only busy for a moment.
TIMERS = "report_s=1,suspect_s=6,lost_s=12,lease_s=15"


@dataclass
class Yard:
    """A running stack with short timers, and a client for it."""

    up: Up
    client: Client
    agents: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def finetune(self, **changes: Any) -> JobRecord:
        spec = jobfile.read(str(ROOT / "examples" / "finetune" / "job.yaml"))
        spec["env"] = {"FINETUNE_STEPS": STEPS, "FINETUNE_CHECKPOINT_EVERY": "1"}
        for stage in spec["stages"]:
            if stage["name"] == "pretrain":
                stage["env"] = {"FINETUNE_STEPS": STEPS_BEFORE}
            stage.setdefault("preemption", {"allowed": True})["grace"] = "3s"
        return self.client.jobs.submit({**spec, **changes})

    def stage(self, job: JobRecord, name: str) -> dict[str, Any]:
        job.refresh()
        return next(stage for stage in job.stages if stage["name"] == name)

    def until(self, job: JobRecord, name: str, holds: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """Wait until something is true of a stage; fails with how it stands where it never is."""
        assert eventually(lambda: holds(self.stage(job, name)) or job.is_final), self.stage(job, name)
        stage = self.stage(job, name)
        assert holds(stage), stage
        return stage

    def until_half_trained(self, job: JobRecord) -> dict[str, Any]:
        """Wait until ``train`` has confirmed a checkpoint and is at work after it."""
        return self.until(
            job,
            "train",
            lambda s: s["state"] == "RUNNING" and s["checkpoint"] is not None and s["progress"]["step"] > 20,
        )

    def finished(self, job: JobRecord) -> str:
        """Wait for the end, which must be good; returns the digest of the fine-tuned model."""
        job.wait(timeout_s=240)
        job.refresh()
        assert job.state == "COMPLETED", [(s["name"], s["state"], s["cause"], s["detail"]) for s in job.stages]
        return hashlib.sha256(Path(self.stage(job, "train")["values"]["model"]).read_bytes()).hexdigest()

    def agent(self, name: str, url: str = "") -> subprocess.Popen[bytes]:
        """Start one more agent on this host, as a machine of its own; it reaches the gateway at ``url``."""
        state = self.up.home / "agents" / name
        state.mkdir(parents=True)
        environment = {
            **os.environ,
            "YARD_HOME": str(self.up.home),
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        }
        token = state / "join"
        token.write_text(self.join_token())
        command = [
            sys.executable,
            "-m",
            "agents",
            "--url",
            url or self.up.agents_url,
            "--state",
            str(state),
            "--name",
            name,
        ]
        more = ["--join-token-file", str(token), "--run-as", str(os.geteuid())]
        self.agents.append(subprocess.Popen([*command, *more], cwd=ROOT, env=environment, start_new_session=True))
        assert eventually(lambda: any(n["name"] == name and n["state"] == "READY" for n in self.client.nodes.list()))
        return self.agents[-1]

    def join_token(self) -> str:
        environment = self.up.environment
        made = subprocess.run(
            [sys.executable, "manage.py", "join_token", "--pool", "default"],
            cwd=ROOT,
            env=environment,
            capture_output=True,
            text=True,
            check=True,
        )
        return made.stdout.strip()


def processes_of(mark: str) -> list[psutil.Process]:
    """All processes that carry ``mark`` in their command or environment."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.status() == psutil.STATUS_ZOMBIE or process.pid == os.getpid():
                continue
            if any(mark in word for word in [*process.cmdline(), *process.environ().values()]):
                found.append(process)
        except psutil.Error:
            continue
    return found


@pytest.fixture(scope="module")
def yard() -> Iterator[Yard]:
    """One stack for all of these tests."""
    with pytest.MonkeyPatch.context() as environment, standing() as up:
        environment.setenv("YARD_TIMERS", TIMERS)
        up.started()
        yield from on(up)


def connect(home: Path, port: int) -> Client:
    """Return a client with the token of the stack on ``home``."""
    return Client(f"http://127.0.0.1:{port}", tomllib.loads((home / "client.toml").read_text())["token"])


def on(up: Up) -> Iterator[Yard]:
    yard = Yard(up, connect(up.home, up.port))
    try:
        yield yard
    finally:
        yard.client.close()
        for name in {agent.args[agent.args.index("--name") + 1] for agent in yard.agents}:  # type: ignore[union-attr]
            for process in processes_of(str(up.home / "agents" / str(name))):
                process.kill()
        for agent in yard.agents:
            agent.wait()


def the_user_process(job: JobRecord) -> psutil.Process:
    """The process of the stage ``train`` of this job."""
    for process in processes_of("finetune.train"):
        if process.environ().get("YARD_JOB_ID") == str(job.number):
            return process
    pytest.fail("the stage is said to run, but no process of it is there")


@pytest.fixture(scope="module")
def calm(yard: Yard) -> str:
    """The digest of the model when nothing happens."""
    return yard.finished(yard.finetune())


def test_an_urgent_job_takes_the_device_and_the_first_resumes(yard: Yard, calm: str) -> None:
    job = yard.finetune(priority="low")
    before = yard.until_half_trained(job)
    urgent = yard.client.jobs.submit(
        {"name": "urgent", "priority": "urgent", "cpus": 2, "expected": "3s", "time_limit": "1m", "run": "sleep 3"}
    )
    urgent.wait(timeout_s=240)
    urgent.refresh()
    assert urgent.state == "COMPLETED"
    again = yard.until(job, "train", lambda s: s["attempts"] == 2)
    assert again["preemptions"] == 1
    attempts = [a for a in yard.client.jobs.attempts(job) if a["stage"] == "train"]
    assert attempts[0]["cause"] == "PREEMPTED"
    assert before["checkpoint"]["step"] <= again["checkpoint"]["step"]
    assert yard.finished(job) == calm
    log = "".join(yard.client.jobs.logs(job, stage="train"))
    assert "resum" in log.lower()


@pytest.mark.parametrize("victim", ["process", long("shim")])
def test_a_killed_process_or_shim_is_retried_from_its_checkpoint(yard: Yard, calm: str, victim: str) -> None:
    job = yard.finetune()
    yard.until_half_trained(job)
    process = the_user_process(job)
    (process if victim == "process" else process.parent()).send_signal(signal.SIGKILL)  # type: ignore[union-attr]
    yard.until(job, "train", lambda s: s["attempts"] == 2)
    attempts = [a for a in yard.client.jobs.attempts(job) if a["stage"] == "train"]
    assert attempts[0]["cause"] == ("SIGNAL" if victim == "process" else "SUPERVISOR_LOST")
    assert eventually(lambda: not process.is_running())
    assert yard.finished(job) == calm


def test_when_the_machine_vanishes_another_one_takes_over(yard: Yard, calm: str) -> None:
    (local,) = [node["name"] for node in yard.client.nodes.list()]
    yard.agent("first")
    yard.client.nodes.drain(local, "the test uses two agents of its own")
    job = yard.finetune()
    yard.until_half_trained(job)
    assert yard.stage(job, "train")["placed"][0]["node"] == "first"
    for process in processes_of(str(yard.up.home / "agents" / "first")):
        process.kill()
    yard.agent("second")
    again = yard.until(job, "train", lambda s: s["attempts"] == 2 and s["state"] == "RUNNING")
    assert again["placed"][0]["node"] == "second"
    attempts = [a for a in yard.client.jobs.attempts(job) if a["stage"] == "train"]
    assert attempts[0]["cause"] == "NODE_FAIL"
    assert yard.finished(job) == calm
