"""The short form of ``./script/bench fuzz``: every reader of what jobs, tools and nodes write outlives bad input."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from bench import fuzz
from bench.doors import agent, shim
from bench.doors.mutation import Mutation

INPUTS = 400


EVERY = [("shim", name) for name in shim.DOORS] + [("agent", name) for name in agent.DOORS]


@pytest.mark.parametrize(("module", "door"), EVERY)
def test_nobody_who_reads_dies(module: str, door: str) -> None:
    tried = fuzz.one_door(module, door, INPUTS, seed=3)
    assert tried.deaths == []
    assert (tried.inputs, tried.count) == (INPUTS, 0)


def test_every_shape_of_the_agent_has_a_door() -> None:
    """A note that is decoded somewhere in the agent is tried with the others."""
    names = {str(shape.kind) for shape in agent.every_shape()}
    assert any("Watched" in name for name in names)
    assert any("Exit" in name for name in names)
    assert len(names) >= 12


def test_the_same_seed_makes_the_same_inputs() -> None:
    first, second = Mutation([b'{"a": 1}', b"x"], 5), Mutation([b'{"a": 1}', b"x"], 5)
    made = [first.next() for _ in range(300)]
    assert made == [second.next() for _ in range(300)]
    assert len(set(made)) > 150
    assert any(b'"a"' in each for each in made)


BROKEN = """
import os
from bench.doors.door import Door

def raises(content):
    if b"good" not in content:
        raise KeyError("unexpected")

def dies(content):
    if b"good" not in content:
        os.abort()

def hangs(content):
    while b"good" not in content:
        pass

def door(take):
    return lambda folder: Door([b"good " * 9], take, (ValueError,))

DOORS = {take.__name__: door(take) for take in (raises, dies, hangs)}
"""


@pytest.mark.parametrize("kind", ["raises", "dies", "hangs"])
def test_what_dies_is_counted(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader that raises what it does not declare, ends its process or never comes back is a death."""
    for name in ("__init__", "door", "mutation", "worker"):
        place = tmp_path / "bench" / "doors" / f"{name}.py"
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text((fuzz.ROOT / "bench" / "doors" / f"{name}.py").read_text())
    (tmp_path / "bench" / "__init__.py").write_text("")
    (tmp_path / "bench" / "doors" / "broken.py").write_text(BROKEN)
    monkeypatch.setattr(fuzz, "ROOT", tmp_path)
    tried = fuzz.one_door("broken", kind, 50, hung_s=3.0)
    assert tried.count >= 1
    assert tried.deaths


def test_a_shim_has_no_json() -> None:
    """The doors of the shim are tried with what a shim imports: without ``json`` its scanner fails in other ways."""
    program = "import sys; sys.path.append(sys.argv[1]); import bench.doors.shim; print('json' in sys.modules)"
    words = [sys.executable, "-I", "-S", "-c", program, str(fuzz.ROOT)]
    assert subprocess.run(words, capture_output=True, text=True, check=True).stdout.strip() == "False"
