"""Durations and speeds: the best source that is there, told in the basis."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.core.model.basis import Basis
from scheduler.core.model.types import Estimate
from scheduler.core.resources.speed import DENSE, speed
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
    assert said(None, None).basis == Basis.UNKNOWN
    assert said(None, None).declared
    assert not said(None, 1000).known
    assert said(100, 1000).basis == Basis.DECLARED
    assert said(0.2, 1000).p50_s == 0.2


def test_the_nearest_relatives_decide() -> None:
    known = Durations(
        [Finished("lab", f"sweep-{i:03}", "train", 100.0 + i, user="ann", ended_at=i) for i in range(11)]
        + past(20, "other", 9000.0)
    )
    near = known.estimate(like("sweep-99"), 2e4)
    assert near.p50_s == pytest.approx(105, rel=0.15)
    assert near.p90_s == pytest.approx(109, rel=0.5)
    assert (near.basis, near.runs) == (Basis.OWN_RUNS, 11)
    unseen = known.estimate(like("unseen"), 2e4)
    assert not unseen.declared
    assert not unseen.known, "what else the user ran is no run of this"
    stranger = Durations(past(5, "sweep-3")).estimate(like(user="bob"), 2e4)
    assert stranger.p50_s == pytest.approx(100, rel=0.5), "the same name in the project, by another user"
    assert not known.estimate(like(project="shop", limit_s=10), 2e4).known


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


def test_what_waits_for_memory_is_ranked_by_bandwidth_and_the_rest_by_its_rate() -> None:
    """An L40S has more TFLOPS than an A100 and less than half its memory bandwidth."""
    a100 = replace(GPU, model="A100", features={"bf16_tflops": 312.0, "memory_gbps": 2039.0})
    l40s = replace(GPU, model="L40S", features={"bf16_tflops": 362.0, "memory_gbps": 864.0})
    for kind in ("serve", "infer"):
        assert speed(kind, "", l40s, {}) == speed(kind, "fp8", l40s, {}) < speed(kind, "", a100, {}) == 1.0
        assert speed(kind, "", l40s, {(kind, "L40S"): 3.0}) == 3.0, "what was measured comes first"
    assert speed("train", "", l40s, {}) > speed("train", "", a100, {}) == 1.0
    silent = replace(l40s, features={"bf16_tflops": 362.0})
    assert speed("serve", "", silent, {}) == speed("train", "", silent, {}), (
        "without a bandwidth the rate is all there is"
    )


@given(
    st.sampled_from(sorted(DENSE)),
    st.sampled_from(["", "bf16", "fp8"]),
    st.floats(10, 10_000),
    st.floats(10, 10_000),
    st.floats(1.01, 4),
)
def test_more_of_what_the_work_waits_for_is_faster_and_more_of_the_other_is_nothing(
    kind: str, precision: str, rate: float, gbps: float, times: float
) -> None:
    def fast(rate: float, gbps: float) -> float:
        features = {"bf16_tflops": rate, "fp8_tflops": 2 * rate, "fp32_tflops": rate / 8, "memory_gbps": gbps}
        return speed(kind, precision, replace(GPU, features=features), {})

    waits_for_memory = kind in {"serve", "infer"}
    assert (fast(rate, gbps * times) > fast(rate, gbps)) == waits_for_memory
    assert (fast(rate * times, gbps) > fast(rate, gbps)) != waits_for_memory


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


def seconds(count: int, user: str = "ann", ran_s: float = 1.0) -> list[Finished]:
    """Short work under so many names: what a yard is full of once anybody has tried anything."""
    names = [f"try-{chr(97 + i % 26)}{chr(97 + i // 26)}" for i in range(count)]
    return [Finished("lab", name, "train", ran_s, user=user, ended_at=float(i)) for i, name in enumerate(names)]


@pytest.mark.parametrize("expected_s", [30.0, 360.0, 480.0])
def test_what_is_declared_leads_until_its_own_runs_speak(expected_s: float) -> None:
    """Seen: 6 min declared became 2.7 min, and 30 s became five minutes, once anything had ended."""
    for others in (seconds(60), seconds(60, ran_s=9_000.0), seconds(60, "bob"), past(9, "sweep-1", 1.0)):
        known = Durations(others)
        said = known.estimate(like("tune", expected_s=expected_s, limit_s=86_400.0), 2e4)
        assert said.p50_s == expected_s
        assert said.p90_s == 1.5 * expected_s
        assert said.basis == Basis.DECLARED
        assert said.known


def test_one_that_runs_does_not_make_another_longer_than_was_said() -> None:
    known, asked = Durations(), like(expected_s=30.0, limit_s=86_400.0)
    known.begin("r", 0.0, asked)
    assert known.estimate(asked, 5.0).p50_s == 30
    late = known.estimate(asked, 300.0)
    assert (late.p50_s, late.p90_s) == (300, 450), "until it has run for longer than that"


def test_twice_eight_minutes_are_eight_minutes() -> None:
    """Seen: declared 8 min, measured 8 min twice, and "predicted 1 s" beside many short ones of the same program."""
    short = [
        Finished("lab", "sleep", "train", 1.0, user="ann", ended_at=float(i), limit_s=86_400.0, expected_s=1.0)
        for i in range(60)
    ]
    own = [
        Finished("lab", "sleep", "train", 480.0, user="ann", ended_at=1e3 + i, limit_s=86_400.0, expected_s=480.0)
        for i in range(2)
    ]
    said = Durations(short + own).estimate(like("sleep", expected_s=480.0, limit_s=86_400.0), 2e4)
    assert said.p50_s == pytest.approx(480, rel=0.02)
    assert 1.1 * 480 < said.p90_s < 2 * 480
    assert (said.basis, said.runs) == (Basis.OWN_RUNS, 2)
    anew = Durations(short).estimate(like("sleep", expected_s=480.0, limit_s=86_400.0), 2e4)
    assert anew.p50_s == 480, "a program's name says little where its declared times are far apart"


def test_what_is_like_nothing_is_unknown() -> None:
    """Seen: nine minutes for the first ``echo hi``, from what else its user had run."""
    known = Durations(seconds(40, ran_s=540.0))
    said = known.estimate(like("echo", limit_s=86_400.0), 2e4)
    assert not said.known
    assert said.basis == Basis.UNKNOWN


def test_a_range_too_wide_is_unknown() -> None:
    known = Durations(Finished("lab", "a", "train", 10.0 ** (i % 5), user="ann", ended_at=float(i)) for i in range(30))
    said = known.estimate(like("a"), 2e4)
    assert not said.known
    assert said.basis == Basis.TOO_WIDE
    assert said.p50_s < said.p90_s, "the engine plans with it all the same"


def test_another_request_is_a_run_of_this_stage_for_one() -> None:
    known = Durations(past(9, "tune", 300.0, resources="1 gpu", limit_s=86_400.0))
    said = known.predict(like("tune", resources="2 gpu", limit_s=86_400.0), 2e4)
    assert said.p50_s == pytest.approx(300, rel=0.2)
    assert (said.basis, said.runs) == (Basis.OTHER_REQUESTS, 9)
    assert said.known


def test_what_a_user_says_is_corrected_mildly_and_late() -> None:
    """Everything took twice as long as was said. A burst is one observation."""

    def twice(names: int, each: int) -> Durations:
        return Durations(
            Finished("lab", f"work-{chr(97 + n)}", "train", 200.0, user="ann", ended_at=float(i), expected_s=100.0)
            for n in range(names)
            for i in range(each)
        )

    asked = like("new", expected_s=100.0)
    assert twice(1, 100).predict(asked, 1e4).p50_s == 100
    assert twice(4, 1).predict(asked, 1e4).p50_s == 100
    assert twice(5, 1).predict(asked, 1e4).p50_s == pytest.approx(100 * 2**0.5)
    assert twice(12, 1).predict(asked, 1e4).p90_s == pytest.approx(200)
    assert twice(12, 1).predict(like("new", user="bob", expected_s=100.0), 1e4).p50_s == 100


TIMES = st.floats(1.0, 1e5)
OTHERS = st.lists(
    st.builds(
        Finished,
        project=st.just("lab"),
        name=st.sampled_from(["one", "two", "three", "echo"]),
        kind=st.sampled_from(["train", "generic"]),
        ran_s=TIMES,
        user=st.sampled_from(["ann", "bob"]),
        expected_s=st.none() | TIMES,
        ended_at=st.floats(0.0, 1e4),
    ),
    max_size=40,
)


@given(others=OTHERS, ran_s=TIMES, runs=st.integers(2, 12), expected_s=st.none() | TIMES)
def test_runs_that_were_equal_are_what_comes(
    others: list[Finished], ran_s: float, runs: int, expected_s: float | None
) -> None:
    own = [
        Finished("lab", "mine", "train", ran_s, user="ann", ended_at=1e5 + i, expected_s=expected_s)
        for i in range(runs)
    ]
    said = Durations(others + own).predict(like("mine", expected_s=expected_s, default_limit_s=1e6), 2e5)
    assert said.p50_s == pytest.approx(ran_s, rel=0.1)
    assert ran_s < said.p90_s
    assert said.known


@given(others=OTHERS, shorter=TIMES, longer=TIMES)
def test_who_declares_more_is_never_thought_to_run_less(others: list[Finished], shorter: float, longer: float) -> None:
    known = Durations(others)
    less, more = (known.predict(like("mine", expected_s=one), 2e5) for one in sorted((shorter, longer)))
    assert less.p50_s <= more.p50_s
    assert less.p90_s <= more.p90_s


@given(others=OTHERS, own=st.lists(TIMES, min_size=3, max_size=12), expected_s=st.none() | TIMES)
def test_strangers_move_nobody_with_three_runs(
    others: list[Finished], own: list[float], expected_s: float | None
) -> None:
    mine = [
        Finished("lab", "mine", "train", ran_s, user="ann", ended_at=1e5 + i, expected_s=expected_s)
        for i, ran_s in enumerate(own)
    ]
    asked = like("mine", expected_s=expected_s)
    alone, among = (Durations(past).estimate(asked, 2e5) for past in (mine, others + mine))
    assert (alone.p50_s, alone.p90_s, alone.basis) == (among.p50_s, among.p90_s, among.basis)


@given(others=OTHERS, name=st.sampled_from(["one", "echo", "mine"]), expected_s=st.none() | TIMES)
def test_a_range_is_in_order_and_what_is_unknown_says_so(
    others: list[Finished], name: str, expected_s: float | None
) -> None:
    said = Durations(others).estimate(like(name, expected_s=expected_s), 2e4)
    assert 0 < said.p50_s < said.p90_s or said.p50_s == said.p90_s == 86_400
    assert said.known != said.basis.startswith("Unknown")
    assert said.known or not expected_s or said.basis == Basis.TOO_WIDE


def test_of_whom_is_told_late_nothing_is_said_before_the_end_and_they_are_evidence_all_the_same() -> None:
    """A process that begins finds thousands of running stages: what would have been predicted of each is only wanted
    where it ends."""
    early, late = Durations(), Durations()
    for number in range(30):
        early.begin(f"r{number}", 0.0, like(f"job-{number % 3}"))
        late.begin(f"r{number}", 0.0, like(f"job-{number % 3}"), is_late=True)
    assert late.predict(like("job-1"), 5_000.0) == early.predict(like("job-1"), 5_000.0)
    for known in (early, late):
        known.learn(replace(past(1, "job-1", 600.0)[0], id="r1", ended_at=600.0))
    assert late.predict(like("job-1"), 5_000.0).own == early.predict(like("job-1"), 5_000.0).own == 1
