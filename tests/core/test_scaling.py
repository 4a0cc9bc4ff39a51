"""How stages scale is learned from those that ran on several sizes, and from nobody else."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.core.model.types import SCALING
from scheduler.predict.scaling import Paced, scalings


def ran(stage: str, scaling: float, *sizes: int, first: float = 2.0, family: str = "lab/sft/train") -> list[Paced]:
    return [Paced(stage, family, size, first * size**scaling) for size in sizes]


def test_nobody_who_had_one_size_tells_anything() -> None:
    found = scalings([*ran("a", 0.2, 1, 1, 1), *ran("b", 0.9, 4)])
    assert found.of("a", "lab/sft/train") == found.of("new", "elsewhere") == SCALING


@pytest.mark.parametrize("true", [0.0, 0.3, 1.0])
def test_several_sizes_outweigh_what_is_assumed(true: float) -> None:
    once = scalings(ran("a", true, 1, 2)).of("a", "")
    often = scalings(ran("a", true, 1, 2, 1, 2, 4, 8)).of("a", "")
    assert abs(often - true) < abs(once - true) < abs(SCALING - true)
    assert often == pytest.approx(true, abs=0.05)


def test_steps_of_different_stages_are_never_compared() -> None:
    """The one on two nodes has steps that take a hundred times as long."""
    assert scalings([*ran("a", 0.8, 1), *ran("b", 0.8, 2, first=0.02)]).families == {}


def test_a_newcomer_is_taken_for_its_family_and_nobody_elses() -> None:
    found = scalings([*ran("a", 0.1, 1, 4), *ran("b", 0.1, 1, 4), *ran("c", 1.0, 1, 4, family="lab/other/train")])
    assert found.of("new", "lab/sft/train") < 0.2
    assert found.of("new", "lab/other/train") > 0.95
    assert found.of("new", "lab/third/train") == SCALING


def test_a_stage_leans_on_its_family_and_speaks_for_itself_the_more_it_has_seen() -> None:
    others = [one for name in "abcd" for one in ran(name, 0.9, 1, 2, 4)]
    once = scalings([*others, *ran("odd", 0.1, 1, 2)]).of("odd", "lab/sft/train")
    often = scalings([*others, *ran("odd", 0.1, 1, 2, 4, 8, 1, 8)]).of("odd", "lab/sft/train")
    assert 0.1 < often < once < 0.9


@given(
    st.lists(
        st.tuples(st.sampled_from("abc"), st.sampled_from("xy"), st.integers(0, 64), st.floats(-1, 1e9)), max_size=30
    )
)
def test_whatever_was_measured_it_is_an_exponent_and_order_does_not_matter(
    drawn: list[tuple[str, str, int, float]],
) -> None:
    runs = [Paced(*one) for one in drawn]
    found = scalings(runs)
    assert all(0.0 <= value <= 1.0 for value in (*found.families.values(), *found.stages.values()))
    again = scalings(reversed(runs))
    assert found.families.keys() == again.families.keys()
    assert all(found.families[name] == pytest.approx(again.families[name], abs=1e-5) for name in found.families)
