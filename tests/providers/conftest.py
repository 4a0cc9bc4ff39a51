"""A real Slurm and a real Ray for all tests of this folder that ask for one."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.providers.ray_cluster import RayOnThisHost
    from tests.providers.slurm_cluster import SlurmOnThisHost
    from tests.record.yard import Yard


@pytest.fixture(scope="session")
def slurm() -> Iterator[SlurmOnThisHost]:
    """A Slurm of two compute nodes on this host; ``SLURM_CONF`` of this process names it."""
    from tests.providers.slurm_cluster import PATH, missing, running

    if lacks := missing():
        pytest.skip(f"NO SLURM HERE ({', '.join(lacks)}): apt-get install slurmctld slurmd slurm-client munge")
    with (
        tempfile.TemporaryDirectory(prefix="yard-slurm-") as folder,
        pytest.MonkeyPatch.context() as environment,
        running(Path(folder)) as cluster,
    ):
        environment.setenv("SLURM_CONF", str(cluster.conf))
        environment.setenv("PATH", PATH)
        yield cluster


@pytest.fixture(scope="session")
def ray() -> Iterator[RayOnThisHost]:
    """A Ray of one host, with an endpoint ``ray`` in a folder of its own."""
    from tests.providers.ray_cluster import PROGRAM, running

    if PROGRAM is None:
        pytest.skip("NO RAY HERE: make a virtual environment, pip install 'ray[default]', YARD_TEST_RAY=VENV/bin/ray")
    with tempfile.TemporaryDirectory(prefix="yard-ray-") as folder, running(Path(folder)) as cluster:
        yield cluster


@pytest.fixture
def yard(db: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[Yard]:
    # Imported late: this file is read before Django's apps are loaded.
    from tests.record.conftest import assert_invariants, forget
    from tests.record.yard import Yard

    forget(monkeypatch)
    yield Yard()
    assert_invariants()
