"""How long a stage takes to start again: the middle of what was seen of late."""

from __future__ import annotations

import pytest

from scheduler.core.model.types import RESTART_S
from scheduler.predict.restarts import RECENT, restart_s


@pytest.mark.parametrize(
    ("took_s", "found"),
    [
        ((), RESTART_S),
        ((40.0,), 40.0),
        ((40.0, 60.0), 50.0),
        ((40.0, 900.0, 60.0), 60.0),
        ((-1.0,), 0.0),
        ((900.0,) * 9 + (30.0,) * RECENT, 30.0),
    ],
)
def test_the_middle_of_the_newest_counts(took_s: tuple[float, ...], found: float) -> None:
    assert restart_s(took_s) == found
