"""A part that a foreign engine runs ends with its job, however the engine ends that, and leaves nothing."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from deploy.local.service import ROOT

# A guard whose supervisor is a shell: it says who it is, and has a child in a session of its own.
GUARD = """
import os, sys
from agents.supervisor import foreign
foreign.run = lambda folder: os.execvp("sh", ["sh", "-c", sys.argv[1]])
sys.exit(foreign.guard("/nowhere"))
"""
WAITS = 'setsid sleep 987 & echo "$$ $!" > {file}; trap "" TERM; while :; do sleep 0.1; done'


def started(script: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", GUARD, script], cwd=ROOT, start_new_session=True)


def until(holds: Callable[[], object]) -> None:
    deadline = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def is_gone(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_an_engine_that_ends_the_job_ends_all_of_the_part(tmp_path: Path, number: int) -> None:
    file = tmp_path / "pids"
    guard = started(WAITS.format(file=file))
    until(lambda: file.exists() and len(file.read_text().split()) == 2)
    part = [int(pid) for pid in file.read_text().split()]
    below = {each.pid for each in psutil.Process(guard.pid).children(recursive=True)}
    assert not below & {*part}, "the engine's own signals do not reach the part"
    guard.send_signal(number)
    guard.wait(60)
    until(lambda: all(map(is_gone, part)))


def test_a_supervisor_that_is_killed_leaves_nothing_and_ends_the_job(tmp_path: Path) -> None:
    file = tmp_path / "pids"
    guard = started(WAITS.format(file=file))
    until(lambda: file.exists() and len(file.read_text().split()) == 2)
    supervisor, child = (int(pid) for pid in file.read_text().split())
    psutil.Process(supervisor).kill()
    assert guard.wait(60) == 0
    assert is_gone(child)


def test_one_that_ends_ends_the_job() -> None:
    assert started("exit 0").wait(60) == 0
