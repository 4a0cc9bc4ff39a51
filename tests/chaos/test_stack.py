"""A local stack, however it is ended, leaves no process behind; and what dies in it comes back."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pytest

from deploy.local.service import ROOT

pytestmark = pytest.mark.chaos

PATIENCE_S = 90.0


def eventually(claim: Callable[[], bool]) -> bool:
    """Wait for ``claim``; the patience only bounds a failure."""
    deadline = time.monotonic() + PATIENCE_S
    while not (held := claim()) and time.monotonic() < deadline:
        time.sleep(0.05)
    return held


def belongs(process: psutil.Process, home: Path) -> bool:
    """Tell whether a process is of the stack on ``home``: PostgreSQL overwrites its environment, so its words count."""
    try:
        if process.status() == psutil.STATUS_ZOMBIE:
            return False
        told = " ".join(process.cmdline())
        return str(home) in told or process.environ().get("YARD_HOME") == str(home)
    except psutil.Error:
        return False


@dataclass
class Up:
    """A ``./script/up`` under test, without the making of a virtual environment."""

    home: Path
    port: int
    launchers: list[subprocess.Popen[str]] = field(default_factory=list)

    def start(self, *more: str) -> subprocess.Popen[str]:
        environment = {name: value for name, value in os.environ.items() if name not in {"DATABASE_URL", "REDIS_URL"}}
        self.launchers.append(
            subprocess.Popen(
                [sys.executable, "-m", "deploy.local", "up", "--port", str(self.port), *more],
                cwd=ROOT,
                env=environment | {"YARD_HOME": str(self.home), "PYTHONUNBUFFERED": "1"},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
        )
        return self.launchers[-1]

    def started(self, *more: str) -> subprocess.Popen[str]:
        """Start it and wait until it says that it is ready."""
        launcher = self.start(*more)
        assert launcher.stdout is not None
        said = []
        for line in launcher.stdout:
            said.append(line)
            if line.startswith("Ready."):
                return launcher
        pytest.fail("the stack did not come up:\n" + "".join(said))

    def processes(self) -> list[psutil.Process]:
        own = {launcher.pid for launcher in self.launchers}
        return [process for process in psutil.process_iter() if process.pid not in own and belongs(process, self.home)]

    def named(self, words: str) -> psutil.Process:
        (found,) = [
            process
            for process in self.processes()
            if words in " ".join(process.cmdline()) and process.parent().pid == self.keeper().pid  # type: ignore[union-attr]
        ]
        return found

    def keeper(self) -> psutil.Process:
        (found,) = [process for process in self.processes() if "deploy.local keep" in " ".join(process.cmdline())]
        return found

    def answers(self) -> bool:
        with socket.socket() as link:
            return link.connect_ex(("127.0.0.1", self.port)) == 0


@pytest.fixture
def up() -> Iterator[Up]:
    with tempfile.TemporaryDirectory(prefix="yard-up-") as folder, socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
        free.close()
        stack = Up(Path(folder) / "home", port)
        yield stack
        for launcher in stack.launchers:
            launcher.terminate()
            launcher.wait()
            if launcher.stdout is not None:
                launcher.stdout.close()
        for process in stack.processes():
            process.kill()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_everything_in_order(up: Up, number: signal.Signals) -> None:
    launcher = up.started()
    assert up.processes()
    launcher.send_signal(number)
    said, _ = launcher.communicate()
    assert launcher.returncode == 0, said
    assert up.processes() == []


@pytest.mark.parametrize("moment_s", [0.0, 0.1, 0.3, 0.6, 1.0, 1.6, 2.5, 4.0, 6.0])
def test_ctrl_c_while_it_starts_leaves_nothing(up: Up, moment_s: float) -> None:
    launcher = up.start()
    time.sleep(moment_s)
    launcher.send_signal(signal.SIGINT)
    said, _ = launcher.communicate()
    assert "Traceback" not in said or moment_s < 0.3, said  # before its first line it is Python that is interrupted
    assert up.processes() == []


@pytest.mark.parametrize("victim", ["launcher", "keeper"])
def test_a_killed_half_takes_the_other_along(up: Up, victim: str) -> None:
    launcher = up.started()
    os.kill(launcher.pid if victim == "launcher" else up.keeper().pid, signal.SIGKILL)
    launcher.communicate()
    assert eventually(lambda: up.processes() == []), up.processes()


def test_both_halves_killed_at_once_leave_nothing(up: Up) -> None:
    launcher = up.started()
    keeper = up.keeper()
    keeper.suspend()  # so that it cannot clean up in between
    launcher.kill()
    keeper.kill()
    launcher.communicate()
    assert eventually(lambda: up.processes() == []), up.processes()


def test_after_a_kill_the_next_start_keeps_what_was_there(up: Up) -> None:
    launcher = up.started()
    token = (up.home / "client.toml").read_text()
    up.keeper().kill()
    launcher.communicate()
    up.started()
    assert (up.home / "secrets" / "django.key").exists()
    assert up.answers()
    assert token


@pytest.mark.parametrize("part", ["uvicorn", "celery", "valkey-server", "postgres", "-m agents"])
def test_a_killed_part_is_started_again(up: Up, part: str) -> None:
    up.started()
    first = up.named(part)
    first.kill()
    assert eventually(
        lambda: any(part in " ".join(child.cmdline()) for child in up.keeper().children() if child != first)
    )
    assert eventually(up.answers)


def test_a_second_start_says_where_the_first_one_is(up: Up) -> None:
    first = up.started()
    second = up.start()
    said, _ = second.communicate()
    assert second.returncode == 0, said
    assert f"http://127.0.0.1:{up.port}/sign-in/" in said
    assert first.poll() is None


def test_fresh_is_refused_while_it_runs(up: Up) -> None:
    up.started()
    second = up.start("--fresh")
    said, _ = second.communicate()
    assert second.returncode == 1
    assert "Ctrl-C" in said


def test_a_taken_port_is_told_and_avoided(up: Up) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", up.port))
        other.listen()
        launcher = up.start()
        assert launcher.stdout is not None
        said = []
        for line in launcher.stdout:
            said.append(line)
            if line.startswith("Ready."):
                break
    assert f"port {up.port} is taken" in "".join(said)
    assert f"http://127.0.0.1:{up.port + 1}" in "".join(said)


def test_only_loopback_is_listened_on(up: Up) -> None:
    up.started()
    listening = [
        connection
        for process in up.processes()
        for connection in process.net_connections(kind="inet")
        if connection.status == psutil.CONN_LISTEN
    ]
    assert [connection.laddr for connection in listening] == [("127.0.0.1", up.port)]


def test_everything_it_writes_is_private(up: Up) -> None:
    up.started()
    assert (up.home / "client.toml").stat().st_mode & 0o777 == 0o600
    for path in (up.home / "secrets").iterdir():
        assert path.stat().st_mode & 0o777 == 0o600
    for path in (up.home / "log").iterdir():
        assert path.stat().st_mode & 0o077 == 0
