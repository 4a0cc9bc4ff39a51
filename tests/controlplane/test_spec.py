"""What a job file may say: each refusal is found, pointed at, and says what would be accepted."""

from __future__ import annotations

from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controlplane.jobs import demand, values
from controlplane.jobs.spec import AFFINITY, InvalidSpec, Resolved, SubmitRules, resolve

GIB = 2**30


def rules(**changes: Any) -> SubmitRules:
    pool = SimpleNamespace(
        name="default", default_limit_s=3600, max_limit_s=7200, on_node_lost="wait", mounts=[{"path": "/srv"}]
    )
    classes = {
        "high": SimpleNamespace(name="high", value=750, preemptible=True, staff_only=True),
        "medium": SimpleNamespace(name="medium", value=500, preemptible=True, staff_only=False),
        "solid": SimpleNamespace(name="solid", value=400, preemptible=False, staff_only=False),
    }
    known: Any = {
        "projects": {"vision": SimpleNamespace(name="vision")},
        "pools": {"default": pool},
        "classes": classes,
        "default_project": "vision",
        **changes,
    }
    return SubmitRules(**known)


def accepted(spec: Any, **changes: Any) -> Resolved:
    return resolve(spec, rules(**changes))


def refused(spec: Any, **changes: Any) -> dict[str, str]:
    """Pointer to code of each fault; the sentences are never empty."""
    with pytest.raises(InvalidSpec) as caught:
        resolve(spec, rules(**changes))
    assert all(fault.detail for fault in caught.value.errors)
    return {fault.pointer: fault.code for fault in caught.value.errors}


def sentence(spec: Any, pointer: str, **changes: Any) -> str:
    with pytest.raises(InvalidSpec) as caught:
        resolve(spec, rules(**changes))
    return next(fault.detail for fault in caught.value.errors if fault.pointer == pointer)


def test_the_smallest_job_file_has_all_defaults() -> None:
    job = accepted({"run": "echo hi"})
    (stage,) = job.stages
    assert (job.name, job.pool.name, job.priority_class, job.priority) == ("job", "default", "medium", 500)
    assert (stage.name, stage.kind, stage.max_attempts, stage.needs) == ("main", "generic", 1, ())
    cpu = {"kind": "cpu", "count": 1, "milli": 1000, "memory_bytes": GIB, "vendor": "", "model": ""}
    assert stage.request == {
        "alternatives": [{"index": 0, "asks": [cpu], "argv": ["/bin/sh", "-c", "echo hi"], "env": {}}],
        "nodes": 1,
        "cpus_milli": 1000,
        "memory_bytes": GIB,
        "time_limit_s": 3600.0,
        "expected_s": None,
        "grace_s": 30.0,
        "stop_to": "main",
        "on_node_lost": "wait",
        "names_devices": False,
        "preemptible": True,
        "retry": {"max": 1, "on": [], "backoff_s": 10.0},
        "precision": "",
        "kind": "generic",
    }


def test_an_accelerator_comes_with_a_share_of_the_cpu_of_its_node() -> None:
    job = accepted({"run": "x", "cpus": 4, "memory": "8GiB", "devices": {"kind": "gpu", "count": 2, "model": "H100"}})
    (way,) = job.stages[0].request["alternatives"]
    gpu, cpu = way["asks"]
    assert (gpu["kind"], gpu["count"], gpu["milli"], gpu["model"]) == ("gpu", 2, 1000, "H100")
    assert (cpu["kind"], cpu["milli"], cpu["memory_bytes"]) == ("cpu", 4000, 8 * GIB)
    assert demand.asked(job.stages[0].request).text == "2 H100 · 4 cores"


@pytest.mark.parametrize("kind", sorted(AFFINITY))
def test_a_stage_without_devices_runs_on_what_suits_its_kind(kind: str) -> None:
    job = accepted({"stages": [{"name": "a", "kind": kind, "run": "x"}]})
    found = [way["asks"][0]["kind"] for way in job.stages[0].request["alternatives"]]
    assert tuple(found) == AFFINITY[kind]
    assert all(way["asks"][-1]["kind"] == "cpu" for way in job.stages[0].request["alternatives"])


