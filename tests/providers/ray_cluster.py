"""A real Ray of a test: a head on this host that also runs jobs, with a dashboard of its own and a token."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import psutil

from deploy.local.port import free_port

PATIENCE_S = 120.0
# Ray's wheel may be in another virtual environment than that of the tests: this is its program "ray".
PROGRAM = os.environ.get("YARD_TEST_RAY") or shutil.which("ray")


@dataclass
class RayOnThisHost:
    """A head of Ray with ``cpus`` cores, in ``folder``; ``endpoints`` is what ``YARD_PROVIDER_ENDPOINTS`` is to be."""

    folder: Path
    cpus: int = 4
    port: int = 0
    token: str = ""
    head: subprocess.Popen[bytes] | None = None

    @property
    def endpoints(self) -> Path:
        return self.folder / "endpoints"

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def environment(self) -> dict[str, str]:
        """That of an agent: it is told of this Ray by its file."""
        return {**os.environ}

    def start(self) -> None:
        """Start it, and wait until it takes jobs."""
        self.port, self.token = free_port(20_000 + os.getpid() % 5_000), secrets.token_hex(16)
        (self.folder / "token").write_text(self.token)
        mine = self.endpoints / "ray"
        mine.mkdir(parents=True)
        (mine / "url").write_text(f"{self.url}\n")
        (mine / "token").write_text(f"{self.token}\n")
        self.start_head()

    def start_head(self) -> None:
        port = free_port(self.port + 1)
        agent = free_port(port + 1)
        words = [
            str(PROGRAM), "start", "--head", "--block", "--disable-usage-stats", f"--num-cpus={self.cpus}",
            "--memory=2000000000", "--object-store-memory=80000000", f"--port={port}", "--node-ip-address=127.0.0.1",
            "--dashboard-host=127.0.0.1", f"--dashboard-port={self.port}", f"--dashboard-agent-listen-port={agent}",
            f"--temp-dir={self.folder}/t",
        ]  # fmt: skip
        environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith(("RAY_", "YARD_"))},
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN_PATH": str(self.folder / "token"),
        }
        with (self.folder / "head.log").open("ab") as log:
            self.head = subprocess.Popen(
                words, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )
        ready = {"entrypoint": "true", "submission_id": f"ready-{secrets.token_hex(4)}"}
        self.until(lambda: self.ask("POST", "/api/jobs/", ready))
        self.until(lambda: self.jobs("SUCCEEDED"))

    def ask(self, method: str, path: str, body: Any = None) -> Any:
        """Return what its REST API answers, None if nothing or a fault."""
        with contextlib.suppress(httpx.HTTPError):
            headers = {"Authorization": f"Bearer {self.token}"}
            answer = httpx.request(method, self.url + path, headers=headers, json=body, timeout=20, trust_env=False)
            if answer.is_success:
                return answer.json()
        return None

    def jobs(self, *statuses: str) -> list[str] | None:
        """Return the submission ids of all jobs, or of those with these statuses; None if it does not answer."""
        found = self.ask("GET", "/api/jobs/")
        return None if found is None else [
            each["submission_id"] for each in found if not statuses or each["status"] in statuses
        ]  # fmt: skip

    def live(self) -> list[str]:
        return self.jobs("PENDING", "RUNNING") or []

    def empty(self) -> None:
        """Stop all jobs."""
        for label in self.live():
            self.ask("POST", f"/api/jobs/{label}/stop")
        self.until(lambda: self.jobs("PENDING", "RUNNING") == [])

    def until(self, holds: Any) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not holds():
            if time.monotonic() > deadline:
                said = (self.folder / "head.log").read_text()[-2_000:]
                raise AssertionError(f"this Ray is not as it should be:\n{said}")
            time.sleep(0.2)

    def kill_head(self) -> None:
        """Kill the head and every process of Ray that it started, and what Ray's processes started."""
        if self.head is None:
            return
        with contextlib.suppress(psutil.NoSuchProcess):
            family = psutil.Process(self.head.pid).children(recursive=True)
            for process in [psutil.Process(self.head.pid), *family]:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.send_signal(signal.SIGKILL)
        self.head.wait()
        self.head = None

    def stop(self) -> None:
        """End it and all jobs."""
        if self.head is not None:
            with contextlib.suppress(AssertionError):
                self.empty()
        self.kill_head()


@contextlib.contextmanager
def running(folder: Path) -> Iterator[RayOnThisHost]:
    cluster = RayOnThisHost(folder)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()
