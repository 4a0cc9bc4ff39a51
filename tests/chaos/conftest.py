"""A stack that a test has for itself, and whose agents may outlive it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.chaos.test_job import Yard


@pytest.fixture
def yard(tmp_path: Path) -> Iterator[Yard]:
    """A running stack; afterwards all that names the folder of the test is gone."""
    from tests.chaos.stack import standing
    from tests.chaos.test_job import TIMERS, Yard, connect, processes_of

    with pytest.MonkeyPatch.context() as environment, standing() as up:
        environment.setenv("YARD_TIMERS", TIMERS)
        up.started()
        yard = Yard(up, connect(up.home, up.port))
        try:
            yield yard
        finally:
            yard.client.close()
            for process in processes_of(str(tmp_path)):
                process.kill()
            for agent in yard.agents:
                agent.wait()