def test_alternatives_override_command_and_environment() -> None:
    job = accepted(
        {
            "env": {"A": "1", "B": 2},
            "run": "python any.py",
            "devices": {
                "any_of": [
                    {"kind": "npu", "milli": 500, "memory": "8GiB", "run": "python npu.py", "env": {"B": True}},
                    {"kind": "cpu", "milli": 2500},
                ]
            },
        }
    )
    npu, cpu = job.stages[0].request["alternatives"]
    assert npu["argv"][-1] == "python npu.py"
    assert npu["env"] == {"A": "1", "B": "true"}
    assert cpu["argv"][-1] == "python any.py"
    assert cpu["env"] == {"A": "1", "B": "2"}
    assert [ask["milli"] for ask in cpu["asks"]] == [2500]


def test_stages_inherit_and_override_the_keys_of_the_job() -> None:
    job = accepted(
        {
            "cpus": 2,
            "env": {"SHARED": "yes", "MODE": "job"},
            "run": "default",
            "stages": [
                {"name": "a", "env": {"MODE": "a"}},
                {"name": "b", "needs": ["a"], "command": ["python", "b.py", 3], "cpus": 0.5},
            ],
        }
    )
    a, b = job.stages
    assert a.request["alternatives"][0]["env"] == {"SHARED": "yes", "MODE": "a"}
    assert a.request["alternatives"][0]["argv"][-1] == "default"
    assert b.request["alternatives"][0]["argv"] == ["python", "b.py", "3"]
    assert (a.request["cpus_milli"], b.request["cpus_milli"]) == (2000, 500)
    assert b.needs == ("a",)


def test_every_fault_is_told_at_once() -> None:
    faults = refused(
        {
            "nam": "x",
            "cpus": "lots",
            "memory": "1 elephant",
            "image": "--privileged",
            "shm": "1GiB",
            "profiling": {"allow": ["py-spi", 3], "deny": []},
            "stages": [{"name": "../x", "run": "x"}, {"name": "b", "run": "x", "nodes": 0}, {"name": "c", "run": "x"}],
        }
    )
    assert faults == {
        "/nam": "unknown_key",
        "/image": "invalid",
        "/shm": "unsupported",
        "/profiling/deny": "unknown_key",
        "/profiling/allow/0": "unknown_value",
        "/profiling/allow/1": "unknown_value",
        "/cpus": "out_of_range",
        "/memory": "invalid",
        "/stages/0/name": "invalid",
        "/stages/1/nodes": "out_of_range",
    }


@pytest.mark.parametrize("path", ["/etc", "../other", "a/../../b", "here", "/", 5, ["a"]])
def test_no_job_chooses_where_its_checkpoints_lie(path: object) -> None:
    said = sentence({"run": "x", "checkpoint": {"dir": path, "keep": 3}}, "/checkpoint/dir")
    assert "YARD_CHECKPOINT_DIR" in said
    assert refused({"run": "x", "checkpoint": {"dir": path}}) == {"/checkpoint/dir": "not_own_folder"}


@pytest.mark.parametrize("path", ["/etc/passwd", "../tokens", "a/b", ".."])
def test_an_output_lies_in_the_stages_own_folder(path: str) -> None:
    spec = {"stages": [{"name": "a", "run": "x", "outputs": ["fine", path]}]}
    assert refused(spec) == {"/stages/0/outputs/1": "not_own_folder"}
    assert "YARD_OUTPUT_DIR" in sentence(spec, "/stages/0/outputs/1")


def test_an_image_is_kept_with_each_way_to_run() -> None:
    """A device may name its own image: what runs on an NPU is built for it."""
    devices = {"any_of": [{"kind": "gpu"}, {"kind": "npu", "image": "registry.local:5000/npu/torch:2.9"}]}
    (stage,) = accepted({"run": "x", "image": "torch@sha256:" + "0" * 64, "devices": devices}).stages
    assert [way["image"] for way in stage.request["alternatives"]] == [
        "torch@sha256:" + "0" * 64,
        "registry.local:5000/npu/torch:2.9",
    ]
    (plain,) = accepted({"run": "x"}).stages
    assert "image" not in plain.request["alternatives"][0]


@pytest.mark.parametrize("image", ["-v/:/host", "path/UPPER", "a b", "http://x/y", "x:", "../up", "a\n", "x" * 500])
def test_what_names_no_image_is_refused_with_an_example(image: str) -> None:
    assert "registry.local/pytorch:2.9" in sentence({"run": "x", "image": image}, "/image") or len(image) > 400


def test_the_nearest_key_is_offered() -> None:
    assert "did you mean devices?" in sentence({"run": "x", "device": {}}, "/device")
    assert "did you mean time_limit?" in sentence(
        {"stages": [{"name": "a", "run": "x", "timelimit": 1}]}, "/stages/0/timelimit"
    )


