"""A real local stack under test: started, looked at, and taken down again."""

from __future__ import annotations

import atexit
import os
import random
import re
import socket
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import httpx
import psutil
import pytest
from _pytest.mark import ParameterSet

from deploy.local.home import Home
from deploy.local.lock import Running
from deploy.local.port import free_port, ready_nodes
from deploy.local.service import ROOT, importing
from tests import kept_tables

# What the commands of the two servers have in them.
WEB, GATEWAY = "controlplane.asgi", "controlplane.gateway.asgi"

PATIENCE_S = 180.0


def long(*values: object) -> ParameterSet:
    """Mark what a parametrized test is tried with as one of those that only ``./script/test --long`` tries."""
    return pytest.param(*values, marks=pytest.mark.long)


def eventually(claim: Callable[[], bool]) -> bool:
    """Wait for ``claim``; the patience only bounds a failure.

    Most claims ask the stack, or look through all processes: asked at once again and again they would take half a core
    from what they wait for.
    """
    deadline, pause_s = time.monotonic() + PATIENCE_S, 0.05
    while not (held := claim()) and time.monotonic() < deadline:
        time.sleep(pause_s)
        pause_s = min(pause_s * 1.2, 0.25)
    return held


def words_of(process: psutil.Process) -> str:
    """Return the command line of a process, empty once it has ended: a killed one stays listed until it is reaped."""
    try:
        return " ".join(process.cmdline())
    except psutil.NoSuchProcess:
        return ""


def parent_of(process: psutil.Process) -> int:
    """Return the process id of the parent; -1 once the process has ended."""
    try:
        return process.ppid()
    except psutil.NoSuchProcess:
        return -1


def belongs(process: psutil.Process, home: Path) -> bool:
    """Tell whether a process is of the stack on ``home``: PostgreSQL overwrites its environment, so its words count."""
    try:
        if process.status() == psutil.STATUS_ZOMBIE:
            return False
        told = words_of(process)
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
                [sys.executable, "-m", "deploy.local", "up", "--port", str(self.port), "--stages-as-root", *more],
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
        """Start it and wait until it says that it is ready; an empty home is first filled with what one start made."""
        if not self.home.exists():
            subprocess.run(["cp", "-a", _made(), self.home], check=True)
        return self.started_anew(*more)

    def started_anew(self, *more: str) -> subprocess.Popen[str]:
        """Start it with what is there already, most often nothing, and wait until it says that it is ready."""
        launcher = self.start(*more)
        assert launcher.stdout is not None
        said = []
        for line in launcher.stdout:
            said.append(line)
            if self.is_up(line):
                return launcher
        pytest.fail("the stack did not come up:\n" + "".join(said))

    def is_up(self, said: str) -> bool:
        """Tell whether a line says that the stack is up; where it did not wait for nodes of a busy machine, wait."""
        if not said.startswith("Up, but"):
            return said.startswith("Ready.")
        known, named = tomllib.loads((self.home / "client.toml").read_text()), set(re.findall(r"([^ ,]+) \(", said))
        return eventually(lambda: named <= ready_nodes(self.port, known["token"]))

    def processes(self) -> list[psutil.Process]:
        own = {launcher.pid for launcher in self.launchers}
        return [process for process in psutil.process_iter() if process.pid not in own and belongs(process, self.home)]

    def named(self, words: str) -> psutil.Process:
        """Return the part with these words in its command; one that was just started has them in a moment."""
        found: list[psutil.Process] = []

        def is_there() -> bool:
            found[:] = [child for child in self.keeper().children() if words in words_of(child)]
            return len(found) == 1

        assert eventually(is_there), found
        return found[0]

    @property
    def environment(self) -> dict[str, str]:
        """What the parts run with."""
        running = Running.read(Home(self.home))
        assert running is not None
        return importing({**os.environ, **running.environment})

    @property
    def agents_url(self) -> str:
        """Where agents reach the gateway."""
        return self.environment["YARD_AGENTS_URL"]

    def keeper(self) -> psutil.Process:
        """Return the keeper. What it has just forked has its command until it takes a title of its own."""
        found = [process for process in self.processes() if "deploy.local keep" in words_of(process)]
        pids = {process.pid for process in found}
        (keeper,) = [process for process in found if parent_of(process) not in pids]
        return keeper

    def answers(self) -> bool:
        with socket.socket() as link:
            return link.connect_ex(("127.0.0.1", self.port)) == 0

    def is_ready(self) -> bool:
        """Tell whether the server says that it and all that it needs are well."""
        try:
            # Plain: reading the certificates that are trusted would take longer than all the rest.
            return httpx.get(f"http://127.0.0.1:{self.port}/readyz", verify=False, timeout=60).status_code == 200
        except httpx.TransportError:
            return False


@cache
def _made() -> Path:
    """The state folder of a stack that was started once and ended: its cluster, tables and first records."""
    folder = tempfile.TemporaryDirectory(prefix="yard-made-")
    atexit.register(folder.cleanup)
    with standing() as up:
        # To make the tables takes longer than all the rest; stacks that make them are started by test_many_nodes.py.
        up.home.mkdir(mode=0o700)
        kept_tables.lay(Home(up.home).postgres)
        launcher = up.started_anew()
        launcher.terminate()
        launcher.communicate()
        assert launcher.returncode == 0
        subprocess.run(["cp", "-a", up.home, folder.name], check=True)
    return Path(folder.name) / "home"


@contextmanager
def standing() -> Iterator[Up]:
    """A folder and a port for a stack; whatever was started on them is gone afterwards.

    The port is below those that systems give to outgoing connections: one of these may take the next port, which is the
    gateway's, before the gateway does.
    """
    with tempfile.TemporaryDirectory(prefix="yard-up-") as folder:
        stack = Up(Path(folder) / "home", free_port(random.randrange(20_000, 32_000, 10)))
        try:
            yield stack
        finally:
            for launcher in stack.launchers:
                launcher.terminate()
                launcher.wait()
                if launcher.stdout is not None:
                    launcher.stdout.close()
            for process in stack.processes():
                process.kill()
