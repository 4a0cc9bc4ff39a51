"""Scenarios of simulations: any mapping or trace is a scenario within its limits or a sentence; it is counted first."""

from __future__ import annotations

import json
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from controlplane.simulations.service import LIMITS
from scheduler.scenario import scenario
from scheduler.scenario.scenario import KEYS, TRACE_KEYS, WORLD_KEYS, ScenarioError, build, read
from scheduler.sim.cluster import cluster
from tests.controlplane.conftest import town  # noqa: F401  the fixture
from tests.controlplane.people import Town

INNER = [
    *KEYS,
    *WORLD_KEYS,
    *TRACE_KEYS,
    "jobs",
    "per_hour",
    "median_s",
    "sigma",
    "widths",
    "projects",
    "daily",
    "seed",
    "policies",
    "weight",
    "rotates",
]
PLAIN = (
    st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.floats() | st.text(max_size=10)
    | st.sampled_from(["8x8", "999999999x8", "1x999999999", "1x1," * 50, "hybrid", "fifo,hybrid",
    "submit_s,duration_s,gpus\n0,1,1\n", "; swf\n", '{"submitted_at": 1}'])
)  # fmt: skip
VALUES = st.recursive(
    PLAIN,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(INNER) | st.text(max_size=4), inner, max_size=4)
    ),
    max_leaves=8,
)
NINES = "9" * 9


def tried(body: Any) -> None:
    try:
        found = build(body, limits=LIMITS)
    except ScenarioError as error:
        assert len(error.at) <= 100
        assert 0 < len(error.problem) <= 503
    else:
        assert len(found.trace) <= LIMITS.arrivals
        assert sum(len(node.devices) for node in found.nodes) <= LIMITS.devices
        assert len(found.cells) <= LIMITS.cells


@given(VALUES)
def test_any_value_is_a_scenario_or_a_sentence(body: Any) -> None:
    tried(body)


@given(
    st.sampled_from(KEYS),
    VALUES,
    st.fixed_dictionaries({}, optional={"trace": st.dictionaries(st.sampled_from(TRACE_KEYS), VALUES, max_size=2),
    "world": st.dictionaries(st.sampled_from(WORLD_KEYS), VALUES, max_size=3)}),
)  # fmt: skip
def test_any_value_at_a_known_key_is_judged(key: str, value: Any, more: dict[str, Any]) -> None:
    tried({**more, key: value})


GENERATED = st.dictionaries(
    st.sampled_from(["jobs", "per_hour", "median_s", "sigma", "widths", "projects", "daily", "seed"]),
    VALUES,
    max_size=4,
)


@given(GENERATED)
def test_any_made_up_trace_is_judged(asked: dict[str, Any]) -> None:
    tried({"trace": {"generate": {"jobs": 20, **asked}}, "world": {"nodes": "1x1"}})


@given(
    st.text(max_size=300)
    | st.lists(st.lists(st.text('0123456789.,;-eE "\n', max_size=8), max_size=4).map(",".join)).map(
        lambda rows: "submit_s,duration_s,gpus,id\n" + "\n".join(rows)
    ),
    st.sampled_from(["auto", "generic", "history", "swf", "slurm", "x"]),
)
def test_any_text_is_a_trace_or_a_sentence(text: str, form: str) -> None:
    tried({"trace": {"text": text, "format": form}, "world": {"nodes": "1x1"}})


@given(st.binary(max_size=300) | VALUES.map(lambda value: yaml.safe_dump(value).encode()))
def test_any_file_is_a_scenario_or_a_sentence(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    path = tmp_path_factory.getbasetemp() / "world.yaml"
    Path(path).write_bytes(content)
    try:
        read(path)
    except ScenarioError as error:
        assert str(error)


HUGE: list[dict[str, Any]] = [
    {"world": {"nodes": f"{NINES}x8"}},
    {"world": {"nodes": "9" * 4000 + "x8"}},
    {"world": {"nodes": f"1x{NINES}"}},
    {"world": {"nodes": "20x8," * 999 + "20x8"}},
    {"world": {"nodes": "1x1," * 100_000}},
    {"world": {"weights": {f"p{i}": 1 for i in range(5_000)}}},
    {"trace": {"text": "submit_s,duration_s,gpus\n" + "0,1,1\n" * 1_000_000}},
    {"trace": {"text": "submit_s,duration_s,gpus\n" + "0,1,1\n" * 1_000_000, "first": 1}},
    {"trace": {"text": "a," * 500_000}},
    {"trace": {"text": "\r" * 2_000_000}},
    {"trace": {"generate": {"jobs": 1e6}}},
    {"trace": {"generate": {"widths": {1e300: 1}}}},
    {"trace": {"generate": {"widths": {"inf": 1}}}},
    {"trace": {"generate": {"projects": ["x"] * 100_000}}},
    {"trace": {"generate": {"per_hour": 0.01, "jobs": 20_000}}, "loads": [0.01]},
    {"trace": {"text": "submit_s,duration_s,gpus\n0,1e300,1\n"}},
    {"trace": {"text": "submit_s,duration_s,gpus\n0,1,1\n1e15,1,1\n"}},
    {"profiles": {f"p{i}": {} for i in range(10_000)}},
    {"profiles": ["hybrid"], "seeds": list(range(100_000))},
    {"loads": [[1.0]]},
    {"seeds": [{}]},
    {"name": "x" * 101},
    {"name": "\0"},
]


@pytest.mark.parametrize("body", HUGE, ids=lambda body: json.dumps(body)[:40])
def test_what_is_too_large_is_refused_before_it_is_built(body: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []
    device = cluster.__globals__["Device"]
    monkeypatch.setitem(cluster.__globals__, "Device", lambda *values: made.append(1) or device(*values))
    size = len(json.dumps(body))
    tracemalloc.start()
    try:
        with pytest.raises(ScenarioError):
            build(body, limits=LIMITS)
        assert tracemalloc.get_traced_memory()[1] < 120 * 2**20 + 8 * size
    finally:
        tracemalloc.stop()
    # The nodes of a trace that is refused afterwards may be there: those of the usual small world.
    assert len(made) <= 8 * 9


def test_the_interface_names_field_and_limit(town: Town) -> None:
    answer = town.owner.post("/simulations", {"world": {"nodes": f"{NINES}x8"}})
    said = json.loads(answer.content)
    assert answer.status_code == 422
    assert said["errors"][0]["pointer"] == "/world/nodes"
    assert "it has 8,999,999,991 devices; at most 20,000" in said["detail"]


def test_the_limits_of_the_interface_are_those_that_were_tried() -> None:
    assert scenario.ScenarioLimits() == scenario.ScenarioLimits(float("inf"), float("inf"), float("inf"), float("inf"))
    assert LIMITS.lines < 100_000