def test_a_circle_of_needs_is_named() -> None:
    stages = [{"name": n, "run": "x", "needs": [m]} for n, m in (("a", "b"), ("b", "c"), ("c", "a"))]
    with pytest.raises(InvalidSpec) as caught:
        accepted({"stages": stages})
    (fault,) = caught.value.errors
    assert fault.code == "cycle"
    circle = fault.detail.partition(": ")[2].split(" needs ")
    assert circle[0] == circle[-1]
    assert all({"a": "b", "b": "c", "c": "a"}[one] == two for one, two in pairwise(circle))


# Job files, where each is wrong, and the code of the fault.
FAULTS: list[tuple[Any, str, str]] = [
    ([], "", "not_a_mapping"),
    ("x", "", "not_a_mapping"),
    ({}, "", "missing"),
    ({"run": ""}, "/run", "invalid"),
    ({"run": "x", "command": ["x"]}, "/run", "exclusive"),
    ({"command": "python x.py"}, "/command", "not_a_list"),
    ({"command": []}, "/command", "not_a_list"),
    ({"run": "x", "name": "../../etc"}, "/name", "invalid"),
    ({"run": "x", "name": "a/b"}, "/name", "invalid"),
    ({"run": "x", "apiVersion": "v2"}, "/apiVersion", "unknown_value"),
    ({"run": "x", "project": "secret"}, "/project", "unknown_project"),
    ({"run": "x", "pool": "defualt"}, "/pool", "unknown_pool"),
    ({"run": "x", "priority": "hihg"}, "/priority", "unknown_class"),
    ({"run": "x", "priority": "high"}, "/priority", "denied"),
    ({"run": "x", "priority": 900}, "/priority", "unknown_class"),
    ({"run": "x", "cpus": 0}, "/cpus", "out_of_range"),
    ({"run": "x", "cpus": float("nan")}, "/cpus", "out_of_range"),
    ({"run": "x", "cpus": True}, "/cpus", "out_of_range"),
    ({"run": "x", "memory": -1}, "/memory", "out_of_range"),
    ({"run": "x", "nodes": 1.5}, "/nodes", "out_of_range"),
    ({"run": "x", "nodes": 10**30}, "/nodes", "out_of_range"),
    ({"run": "x", "nodes": "2-4"}, "/nodes", "out_of_range"),
    ({"run": "x", "nodes": {}}, "/nodes/max", "missing"),
    ({"run": "x", "nodes": {"min": 2}}, "/nodes/max", "missing"),
    ({"run": "x", "nodes": {"min": 3, "max": 2}}, "/nodes/max", "out_of_range"),
    ({"run": "x", "nodes": {"min": 0, "max": 2}}, "/nodes/min", "out_of_range"),
    ({"run": "x", "nodes": {"min": 1, "max": 4096}}, "/nodes/max", "out_of_range"),
    ({"run": "x", "nodes": {"min": 1, "max": True}}, "/nodes/max", "out_of_range"),
    ({"run": "x", "nodes": {"min": 1, "mox": 2}}, "/nodes/mox", "unknown_key"),
    ({"run": "x", "time_limit": "3h"}, "/time_limit", "out_of_range"),
    ({"run": "x", "time_limit": "soon"}, "/time_limit", "invalid"),
    ({"run": "x", "begin": "2027-01-01T00:00:00"}, "/begin", "invalid"),
    ({"run": "x", "deadline": "2027-01-01T00:00:00"}, "/deadline", "invalid"),
    ({"run": "x", "deadline": "500d"}, "/deadline", "out_of_range"),
    ({"run": "x", "topology": {"mode": "required"}}, "/topology/within", "missing"),
    ({"run": "x", "topology": {"within": "rack", "mode": "must"}}, "/topology/mode", "unknown_value"),
    ({"run": "x", "env": {"A B": "1"}}, "/env/A B", "invalid_name"),
    ({"run": "x", "env": {"YARD_URL": "1"}}, "/env/YARD_URL", "reserved"),
    ({"run": "x", "env": {"A": "a\0b"}}, "/env/A", "invalid"),
    ({"run": "x", "env": ["A=1"]}, "/env", "not_a_mapping"),
    ({"run": "x", "labels": {"a b": 1}}, "/labels/a b", "invalid_name"),
    ({"run": "x", "bundle": "x"}, "/bundle", "invalid"),
    ({"run": "x", "retry": {"on": ["bad_luck"]}}, "/retry/on", "unknown_value"),
    ({"run": "x", "retry": {"max": 0}}, "/retry/max", "out_of_range"),
    ({"run": "x", "on_node_lost": "panic"}, "/on_node_lost", "unknown_value"),
    ({"run": "x", "task": "chess"}, "/task", "unknown_value"),
    ({"run": "x", "task": ["detection"]}, "/task", "unknown_value"),
    ({"run": "x", "preemption": {"grace": "1d"}}, "/preemption/grace", "out_of_range"),
    ({"run": "x", "precision": "fp7"}, "/precision", "unknown_value"),
    ({"run": "x", "hold": "yes"}, "/hold", "invalid"),
    ({"run": "x", "devices": "gpu"}, "/devices", "not_a_mapping"),
    ({"run": "x", "devices": {"any_of": []}}, "/devices/any_of", "not_a_list"),
    ({"run": "x", "devices": {"any_of": [{"kind": "gpu"}], "kind": "gpu"}}, "/devices/kind", "unknown_key"),
    ({"run": "x", "devices": {"kind": "gpuu"}}, "/devices/kind", "unknown_value"),
    ({"run": "x", "devices": {"count": 1}}, "/devices/kind", "missing"),
    ({"run": "x", "devices": {"kind": "gpu", "count": 0}}, "/devices/count", "out_of_range"),
    ({"run": "x", "devices": {"kind": "gpu", "milli": 1001}}, "/devices/milli", "out_of_range"),
    ({"run": "x", "devices": {"kind": "cpu", "count": 4}}, "/devices/count", "exclusive"),
    ({"devices": {"any_of": [{"kind": "gpu", "run": "x"}, {"kind": "cpu"}]}}, "/devices/any_of/1", "missing"),
    ({"run": "x", "stages": []}, "/stages", "not_a_list"),
    ({"run": "x", "stages": [{}]}, "/stages/0/name", "missing"),
    ({"run": "x", "stages": ["a"]}, "/stages/0", "not_a_mapping"),
    ({"run": "x", "stages": [{"name": "a"}, {"name": "A"}]}, "/stages/1/name", "duplicate"),
    ({"run": "x", "stages": [{"name": "a", "kind": "bake"}]}, "/stages/0/kind", "unknown_value"),
    ({"run": "x", "stages": [{"name": "a", "needs": ["b"]}]}, "/stages/0/needs/0", "unknown_stage"),
    ({"run": "x", "stages": [{"name": "a", "needs": "b"}]}, "/stages/0/needs", "not_a_list"),
    ({"run": "x", "stages": [{"name": "a"}, {"name": "b", "needs": ["a", "a"]}]}, "/stages/1/needs/1", "duplicate"),
    ({"run": "x", "stages": [{"name": "a", "needs": ["a"]}]}, "/stages/0/needs", "cycle"),
    ({"run": "x", "stages": [{"name": "a..b"}]}, "/stages/0/name", "invalid"),
    ({"run": "x", "stages": [{"name": "."}]}, "/stages/0/name", "invalid"),
    ({"run": "x", "stages": [{"name": "a", "bundle": "0" * 64}]}, "/stages/0/bundle", "unknown_key"),
]


