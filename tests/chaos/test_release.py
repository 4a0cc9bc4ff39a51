"""A release is put in under what runs: the agent of the one before works here, and hands its stages over."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from deploy.local.service import ROOT
from switchyard.client import JobRecord
from tests.chaos.stack import eventually, standing
from tests.chaos.test_job import TIMERS, Yard, connect, processes_of
from tests.conftest import Servers
from tests.deploy import release
from tests.deploy.test_backup import Installation, database

pytestmark = [pytest.mark.chaos, pytest.mark.long]

NAME = "older"


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
        job.wait(timeout_s=240)
        assert job.refresh().state == "COMPLETED", job.stages
        # Logs follow a little after the end.
        assert eventually(lambda: "over" in "".join(yard.client.jobs.logs(job, stage="main")))

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


def test_the_server_goes_forward_and_back_under_a_stage_that_runs(servers: Servers, tmp_path: Path) -> None:
    former, state, oracle = tmp_path / "former", tmp_path / "state", tmp_path / "oracle"
    packed = subprocess.run(["git", "archive", release.COMMIT], cwd=ROOT, capture_output=True, check=False)
    if packed.returncode != 0:
        pytest.skip("no history: this checkout has not the code of the release before")
    former.mkdir()
    subprocess.run(["tar", "-x"], cwd=former, input=packed.stdout, check=True)
    with database() as name, standing() as up:
        here = Installation(name, up.home)

        def start(code: Path) -> Yard:
            command = [sys.executable, "-P", "-m", "deploy.local", "up", "--port", str(up.port), "--stages-as-root"]
            told = {"YARD_HOME": str(up.home), "PYTHONPATH": str(code), "YARD_TIMERS": TIMERS}
            environment = {**os.environ, **told, "DATABASE_URL": here.environment["DATABASE_URL"]}
            for another in ("REDIS_URL", "REDIS_PASSWORD_FILE", "YARD_SECRET_KEY_FILE"):
                environment.pop(another, None)
            up.launchers.append(
                subprocess.Popen(
                    command, cwd=code, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
                )
            )
            launcher = up.launchers[-1]
            assert launcher.stdout is not None
            said = []
            for line in launcher.stdout:
                said.append(line)
                if "Ctrl-C stops everything" in line:
                    return Yard(up, connect(up.home, up.port))
            pytest.fail("".join(said))

        def stop(yard: Yard) -> None:
            yard.client.close()
            up.launchers[-1].send_signal(signal.SIGINT)
            up.launchers[-1].wait()

        yard = start(former)
        state.mkdir()
        token = subprocess.run(
            [sys.executable, "manage.py", "join_token", "--pool", "default"],
            cwd=former,
            env=up.environment,
            capture_output=True,
            text=True,
            check=True,
        )
        (state / "join").write_text(token.stdout)
        # That release had no gateway: its agents speak with the web server, which still takes what they say.
        command = ["-P", "-m", "agents", "--url", f"http://127.0.0.1:{up.port}", "--state", str(state), "--name", NAME]
        more = ["--join-token-file", str(state / "join"), "--run-as", str(os.geteuid())]
        agent = subprocess.Popen(
            [sys.executable, *command, *more], cwd=former, env={**os.environ, "PYTHONPATH": str(former)}
        )
        try:
            assert eventually(lambda: ready(yard))
            (others,) = [node["name"] for node in yard.client.nodes.list() if node["name"] != NAME]
            yard.client.nodes.drain(others, "the test is on another")
            script = f"echo $$ >> {oracle}; until [ -e {tmp_path}/end ]; do sleep 0.1; done"
            job = yard.client.jobs.submit({"name": "long", "run": script, "cpus": 0.1, "memory": "16MiB"})
            yard.until(job, "main", lambda stage: stage["state"] == "RUNNING")
            stop(yard)

            yard = start(ROOT)
            assert eventually(lambda: ready(yard))
            assert yard.client.jobs.get(job.number).state == "RUNNING"
            quick = yard.client.jobs.submit({"name": "quick", "run": "true", "cpus": 0.1, "memory": "16MiB"})
            quick.wait(timeout_s=240)
            assert quick.refresh().state == "COMPLETED"
            stop(yard)

            keys = {
                "YARD_SECRET_KEY_FILE": str(up.home / "secrets" / "django.key"),
                "YARD_SECRETS_KEY_FILE": str(up.home / "secrets" / "secrets.keys"),
            }
            for app, last in reversed(release.MIGRATIONS.items()):
                here.done("migrate", app, last, "--verbosity", "0", **keys)
            yard = start(former)
            assert eventually(lambda: ready(yard))
            job = yard.client.jobs.get(job.number)
            assert job.state == "RUNNING"
            (tmp_path / "end").touch()
            job.wait(timeout_s=240)
            assert job.refresh().state == "COMPLETED"
            assert yard.client.jobs.get(quick.number).state == "COMPLETED"
            assert len(oracle.read_text().split()) == 1, "it ran once"
            stop(yard)
        finally:
            for process in processes_of(str(tmp_path)):
                process.kill()
            agent.kill()
            agent.wait()
