"""A skip that nobody allowed fails .ci/run."""

from __future__ import annotations

import importlib.util
import tomllib
from types import ModuleType

import pytest

from deploy.local.service import ROOT


@pytest.fixture(scope="module")
def skips() -> ModuleType:
    spec = importlib.util.spec_from_file_location("skips", ROOT / ".ci" / "skips.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


ALLOWED = [{"tests": "tests/examples/*", "reason": "torch", "why": "not a requirement"}]


def test_an_allowed_skip_passes(skips: ModuleType) -> None:
    assert skips.judge([{"test": "tests/examples/test_a.py::test_b", "reason": "no torch here"}], ALLOWED) == []


@pytest.mark.parametrize(
    "skip",
    [
        {"test": "tests/core/test_a.py::test_b", "reason": "no torch here"},
        {"test": "tests/examples/test_a.py::test_b", "reason": "flaky"},
    ],
)
def test_any_other_skip_is_named(skips: ModuleType, skip: dict[str, str]) -> None:
    (complaint,) = skips.judge([skip], ALLOWED)
    assert skip["test"] in complaint


def test_each_allowed_absence_says_why() -> None:
    entries = tomllib.loads((ROOT / "tests" / "allowed_absent.toml").read_text())["absent"]
    assert all(set(entry) == {"tests", "reason", "why"} and len(entry["why"]) > 30 for entry in entries)
