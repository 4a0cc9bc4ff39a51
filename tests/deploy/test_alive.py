"""A worker tells a check of health that it is alive, for as long as it has its broker."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from deploy.container import recent
from deploy.local.service import ROOT
from tests.conftest import Servers

PATIENCE_S = 60.0


def test_a_worker_renews_its_file(servers: Servers, tmp_path: Path) -> None:
    alive = tmp_path / "alive"
    assert recent(alive, 30) == 1
    command = [
        sys.executable,
        "-m",
        "celery",
        "-A",
        "controlplane",
        "worker",
        "--pool",
        "threads",
        "--concurrency",
        "1",
    ]
    worker = subprocess.Popen(
        [*command, "--queues", "nobody-sends-here", "--hostname", "alive@%h"],
        cwd=ROOT,
        env=os.environ | {"YARD_ALIVE_FILE": str(alive)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        renewed: set[int] = set()
        until = time.monotonic() + PATIENCE_S
        while len(renewed) < 2 and time.monotonic() < until:
            assert worker.poll() is None
            if alive.exists():
                renewed.add(alive.stat().st_mtime_ns)
            time.sleep(0.1)
        assert len(renewed) == 2
        assert recent(alive, 30) == 0
    finally:
        worker.send_signal(signal.SIGTERM)
        worker.wait(30)
    os.utime(alive, (time.time() - 60, time.time() - 60))
    assert recent(alive, 30) == 1
