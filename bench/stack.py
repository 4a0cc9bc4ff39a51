"""A stack of its own for a measurement, started as a person starts it: a fresh state folder, a free port, one node."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

from switchyard.client import Client

ROOT = Path(__file__).parents[1]
PORT = "18470"


@dataclass(frozen=True)
class Bench:
    """A running stack under measurement."""

    home: Path
    client: Client
    launcher: psutil.Process

    def processes(self) -> dict[str, list[psutil.Process]]:
        """Return all processes of the stack by the part they belong to."""
        (keeper,) = self.launcher.children()
        found: dict[str, list[psutil.Process]] = {"launcher": [self.launcher], "keeper": [keeper]}
        for child in keeper.children():
            found.setdefault(part(child), []).extend([child, *child.children(recursive=True)])
        return found


def part(process: psutil.Process) -> str:
    """Name the part of the stack that a child of the keeper is."""
    command = " ".join(process.cmdline())
    for name, sign in (
        ("gateway", "controlplane.gateway.asgi"),
        ("web", "uvicorn"),
        ("router", "-m router"),
        ("worker", "celery"),
        ("agent", "-m agents"),
        ("valkey", "valkey-server"),
        ("postgres", "postgres"),
    ):
        if sign in command:
            return name
    return str(process.name())


@contextmanager
def fresh_stack(simulate: str = "") -> Iterator[Bench]:
    """Start a stack in a temporary folder, wait until it is ready, and take it down again.

    ``simulate`` adds nodes with simulated devices, such as ``1xdgx-h100``.
    """
    folder = Path(tempfile.mkdtemp(prefix="yard-bench-"))
    environment = {name: value for name, value in os.environ.items() if not name.startswith("YARD_")}
    environment |= {"YARD_HOME": str(folder / "home"), "PYTHONUNBUFFERED": "1"}
    up = subprocess.Popen(
        [sys.executable, "-m", "deploy.local", "up", "--port", PORT, "--stages-as-root", "--simulate", simulate],
        cwd=ROOT,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
        process_group=0,  # a Ctrl-C here ends the measurement first, and that ends the stack
    )
    try:
        wait_until_ready(up)
        access = tomllib.loads((folder / "home" / "client.toml").read_text())
        with Client(access["url"], access["token"]) as client:
            yield Bench(folder / "home", client, psutil.Process(up.pid))
    finally:
        up.send_signal(signal.SIGTERM)
        up.communicate()
        shutil.rmtree(folder, ignore_errors=True)


def wait_until_ready(up: subprocess.Popen[str]) -> None:
    """Pass on what the stack says until it is ready."""
    assert up.stdout is not None
    for line in up.stdout:
        if line.startswith("Ready."):
            return
        print(line, end="", flush=True)
    raise SystemExit("the stack did not come up")
