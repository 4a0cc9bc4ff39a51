"""A copied state folder runs nothing: of two agents with one identity the second is refused, and people are told."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from deploy.local.service import ROOT
from tests.chaos.stack import eventually, long, standing
from tests.chaos.test_job import TIMERS, Yard, on

pytestmark = pytest.mark.chaos


@pytest.fixture(scope="module")
def yard() -> Iterator[Yard]:
    with pytest.MonkeyPatch.context() as environment, standing() as up:
        environment.setenv("YARD_TIMERS", TIMERS)
        up.started()
        yield from on(up)


@pytest.mark.parametrize("where", ["another machine", long("another boot")])
def test_a_copy_of_a_running_agent_runs_nothing(yard: Yard, tmp_path: Path, where: str) -> None:
    name = "copied-" + where.split()[1]
    others = [node["name"] for node in yard.client.nodes.list()]
    original = yard.agent(name)
    oracle = tmp_path / "oracle"
    oracle.touch()
    oracle.chmod(0o666)
    tmp_path.chmod(0o755)
    released = tmp_path / "released"
    script = f"echo $YARD_JOB_ID $YARD_ATTEMPT >> {oracle}; until [ -e {released} ]; do sleep 0.2; done"
    jobs = [
        yard.client.jobs.submit(
            {"name": f"{name}-{index}", "run": script, "cpus": 0.1, "expected": "4s", "avoid": others}
        )
        for index in range(12)
    ]
    assert eventually(lambda: len(oracle.read_text().splitlines()) == len(jobs))
    state = yard.up.home / "agents" / name
    copy = tmp_path / "state"
    shutil.copytree(state, copy, ignore=lambda _, names: [each for each in names if each == "bell"])
    machine, boot = tmp_path / "machine-id", tmp_path / "boot_id"
    machine.write_text("another machine" if where == "another machine" else Path("/etc/machine-id").read_text())
    boot.write_text("00000000-0000-4000-8000-000000000001\n")
    command = [word.replace(str(state), str(copy)) for word in psutil.Process(original.pid).cmdline()]
    environment = {**psutil.Process(original.pid).environ(), "AGENT_MACHINE_ID_PATH": str(machine)}
    clone = subprocess.Popen(command, cwd=ROOT, env={**environment, "AGENT_BOOT_ID_PATH": str(boot)})
    yard.agents.append(clone)

    def told() -> bool:
        return any(sign["code"] == "NodeCopied" for sign in yard.client.wire.get("/overview")["attention"])

    assert eventually(told), yard.client.wire.get("/overview")["attention"]
    assert eventually(lambda: yard.client.wire.get(f"/nodes/{name}")["state"] == "DRAINING")
    released.touch()
    for job in jobs:
        job.wait(timeout_s=240)
        job.refresh()
        assert job.state == "COMPLETED", job.stages
    ran = oracle.read_text().split("\n")[:-1]
    assert len(ran) == len(set(ran)) == 12, ran
    assert original.poll() is None
    clone.terminate()
    clone.wait()
    yard.client.wire.post(f"/nodes/{name}/resume", {})
    assert eventually(lambda: yard.client.wire.get(f"/nodes/{name}")["state"] == "READY")
    assert eventually(lambda: not told())
