"""``yard trace`` from end to end: a real stack, a real agent with py-spy, and a job that runs."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from switchyard.client import JobRecord
from tests.chaos.stack import eventually
from tests.chaos.test_job import Yard
from tests.chaos.test_sessions import environment_of

pytestmark = pytest.mark.chaos

BUSY = """
exec python3 - <<'END'
def dig():
    print("digging", flush=True)
    while True:
        sum(range(500))
dig()
END
"""


@pytest.fixture
def job(yard: Yard) -> Iterator[JobRecord]:
    """A job that runs and may be profiled."""
    made = yard.client.jobs.submit({"name": "busy", "run": BUSY, "profiling": {"allow": ["py-spy"]}})
    assert eventually(lambda: "digging" in "".join(yard.client.jobs.logs(made)))
    yield made
    yard.client.jobs.cancel(made)
    made.wait(timeout_s=240)


def trace(yard: Yard, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "switchyard", "trace", *words]
    environment = environment_of(yard)
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=240, check=False)


def test_a_running_stage_is_profiled_from_the_command_line(yard: Yard, job: JobRecord, tmp_path: Path) -> None:
    file = tmp_path / "busy.json"
    done = trace(yard, str(job.number), "--seconds", "2", "-o", str(file))
    assert done.returncode == 0, done.stderr
    told = json.loads(file.read_text())
    assert told["$schema"] == "https://www.speedscope.app/file-format-schema.json"
    assert "dig" in {frame["name"] for frame in told["shared"]["frames"]}
    (past,) = json.loads(trace(yard, str(job.number), "--list", "--json").stdout)
    assert (past["state"], past["size_bytes"]) == ("READY", file.stat().st_size)
    again = tmp_path / "again.json"
    assert trace(yard, str(job.number), "--get", past["id"], "-o", str(again)).returncode == 0
    assert again.read_bytes() == file.read_bytes()
    refused = trace(yard, str(job.number), "--tool", "torch")
    assert refused.returncode == 5
    assert "does not allow torch" in refused.stderr
    assert job.refresh().state == "RUNNING"
