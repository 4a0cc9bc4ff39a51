"""The bench of Gavel's generator draws what it says, and finds where an average crosses its limit."""

from __future__ import annotations

from statistics import fmean

import pytest

from bench.engine import gavel as bench
from scheduler.profiles import load

SPEEDS = {f"{family} {size}": {"V100": 1.0, "K80": 0.2} for family in bench.FAMILIES for size in (1, 2)}


def test_jobs_come_at_the_rate_with_lengths_of_two_sorts_and_types_alike() -> None:
    drawn = bench.jobs(SPEEDS, 3.2, 0, 4000)
    assert drawn == bench.jobs(SPEEDS, 3.2, 0, 4000)
    assert drawn != bench.jobs(SPEEDS, 3.2, 1, 4000)
    assert drawn[0].submit_s == 0.0
    assert 4000 / (drawn[-1].submit_s / 3600) == pytest.approx(3.2, rel=0.05)
    minutes = [one.duration_s / 60 for one in drawn]
    assert 10**1.5 <= min(minutes) < max(minutes) <= 10**4
    assert fmean(length > 1000 for length in minutes) == pytest.approx(0.2, abs=0.02)
    counts = [sum(one.kind == kind for one in drawn) for kind in SPEEDS]
    assert min(counts) > 0.7 * max(counts)


def test_a_faster_arrival_brings_the_same_jobs_sooner() -> None:
    slow, fast = bench.jobs(SPEEDS, 2.0, 0, 50), bench.jobs(SPEEDS, 4.0, 0, 50)
    assert [(one.kind, one.duration_s) for one in slow] == [(one.kind, one.duration_s) for one in fast]
    assert [one.submit_s / 2 for one in slow] == pytest.approx([one.submit_s for one in fast])


def test_the_sustained_rate_lies_where_the_average_crosses_the_limit() -> None:
    assert bench.sustained((4.0, 4.4, 4.8), (20.0, 28.0, 36.0), 30.0) == pytest.approx(4.5)
    assert bench.sustained((4.0, 4.4), (20.0, 28.0), 30.0) == 4.4
    with pytest.raises(ValueError, match="begin with a lower rate"):
        bench.sustained((4.0, 4.4), (31.0, 40.0), 30.0)


def test_nobody_works_off_more_than_the_machines_can_do() -> None:
    alike = {"one": {"V100": 2.0, "K80": 2.0}}
    mixed = {"one": {"V100": 1.0, "K80": 1.0}, "two": {"V100": 1.0, "K80": 0.1}}
    assert bench.ceiling(alike, 10) == pytest.approx(20 / 16.767, rel=1e-4), "a job has 16.767 h on a V100"
    assert bench.ceiling(mixed, 10) == pytest.approx(bench.ceiling(alike, 10)), "each where it is not slow"


@pytest.mark.parametrize("key", bench.PROFILES)
def test_each_profile_lives_until_all_that_is_measured_has_ended(key: str) -> None:
    speeds = {kind: {"V100": 1.0, "P100": 0.5, "K80": 0.2} for kind in SPEEDS}
    alone_h = fmean(one.duration_s for one in bench.jobs(speeds, 0.5, 0, 15)[5:]) / 3600
    course = bench.live(speeds, load("bench", bench.PROFILES[key]), 0.5, 0, 5, 15)
    assert alone_h < course.average_h < 5 * alone_h
