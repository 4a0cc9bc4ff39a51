"""A local stack, however it is ended, leaves no process behind; and what dies in it comes back."""

from __future__ import annotations

import os
import signal
import socket
import time
import tomllib
from collections.abc import Iterator

import psutil
import pytest

from switchyard.client import Client
from tests.chaos.stack import GATEWAY, WEB, Up, eventually, long, standing, words_of

pytestmark = pytest.mark.chaos


@pytest.fixture
def up() -> Iterator[Up]:
    with standing() as stack:
        yield stack


@pytest.fixture(scope="module")
def running() -> Iterator[Up]:
    """One that runs already, for tests that leave it running."""
    with standing() as stack:
        stack.started()
        yield stack


@pytest.mark.parametrize("number", [signal.SIGTERM, long(signal.SIGINT), long(signal.SIGHUP)])
def test_a_signal_ends_everything_in_order(up: Up, number: signal.Signals) -> None:
    launcher = up.started()
    assert up.processes()
    launcher.send_signal(number)
    said, _ = launcher.communicate()
    assert launcher.returncode == 0, said
    assert up.processes() == []


@pytest.mark.parametrize("moment_s", [long(0.0), 0.1, long(0.3), 0.6, long(1.0), 1.6, long(2.5), 4.0, long(6.0)])
def test_ctrl_c_while_it_starts_leaves_nothing(up: Up, moment_s: float) -> None:
    launcher = up.start()
    time.sleep(moment_s)
    launcher.send_signal(signal.SIGINT)
    said, _ = launcher.communicate()
    # Before its first line it is Python that is interrupted, on a busy machine also after a while.
    assert "Traceback" not in said or said.startswith("Traceback"), said
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


@pytest.mark.parametrize("part", [WEB, GATEWAY, "celery", "valkey-server", "postgres", "-m agents"])
def test_a_killed_part_is_started_again(running: Up, part: str) -> None:
    first = running.named(part)
    first.kill()
    keeper = running.keeper()
    assert eventually(lambda: any(part in words_of(child) for child in keeper.children() if child != first))
    assert eventually(running.is_ready)


def test_a_second_start_says_where_the_first_one_is(running: Up) -> None:
    second = running.start()
    said, _ = second.communicate()
    assert second.returncode == 0, said
    assert f"http://127.0.0.1:{running.port}/sign-in/" in said
    assert running.launchers[0].poll() is None
    known = tomllib.loads((running.home / "client.toml").read_text())
    with Client(known["url"], known["token"]) as client:  # who works with it goes on
        assert client.wire.get("/whoami")["user"] == "admin"


def test_fresh_is_refused_while_it_runs(running: Up) -> None:
    second = running.start("--fresh")
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


def test_only_loopback_is_listened_on(running: Up) -> None:
    own = {process.pid for process in running.processes()}
    listening = [
        connection
        for connection in psutil.net_connections(kind="inet")
        if connection.pid in own and connection.status == psutil.CONN_LISTEN
    ]
    # The dashboard, and the agent's door for other agents.
    assert {connection.laddr.ip for connection in listening} == {"127.0.0.1"}
    assert running.port in [connection.laddr.port for connection in listening]


def test_everything_it_writes_is_private(running: Up) -> None:
    assert (running.home / "client.toml").stat().st_mode & 0o777 == 0o600
    for path in (running.home / "secrets").iterdir():
        assert path.stat().st_mode & 0o777 == 0o600
    for path in (running.home / "log").iterdir():
        assert path.stat().st_mode & 0o077 == 0


def test_an_agent_that_always_ends_is_told_with_its_last_words_and_nothing_stays(
    up: Up, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("YARD_AGENT_LOG_CAP_BYTES", "much")
    launcher = up.start()
    said, _ = launcher.communicate()
    assert launcher.returncode == 1
    assert f"agent ends again and again; the last line of {up.home / 'log' / 'agent.log'} is:" in said
    assert said.splitlines()[-1].startswith("error: YARD_AGENT_LOG_CAP_BYTES must be a whole number")
    assert "Ready." not in said
    assert up.processes() == []
