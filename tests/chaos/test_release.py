"""A release is put in under what runs: the agent of the one before works here, and hands its stages over."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from deploy.local.service import ROOT
from switchyard.client import JobRecord
from tests.chaos.stack import eventually, standing
from tests.chaos.test_job import TIMERS, Yard, processes_of
from tests.chaos.test_restore import connect
from tests.deploy import release

pytestmark = pytest.mark.chaos

NAME = "older"


@pytest.fixture
def yard(tmp_path: Path) -> Iterator[Yard]:
    with pytest.MonkeyPatch.context() as environment, standing() as up:
        environment.setenv("YARD_TIMERS", TIMERS)
        up.started()
        yard = Yard(up, connect(up.home, up.port))
        try:
            yield yard
        finally:
            yard.client.close()
            for process in processes_of(str(tmp_path)):
                process.kill()
            for agent in yard.agents:
                agent.wait()


def agent_of(code: Path, yard: Yard, state: Path) -> subprocess.Popen[bytes]:
    """Start the agent that lies in ``code``."""
    command = [sys.executable, "-P", "-m", "agents", "--url", yard.up.agents_url, "--state", str(state), "--name", NAME]
    more = ["--join-token-file", str(state / "join"), "--run-as", str(os.geteuid())]
    environment = {**os.environ, "PYTHONPATH": str(code)}
    yard.agents.append(subprocess.Popen([*command, *more], cwd=code, env=environment, start_new_session=True))
    return yard.agents[-1]


def ready(yard: Yard) -> bool:
    return any(node["name"] == NAME and node["state"] == "READY" for node in yard.client.nodes.list())


def test_the_agent_of_the_release_before_works_and_stages_go_on_through_both_upgrades(
    yard: Yard, tmp_path: Path
) -> None:
    old, state = release.agent(tmp_path / "old"), tmp_path / "state"
    state.mkdir()
    (state / "join").write_text(yard.join_token())
    (others,) = [node["name"] for node in yard.client.nodes.list()]
    first = agent_of(old, yard, state)
    assert eventually(lambda: ready(yard))
    yard.client.nodes.drain(others, "the test is on another")
    oracle = tmp_path / "oracle"

    def submit(name: str) -> JobRecord:
        script = f"echo {name} $$ >> {oracle}; until [ -e {tmp_path}/end-{name} ]; do sleep 0.1; done; echo over"
        return yard.client.jobs.submit({"name": name, "run": script, "cpus": 0.1, "memory": "16MiB"})

    def ends(job: JobRecord) -> None:
        (tmp_path / f"end-{job.name}").touch()
        job.wait(timeout_s=120)
        assert job.refresh().state == "COMPLETED", job.stages
        assert "over" in "".join(yard.client.jobs.logs(job, stage="main"))

    quick, long = submit("quick"), submit("long")
    yard.until(long, "main", lambda stage: stage["state"] == "RUNNING")
    ends(quick)

    # The server is stopped and started, as an upgrade does.
    yard.up.launchers[-1].send_signal(signal.SIGINT)
    yard.up.launchers[-1].wait()
    launcher = yard.up.start()
    assert launcher.stdout is not None
    assert next((line for line in launcher.stdout if "Ctrl-C stops everything" in line), ""), launcher.wait()
    yard.client.close()
    yard.client = connect(yard.up.home, yard.up.port)
    assert eventually(lambda: ready(yard))
    long = yard.client.jobs.get(long.number)
    assert long.state == "RUNNING"
    during = submit("during")
    yard.until(during, "main", lambda stage: stage["state"] == "RUNNING")

    # Then the agent, forward; and back, as a downgrade does. Who ran goes on as the same process.
    for code, agent, waits in ((ROOT, first, long), (old, None, during)):
        agent = agent or yard.agents[-1]
        agent.terminate()
        assert agent.wait() == 0
        agent_of(code, yard, state)
        assert eventually(lambda: ready(yard))
        ends(waits)
        another = submit(f"after-{waits.name}")
        ends(another)
    ran = [line.split() for line in oracle.read_text().splitlines()]
    assert sorted(name for name, _ in ran) == ["after-during", "after-long", "during", "long", "quick"], "each ran once"
