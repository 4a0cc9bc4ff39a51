"""The job files of ``examples/render`` are accepted."""

from __future__ import annotations

from pathlib import Path

import pytest

from controlplane.documents import from_yaml
from tests.controlplane.test_spec import accepted

EXAMPLE = Path(__file__).resolve().parents[2] / "examples/render"


@pytest.mark.parametrize("name", ["frames", "assemble"])
def test_the_job_files_are_accepted(name: str) -> None:
    file = from_yaml((EXAMPLE / f"{name}.yaml").read_bytes())
    del file["workdir"]
    assert accepted(file).stages
