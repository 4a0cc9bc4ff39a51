"""Without any shared disk, what one stage leaves reaches the next on another machine, and a source is loaded once."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from deploy.local.service import ROOT
from tests.agents.test_staging import Web, web
from tests.chaos.stack import eventually, standing
from tests.chaos.test_job import TIMERS, Yard, on

pytestmark = pytest.mark.chaos
__all__ = ["web"]  # a fixture


@pytest.fixture(scope="module")
def yard() -> Iterator[Yard]:
    """A stack whose pool shares no disk, with two agents that are machines of their own."""
    with pytest.MonkeyPatch.context() as environment, standing() as up:
        environment.setenv("YARD_TIMERS", TIMERS)
        up.started()
        for yard in on(up):
            own = up.environment
            forget = "from controlplane.pools.models import Pool; Pool.objects.update(storage_path='')"
            subprocess.run([sys.executable, "manage.py", "shell", "-c", forget], cwd=ROOT, env=own, check=True)
            (local,) = [node["name"] for node in yard.client.nodes.list()]
            yard.agent("left")
            yard.agent("right")
            yard.client.nodes.drain(local, "the test uses agents of its own")
            yield yard


def test_what_one_machine_makes_another_reads(yard: Yard, tmp_path: Path) -> None:
    # The first stage does not end before its machine is drained.
    go = tmp_path / "go"
    make = 'mkdir "$YARD_OUTPUT_DIR/tokens" && for i in 1 2 3; do echo "shard $i" > "$YARD_OUTPUT_DIR/tokens/$i"; done'
    read = 'cat "$YARD_INPUT_DIR/prep/tokens/"*'
    job = yard.client.jobs.submit(
        {
            "name": "flow",
            "stages": [
                {"name": "prep", "outputs": ["tokens"], "run": f"{make}; until [ -e {go} ]; do sleep 0.1; done"},
                {"name": "read", "needs": ["prep"], "inputs": [{"from": "prep", "output": "tokens"}], "run": read},
            ],
        }
    )
    maker = yard.until(job, "prep", lambda s: s["state"] == "RUNNING")["placed"][0]["node"]
    yard.client.nodes.drain(maker, "so that the next stage must go elsewhere")
    go.touch()
    try:
        job.wait(timeout_s=240)
        job.refresh()
        assert job.state == "COMPLETED", [(s["name"], s["state"], s["cause"], s["detail"]) for s in job.stages]
        assert yard.stage(job, "read")["placed"][0]["node"] != maker
        assert "".join(yard.client.jobs.logs(job, stage="read")) == "shard 1\nshard 2\nshard 3\n"
    finally:
        yard.client.nodes.resume(maker)


def test_a_source_is_loaded_once_for_all_machines_and_ahead_of_its_stage(yard: Yard, web: Web) -> None:
    reads = [{"source": web.url, "sha256": web.digest, "path": "raw.bin"}]
    verify = 'sha256sum < "$YARD_INPUT_DIR/raw.bin"'
    gang = yard.client.jobs.submit({"name": "gang", "nodes": 2, "inputs": reads, "run": verify})
    gang.wait(timeout_s=240)
    gang.refresh()
    assert gang.state == "COMPLETED", [(s["cause"], s["detail"]) for s in gang.stages]
    for rank in (0, 1):
        assert "".join(yard.client.jobs.logs(gang, rank=rank)) == f"{web.digest}  -\n"
    assert web.loads == 1
    # A stage that waits for its turn has its input before it starts.
    cpus = [each for node in yard.client.nodes.list() for each in node["devices"] if each["kind"] == "cpu"]
    cores = max(each["capacity_milli"] for each in cpus) // 1000
    busy = [
        yard.client.jobs.submit(
            {"name": "busy", "cpus": cores, "expected": "60s", "time_limit": "2m", "run": "sleep 60"}
        )
        for _ in range(2)
    ]
    assert eventually(lambda: all(yard.stage(job, "main")["state"] == "RUNNING" for job in busy))
    web.content = b"other bytes" * 1000
    later = [{"source": web.url, "sha256": hashlib.sha256(web.content).hexdigest(), "path": "raw.bin"}]
    waiting = yard.client.jobs.submit(
        {"name": "waiting", "cpus": cores, "time_limit": "1m", "inputs": later, "run": verify}
    )
    assert eventually(lambda: web.loads == 2)
    assert yard.stage(waiting, "main")["state"] == "PENDING"
    for job in [*busy, waiting]:
        job.cancel()


def test_a_changed_source_fails_its_stage_and_says_so(yard: Yard, web: Web) -> None:
    reads = [{"source": web.url, "sha256": "0" * 64, "path": "raw.bin"}]
    job = yard.client.jobs.submit({"name": "stale", "inputs": reads, "run": "true"})
    job.wait(timeout_s=240)
    stage = yard.stage(job, "main")
    assert (stage["state"], stage["cause"]) == ("FAILED", "LAUNCH_FAILED")
    assert 'input "raw.bin" could not be fetched' in stage["detail"]
    assert web.digest in stage["detail"]
