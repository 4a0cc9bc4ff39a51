"""The largest that a node may say it has, as often as it may say so, fits every sum of the engine."""

from __future__ import annotations

from typing import get_args

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from agents.protocol import MOST_BYTES, MOST_DEVICES, MOST_MILLI, MOST_RATE, Why
from scheduler import profiles
from scheduler.core.model.lifecycle import Cause, NodeState
from scheduler.core.model.types import (
    Alternative,
    Ask,
    CalendarEntry,
    Device,
    Estimate,
    Node,
    Pool,
    Project,
    Snapshot,
    Stage,
)
from scheduler.core.planning import aside, engine
from scheduler.decisions import canonical
from tests.examples_count import examples

LARGEST = np.iinfo(np.int64).max


def node(name: str, memory: int, milli: int, rate: float, count: int = 2) -> Node:
    kinds = ["cpu"] + ["gpu"] * (count - 1)
    devices = tuple(
        Device(
            id=f"{name}-{i}", node=name, kind=kind, vendor="V", model="M", index=i, memory_bytes=memory,
            capacity_milli=milli if kind == "cpu" else 1000, features={"bf16_tflops": rate, "fp32_tflops": rate},
        )
        for i, kind in enumerate(kinds)
    )  # fmt: skip
    return Node(id=name, name=name, state=NodeState.READY, pools=("p",), devices=devices)


def waiting(name: str, memory: int, kind: str) -> Stage:
    return Stage(
        id=name, job=name, number=1, name="main", project="x", user="u", pool="p", kind="train", priority=500,
        submitted_at=0.0, eligible_at=0.0, estimate=Estimate(60.0, 600.0),
        alternatives=(Alternative(0, (Ask(kind, 1, 1000, memory),)),),
    )  # fmt: skip


def world(memory: int, milli: int, rate: float, windows: int, asked: int) -> Snapshot:
    nodes = tuple(node(f"n{i}", memory, milli, rate) for i in range(2))
    return Snapshot(
        nodes=nodes,
        waiting=tuple(waiting(f"s{i}", asked, kind) for i, kind in enumerate(("cpu", "gpu", "gpu", "gpu"))),
        running=(),
        projects=(Project("x", 1.0, 0.0),),
        quotas=(),
        pools=(Pool(name="p", profile="hybrid"),),
        speeds={},
        maintenance=tuple(
            CalendarEntry(str(i), ("n0",), 3_600.0 + i, 7_200.0 + i, "x") for i in range(windows)
        ),
    )  # fmt: skip


def test_agents_may_say_every_cause_and_no_other() -> None:
    assert set(get_args(Why)) == {"", *(str(cause) for cause in Cause)}


def test_sums_over_all_that_may_be_sent_fit() -> None:
    assert MOST_BYTES * MOST_DEVICES < LARGEST
    assert MOST_MILLI * MOST_DEVICES * 100_000 < LARGEST
    assert int(float(MOST_BYTES - 1)) == MOST_BYTES - 1, "one device's bytes are exact as a float"
    assert float("inf") > MOST_RATE * 86_400 * 366 * 1e6


@settings(max_examples=examples(30))
@given(
    st.sampled_from([1, 2**40, MOST_BYTES]),
    st.sampled_from([1000, MOST_MILLI]),
    st.sampled_from([0.0, 5e-324, MOST_RATE]),
    st.sampled_from([0, 3, 40]),
    st.sampled_from([0, 2**40, MOST_BYTES]),
    st.sampled_from(sorted(profiles.PROFILES)),
)
def test_the_largest_of_everything_is_planned_and_its_plan_is_written(
    memory: int, milli: int, rate: float, windows: int, asked: int, profile: str
) -> None:
    seen = world(memory, milli, rate, windows, asked)
    plan = engine.plan(seen, profiles.named(profile), 100.0)
    assert len(plan.starts) + len(plan.waits) == len(seen.waiting)
    assert canonical.digest(plan)


def test_more_overlapping_windows_than_any_array_counts_are_only_full() -> None:
    seen = world(MOST_BYTES, 1000, 1.0, 9_000, 0)
    plan = engine.plan(seen, profiles.named("hybrid"), 100.0)
    assert plan.starts


def test_what_no_bound_kept_out_sets_one_node_aside_and_no_other() -> None:
    seen = world(2**30, 4_000, 1.0, 3, 0)
    bad = node("bad", 2**64, 4_000, 1.0)
    seen = Snapshot(**{**{f: getattr(seen, f) for f in seen.__slots__}, "nodes": (*seen.nodes, bad)})
    planner = aside.TolerantPlanner()
    plan = planner.plan(seen, profiles.of(seen.pools), 100.0)
    assert list(planner.aside.nodes) == ["bad"]
    assert len(plan.starts) + len(plan.waits) == len(seen.waiting)
    assert {name for start in plan.starts for name in start.placement.nodes} <= {"n0", "n1"}
    healed = Snapshot(**{**{f: getattr(seen, f) for f in seen.__slots__}, "nodes": seen.nodes[:2]})
    planner.plan(healed, profiles.of(healed.pools), 100.0 + aside.AGAIN_S)
    assert not planner.aside
