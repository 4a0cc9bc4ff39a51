"""Laws that no type checks: one writer of states, no branch on *simulated*, meaningful names."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.rules.parsed import parsed

ROOT = Path(__file__).resolve().parents[2]
RECORD = sorted(p for p in (ROOT / "controlplane").rglob("*.py") if "migrations" not in p.parts)
ENGINE = sorted(p for part in ("core", "policies") for p in (ROOT / "scheduler" / part).rglob("*.py"))
# Who may write which state: stages and jobs, nodes, and traces of stages; and a simulated past, which no transition
# led to.
PAST = {"controlplane/demo/cluster.py", "controlplane/demo/profiled.py", "controlplane/demo/today.py"}
WRITERS = {"controlplane/jobs/service.py", "controlplane/fleet/service.py", "controlplane/jobs/traces.py"} | PAST
WRITERS |= {"controlplane/providers/service.py", "controlplane/functions/calls.py"}
WRITERS |= {"controlplane/services/promotions.py"}


def named(path: Path) -> str:
    return str(path.relative_to(ROOT))


def writes_of_state(tree: ast.AST) -> Iterator[int]:
    """Lines that assign an attribute ``state``, or pass it to an ``update`` of rows."""
    for node in ast.walk(tree):
        targets = (
            node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AugAssign) else []
        )
        for target in targets:
            for one in target.elts if isinstance(target, ast.Tuple) else [target]:
                if isinstance(one, ast.Attribute) and one.attr == "state":
                    yield node.lineno  # type: ignore[attr-defined]
        called = isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "update"
        if called and any(keyword.arg == "state" for keyword in node.keywords):  # type: ignore[attr-defined]
            yield node.lineno  # type: ignore[attr-defined]


def branches_on(tree: ast.AST, word: str) -> Iterator[int]:
    """Lines where the way forks on an attribute or name."""
    for node in ast.walk(tree):
        if isinstance(node, ast.If | ast.IfExp | ast.While):
            for one in ast.walk(node.test):
                if (isinstance(one, ast.Attribute) and one.attr == word) or (
                    isinstance(one, ast.Name) and one.id == word
                ):
                    yield node.lineno


@pytest.mark.parametrize("path", RECORD, ids=named)
def test_only_the_services_write_states(path: Path) -> None:
    if named(path) in WRITERS:
        return
    lines = list(writes_of_state(parsed(path)))
    assert not lines, f"{named(path)} writes a state at lines {lines}: call the service instead"


def test_the_writers_really_are_seen() -> None:
    assert all(list(writes_of_state(parsed(ROOT / path))) for path in WRITERS)


@pytest.mark.parametrize("path", ENGINE + RECORD, ids=named)
def test_nothing_decides_by_what_is_simulated(path: Path) -> None:
    lines = list(branches_on(parsed(path), "simulated"))
    assert not lines, f"{named(path)} forks on *simulated* at lines {lines}: it is a mark for people only"


def test_no_name_says_nothing() -> None:
    empty = {"utils", "util", "helpers", "helper", "manager", "managers", "handler", "handlers", "data", "info", "misc"}
    rooms = ("scheduler", "controlplane", "agents", "switchyard", "deploy", "bench")
    found = [named(p) for room in rooms for p in (ROOT / room).rglob("*.py") if p.stem in empty]
    assert not found


def test_modules_say_what_they_are() -> None:
    rooms = ("scheduler", "controlplane", "agents", "switchyard", "deploy", "bench", "examples")
    silent = [
        named(path)
        for room in rooms
        for path in (ROOT / room).rglob("*.py")
        if path.name != "__init__.py" and "migrations" not in path.parts
        if path.read_text().strip() and not ast.get_docstring(parsed(path))
    ]
    assert not silent
