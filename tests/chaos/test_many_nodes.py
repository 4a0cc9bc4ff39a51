"""A fresh stack with very many simulated nodes comes up, and the command that it prints works in any shell."""

from __future__ import annotations

import os
import re
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from switchyard.client import Client
from tests.chaos.stack import Up, eventually, standing

pytestmark = pytest.mark.chaos

# One token used to be good for 64.
NODES = 80


@pytest.fixture(scope="module")
def said() -> Iterator[tuple[Up, str]]:
    """A stack with many nodes, and what it said on its way up."""
    with standing() as up:
        launcher = up.start("--simulate", f"{NODES}xlaptop")
        text = ""
        for line in launcher.stdout or ():
            text += line
            if "Ctrl-C stops everything" in line:
                break
        yield up, text


def test_a_fresh_stack_brings_as_many_nodes_as_were_asked_for(said: tuple[Up, str]) -> None:
    up, text = said
    assert "\nReady. " in text, text
    told = tomllib.loads((up.home / "client.toml").read_text())
    with Client(told["url"], told["token"]) as client:
        assert len(list(client.nodes.list())) == NODES + 1
        assert eventually(lambda: {node["state"] for node in client.nodes.list()} == {"READY"})


def test_the_printed_command_gives_a_link_in_any_shell(said: tuple[Up, str], tmp_path: Path) -> None:
    command = re.search(r"^ +(.*sign-in) +makes another$", said[1], re.MULTILINE)
    assert command is not None, said[1]
    bare = {"PATH": os.environ["PATH"], "HOME": str(tmp_path)}
    kept = {name: os.environ[name] for name in ("YARD_VENV", "YARD_PYTHON") if name in os.environ}
    printed = subprocess.run(
        ["sh", "-c", command[1]], cwd="/", env=bare | kept, capture_output=True, text=True, check=True
    )
    assert re.fullmatch(r"http://127\.0\.0\.1:\d+/sign-in/[\w-]+\n", printed.stdout)
