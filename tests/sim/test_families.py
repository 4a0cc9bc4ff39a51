"""Generated workloads have the traits that they say, to the job and to the second."""

from __future__ import annotations

import math
import statistics
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.sim.cluster import cluster
from scheduler.sim.traces import FORMATS, TraceError, families, read
from scheduler.sim.traces.families import (
    DEVICES,
    FLEET,
    LONGEST_S,
    MEDIAN_S,
    MODELS,
    SHORTEST_S,
    WorkloadFamily,
    generate,
)
from tests.examples_count import examples

TRAITS = st.builds(
    WorkloadFamily,
    single_share=st.floats(0.2, 0.9),
    tail=st.floats(0.0, 2.5),
    bound_share=st.floats(0.0, 0.5),
    burst=st.floats(1.0, 50.0),
    load=st.floats(0.7, 1.6),
    jobs=st.integers(2, 400),
    projects=st.integers(1, 9),
)
SEEDS = st.integers(0, 2**31)


@given(family=TRAITS, seed=SEEDS)
@settings(max_examples=examples(60), deadline=None)
def test_shares_load_and_tail_are_met(family: WorkloadFamily, seed: int) -> None:
    jobs = generate(family, seed)
    assert len({one.id for one in jobs}) == len(jobs) == family.jobs
    assert sum(one.gpus * one.nodes == 1 for one in jobs) == round(family.single_share * family.jobs)
    assert sum(one.model != "" for one in jobs) == round(family.bound_share * family.jobs)
    work = sum(one.duration_s * one.gpus * one.nodes for one in jobs)
    assert work / (DEVICES * max(one.submit_s for one in jobs)) == pytest.approx(family.load)
    logs = [math.log(one.duration_s) for one in jobs if SHORTEST_S < one.duration_s < LONGEST_S]
    if len(logs) == len(jobs) >= 100:
        assert statistics.fmean(logs) == pytest.approx(math.log(MEDIAN_S), abs=0.01)
        assert statistics.pstdev(logs) == pytest.approx(family.tail, rel=0.1, abs=0.01)
    assert all(one.limit_s is not None and one.duration_s < one.limit_s for one in jobs)
    assert {one.project for one in jobs} <= {f"project-{number:03}" for number in range(family.projects)}


@given(family=TRAITS, seed=SEEDS)
@settings(max_examples=examples(30), deadline=None)
def test_the_same_seed_gives_the_same_jobs_and_another_seed_others(family: WorkloadFamily, seed: int) -> None:
    jobs = generate(family, seed)
    assert generate(family, seed) == jobs
    assert generate(family, seed + 1) != jobs


@given(burst=st.floats(5.0, 40.0), seed=SEEDS)
@settings(max_examples=examples(8), deadline=None)
def test_a_burst_is_one_users_and_its_jobs_are_alike(burst: float, seed: int) -> None:
    # So many that no seed strays as far as asserted.
    jobs = generate(WorkloadFamily(0.5, 1.5, 0.3, burst, jobs=8_000), seed)
    bursts: dict[str, list[float]] = {}
    for one in jobs:
        bursts.setdefault(one.name, []).append(math.log(one.duration_s))
    assert len({(one.name, one.user, one.project, one.limit_s) for one in jobs}) == len(bursts)
    assert 8_000 / len(bursts) == pytest.approx(burst, rel=0.6)
    within = statistics.fmean(statistics.pvariance(some) for some in bursts.values() if len(some) > 1)
    assert within < 0.5 * statistics.pvariance([math.log(one.duration_s) for one in jobs])


def test_the_fleet_has_the_devices_that_the_load_counts() -> None:
    models = [one.model for node in cluster(FLEET) for one in node.devices if one.kind == "gpu"]
    assert {model: models.count(model) for model in models} == MODELS
    assert len(models) == DEVICES


def test_a_row_is_known_by_its_header(tmp_path: Path) -> None:
    file = tmp_path / "heavy.csv"
    file.write_text("single_share,tail,bound_share,burst,load,jobs,projects,seed\n0.9,2.5,0.1,20,1.3,50,2,7\n")
    assert list(read(file)) == generate(WorkloadFamily(0.9, 2.5, 0.1, 20.0, 1.3, 50, 2), 7)
    assert FORMATS["families"] is families.read


@pytest.mark.parametrize(
    ("rows", "column", "problem"),
    [
        (["1.2,1,0"], "single_share", "at most 1"),
        (["0.5,-1,0"], "tail", "at least 0 and at most 4"),
        (["0.5,1,"], "bound_share", "is empty"),
        (["0.5,1,0", "0.4,1,0"], "", "has 2 rows; a family is one row"),
        ([], "", "has 0 rows; a family is one row"),
    ],
)
def test_traits_that_cannot_be_are_named(rows: list[str], column: str, problem: str) -> None:
    with pytest.raises(TraceError) as found:
        families.read(["single_share,tail,bound_share\n", *(row + "\n" for row in rows)])
    assert found.value.column == column
    assert problem in str(found.value)
