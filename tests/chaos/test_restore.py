"""A backup is made while jobs run and restored under an agent that went on: nothing runs twice."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from deploy.local.service import ROOT
from switchyard.client import JobRecord
from tests.chaos.stack import eventually
from tests.chaos.test_job import Yard, connect, processes_of

pytestmark = pytest.mark.chaos

NAME = "outlives"


def start_agent(yard: Yard, state: Path) -> subprocess.Popen[bytes]:
    """An agent whose state is not the stack's, so that its stages outlive the stack."""
    state.mkdir()
    (state / "join").write_text(yard.join_token())
    command = [sys.executable, "-m", "agents", "--url", yard.up.agents_url, "--state", str(state), "--name", NAME]
    more = ["--join-token-file", str(state / "join"), "--run-as", str(os.geteuid())]
    yard.agents.append(subprocess.Popen([*command, *more], cwd=ROOT, start_new_session=True))
    assert eventually(lambda: any(n["name"] == NAME and n["state"] == "READY" for n in yard.client.nodes.list()))
    return yard.agents[-1]


def test_a_backup_is_restored_under_what_runs(yard: Yard, tmp_path: Path) -> None:
    up = yard.up
    (others,) = [node["name"] for node in yard.client.nodes.list()]
    start_agent(yard, tmp_path / "state")
    yard.client.nodes.drain(others, "the test is on another")
    oracle, code = tmp_path / "oracle", tmp_path / "code"
    oracle.touch()
    code.mkdir()
    (code / "hello.txt").write_text("from the bundle\n")

    def submit(name: str, cpus: float) -> JobRecord:
        script = f"echo {name} >> {oracle}; until [ -e {tmp_path}/end-{name} ]; do sleep 0.1; done"
        return yard.client.jobs.submit({"name": name, "run": script, "cpus": cpus, "memory": "16MiB"})

    def started(name: str) -> bool:
        return name in oracle.read_text().split()

    bundle = yard.client.upload(code)
    first = yard.client.jobs.submit({"name": "first", "run": "cat hello.txt", "bundle": bundle})
    first.wait(timeout_s=240)
    assert first.refresh().state == "COMPLETED"
    total = sum(d["capacity_milli"] for d in yard.client.devices(node=NAME) if d["kind"] == "cpu") / 1000
    kept, _, waits = submit("kept", 0.1), submit("ends", total - 0.5), submit("waits", total - 0.5)
    assert eventually(lambda: started("kept") and started("ends"))
    yard.until(kept, "main", lambda stage: stage["state"] == "RUNNING")
    assert yard.stage(waits, "main")["state"] == "PENDING"

    backup = tmp_path / "backup"
    subprocess.run(
        [sys.executable, "-m", "deploy.local", "backup", str(backup)],
        cwd=ROOT,
        env=up.environment | {"YARD_HOME": str(up.home)},
        check=True,
    )
    (tmp_path / "end-ends").touch()
    after = submit("after", 0.1)
    assert eventually(lambda: started("waits") and started("after"))
    yard.until(after, "main", lambda stage: stage["state"] == "RUNNING")
    pids = {name: {p.pid for p in processes_of(f"end-{name}")} for name in ("kept", "waits", "after")}

    up.launchers[-1].send_signal(signal.SIGINT)
    up.launchers[-1].wait()
    yard.client.close()
    launcher = up.start("--restore", str(backup))
    assert launcher.stdout is not None
    # It is not ready as a whole: the stack's own node is still drained, as the record says.
    said = next((line for line in launcher.stdout if "Ctrl-C stops everything" in line), "")
    assert said, launcher.wait()
    yard.client = connect(up.home, up.port)
    jobs = yard.client.jobs
    assert eventually(lambda: yard.client.wire.get(f"/nodes/{NAME}")["state"] == "READY")

    # What the record does not know goes on, and people see it.
    assert eventually(lambda: len(list(yard.client.nodes.survivors())) == 2)
    assert {each["node"] for each in yard.client.nodes.survivors()} == {NAME}
    assert {name: {p.pid for p in processes_of(f"end-{name}")} for name in pids} == pids
    # What it knows goes on under its job; what waited and may have run since is held.
    assert jobs.get(kept.number).state == "RUNNING"
    assert jobs.get(waits.number).state == "HELD"
    assert [job.name for job in jobs.list()].count("after") == 0
    # The node takes orders, and no number is given twice.
    new = submit("new", 0.1)
    assert new.number > after.number
    assert eventually(lambda: started("new"))
    for name, job in (("new", new), ("kept", jobs.get(kept.number))):
        (tmp_path / f"end-{name}").touch()
        job.wait(timeout_s=240)
        assert job.refresh().state == "COMPLETED"
    assert "from the bundle" in "".join(jobs.logs(first.number, stage="main"))
    again = jobs.submit({"name": "again", "run": "cat hello.txt", "bundle": bundle})
    again.wait(timeout_s=240)
    assert "from the bundle" in "".join(jobs.logs(again, stage="main"))
    for each in list(yard.client.nodes.survivors()):
        yard.client.nodes.end_survivor(each["part"], "stop", "the test is over")
    assert eventually(lambda: not processes_of("end-waits") and not processes_of("end-after"))
    ran = oracle.read_text().split()
    assert sorted(ran) == sorted({"kept", "ends", "waits", "after", "new"}), "nothing ran twice"
