"""Cursors come back from strangers: what no list has given out is refused, whatever its key."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controlplane.fleet.models import Node
from controlplane.jobs.models import Job
from controlplane.queries.cursor import LONGEST_CURSOR, key_field, read_cursor
from controlplane.queries.refusals import Unanswerable
from controlplane.wellformed import LARGEST_WHOLE
from tests.fuzz.hostile import CURSORS

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20), lambda inner: st.lists(inner,
    max_size=4), max_leaves=6
)  # fmt: skip
LISTS = [(Job, "number", int), (Node, "name", str), (Node, "sort_key", str)]


def tried(text: str, model: Any, key: str, kind: type) -> None:
    try:
        cursor = read_cursor(text, key_field(model.objects.all(), key))
    except Unanswerable:
        return
    if cursor is not None:
        assert type(cursor.after) is kind
        if isinstance(cursor.after, int):
            assert abs(cursor.after) <= LARGEST_WHOLE
        else:
            assert "\0" not in cursor.after
            cursor.after.encode()


@given(st.text(max_size=100) | st.sampled_from(CURSORS), st.sampled_from(LISTS))
def test_any_text_is_read_or_refused(text: str, of: tuple[Any, str, type]) -> None:
    tried(text, *of)


@given(VALUES, st.sampled_from(LISTS))
def test_any_content_is_read_or_refused(value: Any, of: tuple[Any, str, type]) -> None:
    tried(base64.urlsafe_b64encode(json.dumps(value).encode()).decode().rstrip("="), *of)


@given(st.booleans(), st.integers(-LARGEST_WHOLE, LARGEST_WHOLE))
def test_what_a_list_gives_out_is_taken_back(backwards: bool, number: int) -> None:
    text = base64.urlsafe_b64encode(json.dumps([backwards, number]).encode()).decode().rstrip("=")
    found = read_cursor(text, key_field(Job.objects.all(), "number"))
    assert found is not None
    assert (found.backwards, found.after) == (backwards, number)
    with pytest.raises(Unanswerable):
        read_cursor(text, key_field(Node.objects.all(), "sort_key"))


def test_a_long_one_is_not_even_decoded() -> None:
    with pytest.raises(Unanswerable):
        read_cursor("A" * (LONGEST_CURSOR + 1), key_field(Job.objects.all(), "number"))
