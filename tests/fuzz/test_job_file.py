"""Job files, on both ends: any YAML or JSON is a job or a sentence about what is wrong with it, at a bounded cost."""

from __future__ import annotations

import json
import tracemalloc
from typing import Any

import pytest
import yaml
from django.test import override_settings
from hypothesis import given
from hypothesis import strategies as st

from controlplane.accounts.models import Project
from controlplane.documents import DEEPEST_BODY, MOST_VALUES, Unreadable, from_json, from_yaml
from controlplane.jobs.spec import JOB_KEYS, STAGE_KEYS, InvalidSpec, SubmitRules, resolve
from controlplane.jobs.values import Unacceptable, duration, moment, parse_duration, parse_size
from controlplane.pools.models import Pool, PriorityClass
from switchyard import jobfile
from switchyard.problem import SpecError
from tests.fuzz.hostile import BODIES, JSON

RULES = SubmitRules(
    {"default": Project(name="default")}, {"default": Pool(name="default")}, {"medium": PriorityClass(name="medium",
    value=500)}, "default"
)  # fmt: skip
PLAIN = (
    st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=12) | st.sampled_from(["1h", "12GiB", "gpu", "P1W", "0001-01-01T00:00:00+14:00",
    "9999-12-31T23:59:59-14:00", "²", "1e400"])
)  # fmt: skip
KEYS = st.sampled_from(
    [*JOB_KEYS, *STAGE_KEYS, "any_of", "min", "max", "on", "keep", "within", "count", "milli", "partition", "path"]
) | st.text(max_size=5)
VALUES = st.recursive(
    PLAIN, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=4), max_leaves=10
)


def spoken(text: str) -> bool:
    """Whether a sentence can be sent and shown."""
    text.encode()
    return bool(text) and "\0" not in text


@given(st.dictionaries(KEYS, VALUES, max_size=6))
def test_any_mapping_is_a_job_or_a_list_of_faults(spec: dict[str, Any]) -> None:
    try:
        job = resolve({"run": "true", **spec}, RULES)
    except InvalidSpec as error:
        assert error.errors
        assert all(spoken(fault.detail) for fault in error.errors)
    else:
        json.dumps(job.plain(), allow_nan=False)


@given(st.binary(max_size=300) | st.sampled_from(BODIES) | st.sampled_from(JSON).map(str.encode))
def test_any_bytes_are_a_value_that_can_be_kept_or_a_sentence(content: bytes) -> None:
    for parse in (from_json, from_yaml):
        try:
            value = parse(content)
        except Unreadable as error:
            assert spoken(str(error))
        else:
            text = json.dumps(value, allow_nan=False, ensure_ascii=False)
            text.encode()
            assert "\\u0000" not in text


@given(st.text(max_size=200) | VALUES.map(lambda value: yaml.safe_dump(value, allow_unicode=True)))
def test_the_client_reads_what_the_server_reads_or_says_why_not(text: str) -> None:
    try:
        mine: Any = jobfile.value(text)
    except SpecError as error:
        assert str(error)
        mine = error
    try:
        theirs: Any = from_yaml(text.encode("utf-8", "surrogatepass"))
    except Unreadable:
        return
    assert mine == theirs


@given(st.dictionaries(KEYS, VALUES, max_size=3), st.lists(st.text(max_size=20), max_size=3))
def test_any_assignment_is_made_or_refused(spec: dict[str, Any], assignments: list[str]) -> None:
    try:
        jobfile.put(spec, assignments)
    except SpecError as error:
        assert str(error)


@given(PLAIN)
def test_any_single_value_is_read_or_refused(value: object) -> None:
    for read in (parse_duration, parse_size, moment, duration(0, 60)):
        try:
            read(value)
        except Unacceptable as error:
            assert spoken(str(error))


BOMBS = [
    b"a: &a [x, x]\nb: &b [*a, *a]\nc: [*b, *b]\n",
    b"[" * 200_000,
    b"{a: " * 50_000,
    b"- " * 100_000 + b"x",
    b"[" + b"[]," * 200_000 + b"[]]",
    b"a: " + b"9" * 900_000,
    b"a: 1e400",
    b"a: -1e999",
    b"a: 9999999999999999999",
    b'a: "\\0"',
    b'a: "\\ud800"',
    b"? {a: b}\n: c",
    b"a: !!binary x",
]


@pytest.mark.parametrize("content", BOMBS, ids=range(len(BOMBS)))
def test_a_bomb_is_refused_by_both_before_it_grows(content: bytes) -> None:
    tracemalloc.start()
    try:
        try:
            from_yaml(content)
        except Unreadable as error:
            assert len(str(error)) < 1_000
        else:
            assert content.startswith(b"a: 999999"), "digits beyond a number are a text"
        try:
            jobfile.parse(content.decode())
        except SpecError as error:
            assert len(str(error)) < 1_000
        assert tracemalloc.get_traced_memory()[1] < 80 * 2**20
    finally:
        tracemalloc.stop()


def test_json_is_counted_before_a_value_is_made() -> None:
    for content in (
        b"[" + b"[]," * (MOST_VALUES + 1) + b"[]]",
        b"[" * 5_000_000,
        b'{"a":' * 1_000_000,
        b'"' + b'\\"' * 2_000_000,
    ):
        tracemalloc.start()
        try:
            with pytest.raises(Unreadable, match=r"at most|no JSON"):
                from_json(content)
            assert tracemalloc.get_traced_memory()[1] < 2 * len(content) + 2**20
        finally:
            tracemalloc.stop()
    text = json.dumps({"text": ",[{" * MOST_VALUES})
    assert from_json(text.encode()) == json.loads(text), "what stands in a text is not counted"
    assert from_json(b"[" * DEEPEST_BODY + b"]" * DEEPEST_BODY)
    with pytest.raises(Unreadable, match="levels"):
        from_json(b"[" * (DEEPEST_BODY + 1) + b"]" * (DEEPEST_BODY + 1))


@override_settings(DEVICE_KINDS=frozenset())
def test_a_kind_that_nothing_has_is_refused_with_those_there_are() -> None:
    with pytest.raises(InvalidSpec, match='no kind of device is called "gpuu"; did you mean gpu'):
        resolve({"run": "true", "devices": {"kind": "gpuu"}}, RULES)