@pytest.mark.parametrize(("spec", "pointer", "code"), FAULTS)
def test_a_fault_is_pointed_at(spec: Any, pointer: str, code: str) -> None:
    assert refused(spec)[pointer] == code


def test_the_kind_of_a_stage_in_the_place_of_that_of_the_file_is_told_where_it_stands() -> None:
    said = sentence({"run": "x", "kind": "train"}, "/kind")
    assert "below stages, as kind: train" in said


def test_a_fault_of_the_job_that_stages_inherit_is_told_once_and_where_it_stands() -> None:
    spec = {"retry": {"max": 0}, "run": "x", "stages": [{"name": "a"}, {"name": "b"}]}
    assert refused(spec) == {"/retry/max": "out_of_range"}


def test_leads_may_use_restricted_classes_and_staff_any_number() -> None:
    assert accepted({"run": "x", "priority": "high"}, may_use_class=lambda found, project: True).priority == 750
    job = accepted({"run": "x", "priority": 901}, may_number=True)
    assert (job.priority_class, job.priority) == ("custom", 901)


def test_a_class_or_a_file_can_forbid_preemption() -> None:
    assert accepted({"run": "x", "priority": "solid"}).stages[0].request["preemptible"] is False
    assert accepted({"run": "x", "preemption": {"allowed": False}}).stages[0].request["preemptible"] is False


