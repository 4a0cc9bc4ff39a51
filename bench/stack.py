"""A stack of its own for a measurement: a fresh state folder, a free port, and one node that is ready."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

from deploy.local.home import Home
from deploy.local.keeper import Options
from deploy.local.launcher import Access, Interrupted, Stack, heed_signals
from deploy.local.up import wait_until_up
from switchyard.client import Client


@dataclass(frozen=True)
class Bench:
    """A running stack under measurement."""

    home: Home
    access: Access
    client: Client
    keeper: psutil.Process

    def processes(self) -> dict[str, list[psutil.Process]]:
        """Return all processes of the stack by the part they belong to."""
        found: dict[str, list[psutil.Process]] = {"keeper": [self.keeper]}
        for child in self.keeper.children():
            found.setdefault(part(child), []).extend([child, *child.children(recursive=True)])
        return found


def part(process: psutil.Process) -> str:
    """Name the part of the stack that a child of the keeper is."""
    command = " ".join(process.cmdline())
    for name, sign in (
        ("web", "uvicorn"),
        ("worker", "celery"),
        ("agent", "-m agents"),
        ("valkey", "valkey-server"),
        ("postgres", "postgres"),
    ):
        if sign in command:
            return name
    return str(process.name())


@contextmanager
def fresh_stack() -> Iterator[Bench]:
    """Start a stack in a temporary folder, wait for its node, and take it down again."""
    folder = Path(tempfile.mkdtemp(prefix="yard-bench-"))
    home = Home(folder / "home")
    heed_signals()
    try:
        with Stack(home, Options(port=18470)) as stack:
            access = wait_until_up(stack)
            client = Client(access.url, access.token)
            (keeper,) = psutil.Process().children()
            yield Bench(home, access, client, keeper)
    except Interrupted:
        raise SystemExit(130) from None
    finally:
        shutil.rmtree(folder, ignore_errors=True)
