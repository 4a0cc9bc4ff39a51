"""Stages run on pilots inside a real Slurm, with a whole control plane and real agents."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from switchyard.client import JobRecord
from tests.chaos.stack import eventually
from tests.providers.site import Site, over
from tests.providers.slurm_cluster import SlurmOnThisHost

pytestmark = pytest.mark.chaos


@pytest.fixture(scope="module")
def site(slurm: SlurmOnThisHost, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    logs = tmp_path_factory.mktemp("pilots")
    with over(slurm, "slurm", logs, log_below=str(logs)) as made:
        yield made


def test_a_stage_runs_on_a_pilot_and_the_idle_pilot_is_given_back(site: Site, slurm: SlurmOnThisHost) -> None:
    site.client.change_provider("trial", {"idle_s": 5})
    job = site.submit(name="hello", run="echo hello from a pilot")
    assert site.ended(job) == "COMPLETED"
    assert "hello from a pilot" in "".join(site.client.jobs.logs(job))
    assert eventually(lambda: not site.pilots()), site.pilots()
    (pilot,) = site.pilots("GONE")
    assert pilot["why"] == "idle"
    assert slurm.jobs() == []
    # A node that is given back waits for the next pilot, and is not lost.
    (node,) = [each for each in site.client.nodes.list() if each["name"] == pilot["node"]]
    assert node["state"] == "DRAINED"


@pytest.mark.long
def test_when_a_stranger_cancels_the_allocation_the_stage_starts_again_elsewhere(
    site: Site, slurm: SlurmOnThisHost, tmp_path: Path
) -> None:
    site.empty()
    mark = tmp_path / "began"
    job = site.submit(name="again", run=f"[ -e {mark} ] && exit 0; touch {mark}; sleep 600")
    site.runs(job)
    assert eventually(mark.exists)
    (pilot,) = site.pilots()
    slurm.say("scancel", pilot["handle"])
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
def test_workers_that_are_killed_again_and_again_double_and_leak_no_pilot(site: Site, slurm: SlurmOnThisHost) -> None:
    site.empty()
    jobs = [site.submit(name=f"job-{n}", cpus=2, run="sleep 4") for n in range(6)]
    for _round in range(5):
        before = site.client.provider("trial")["looked_at"]
        assert eventually(lambda before=before: site.client.provider("trial")["looked_at"] != before)  # type: ignore[misc]
        workers = site.workers()
        assert workers
        for worker in workers:
            worker.send_signal(signal.SIGKILL)
        assert len(slurm.jobs()) <= 2
    assert [site.ended(job) for job in jobs] == ["COMPLETED"] * 6
    names = [line.split()[2] for line in slurm.jobs("all")]
    assert len(set(names)) == len(names)
    site.empty()