def test_retries_without_causes_mean_any_fault_but_the_time_limit_and_a_failed_setup() -> None:
    tries = accepted({"run": "x", "retry": {"max": 3, "backoff": "1m"}}).stages[0].request["retry"]
    assert (tries["max"], tries["backoff_s"]) == (3, 60.0)
    assert {"exit_code", "node_fail"} <= set(tries["on"])
    assert not {"timeout", "setup_failed", "held_idle"} & set(tries["on"])
    named = {"run": "x", "retry": {"max": 2, "on": ["setup_failed"]}}
    assert accepted(named).stages[0].request["retry"]["on"] == ["setup_failed"]
    assert accepted({"run": "x", "retry": {"max": 2, "on": ["node_fail"]}}).stages[0].request["retry"]["on"] == [
        "node_fail"
    ]


def test_profiling_is_allowed_by_tool_for_the_job_or_a_stage() -> None:
    both = {"profiling": {"allow": ["torch", "py-spy"]}}
    assert accepted({"run": "x", **both}).stages[0].request["profiling"] == ["py-spy", "torch"]
    stages = [{"name": "a", "run": "x"}, {"name": "b", "run": "x", "profiling": {"allow": []}}]
    first, second = accepted({"stages": stages, **both}).stages
    assert first.request["profiling"] == ["py-spy", "torch"]
    assert "profiling" not in second.request
    assert "profiling" not in accepted({"run": "x", "profiling": {}}).stages[0].request
    assert set(refused({"run": "x", "profiling": ["torch"]})) == {"/profiling"}


def test_a_utilization_policy_has_defaults_and_bounds() -> None:
    policy = {"min": 0.1, "window_s": 1800.0, "action": "notify"}
    assert accepted({"run": "x", "utilization_policy": {}}).stages[0].request["utilization_policy"] == policy
    given = {"min": "2.5 %", "window": "1d", "action": "stop"}
    kept = accepted({"run": "x", "utilization_policy": given}).stages[0].request["utilization_policy"]
    assert kept == {"min": 0.025, "window_s": 86400.0, "action": "stop"}
    bad = {"min": "0%", "window": "4m", "action": "kill"}
    assert set(refused({"run": "x", "utilization_policy": bad})) == {f"/utilization_policy/{key}" for key in bad}


def test_a_service_runs_without_a_limit_and_other_stages_get_the_limit_of_the_pool() -> None:
    serve, train = accepted(
        {"run": "x", "stages": [{"name": "s", "kind": "serve"}, {"name": "t", "kind": "train"}]}
    ).stages
    assert serve.request["time_limit_s"] is None
    assert train.request["time_limit_s"] == 3600.0


def test_a_model_tells_its_kind() -> None:
    for model, kind in {"H100": "gpu", "Ascend910B": "npu", "RTX 4090": "gpu", "MI300X": "gpu"}.items():
        job = accepted({"run": "x", "devices": {"model": model}})
        assert job.stages[0].request["alternatives"][0]["asks"][0]["kind"] == kind
    known = demand.DeviceCatalogue(models={"acme tensor one": "npu"})
    job = accepted({"run": "x", "devices": {"model": "Tensor One"}}, known=known)
    assert job.stages[0].request["alternatives"][0]["asks"][0]["kind"] == "npu"


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        (90, 90), (1.5, 1.5), ("90", 90), ("90s", 90), ("12h", 43_200), ("1h30m", 5400), ("2d", 172_800),
        ("1w", 604_800), ("1-02:00:00", 93_600), ("02:00:00", 7200), ("30:00", 1800), ("PT1H30M", 5400),
        ("P1DT2H", 93_600), ("pt90s", 90), ("P2W", 1_209_600), ("1.5h", 5400),
    ],
)  # fmt: skip
def test_durations_are_read(text: Any, seconds: float) -> None:
    assert values.parse_duration(text) == seconds


@pytest.mark.parametrize(
    "text", ["", "P", "PT", "1y", "h", "-5s", "1:2:3:4", "1h 30", float("inf"), None, True, [], "9" * 99]
)
def test_what_is_no_duration_is_refused(text: Any) -> None:
    with pytest.raises(values.Unacceptable):
        values.parse_duration(text)


