"""The scenarios that come along: they can be read, and the comparison of policies leaves none out."""

from __future__ import annotations

from pathlib import Path

import pytest

from scheduler import policies
from scheduler.scenario import scenario

FOLDER = Path(__file__).resolve().parents[2] / "bench" / "scenarios"


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.yaml")), ids=lambda path: path.name)
def test_it_can_be_read(path: Path) -> None:
    assert scenario.read(path).cells


def test_every_policy_has_a_row_in_the_comparison() -> None:
    found = scenario.read(FOLDER / "policies.yaml")
    for name, policy in (policies.discover() | policies.discover(policies.RESEARCH)).items():
        assert any(isinstance(one, policy) for one, _ in found.profiles[name].policies), name
