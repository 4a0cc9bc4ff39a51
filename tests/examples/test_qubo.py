"""The example on a device of another kind: what it reports is true of what it found."""

from __future__ import annotations

import importlib.util
import itertools
import json
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
import yaml

EXAMPLE = Path(__file__).resolve().parents[2] / "examples/qubo"


@pytest.fixture(scope="module")
def solver() -> ModuleType:
    spec = importlib.util.spec_from_file_location("qubo_solve", EXAMPLE / "solve.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_best_cut_of_a_small_graph_is_found(
    solver: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(solver, "MARK", tmp_path / "mark")
    edges = solver.graph(10, 0.5, 3)
    best = min(solver.energy(edges, list(sides)) for sides in itertools.product((0, 1), repeat=10))
    found, sides = solver.anneal(edges, 200, 1)
    assert found == solver.energy(edges, sides) == best < 0


def test_the_gain_of_a_step_is_the_difference_of_energies(solver: ModuleType) -> None:
    edges = solver.graph(12, 0.4, 5)
    sides = [at % 3 % 2 for at in range(12)]
    for node in range(12):
        after = [side ^ (at == node) for at, side in enumerate(sides)]
        assert solver.gain(edges, sides, node) == solver.energy(edges, after) - solver.energy(edges, sides)


def test_the_command_of_the_job_writes_what_it_found(tmp_path: Path) -> None:
    job = yaml.safe_load((EXAMPLE / "job.yaml").read_text())
    (stage,) = job["stages"]
    assert stage["devices"] == {"kind": "qpu", "count": 1}
    words = [word if word != "3000" else "20" for word in stage["command"]]
    environment = {
        **os.environ,
        "YARD_OUTPUT_DIR": str(tmp_path),
        "QUBO_MARK": str(tmp_path / "mark"),
        "YARD_DEVICE_MODEL": "Example Annealer 128",
        "YARD_DEVICE_SIMULATED": "1",
    }
    done = subprocess.run(
        [sys.executable, *words[1:]], cwd=EXAMPLE, env=environment, capture_output=True, text=True, check=True
    )
    assert "Example Annealer 128 (simulated" in done.stdout
    assert "energy checked: True" in done.stdout
    found = json.loads((tmp_path / "cut.json").read_text())
    assert 0 < found["cut"] <= found["of"]
    assert len(found["sides"]) == 128
