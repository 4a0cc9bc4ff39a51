"""Query parameters of every list: each is read as its type or refused by name, also where no middleware stands."""

from __future__ import annotations

import math
from datetime import datetime
from typing import Any
from urllib.parse import quote

import msgspec
import pytest
from django.http import HttpRequest, QueryDict
from hypothesis import given
from hypothesis import strategies as st
from rest_framework.request import Request

from controlplane.api import decisions, jobs, logs, metrics, timeline
from controlplane.api.live import read
from controlplane.api.problem import Refused
from controlplane.api.resource import asked
from controlplane.wellformed import LARGEST_WHOLE, MOST_PARAMETERS, fault_of_query
from tests.controlplane.conftest import town  # noqa: F401  the fixture
from tests.controlplane.people import Town
from tests.fuzz.hostile import WORDS

MODULES = (decisions, jobs, logs, metrics, timeline)
SHAPES = sorted(
    {each for module in MODULES for name, each in vars(module).items() if name.endswith("Query") and issubclass(each,
    msgspec.Struct)},
    key=lambda shape: shape.__name__,
)  # fmt: skip
QUOTED = st.sampled_from(WORDS) | st.text(max_size=30).map(
    lambda text: quote(text.encode("utf-8", "surrogatepass"), safe="")
)


def request_of(query: str) -> Request:
    found = HttpRequest()
    found.META["QUERY_STRING"], found.GET = query, QueryDict(query)
    return Request(found)


@given(st.sampled_from(SHAPES), st.data())
def test_each_parameter_is_read_or_refused(shape: type[msgspec.Struct], data: Any) -> None:
    names = [field.encode_name for field in msgspec.structs.fields(shape)]
    pairs = data.draw(st.lists(st.tuples(st.sampled_from([*names, "other"]), QUOTED), max_size=4))
    try:
        found = asked(request_of("&".join(f"{name}={value}" for name, value in pairs)), shape)
    except Refused as refused:
        assert (refused.status, refused.code) == (400, "invalid")
        return
    for field in msgspec.structs.fields(shape):
        value = getattr(found, field.name)
        assert not isinstance(value, int) or abs(value) <= LARGEST_WHOLE
        assert not isinstance(value, float) or math.isfinite(value)
        assert not isinstance(value, str) or "\0" not in value
        assert not isinstance(value, datetime) or 1970 <= value.year <= 2200


@given(st.text(max_size=200))
def test_any_query_string_is_judged(query: str) -> None:
    fault = fault_of_query(query)
    assert isinstance(fault, str)
    fault.encode()


def test_many_parameters_are_counted_not_parsed() -> None:
    assert "at most" in fault_of_query("a=1&" * MOST_PARAMETERS)
    assert fault_of_query("&".join(["a=1"] * MOST_PARAMETERS)) == ""


@pytest.mark.parametrize("word", WORDS)
def test_what_a_socket_or_a_page_asks_is_judged_alike(town: Town, word: str) -> None:
    for path in (
        "jobs?q=",
        "jobs?limit=",
        "jobs?cursor=",
        "events?kind=",
        "timeline?from=",
        "nodes/",
        "jobs/",
        "devices/",
    ):
        status, _etag, _content = read(f"/api/v1/{path}{word}", town.user)
        assert status < 500, path
