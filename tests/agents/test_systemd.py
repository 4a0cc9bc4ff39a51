"""What the agent tells systemd, read from a real datagram socket."""

from __future__ import annotations

import asyncio
import json
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from agents.systemd import Systemd

# An agent's loop that pings every 100 ms, and is stuck for ever once it gets SIGUSR1.
LOOP = """
import asyncio, signal, threading
from agents.systemd import Systemd
async def main():
    asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, lambda: (print("stuck", flush=True), threading.Event().wait()))
    await Systemd().run(lambda: "two\\nlines")
asyncio.run(main())
"""  # noqa: E501


@pytest.fixture
def ear(tmp_path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as heard:
        heard.bind(str(tmp_path / "notify"))
        heard.settimeout(30)
        yield heard


def test_a_loop_that_is_stuck_pings_no_more(ear: socket.socket) -> None:
    environment = {**os.environ, "NOTIFY_SOCKET": ear.getsockname(), "WATCHDOG_USEC": "300000"}
    with subprocess.Popen([sys.executable, "-c", LOOP], env=environment, stdout=subprocess.PIPE) as agent:
        assert agent.stdout is not None
        try:
            for _ in range(3):
                assert ear.recv(4096) == b"READY=1\nSTATUS=two lines\nWATCHDOG=1"
            agent.send_signal(signal.SIGUSR1)
            assert agent.stdout.readline() == b"stuck\n"
            while ear in select.select([ear], [], [], 0)[0]:
                ear.recv(4096)
            ear.settimeout(1)  # ten pings of a loop that goes round
            with pytest.raises(TimeoutError):
                ear.recv(4096)
        finally:
            agent.kill()


def test_nothing_that_the_agent_starts_can_speak_for_it() -> None:
    environment = {
        "NOTIFY_SOCKET": "/run/n",
        "WATCHDOG_USEC": "60000000",
        "WATCHDOG_PID": str(os.getpid()),
        "HOME": "/",
    }
    Systemd(environment)
    assert environment == {"HOME": "/"}


@pytest.mark.parametrize(
    ("limit_us", "whose", "period_s"),
    [("3000000", "", 1.0), ("3000000", "1", 10.0), ("60000000", "", 10.0), ("0", "", 10.0), ("soon", "", 10.0)],
)
def test_pings_come_three_times_within_the_limit_and_no_rarer_than_the_status(
    limit_us: str, whose: str, period_s: float
) -> None:
    assert Systemd({"WATCHDOG_USEC": limit_us, "WATCHDOG_PID": whose}).period_s == period_s


def test_a_socket_that_is_gone_harms_nobody(tmp_path: Path) -> None:
    Systemd({"NOTIFY_SOCKET": str(tmp_path / "gone")}).tell("READY=1")


async def test_an_abstract_socket_is_found(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as heard:
        heard.bind(f"\0{tmp_path}")
        task = asyncio.create_task(Systemd({"NOTIFY_SOCKET": f"@{tmp_path}"}).run(lambda: "well"))
        heard.setblocking(False)
        assert b"STATUS=well" in await asyncio.get_running_loop().sock_recv(heard, 4096)
        task.cancel()


def test_an_agent_is_ready_once_its_nodes_are_up_and_says_so_before_it_ends(ear: socket.socket, tmp_path: Path) -> None:
    state = tmp_path / "state"
    state.mkdir()
    (state / "node.json").write_text(json.dumps({"node": "n", "name": "n1", "credential": "c"}))
    command = [sys.executable, "-m", "agents", "--url", "http://127.0.0.1:1", "--state", str(state)]
    command += ["--simulate", "dgx-h100", "--run-as", "root" if os.getuid() == 0 else "self"]
    environment = {**os.environ, "NOTIFY_SOCKET": ear.getsockname(), "WATCHDOG_USEC": "300000"}
    with subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL) as agent:
        try:
            for _ in range(2):
                assert ear.recv(4096).startswith(b"READY=1\nSTATUS=1 node(s), 0 part(s) live")
            agent.send_signal(signal.SIGTERM)
            heard = b""
            while heard != b"STOPPING=1":
                heard = ear.recv(4096)
            assert agent.wait(30) == 0
        finally:
            agent.kill()
