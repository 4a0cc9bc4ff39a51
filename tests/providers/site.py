"""A whole control plane with real agents over a foreign engine, for tests."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import psutil
import pytest

from deploy.local.service import ROOT
from switchyard.client import Client, JobRecord
from tests.chaos.stack import Up, eventually, standing, words_of
from tests.chaos.test_job import TIMERS, connect


class EngineUnderTest(Protocol):
    """A foreign engine that a test has started."""

    def live(self) -> list[str]:
        """Return what is there or may come, by any name."""


@dataclass
class Site:
    """A control plane over a foreign engine, with the pool ``hpc`` whose nodes the provider ``trial`` brings."""

    up: Up
    client: Client
    engine: EngineUnderTest

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
        """Give all pilots back, and wait until the engine has none."""
        self.client.change_provider("trial", {"enabled": False})
        assert eventually(lambda: not self.pilots()), self.pilots()
        assert self.engine.live() == []
        self.client.change_provider("trial", {"enabled": True, "hours": 0.5, "idle_s": 300})

    def workers(self) -> list[psutil.Process]:
        """The stack's workers: Celery gives their processes a title."""
        return [process for process in self.up.keeper().children() if "celery" in words_of(process)]


@contextmanager
def over(engine: EngineUnderTest, kind: str, logs: Path, **settings: Any) -> Iterator[Site]:
    """Run a control plane with a provider of this kind."""
    logs.chmod(0o777)
    with pytest.MonkeyPatch.context() as environment, standing() as up:
        environment.setenv("YARD_TIMERS", TIMERS)
        up.started()
        with connect(up.home, up.port) as client:
            client.create_pool({"name": "hpc"})
            own = {"python": sys.executable, "path": str(ROOT), "grace_s": 3, **settings}
            if os.geteuid() == 0:
                own["run_as"] = "root"
            client.create_provider(
                {
                    "name": "trial", "kind": kind, "pool": "hpc", "settings": own, "max_nodes": 2, "hours": 0.5,
                    "shapes": [{"name": "small", "cpus": 2, "memory_gib": 0.5}],
                }
            )  # fmt: skip
            site = Site(up, client, engine)
            yield site
            site.empty()
