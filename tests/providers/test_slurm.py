"""Stages run on pilots inside a real Slurm, with a whole control plane and real agents."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

from deploy.local.service import ROOT
from switchyard.client import Client, JobRecord
from tests.chaos.stack import Up, eventually, standing, words_of
from tests.chaos.test_job import TIMERS, connect
from tests.providers.slurm_cluster import SlurmOnThisHost

pytestmark = pytest.mark.chaos


@dataclass
class Site:
    """A control plane over a Slurm, with the pool ``hpc`` whose nodes the provider ``trial`` brings."""

    up: Up
    client: Client
    slurm: SlurmOnThisHost

    def submit(self, **spec: Any) -> JobRecord:
        return self.client.jobs.submit({"pool": "hpc", "cpus": 1, "memory": "100MiB", "time_limit": "10m", **spec})

    def pilots(self, *states: str) -> list[dict[str, Any]]:
        """The pilots in these states, or those that are not gone."""
        found = [dict(each) for each in self.client.pilots("trial")]
        return [each for each in found if each["state"] in states or (not states and each["state"] != "GONE")]

    def ended(self, job: JobRecord) -> str:
        def is_over() -> bool:
            job.refresh()
            return job.is_final

        assert eventually(is_over), (job.state, job.stages, self.client.provider("trial"), self.pilots())
        return str(job.state)

    def runs(self, job: JobRecord) -> str:
        """Wait until the job runs; return the node."""

        def placed() -> list[Any]:
            job.refresh()
            return job.stages[0]["placed"] if job.state == "RUNNING" else []

        assert eventually(lambda: bool(placed())), (job.state, job.stages, self.pilots())
        return str(placed()[0]["node"])

    def empty(self) -> None:
        """Give all pilots back, and wait until Slurm has none."""
        self.client.change_provider("trial", {"enabled": False})
        assert eventually(lambda: not self.pilots()), self.pilots()
        assert self.slurm.jobs() == []
        self.client.change_provider("trial", {"enabled": True, "hours": 0.5, "idle_s": 300})


@pytest.fixture(scope="module")
def site(slurm: SlurmOnThisHost, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    logs = tmp_path_factory.mktemp("pilots")
    logs.chmod(0o777)
    with pytest.MonkeyPatch.context() as environment, standing() as up:
        environment.setenv("YARD_TIMERS", TIMERS)
        up.started()
        with connect(up.home, up.port) as client:
            client.create_pool({"name": "hpc"})
            settings = {"python": sys.executable, "path": str(ROOT), "log_below": str(logs), "grace_s": 3}
            if os.geteuid() == 0:
                settings["run_as"] = "root"
            client.create_provider(
                {
                    "name": "trial", "kind": "slurm", "pool": "hpc", "settings": settings, "max_nodes": 2, "hours": 0.5,
                    "shapes": [{"name": "small", "cpus": 2, "memory_gib": 0.5}],
                }
            )  # fmt: skip
            site = Site(up, client, slurm)
            yield site
            site.empty()


def test_a_stage_runs_on_a_pilot_and_the_idle_pilot_is_given_back(site: Site) -> None:
    site.client.change_provider("trial", {"idle_s": 5})
    job = site.submit(name="hello", run="echo hello from a pilot")
    assert site.ended(job) == "COMPLETED"
    assert "hello from a pilot" in "".join(site.client.jobs.logs(job))
    assert eventually(lambda: not site.pilots()), site.pilots()
    (pilot,) = site.pilots("GONE")
    assert pilot["why"] == "idle"
    assert site.slurm.jobs() == []
    # A node that is given back waits for the next pilot, and is not lost.
    (node,) = [each for each in site.client.nodes.list() if each["name"] == pilot["node"]]
    assert node["state"] == "DRAINED"


@pytest.mark.long
def test_when_a_stranger_cancels_the_allocation_the_stage_starts_again_elsewhere(site: Site, tmp_path: Path) -> None:
    site.empty()
    mark = tmp_path / "began"
    job = site.submit(name="again", run=f"[ -e {mark} ] && exit 0; touch {mark}; sleep 600")
    site.runs(job)
    assert eventually(mark.exists)
    (pilot,) = site.pilots()
    site.slurm.say("scancel", pilot["handle"])
    assert site.ended(job) == "COMPLETED"
    attempts = list(site.client.jobs.attempts(job))
    assert len(attempts) == 2, attempts
    assert [each["handle"] for each in site.pilots("GONE", "UP", "LEAVING")].count(pilot["handle"]) == 1


@pytest.mark.long
def test_nothing_starts_that_would_run_into_the_end_of_an_allocation(site: Site) -> None:
    site.empty()
    site.client.change_provider("trial", {"hours": 3 / 60})
    first = site.submit(name="first", run="sleep 50", time_limit="100s")
    site.runs(first)
    assert site.ended(first) == "COMPLETED"
    # There is a node that idles, but this would run into its end.
    second = site.submit(name="second", run="true", time_limit="100s")
    assert site.ended(second) == "COMPLETED"
    assert _node(site, first) != _node(site, second)


def _node(site: Site, job: JobRecord) -> str:
    job.refresh()
    return str(job.stages[0]["placed"][0]["node"])


@pytest.mark.long
def test_a_disabled_provider_lets_its_stages_save_and_queues_them_again(site: Site, tmp_path: Path) -> None:
    site.empty()
    mark = tmp_path / "began"
    job = site.submit(name="moves", run=f"[ -e {mark} ] && exit 0; touch {mark}; sleep 600")
    site.runs(job)
    assert eventually(mark.exists)
    site.client.change_provider("trial", {"enabled": False})
    assert eventually(lambda: not site.pilots()), site.pilots()
    job.refresh()
    assert job.state == "PENDING"
    site.client.change_provider("trial", {"enabled": True})
    assert site.ended(job) == "COMPLETED"


@pytest.mark.long
def test_workers_that_are_killed_again_and_again_double_and_leak_no_pilot(site: Site) -> None:
    site.empty()
    jobs = [site.submit(name=f"job-{n}", cpus=2, run="sleep 4") for n in range(6)]
    for _round in range(5):
        before = site.client.provider("trial")["looked_at"]
        assert eventually(lambda before=before: site.client.provider("trial")["looked_at"] != before)  # type: ignore[misc]
        workers = _workers(site.up)
        assert workers
        for worker in workers:
            worker.send_signal(signal.SIGKILL)
        assert len(site.slurm.jobs()) <= 2
    assert [site.ended(job) for job in jobs] == ["COMPLETED"] * 6
    names = [line.split()[2] for line in site.slurm.jobs("all")]
    assert len(set(names)) == len(names)
    site.empty()


def _workers(up: Up) -> list[psutil.Process]:
    """The stack's workers: Celery gives their processes a title."""
    return [process for process in up.keeper().children() if "celery" in words_of(process)]
