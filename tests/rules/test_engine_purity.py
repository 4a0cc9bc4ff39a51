"""The engine reads no clock, no die and no environment, and imports nothing of the record."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.rules.parsed import parsed

ROOT = Path(__file__).resolve().parents[2]
PARTS = ("core", "policies", "predict", "research", "sim")
PURE = sorted(path for part in PARTS for path in (ROOT / "scheduler" / part).rglob("*.py"))
CORE = [path for path in PURE if "core" in path.parts]
FOREIGN = {"django", "celery", "channels", "rest_framework", "redis", "agents", "controlplane", "switchyard"}
# Names that give time, chance or surroundings to whoever calls them.
IMPURE = {
    "time": None,
    "secrets": None,
    "uuid": None,
    "socket": None,
    "random": {"Random"},  # a seeded instance is an argument like any other
    "datetime": {"UTC", "datetime", "timedelta"},
}
IMPURE_CALLS = {"now", "utcnow", "today", "getenv", "sleep", "urandom", "default_rng"}


def offences(tree: ast.AST) -> Iterator[str]:
    for one in ast.walk(tree):
        if isinstance(one, (ast.Import, ast.ImportFrom)):
            yield from _imports(one)
        elif isinstance(one, ast.Attribute):
            owner = one.value.id if isinstance(one.value, ast.Name) else ""
            allowed = IMPURE.get(owner, ())
            impure = owner in IMPURE and owner != "datetime" and (allowed is None or one.attr not in allowed)
            if impure or (owner, one.attr) == ("os", "environ"):
                yield f"line {one.lineno}: {owner}.{one.attr}"
        if isinstance(one, ast.Call):
            name = one.func.attr if isinstance(one.func, ast.Attribute) else getattr(one.func, "id", "")
            if name in IMPURE_CALLS:
                yield f"line {one.lineno}: {name}()"
            if name == "Random" and not one.args:
                yield f"line {one.lineno}: Random() without a seed"


def _imports(one: ast.Import | ast.ImportFrom) -> Iterator[str]:
    modules = [one.module or ""] if isinstance(one, ast.ImportFrom) else [name.name for name in one.names]
    for module in modules:
        top = module.split(".")[0]
        if top in FOREIGN:
            yield f"line {one.lineno}: imports {module}"
        if top in IMPURE:
            allowed = IMPURE[top]
            taken = {name.name for name in one.names} if isinstance(one, ast.ImportFrom) else set()
            if allowed is None or taken - allowed:
                yield f"line {one.lineno}: imports {module}"


@pytest.mark.parametrize("path", PURE, ids=lambda path: str(path.relative_to(ROOT)))
def test_time_and_chance_are_arguments(path: Path) -> None:
    assert list(offences(parsed(path))) == []


@pytest.mark.parametrize("path", CORE, ids=lambda path: path.name)
def test_the_core_imports_only_the_standard_library_numpy_and_itself(path: Path) -> None:
    for one in ast.walk(parsed(path)):
        if isinstance(one, (ast.Import, ast.ImportFrom)):
            modules = [one.module or ""] if isinstance(one, ast.ImportFrom) else [name.name for name in one.names]
            for module in modules:
                top = module.split(".")[0]
                assert top in sys.stdlib_module_names or top == "numpy" or module.startswith("scheduler.core"), module


def test_no_line_of_the_engine_asks_for_the_name_of_a_profile() -> None:
    for path in PURE:
        for one in ast.walk(parsed(path)):
            if isinstance(one, ast.Compare):
                text = ast.unparse(one)
                assert "profile.name" not in text, f"{path.name}: {text}"


@pytest.mark.parametrize(
    "line",
    [
        "import time",
        "import os\nos.environ",
        "import random\nrandom.random()",
        "datetime.now()",
        "import django.db",
        "from random import shuffle",
        "random.Random()",
        "import secrets",
    ],
)
def test_the_rule_sees_what_it_forbids(line: str) -> None:
    assert list(offences(ast.parse(line)))


def test_there_is_something_to_judge() -> None:
    assert len(CORE) > 10
    assert len(PURE) > len(CORE) + 10
