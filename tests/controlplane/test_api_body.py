"""Bodies that are too large, too deep or too clever are refused before they cost anything."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controlplane.api.problem import RequestRefused
from controlplane.documents import Unreadable, from_json, from_yaml
from tests.controlplane.people import Town

BOMB = "a: &a [x, x]\nb: &b [*a, *a]\nc: &c [*b, *b]\nd: [*c, *c]\n"


@pytest.mark.parametrize(
    ("text", "word"),
    [
        (BOMB, "anchors"),
        ("a: &x 1", "anchors"),
        ("a: *x", "anchors"),
        ("[" * 30 + "]" * 30, "levels"),
        ("\n".join(f"- {i}" for i in range(10_001)), "values"),
        ("a: 1\na: 2", "twice"),
        ("? [a, b]\n: 1", "word"),
        ("a: !!python/object/apply:os.system [id]", "constructor"),
        ("a: !secret x", "constructor"),
        ("a: [", "line"),
        ("a: 1\n---\nb: 2", "document"),
        (b"\xff\xfe", "UTF-8"),
        ("\x00", "YAML"),
    ],
)
def test_dangerous_yaml_is_refused(text: str | bytes, word: str) -> None:
    with pytest.raises(Unreadable, match=word):
        from_yaml(text if isinstance(text, bytes) else text.encode())


def test_yaml_reads_the_words_of_its_newer_version() -> None:
    read = from_yaml(
        b"on: [yes, no, off, true, ~]\nat: 2027-01-31\nclock: 12:30:00\nfloat: 1e-4\noctal: 0777\nnull: 1\n"
        b"neg: -3\nplus: +4\nhalf: .5\nempty:\n8: eight\n"
    )
    assert read == {
        "on": ["yes", "no", "off", True, None],
        "at": "2027-01-31",
        "clock": "12:30:00",
        "float": 0.0001,
        "octal": "0777",
        "None": 1,
        "neg": -3,
        "plus": 4,
        "half": 0.5,
        "empty": None,
        "8": "eight",
    }


@pytest.mark.parametrize(
    "text",
    ["{", "[" * 100_000, '{"a": 1, "a": 2}', "NaN", "1" + "0" * 10_000, "\ud800".encode("utf-8", "surrogatepass")],
)
def test_dangerous_json_is_refused(text: str | bytes) -> None:
    with pytest.raises(Unreadable):
        from_json(text if isinstance(text, bytes) else text.encode())


@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_refused(content: bytes) -> None:
    for parse in (from_yaml, from_json):
        try:
            parse(content)
        except (Unreadable, RequestRefused):
            continue


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers(-(10**15), 10**15) | st.text("abc xyz-_", max_size=8),
        lambda inner: (
            st.lists(inner, max_size=4) | st.dictionaries(st.text("abc", min_size=1, max_size=4), inner, max_size=4)
        ),
        max_leaves=12,
    )
)
def test_json_is_yaml_too(value: Any) -> None:
    text = json.dumps(value).encode()
    assert from_yaml(text) == from_json(text) == value


@pytest.mark.parametrize(
    ("body", "kind", "status"),
    [
        (b"x" * (2**20 + 1), "application/yaml", 413),
        (b" " * (2**20 + 1), "application/json", 413),
        (BOMB.encode(), "application/yaml", 400),
        (b"[" * 1000, "application/json", 400),
        (b'{"run": ' + b"[" * 25 + b"]" * 25 + b"}", "application/json", 422),
        (json.dumps({"run": "x", "labels": list(range(10_001))}).encode(), "application/json", 422),
        (b"run=x", "application/x-www-form-urlencoded", 415),
        (b"<job/>", "text/xml", 415),
        (b"", "application/json", 422),
        (b"null", "application/json", 422),
        (b"[]", "application/json", 422),
        (b"just words", "application/yaml", 422),
    ],
)
def test_bad_bodies_become_problems(town: Town, body: bytes, kind: str, status: int) -> None:
    answer = town.owner.post("/jobs", body, kind=kind)
    assert answer.status_code == status, answer.content
    assert answer["Content-Type"] == "application/problem+json"
    assert json.loads(answer.content)["status"] == status


def test_texts_in_the_names_of_things_come_back_as_they_were(town: Town) -> None:
    town.machine()
    job = town.job(labels={"note": "<script>alert(1)</script> \u202e \x1b[31m"})
    answer = town.owner.get(f"/jobs/{job.number}")
    assert answer["Content-Type"] == "application/json"
    assert answer["X-Content-Type-Options"] == "nosniff"
    assert json.loads(answer.content)["labels"]["note"] == "<script>alert(1)</script> \u202e \x1b[31m"
