"""The JSON Schema of the job file and its parser agree: what is accepted is valid, and typical mistakes are not."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from django.test import Client
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from controlplane.documents import from_yaml
from controlplane.jobs import file_schema
from controlplane.jobs.depends_on import Earlier
from controlplane.jobs.spec import InvalidSpec, resolve
from tests.controlplane.test_spec import rules

ROOT = Path(__file__).parents[2]
VALIDATOR = Draft202012Validator(file_schema.schema())
FOUND = {name: Earlier(name) for name in ("1399", "42", "42_7")}

NAMES = st.sampled_from(["a", "prep", "train.2", "x" * 63, "", "a/b", "-a", "a b", 7, None])
NUMBERS = st.one_of(st.sampled_from([0, 1, 2, 16, 1024, 1025, -1, 0.5, 10**9]), st.booleans(), st.none())
SIZES = st.sampled_from(["8GiB", "512 MB", "1k", 2**30, 0, -1, "8 gallons", "", None, 1.5, True])
SPANS = st.sampled_from(
    ["90s", "1h30m", "1-02:00:00", "02:00:00", "PT1H", "p1d", 60, 0.5, 10**9, "soon", "", None, True]
)
WORDS = st.sampled_from(["x", "gpu", "H100", "行列", "r2", "site-1", "", " ", 1, True, None, [], {}])
ENV = st.dictionaries(
    st.sampled_from(["A", "_b1", "1A", "YARD_X", "a-b", ""]), st.sampled_from(["v", 1, 0.5, True, None, []]), max_size=3
)
RUN = st.fixed_dictionaries(
    {},
    optional={
        "run": st.sampled_from(["echo hi", " ", "", None, 3]),
        "command": st.sampled_from([["python", "t.py", 3], [], "python t.py", [True], [""], None]),
        "env": ENV,
        "image": st.sampled_from(["torch:2.9", "registry.local/pytorch:2.9", "", "a b", None]),
    },
)


def some(**optional: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries({}, optional=optional)


def joined(one: st.SearchStrategy[dict[str, Any]], other: st.SearchStrategy[dict[str, Any]]) -> st.SearchStrategy[Any]:
    return st.builds(lambda a, b: {**a, **b}, one, other)


WAY = joined(
    RUN,
    some(
        kind=st.sampled_from(["cpu", "gpu", "npu", "GPU", "tpu", None]),
        vendor=WORDS,
        model=WORDS,
        count=NUMBERS,
        milli=NUMBERS,
        memory=SIZES,
        partition=st.sampled_from(["1g.10gb", "smallest", "half", None]),
        sharing=st.sampled_from(["soft", "hard", "none", None]),
    ),
)
SHARED = joined(
    RUN,
    some(
        nodes=st.one_of(NUMBERS, some(min=NUMBERS, max=NUMBERS)),
        devices=st.one_of(WAY, st.builds(lambda ways: {"any_of": ways}, st.lists(WAY, max_size=2)), st.none(), WORDS),
        cpus=NUMBERS,
        memory=SIZES,
        time_limit=SPANS,
        expected=SPANS,
        deadline=st.one_of(SPANS, st.sampled_from(["2027-01-31T18:00:00Z", "2027-01-31", "20270131T180000Z"])),
        begin=st.sampled_from(["2027-01-31T18:00:00Z", "2027-01-31 18:00:00+08:00", "tomorrow", 7, None]),
        retry=some(
            max=NUMBERS,
            backoff=SPANS,
            on=st.sampled_from([["node_fail"], ["NODE_FAIL"], ["Signal"], ["x"], "signal", None]),
        ),
        on_node_lost=st.sampled_from(["wait", "requeue", "requeue_fast", "never", None]),
        preemption=some(
            allowed=st.sampled_from([True, "yes", None]), grace=SPANS, to=st.sampled_from(["main", "group", "all"])
        ),
        checkpoint=some(keep=NUMBERS, interval_hint=SPANS, framework=WORDS, dir=st.sampled_from([None, "/x"])),
        precision=st.sampled_from(["bf16", "fp7", None]),
        task=st.sampled_from(["ocr", "chess", None]),
        topology=some(within=WORDS, mode=st.sampled_from(["required", "preferred", "maybe"])),
        disk=st.sampled_from(["200GiB", "1 GB", 1, "x", None]),
        disk_bandwidth=st.sampled_from(["500MB/s", "2 GiB/s", "10Gbit/s", "10Gb/s", "500", 500, "0MB/s", None]),
        launcher=st.sampled_from(["per-node", "per-device", "other", None]),
        utilization_policy=some(
            min=st.sampled_from(["10%", " 2.5 %", "0%", "101%", 0.1, "10", None]),
            window=st.one_of(SPANS, st.sampled_from(["5m", "1d", "4m", "25h"])),
            action=st.sampled_from(["notify", "give_back", "stop", "kill", None]),
        ),
        setup=st.sampled_from(["pip install x", " ", "", 3, ["a"], None]),
        outputs=st.lists(st.sampled_from(["model", "a/b", "", 1]), max_size=2),
        inputs=st.lists(
            some(
                source=st.sampled_from(["/data/x", "https://h/x", "x"]),
                sha256=st.sampled_from(["a" * 64, "b"]),
                path=WORDS,
                shard=st.sampled_from([True, 1]),
            ),
            max_size=1,
        ),
        avoid=st.lists(st.sampled_from(["n1", {"rack": "r2"}, {"rack": 2}, {"a": "b", "c": "d"}, 3, ""]), max_size=2),
        site=WORDS,
    ),
)
STAGE = joined(
    SHARED,
    some(
        name=NAMES,
        kind=st.sampled_from(["train", "infer", "cook", None]),
        needs=st.sampled_from([[], [{"stage": "a"}], ["a"], "a", None]),
    ),
)
ARRAY = some(
    indexes=st.sampled_from(["0-15:2,20", "7", 7, " 1 , 2-3 ", "0-3%2", "a", "", None, -1, "3-1"]),
    parameters=st.dictionaries(
        st.sampled_from(["lr", "Seed_1", "1a", "a-b"]),
        st.sampled_from(
            [
                [1, 2],
                ["a", True, 0.5],
                [],
                [1, 1],
                [[1]],
                {"uniform": [0, 1]},
                {"integers": [1, 8]},
                {"normal": [0, 1]},
                3,
            ]
        ),
        max_size=2,
    ),
    max_parallel=NUMBERS,
    sample=NUMBERS,
    seed=NUMBERS,
    halving=some(
        metric=st.sampled_from(["loss", "", "x" * 65, 3, None]),
        goal=st.sampled_from(["minimize", "maximize", "min", None]),
        min_steps=NUMBERS,
        reduction_factor=st.sampled_from([2, 3, 10, 1, 11, 2.5, None]),
        rungs=NUMBERS,
    ),
)
DEPENDS = st.lists(
    some(
        job=st.sampled_from([1399, "1399", 42, "42_7", "x", -1, True, None]),
        when=st.sampled_from(["afterok", "afterany", "afternotok", "aftercorr", "singleton", "later", None]),
    ),
    max_size=2,
)
FILE = joined(
    SHARED,
    some(
        apiVersion=st.sampled_from(["v1", "v2"]),
        kind=st.sampled_from(["Job", "Pod"]),
        name=WORDS,
        project=st.sampled_from(["vision", "x", None]),
        priority=st.sampled_from(["medium", "solid", 3, "x", None]),
        labels=st.dictionaries(st.sampled_from(["team", "a/b", "-", ""]), WORDS, max_size=2),
        hold=st.sampled_from([True, "yes", None]),
        stages=st.lists(STAGE, max_size=2),
        array=ARRAY,
        depends_on=DEPENDS,
        notify=st.lists(
            some(
                on=st.sampled_from([["failed"], ["failed", "failed"], [], ["x"], "failed", None]),
                to=st.sampled_from(["email", "webhook:chat", "webhook:", "x@example.org", 3, None]),
            ),
            max_size=2,
        ),
        bundle=st.sampled_from(["a" * 64, "", "x", None]),
        workdir=st.sampled_from([".", None]),
        nothing=st.just(1),
    ),
)


def is_accepted(spec: Any) -> bool:
    try:
        resolve(spec, rules(may_number=True, earlier=FOUND.get, nodes=lambda: {"n1"}, webhooks=lambda _: {"chat"}))
    except InvalidSpec:
        return False
    return True


def faults(spec: Any) -> list[str]:
    return [f"{'/'.join(map(str, one.absolute_path))}: {one.message[:200]}" for one in VALIDATOR.iter_errors(spec)]


# Few keys at once: a file with many is hardly ever accepted.
ONE = st.one_of(
    *(
        st.builds(lambda part, run: {**run, **part}, some_part, st.sampled_from([{"run": "x"}, {}]))
        for some_part in (FILE, SHARED)
    ),
    st.builds(
        lambda key, whole: {"run": "x", **({key: whole[key]} if key in whole else {})},
        st.sampled_from(sorted(file_schema.schema()["properties"])),
        FILE,
    ),
)


@given(ONE)
def test_what_the_parser_accepts_is_valid(spec: dict[str, Any]) -> None:
    if is_accepted(spec):
        assert faults(spec) == []


def test_the_schema_is_one_and_the_files_that_we_show_are_valid() -> None:
    Draft202012Validator.check_schema(file_schema.schema())
    shown = [from_yaml(path.read_bytes()) for path in ROOT.glob("examples/*/job.yaml")]
    page = (ROOT / "docs/reference/job-file.md").read_text() + (ROOT / "docs/how-to/arrays.md").read_text()
    blocks = [from_yaml(text.encode()) for text in re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)]
    shown += [block for block in blocks if "run" in block or "stages" in block]
    assert len(shown) >= 7
    assert [faults(spec) for spec in shown] == [[]] * len(shown)


@pytest.mark.parametrize(
    "mistake",
    [
        {},
        {"runs": "x"},
        {"run": "x", "cpu": 1},
        {"run": "x", "nodes": 0},
        {"run": "x", "nodes": "two"},
        {"run": "x", "command": ["y"]},
        {"run": ["x"]},
        {"command": "python train.py"},
        {"run": "x", "devices": {"kind": "gpu", "number": 2}},
        {"run": "x", "devices": {"kind": "gpu", "count": 0}},
        {"run": "x", "devices": {"any_of": []}},
        {"run": "x", "env": {"YARD_X": "1"}},
        {"run": "x", "env": ["A=1"]},
        {"run": "x", "memory": "8 gallons of"},
        {"run": "x", "time_limit": "soon"},
        {"run": "x", "precision": "fp7"},
        {"run": "x", "retry": {"max": 3, "on": ["node_failure"]}},
        {"run": "x", "hold": "yes"},
        {"stages": [{"run": "x"}]},
        {"stages": [{"name": "a", "run": "x", "need": ["b"]}]},
        {"stages": []},
        {"stages": [{"name": "a/b", "run": "x"}]},
        {"stages": [{"name": "a", "kind": "training", "run": "x"}]},
        {"stages": [{"name": "a", "run": "x", "array": {"indexes": "0-3"}}]},
        {"run": "x", "array": {}},
        {"run": "x", "array": {"indexes": "0-3%2"}},
        {"run": "x", "array": "0-3"},
        {"run": "x", "array": {"indexes": "0-3", "parameters": {"a": [1]}}},
        {"run": "x", "array": {"parameters": {"a": 1}}},
        {"run": "x", "array": {"parameters": {"a": {"normal": [0, 1]}}, "sample": 3}},
        {"run": "x", "depends_on": [{"when": "afterok"}]},
        {"run": "x", "depends_on": [{"job": 1, "when": "singleton"}]},
        {"run": "x", "depends_on": [1399]},
        {"run": "x", "depends_on": [{"job": "nightly"}]},
    ],
    ids=json.dumps,
)
def test_a_typical_mistake_is_neither_accepted_nor_valid(mistake: dict[str, Any]) -> None:
    assert not is_accepted(mistake)
    assert faults(mistake)


def test_it_is_published_to_everybody_and_may_be_kept() -> None:
    answer = Client().get(file_schema.PATH)
    assert (answer.status_code, answer["Cache-Control"]) == (200, "public, max-age=3600")
    found = json.loads(answer.content)
    assert found["$id"].endswith(file_schema.PATH)
    assert found["properties"] == file_schema.schema()["properties"]
    again = Client(headers={"if-none-match": answer["ETag"]}).get(file_schema.PATH)
    assert (again.status_code, again.content) == (304, b"")
