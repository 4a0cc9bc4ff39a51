"""What runs apart is out of reach of an engine that ends every process below its job, and ends with it all the same."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from controlplane.providers import apart

SAVES = 'trap "echo saved > {file}; exit 7" TERM; echo $$ > {pid}; while :; do sleep 0.1; done'


def until(holds: Callable[[], object]) -> None:
    deadline = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def started(*words: str) -> subprocess.Popen[bytes]:
    # As an engine starts it: the text of the file, and a process group of its own.
    text = Path(apart.__file__).read_text()
    return subprocess.Popen([sys.executable, "-c", text, *words], start_new_session=True)


@pytest.mark.parametrize("code", [0, 3, 250])
def test_its_exit_code_is_that_of_the_command(code: int) -> None:
    assert started("sh", "-c", f"exit {code}").wait(60) == code


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_the_command_is_below_nobody_and_is_told_in_order(tmp_path: Path, number: int) -> None:
    saved, pid = tmp_path / "saved", tmp_path / "pid"
    one = started("sh", "-c", SAVES.format(file=saved, pid=pid))
    until(lambda: pid.exists() and pid.read_text().strip())
    command = psutil.Process(int(pid.read_text()))
    assert command not in psutil.Process(one.pid).children(recursive=True)
    # An engine tells all of the job, and then kills its whole group.
    for process in [psutil.Process(one.pid), *psutil.Process(one.pid).children(recursive=True)]:
        process.send_signal(number)
    assert one.wait(60) == (7 if number == signal.SIGTERM else -signal.SIGKILL)
    until(saved.exists)
    until(lambda: not command.is_running() or command.status() == psutil.STATUS_ZOMBIE)


def test_a_command_that_is_not_there_is_an_end(tmp_path: Path) -> None:
    assert started("/nonexistent").wait(60) == 1
