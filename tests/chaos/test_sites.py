"""Two whole installations: a job that waits at one of them runs at the other, once, whatever is killed meanwhile."""

from __future__ import annotations

import time
import tomllib
from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

from switchyard.client import Client, JobRecord
from tests.chaos.partition import DOWN, Partition
from tests.chaos.stack import WEB, Up, eventually, standing
from tests.chaos.test_job import TIMERS, connect

pytestmark = pytest.mark.chaos

SITE = {"patience_s": 0, "gain_s": 0}


@dataclass
class Pair:
    """Home, where no node takes work, the other installation, and the way to it."""

    home: Client
    away: Client
    home_up: Up
    away_up: Up
    way: Partition
    folder: Path

    def submit(self, name: str, *, until: Path | None = None) -> JobRecord:
        """Submit a job at home that writes a line when it begins, and ends once ``until`` is there."""
        waits = f"while [ ! -e {until} ]; do sleep 0.1; done; " if until else ""
        run = f"echo began >>{self.folder}/{name}; echo hello from {name}; {waits}echo bye"
        return self.home.jobs.submit({"name": name, "run": run, "cpus": 0.1, "memory": "64MiB", "sites": "any"})

    def runs(self, name: str) -> int:
        """How often a job began."""
        file = self.folder / name
        return len(file.read_text().splitlines()) if file.exists() else 0

    def ended(self, job: JobRecord) -> str:
        """Wait for the end of a job, and return how it ended."""

        def is_over() -> bool:
            job.refresh()
            return job.is_final

        assert eventually(is_over), self.told(job)
        return job.state

    def told(self, job: JobRecord) -> Any:
        job.refresh()
        return job.state, job.stages[0]["state"], self.home.site("berlin"), list(self.home.site_jobs("berlin"))

    def stage(self, job: JobRecord) -> str:
        job.refresh()
        return str(job.stages[0]["state"])


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    with pytest.MonkeyPatch.context() as environment, ExitStack() as stack:
        environment.setenv("YARD_TIMERS", TIMERS)
        environment.setenv("YARD_SITE_NETWORKS", "127.0.0.0/8")
        home_up, away_up = stack.enter_context(standing()), stack.enter_context(standing())
        for up in (home_up, away_up):
            up.started()
        home, away = (stack.enter_context(closing(connect(up.home, up.port))) for up in (home_up, away_up))
        way = Partition(away_up.port)
        stack.callback(way.close)
        for node in home.nodes.list():
            home.nodes.drain(node["name"], "the test has its jobs run elsewhere")
        home.create_site({"name": "berlin", "url": way.url, **SITE})
        home.set_site_token("berlin", tomllib.loads((away_up.home / "client.toml").read_text())["token"])
        folder = tmp_path_factory.mktemp("began")
        folder.chmod(0o777)
        yield Pair(home, away, home_up, away_up, way, folder)


def test_a_job_leaves_completes_at_the_other_and_its_log_is_read_at_home(pair: Pair) -> None:
    job = pair.submit("calm")
    assert pair.ended(job) == "COMPLETED", pair.told(job)
    assert "".join(job.logs()).splitlines() == ["hello from calm", "bye"]
    (there,) = pair.away.jobs.list(q="calm")
    assert there.state == "COMPLETED"
    (row,) = [one for one in pair.home.site_jobs("berlin") if one["job"] == job.number]
    assert (row["number"], row["state"], row["over_at"] is not None) == (there.number, "COMPLETED", True)
    assert pair.runs("calm") == 1
    assert pair.home.site("berlin")["devices"]
    assert eventually(lambda: pair.home.site("berlin")["state"] == "well"), pair.told(job)


def test_the_other_is_killed_and_comes_back(pair: Pair) -> None:
    until = pair.folder / "after-the-kill"
    job = pair.submit("killed", until=until)
    assert eventually(lambda: pair.stage(job) == "RUNNING"), pair.told(job)
    pair.away_up.named(WEB).kill()
    pair.way.cut()
    pair.way.block(DOWN)
    assert eventually(lambda: pair.home.site("berlin")["state"] == "ill"), pair.told(job)
    assert eventually(lambda: next(iter(pair.home.site_jobs("berlin")))["is_unknown"])
    assert pair.stage(job) == "RUNNING", "nothing is known of it, so nothing happens to it"
    until.touch()
    pair.way.heal()
    pair.way.cut()
    assert pair.ended(job) == "COMPLETED", pair.told(job)
    assert pair.runs("killed") == 1
    assert "bye" in "".join(job.logs())


def test_the_worker_is_killed_while_jobs_leave_and_answers_are_lost_on_the_way(pair: Pair) -> None:
    jobs = {name: pair.submit(name) for name in (f"hurried{number}" for number in range(4))}
    for _kill in range(4):
        pair.way.block(DOWN)  # requests arrive, answers do not
        time.sleep(1.0)
        pair.way.cut()
        pair.way.heal()
        _kill_worker(pair.home_up)
        time.sleep(1.0)
    for name, job in jobs.items():
        assert pair.ended(job) == "COMPLETED", pair.told(job)
        assert pair.runs(name) == 1, "once, whatever was lost"
    assert len(list(pair.away.jobs.list(q="hurried"))) == len(jobs)


def test_a_cancellation_ends_it_there(pair: Pair) -> None:
    job = pair.submit("cancelled", until=pair.folder / "never")
    assert eventually(lambda: pair.stage(job) == "RUNNING"), pair.told(job)
    pair.home.jobs.cancel(job.number)
    assert pair.ended(job) == "CANCELLED"
    (there,) = pair.away.jobs.list(q="cancelled")
    assert there.state == "CANCELLED"


def _kill_worker(up: Up) -> None:
    """Kill the worker, which is there again a moment after it was killed before."""

    def killed() -> bool:
        for child in up.keeper().children():
            try:
                if {"celery", "controlplane.workers"} & set(child.cmdline()) or "celery" in " ".join(child.cmdline()):
                    child.kill()
                    return True
            except psutil.NoSuchProcess:
                continue
        return False

    assert eventually(killed)
