"""A running job is adjusted over REST and with ``yard``: a real stack, a real process, the same pid all the time."""

from __future__ import annotations

import os
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from agents.resources.adjust import nice_of
from deploy.local.service import ROOT
from switchyard.client import JobRecord
from switchyard.problem import ApiProblem
from tests.chaos.stack import eventually, standing
from tests.chaos.test_job import Yard, on

pytestmark = pytest.mark.chaos
# It counts for ever, and says how far it is; two threads, so that each of them is seen to be reached.
COUNTS = """
import os, threading, time
threading.Thread(target=time.sleep, args=(3600,), daemon=True).start()
n = 0
while True:
    n += 1
    with open("count", "w") as file:
        file.write(str(n))
    time.sleep(0.02)
"""


@pytest.fixture(scope="module")
def yard() -> Iterator[Yard]:
    with standing() as up:
        up.started()
        yield from on(up)


class Counting:
    """A job that counts, and its process."""

    def __init__(self, yard: Yard) -> None:
        self.yard = yard
        # exec: the shell becomes the program, so that the part's main process is the one that counts.
        run = f"exec {sys.executable} -c '{COUNTS}'"
        spec = {"name": "counts", "run": run, "cpus": 1, "memory": "1GiB"}
        self.job: JobRecord = yard.client.jobs.submit(spec)
        yard.until(self.job, "main", lambda stage: stage["state"] == "RUNNING")
        assert eventually(lambda: self.part["pid"] is not None)
        self.process = psutil.Process(self.part["pid"])
        assert eventually(lambda: self.count > 0)

    @property
    def attempt(self) -> dict[str, Any]:
        return self.yard.client.jobs.attempts(self.job)[-1]

    @property
    def part(self) -> dict[str, Any]:
        (part,) = self.attempt["parts"]
        return dict(part)

    @property
    def count(self) -> int:
        try:
            return int(Path(self.process.cwd(), "count").read_text() or 0)
        except (OSError, ValueError):
            return 0

    def adjust(self, **share: Any) -> None:
        (changed,) = self.yard.client.jobs.adjust(self.job, **share)
        assert changed["id"] == self.attempt["id"]

    def applied(self, holds: Callable[[], bool]) -> None:
        """It came to hold, at the same pid, and the agent has said that the revision is applied."""
        assert eventually(holds)
        assert eventually(lambda: self.part["seen_rev"] == self.part["spec_rev"])
        assert self.part["pid"] == self.process.pid
        assert self.process.is_running()


def threads(process: psutil.Process) -> list[int]:
    return [thread.id for thread in process.threads()]


def test_a_running_process_is_paused_slowed_and_given_back_what_it_had(yard: Yard) -> None:
    job = Counting(yard)
    before = job.process.create_time()

    job.adjust(suspended=True, reason="a demonstration")
    job.applied(lambda: job.part["seen_rev"] == 2)
    assert job.part["notes"] == []
    assert yard.stage(job.job, "main")["state"] == "SUSPENDED"
    stood = job.count
    time.sleep(0.5)  # a process that went on would have counted meanwhile
    assert job.count == stood

    job.adjust(suspended=False)
    job.applied(lambda: job.count > stood)
    assert yard.stage(job.job, "main")["state"] == "RUNNING"

    job.adjust(cpus=[0], cpu_weight=50, io_weight=25, memory_bytes=300 << 20)
    job.applied(lambda: all(os.sched_getaffinity(thread) == {0} for thread in threads(job.process)))
    assert job.part["notes"] == []
    (isolation,) = [node["isolation"] for node in yard.client.nodes.list()]
    if isolation == "none":
        assert [os.getpriority(os.PRIO_PROCESS, thread) for thread in threads(job.process)] == [nice_of(50)] * 2
        assert job.process.ionice().value > 4

    job.adjust(queue_class="long")
    job.applied(lambda: bool(job.part["notes"]))
    assert "no device of this part takes turns" in job.part["notes"][0]
    assert job.process.create_time() == before

    kinds = [(event["kind"], event["text"]) for event in yard.client.jobs.events(job.job)]
    told = [text for kind, text in kinds if kind == "adjusted"]
    assert told[0] == "main adjusted in place: suspended (a demonstration)"
    assert told[2] == "main adjusted in place: cpu_weight 50, cpus [0], io_weight 25, memory_bytes 314572800"
    job.job.cancel()
    assert job.job.wait(240).state == "CANCELLED"


def test_a_memory_limit_below_what_is_in_use_is_not_set_and_said(yard: Yard) -> None:
    job = Counting(yard)
    job.adjust(memory_bytes=1 << 20)
    job.applied(lambda: bool(job.part["notes"]))
    assert "a limit below would end it" in job.part["notes"][0]
    assert job.process.is_running()
    job.job.cancel()
    job.job.wait(240)


def test_yard_adjusts_and_a_refusal_names_the_field(yard: Yard) -> None:
    job = Counting(yard)
    words = [sys.executable, "-m", "switchyard", "adjust", str(job.job.number)]
    environment = {
        **os.environ,
        "YARD_URL": yard.client.url,
        "YARD_TOKEN": tomllib.loads((yard.up.home / "client.toml").read_text())["token"],
        "PYTHONPATH": str(ROOT),
    }

    def say(*more: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([*words, *more], env=environment, text=True, capture_output=True, check=False)

    done = say("--pause")
    assert (done.returncode, done.stdout) == (0, "main attempt 1: SUSPENDED, revision 2\n"), done.stderr
    job.applied(lambda: job.part["seen_rev"] == 2)
    refused = say("--cpu-weight", "0")
    assert refused.returncode == 2
    assert "/cpu_weight: cpu_weight must be a whole number from 1 to 10000" in refused.stderr
    assert say("--go-on").returncode == 0
    with pytest.raises(ApiProblem) as problem:
        yard.client.jobs.adjust(job.job, suspnded=True)
    assert (problem.value.status, problem.value.errors[0]["pointer"]) == (422, "/suspnded")
    job.job.cancel()
    assert job.job.wait(240).state == "CANCELLED"
