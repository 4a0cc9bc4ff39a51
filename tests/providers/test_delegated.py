"""Stages run as batch jobs of a real Slurm through an agent on its login node, with a whole control plane."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from deploy.local.service import ROOT
from switchyard.client import Client, JobRecord
from tests.chaos.stack import Up, eventually, standing
from tests.chaos.test_job import TIMERS, connect
from tests.providers.slurm_cluster import SlurmOnThisHost

pytestmark = pytest.mark.chaos
SHAPE = 'engine = "slurm"\n[[shape]]\nname = "small"\nnodes = 2\ncpus = 16\nmemory_gib = 16\n'


@dataclass
class LoginNode:
    """A control plane, a foreign engine, and the agent that represents the one to the other as the node ``login``."""

    up: Up
    client: Client
    slurm: Any
    state: Path
    delegation: str = SHAPE
    agent: subprocess.Popen[bytes] | None = None

    def begin(self) -> None:
        made = subprocess.run(
            [sys.executable, "manage.py", "join_token", "--pool", "hpc"],
            cwd=ROOT, env=self.up.environment, capture_output=True, text=True, check=True,
        )  # fmt: skip
        (self.state / "join").write_text(made.stdout.strip())
        (self.state / "engine.toml").write_text(self.delegation)
        self.start()

    def start(self) -> None:
        command = [
            *(sys.executable, "-m", "agents", "--url", self.up.agents_url, "--state", str(self.state)),
            *("--name", "login", "--join-token-file", str(self.state / "join")),
            *("--run-as", "root" if os.geteuid() == 0 else "self", "--delegate", str(self.state / "engine.toml")),
        ]
        with (self.state / "log").open("ab") as log:
            self.agent = subprocess.Popen(command, cwd=ROOT, env=self.slurm.environment, stdout=log, stderr=log)

    def kill(self) -> None:
        assert self.agent is not None, "it was started"
        self.agent.kill()
        self.agent.wait()

    def node(self) -> dict[str, Any]:
        return next((dict(each) for each in self.client.nodes.list() if each["name"] == "login"), {})

    def submit(self, run: str, **spec: Any) -> JobRecord:
        asked = {"pool": "hpc", "cpus": 1, "memory": "64MiB", "time_limit": "10m", "run": run}
        return self.client.jobs.submit({**asked, **spec})

    def ended(self, job: JobRecord) -> str:
        def is_over() -> bool:
            job.refresh()
            return job.is_final

        assert eventually(is_over), (job.state, job.stages, self.node(), (self.state / "log").read_text()[-2000:])
        return str(job.state)


@contextmanager
def login_node(engine: Any, state: Path, delegation: str = SHAPE) -> Iterator[LoginNode]:
    """Run a control plane over a foreign engine through one agent."""
    with pytest.MonkeyPatch.context() as environment, standing() as up:
        environment.setenv("YARD_TIMERS", TIMERS)
        up.started()
        with connect(up.home, up.port) as client:
            client.create_pool({"name": "hpc"})
            login = LoginNode(up, client, engine, state, delegation)
            login.begin()
            assert eventually(lambda: login.node().get("state") == "READY"), (state / "log").read_text()[-2000:]
            yield login
            if login.agent is not None:
                login.agent.terminate()
                login.agent.wait()
            engine.empty()


@pytest.fixture(scope="module")
def login(slurm: SlurmOnThisHost, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LoginNode]:
    with login_node(slurm, tmp_path_factory.mktemp("login")) as made:
        yield made


def test_a_stage_is_a_job_of_slurm_and_the_node_says_what_is_not_given(login: LoginNode) -> None:
    job = login.submit('echo "hello from job $SLURM_JOB_ID"; exit 0')
    assert login.ended(job) == "COMPLETED"
    assert "hello from job " in "".join(login.client.jobs.logs(job))
    node = login.node()
    assert node["executor"] == "Slurm"
    assert "it runs no containers" in node["lacks"]
    failed = login.submit("exit 7", retry={"max": 1})
    assert login.ended(failed) == "FAILED"
    (attempt,) = login.client.jobs.attempts(failed)
    assert attempt["exit_code"] == 7, attempt
    waits = login.submit("sleep 300")
    assert eventually(lambda: any("RUNNING" in line for line in login.slurm.jobs()))
    login.client.jobs.cancel(waits)
    assert login.ended(waits) == "CANCELLED"
    assert eventually(lambda: login.slurm.jobs() == []), login.slurm.jobs()


@pytest.mark.long
def test_agent_and_controller_are_killed_and_nothing_is_lost_or_doubled(login: LoginNode, tmp_path: Path) -> None:
    ran = tmp_path / "ran"
    ran.write_text("")
    tmp_path.chmod(0o777)
    told = f'echo "$YARD_JOB_ID-$YARD_EPOCH" >> {ran}; sleep 1; echo "$YARD_JOB_ID" >> {ran}'
    # A controller that is killed kills what it had begun and not noted; that is a fault of the node.
    retry = {"max": 5, "on": ["supervisor_lost", "node_fail"], "backoff": "1s"}
    jobs = [login.submit(told, retry=retry) for _ in range(20)]

    def have_run(least: int) -> bool:
        login.slurm.resume_drained()
        return len(ran.read_text().split()) >= least

    for least in (4, 16, 28):
        assert eventually(lambda least=least: have_run(least))  # type: ignore[misc]
        login.kill()
        login.slurm.kill_controller()
        login.start()
        login.slurm.start_controller()
    assert eventually(lambda: have_run(2 * len(jobs)))
    assert [login.ended(job) for job in jobs] == ["COMPLETED"] * len(jobs)
    # No attempt began twice, and no job was done twice.
    assert set(Counter(ran.read_text().split()).values()) == {1}


@pytest.mark.long
def test_a_slurm_that_is_down_is_a_condition_and_no_stage_fails(login: LoginNode) -> None:
    job = login.submit("sleep 8")
    assert eventually(lambda: any("RUNNING" in line for line in login.slurm.jobs()))
    login.slurm.kill_controller()
    assert eventually(
        lambda: any("Slurm does not answer" in said for said in login.node()["conditions"].get("unfit", []))
    )
    waits = login.submit("true")
    login.slurm.start_controller()
    assert login.ended(job) == "COMPLETED"
    assert login.ended(waits) == "COMPLETED"
    assert eventually(lambda: not login.node()["conditions"].get("unfit"))
    assert len(list(login.client.jobs.attempts(job))) == 1


@pytest.mark.long
def test_drained_nodes_are_a_condition(login: LoginNode) -> None:
    login.slurm.say("scontrol", "update", "NodeName=v1,v2", "State=DRAIN", "Reason=test")
    job = login.submit("true")
    assert eventually(
        lambda: any("no node that takes jobs" in said for said in login.node()["conditions"].get("unfit", []))
    )
    login.slurm.say("scontrol", "update", "NodeName=v1,v2", "State=RESUME")
    assert login.ended(job) == "COMPLETED"
