"""A stage that requires its shares to be held is given no device where they are not."""

import itertools

import pytest

from scheduler.core.model.types import Ask, Device, Mode
from scheduler.core.resources.match import matches


def device(sharing: str, mode: Mode = Mode.SHARED, partitions: str = "") -> Device:
    return Device("d", "n", "gpu", "nvidia", "NVIDIA H100 80GB HBM3", 0, 80 << 30, mode=mode, sharing=sharing,
                  partitions=partitions)  # fmt: skip


@pytest.mark.parametrize(("asked", "told"), list(itertools.product(["", "soft", "hard"], ["", "none", "soft", "hard"])))
def test_a_share_is_held_by_the_agent_at_best(asked: str, told: str) -> None:
    found = matches(Ask("gpu", milli=250, sharing=asked), device(told))
    assert found == (asked == "" or (asked == "soft" and told in ("soft", "hard")))


@pytest.mark.parametrize("asked", ["", "soft", "hard"])
def test_what_nobody_else_touches_is_held_hard(asked: str) -> None:
    assert matches(Ask("gpu", sharing=asked), device("none"))
    assert matches(Ask("gpu", milli=250, sharing=asked), device("none", Mode.EXCLUSIVE))
    assert matches(Ask("gpu", partition="1g.10gb", sharing=asked), device("hard", partitions="h100-80gb"))