@pytest.mark.parametrize(
    ("text", "count"),
    [
        (1, 1), ("1", 1), ("8GiB", 8 * GIB), ("512MB", 512_000_000), ("1.5 GiB", 3 * GIB // 2), ("8G", 8 * GIB),
        ("1Ki", 1024), ("1kb", 1000), ("2TiB", 2**41),
    ],
)  # fmt: skip
def test_sizes_are_read(text: Any, count: int) -> None:
    assert values.parse_size(text) == count


@pytest.mark.parametrize("text", ["", "GiB", "8 gigs", "-1", "1e9", None, True, 1.5, "8GiB..16GiB"])
def test_what_is_no_size_is_refused(text: Any) -> None:
    with pytest.raises(values.Unacceptable):
        values.parse_size(text)


@given(st.integers(0, 10**9))
def test_a_spoken_duration_reads_as_itself(seconds: int) -> None:
    assert values.parse_duration(values.spoken(seconds)) == seconds


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=10), inner, max_size=4),
    max_leaves=10,
)
KEYS = [
    "run",
    "command",
    "env",
    "nodes",
    "devices",
    "cpus",
    "memory",
    "time_limit",
    "begin",
    "retry",
    "labels",
    "stages",
    "preemption",
    "checkpoint",
    "precision",
    "expected",
    "deadline",
    "priority",
    "project",
    "pool",
    "name",
    "hold",
    "bundle",
]


@pytest.mark.parametrize(
    ("deadline", "kept"),
    [
        ("2027-01-31T18:00:00+08:00", {"deadline_at": 1801389600.0}),
        ("12h", {"deadline_s": 43_200.0}),
        (90, {"deadline_s": 90.0}),
    ],
)
def test_a_deadline_is_a_moment_or_so_long_after_the_submit(deadline: object, kept: dict[str, float]) -> None:
    request = accepted({"run": "x", "deadline": deadline}).stages[0].request
    assert {name: value for name, value in request.items() if name.startswith("deadline")} == kept


@given(st.dictionaries(st.sampled_from(KEYS), json_values))
def test_any_mapping_is_resolved_or_refused_with_sentences(spec: dict[str, Any]) -> None:
    try:
        job = accepted(spec)
    except InvalidSpec as error:
        faults = error.errors
    else:
        assert all(way["argv"] for stage in job.stages for way in stage.request["alternatives"])
        return
    assert faults
    assert all(fault.detail and fault.code for fault in faults)


def test_a_task_says_what_suits_it() -> None:
    def stage(**more: Any) -> tuple[list[str], str]:
        request = accepted({"stages": [{"name": "a", "run": "x", **more}]}).stages[0].request
        return [way["asks"][0]["kind"] for way in request["alternatives"]], request["precision"]

    assert stage(kind="infer", task="detection") == (["npu", "gpu", "cpu"], "int8")
    assert stage(kind="infer", task="detection", precision="fp16") == (["npu", "gpu", "cpu"], "fp16")
    assert stage(kind="serve", task="generation") == (["gpu", "npu", "cpu"], "")
    assert stage(kind="train", task="detection") == (["gpu", "cpu"], "")
    assert stage(kind="infer", task="detection", devices={"kind": "gpu"})[0] == ["gpu"]
    assert "detection" in sentence({"run": "x", "task": "chess"}, "/task")


def test_the_dry_run_says_why_it_runs_there() -> None:
    def why(**more: Any) -> str:
        return str(accepted({"stages": [{"name": "a", "run": "x", **more}]}).plain()["stages"][0]["why"])

    assert why(kind="infer", task="detection").startswith(
        "names no devices: what suits task detection is npu, gpu, cpu"
    )
    assert why(kind="extract").startswith("names no devices: what suits kind extract is npu, gpu, cpu")
    assert why(kind="extract", devices={"kind": "gpu"}) == ""


def test_extracting_takes_little_of_a_gpu() -> None:
    request = accepted({"stages": [{"name": "a", "kind": "extract", "run": "x"}]}).stages[0].request
    assert [way["asks"][0]["milli"] for way in request["alternatives"][:2]] == [1000, demand.LIGHT_MILLI]


def test_a_pool_says_what_happens_to_stages_of_lost_nodes_unless_the_file_does() -> None:
    pool = SimpleNamespace(name="default", default_limit_s=3600, max_limit_s=7200, on_node_lost="requeue")
    there = {"pools": {"default": pool}}
    assert accepted({"run": "x"}, **there).stages[0].request["on_node_lost"] == "requeue"
    assert accepted({"run": "x", "on_node_lost": "wait"}, **there).stages[0].request["on_node_lost"] == "wait"
