"""Durations and speeds: the best source that is there, told in the basis."""

from __future__ import annotations

from dataclasses import replace

import pytest

from scheduler.core.speed import speed
from scheduler.predict.durations import Durations, Finished, declared, family, speeds
from tests.core.worlds import node

CPU, GPU, NPU = (node("a", 1, npus=1).devices[i] for i in range(3))


def test_before_any_history_the_declarations_count() -> None:
    assert (declared(None, 1000).p50_s, declared(None, 1000).p90_s) == (300, 1000)
    assert (declared(100, 1000).p50_s, declared(100, 1000).p90_s) == (100, 150)
    assert declared(900, 1000).p90_s == 1000, "nothing runs longer than its limit"
    assert declared(None, None).p90_s == 86_400
    assert declared(None, None).basis == "default limit of the pool"


def test_the_nearest_relatives_with_enough_history_decide() -> None:
    past = [Finished("lab", f"sweep-{i:03}", "train", 100.0 + i) for i in range(11)]
    past += [Finished("lab", "other", "train", 9000.0) for _ in range(20)]
    known = Durations(past)
    near = known.estimate("lab", "sweep-99", "train", limit_s=5000)
    assert (near.p50_s, near.p90_s) == (105, 109)
    assert "11 finished stages like sweep in lab" in near.basis
    assert known.estimate("lab", "unseen", "train").p50_s == 9000
    assert known.estimate("shop", "sweep-1", "train", limit_s=10).basis == "declared limits"


def test_work_is_measured_on_a_device_of_speed_one() -> None:
    past = [Finished("lab", "a", "train", 100.0, "slow", 0.5) for _ in range(5)]
    assert Durations(past).estimate("lab", "a", "train").p50_s == 50


@pytest.mark.parametrize(("name", "same"), [("sweep-017", "sweep"), ("train_v2", "train_v"), ("123", "123")])
def test_families_are_names_without_numbers(name: str, same: str) -> None:
    assert family(name) == same


def test_speeds_follow_from_the_same_work_on_two_models() -> None:
    past = [Finished("lab", "a", "train", 100.0, "H100", 1.0) for _ in range(6)]
    past += [Finished("lab", "a", "train", 400.0, "T4", 1.0) for _ in range(5)]
    past += [Finished("lab", "b", "infer", 1.0, "T4", 1.0) for _ in range(9)]
    assert speeds(past) == {("train", "H100"): 1.0, ("train", "T4"): 0.25}


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
