"""Durations and speeds: the best source that is there, told in the basis."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.core.speed import speed
from scheduler.core.types import Estimate
from scheduler.predict.durations import Durations
from scheduler.predict.evidence import closest
from scheduler.predict.finished import Asked, Finished, family
from scheduler.predict.speeds import speeds
from tests.core.worlds import node

CPU, GPU, NPU = (node("a", 1, npus=1).devices[i] for i in range(3))


def like(name: str = "sweep-1", **more: object) -> Asked:
    return Asked(**{"project": "lab", "name": name, "kind": "train", "user": "ann", **more})  # type: ignore[arg-type]


def past(count: int, name: str = "sweep-1", ran_s: float = 100.0, **more: object) -> list[Finished]:
    return [Finished("lab", name, "train", ran_s, user="ann", ended_at=1e4 + i, **more) for i in range(count)]  # type: ignore[arg-type]


def test_before_any_history_the_declarations_count() -> None:
    def said(expected_s: float | None, limit_s: float | None) -> Estimate:
        return Durations().estimate(like(expected_s=expected_s, limit_s=limit_s), 0.0)

    assert (said(None, 1000).p50_s, said(None, 1000).p90_s) == (300, 1000)
    assert (said(100, 1000).p50_s, said(100, 1000).p90_s) == (100, 150)
    assert said(900, 1000).p90_s == 1000, "nothing runs longer than its limit"
    assert said(None, None).p90_s == 86_400
    assert said(None, None).basis == "default limit of the pool"
    assert said(None, None).declared


def test_the_nearest_relatives_decide() -> None:
    known = Durations(
        [Finished("lab", f"sweep-{i:03}", "train", 100.0 + i, user="ann", ended_at=i) for i in range(11)]
        + past(20, "other", 9000.0)
    )
    near = known.estimate(like("sweep-99"), 2e4)
    assert near.p50_s == pytest.approx(105, rel=0.15)
    assert near.p90_s == pytest.approx(109, rel=0.5)
    assert "11 finished stages like sweep by ann in lab" in near.basis
    unseen = known.estimate(like("unseen"), 2e4)
    assert not unseen.declared
    assert "2 families of stages near unseen by ann" in unseen.basis
    stranger = Durations(past(5, "sweep-3")).estimate(like(user="bob"), 2e4)
    assert stranger.p50_s == pytest.approx(100, rel=0.5), "the same name in the project, by another user"
    assert known.estimate(like(project="shop", limit_s=10), 2e4).basis == "declared limits"


def test_work_is_measured_on_a_device_of_speed_one() -> None:
    known = Durations(past(30, model="slow", speed=0.5))
    assert known.estimate(like(), 2e4).p50_s == pytest.approx(50, rel=0.2)


def test_with_nothing_but_a_limit_the_likely_time_is_that_of_a_uniform_law() -> None:
    """The best guess by ratio for anything between nothing and the limit is the limit times e ** -0.5."""
    assert Durations().predict(like(limit_s=1000), 0.0).likely_s == pytest.approx(1000 * math.exp(-0.5), rel=0.03)


def test_the_closest_value_maximises_the_mean_ratio() -> None:
    values, weights = np.array([1.0, 10.0, 12.0, 100.0]), np.array([0.2, 0.3, 0.3, 0.2])

    def worth(guess: float) -> float:
        return float((weights * np.minimum(values, guess) / np.maximum(values, guess)).sum())

    assert worth(closest(values, weights)) == pytest.approx(max(worth(g) for g in np.linspace(1, 100, 2000)), abs=1e-3)


def test_stages_that_still_run_keep_the_short_ones_from_speaking_for_all() -> None:
    """Ten were sent together; the two that ended first took 10 s, and the others run for 500 s already."""
    blind, seeing = Durations(), Durations()
    for i in range(10):
        for one in (blind, seeing):
            one.submit(f"s{i}", like(limit_s=10_000), 0.0)
        seeing.begin(f"s{i}", 0.0)
    for i in range(2):
        for one in (blind, seeing):
            one.learn(Finished("lab", "sweep-1", "train", 10.0, user="ann", ended_at=10.0, limit_s=10_000, id=f"s{i}"))
    assert blind.predict(like(limit_s=10_000), 500.0).likely_s == 10.0
    assert seeing.predict(like(limit_s=10_000), 500.0).likely_s > 500.0
    seeing.leave("s2")
    seeing.leave("s2")  # a second word of the same end changes nothing
    assert len(seeing._families[like(limit_s=10_000).family].running) == 7


@pytest.mark.parametrize("spread", [0.3, 1.5])
def test_nine_of_ten_end_by_their_p90_even_where_times_drift(spread: float) -> None:
    """Run times that grow by a half again and again: the plain quantile of the past would be too low."""
    dice, known, hits, count = random.Random(7), Durations(), 0, 1500
    for i in range(count):
        said = known.submit(f"s{i}", like(), float(i))
        true_s = 100.0 * 1.5 ** (i / 100) * math.exp(dice.gauss(0, spread))
        hits += i >= 100 and true_s <= said.p90_s
        known.learn(Finished("lab", "sweep-1", "train", true_s, user="ann", ended_at=float(i), id=f"s{i}"))
    assert hits / (count - 100) == pytest.approx(0.9, abs=0.03)
    assert known.predict(like(), float(count)).reliability == pytest.approx(0.9, abs=0.12)


def test_the_same_past_gives_the_same_prediction_in_whatever_order() -> None:
    finished = past(4) + past(3, "other", 7.0) + past(2, "third", 900.0)
    first, again = Durations(finished), Durations(reversed(finished))
    for name in ("sweep-1", "other", "unseen"):
        assert first.predict(like(name), 2e4) == again.predict(like(name), 2e4)


@given(
    times=st.lists(st.floats(0.0, 1e6), max_size=30),
    starts=st.lists(st.floats(0.0, 1e6), max_size=10),
    limit_s=st.floats(1.0, 1e6),
)
def test_a_prediction_is_within_its_limit_and_in_order(times: list[float], starts: list[float], limit_s: float) -> None:
    known = Durations()
    for i, at in enumerate(sorted(starts)):
        known.begin(f"r{i}", at, like(limit_s=limit_s))
    for i, ran_s in enumerate(times):
        known.learn(Finished("lab", "sweep-1", "train", ran_s, user="ann", limit_s=limit_s, ended_at=float(i)))
    said = known.predict(like(limit_s=limit_s), 1e6)
    assert 0 < said.p50_s <= said.p90_s <= limit_s
    assert 0 < said.likely_s <= limit_s


@pytest.mark.parametrize(("name", "same"), [("sweep-017", "sweep"), ("train_v2", "train_v"), ("123", "123")])
def test_families_are_names_without_numbers(name: str, same: str) -> None:
    assert family(name) == same


def test_speeds_follow_from_the_same_work_on_two_models() -> None:
    finished = [Finished("lab", "a", "train", 100.0, "H100", 1.0) for _ in range(6)]
    finished += [Finished("lab", "a", "train", 400.0, "T4", 1.0) for _ in range(5)]
    finished += [Finished("lab", "b", "infer", 1.0, "T4", 1.0) for _ in range(9)]
    assert speeds(finished) == {("train", "H100"): 1.0, ("train", "T4"): 0.25}


def test_measured_beats_declared_beats_prior() -> None:
    fast = replace(GPU, features={"bf16_tflops": 624.0})
    assert speed("train", "", GPU, {}) == 1.0
    assert speed("train", "", fast, {}) == 2.0
    assert speed("train", "", fast, {("train", "H100"): 7.0}) == 7.0


def test_affinity_is_the_prior() -> None:
    def best(kind: str, precision: str = "") -> list[str]:
        return [d.kind for d in sorted((CPU, GPU, NPU), key=lambda d: -speed(kind, precision, d, {}))]

    assert best("train") == best("render") == best("serve") == ["gpu", "npu", "cpu"]
    assert best("infer", "int8") == ["npu", "gpu", "cpu"]
    assert best("preprocess")[0] == "cpu"


def test_those_that_run_move_the_median_before_any_has_finished() -> None:
    """Declared for ten hours, so that three are the median; twenty that began together run for six hours already."""
    known, asked = Durations(), Asked("lab", "tune", "train", user="ann", limit_s=36_000.0)
    for number in range(20):
        known.submit(f"s{number}", asked, 0.0)
        known.begin(f"s{number}", 0.0)
    soon, late = known.predict(asked, 60.0), known.predict(asked, 21_600.0)
    assert soon.p50_s == 10_800
    assert 21_600 < late.p50_s <= late.p90_s == 36_000
    assert late.likely_s > 21_600
    assert late.declared
