"""The client imports none of the other packages, and starts fast: nothing heavy is imported before it is needed."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from switchyard.cli.verbs import SUMMARY, load

ROOT = Path(__file__).parents[2]
HEAVY = {"httpx", "httpcore", "rich", "yaml", "tarfile", "ssl", "asyncio", "email", "unittest", "importlib.metadata"}
ROOMS = {"agents", "controlplane", "scheduler", "frontend", "deploy", "django"}


def imported(*words: str) -> set[str]:
    """The modules that ``python -m switchyard`` imports for these words."""
    told = subprocess.run(
        [sys.executable, "-S", "-X", "importtime", "-m", "switchyard", *words],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    return {line.rpartition("|")[2].strip() for line in told.stderr.splitlines() if line.startswith("import time:")}


@pytest.mark.parametrize("words", [["--help"], ["submit", "--help"], ["run", "--help"], ["version", "--client"]])
def test_help_imports_nothing_heavy(words):
    found = imported(*words)
    assert "switchyard.cli.main" in found
    assert not found & HEAVY


def test_the_voice_imports_no_room():
    for path in (ROOT / "switchyard").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = (
                [a.name for a in node.names]
                if isinstance(node, ast.Import)
                else [node.module or ""]
                if isinstance(node, ast.ImportFrom)
                else []
            )
            assert not {name.partition(".")[0] for name in names} & ROOMS, path


@pytest.mark.parametrize("name", SUMMARY)
def test_every_verb_has_a_file_that_does_it(name):
    verb = load(name)
    assert verb.run.__module__ == f"switchyard.cli.{name.replace('-', '_')}"


def test_importing_the_package_costs_nothing_and_gives_its_names():
    code = "import sys, switchyard; assert not {'httpx', 'yaml'} & set(sys.modules); switchyard.Client; switchyard.Job"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)


def test_a_name_that_is_not_there_is_told():
    import switchyard

    with pytest.raises(AttributeError, match="Client"):
        switchyard.Clinet  # noqa: B018
