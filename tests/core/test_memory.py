"""Advice on memory: warn before it runs out, and give back what nobody uses."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from scheduler.predict.finished import Asked, Finished
from scheduler.predict.memory import Peaks

GIB = 2**30
LIKE = Asked("lab", "tune-7", "train", "ann")


def taught(*peaks: float, out: float = 0.0) -> Peaks:
    known = Peaks()
    for peak in peaks:
        known.learn(Finished("lab", "tune-1", "train", 60.0, user="ann", peak_bytes=int(peak * GIB)))
    if out:
        known.learn(Finished("lab", "tune-2", "train", 9.0, user="ann", asked_bytes=int(out * GIB), out_of_memory=True))
    return known


def test_too_few_peaks_say_nothing() -> None:
    assert taught(9, 9).advise(LIKE, 80 * GIB) is None
    assert taught(0, 0, 0, 0).advise(LIKE, 80 * GIB) is None, "what nobody measured is not a peak of nothing"
    assert taught(9, 9, 9).advise(Asked("lab", "other", "train", "ann"), 80 * GIB) is None


def test_a_generous_request_is_told_what_would_do() -> None:
    advice = taught(8, 9, 8.5).advise(LIKE, 80 * GIB)
    assert advice is not None
    assert (advice.verdict, advice.suggested_bytes) == ("generous", 11 * GIB)
    assert (advice.seen, advice.ran_out) == (3, 0)


def test_a_request_near_the_largest_peak_is_tight_and_one_between_fits() -> None:
    known = taught(8, 9, 8.5)
    assert [known.advise(LIKE, size * GIB).verdict for size in (9, 12, 17)] == ["tight", "fits", "fits"]  # type: ignore[union-attr]


def test_one_that_ran_out_warns_at_once_and_asks_for_more_than_it_had() -> None:
    advice = taught(out=10).advise(LIKE, 10 * GIB)
    assert advice is not None
    assert (advice.verdict, advice.suggested_bytes, advice.ran_out) == ("tight", 20 * GIB, 1)
    assert advice.ran_out == 1


@given(peaks=st.lists(st.integers(1, 500), min_size=3, max_size=20), asked=st.integers(1, 1000))
def test_what_is_suggested_would_have_held_all(peaks: list[int], asked: int) -> None:
    advice = taught(*peaks).advise(LIKE, asked * GIB)
    assert advice is not None
    assert advice.suggested_bytes > max(peaks) * GIB
    if advice.verdict == "generous":
        assert advice.suggested_bytes < asked * GIB
