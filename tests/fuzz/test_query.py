"""Query parameters of every list: each is read as its type or refused by name, also where no middleware stands."""

from __future__ import annotations

import math
from decimal import Decimal
from typing import Any
from urllib.parse import quote

import pytest
from django.http import QueryDict
from django_filters import FilterSet
from hypothesis import given
from hypothesis import strategies as st

from controlplane.accounts.models import User
from controlplane.api import decisions, jobs, maintenance, overview, timeline
from controlplane.api.live import read
from controlplane.api.serializers import StrictSerializer
from controlplane.queries.decisions import DecisionFilter
from controlplane.queries.devices import DeviceFilter
from controlplane.queries.events import EventFilter
from controlplane.queries.filters import UserFilterSet
from controlplane.queries.jobs import JobFilter
from controlplane.queries.maintenance import WindowFilter
from controlplane.queries.nodes import NodeFilter
from controlplane.queries.topology import TopologyFilter
from controlplane.wellformed import LARGEST_WHOLE, MOST_PARAMETERS, fault_of_query
from tests.controlplane.conftest import town  # noqa: F401  the fixture
from tests.controlplane.people import Town
from tests.fuzz.hostile import WORDS

QUERIES = [
    jobs.EventQuerySerializer,
    jobs.LogQuerySerializer,
    jobs.MetricQuerySerializer,
    jobs.StreamQuerySerializer,
    jobs.ValueQuerySerializer,
    decisions.DifferenceQuerySerializer,
    decisions.WaitQuerySerializer,
    maintenance.DryRunSerializer,
    timeline.TimelineQuerySerializer,
    overview.LoadsQuerySerializer,
    overview.CapacityHistoryQuerySerializer,
]
FILTERS = [DecisionFilter, DeviceFilter, EventFilter, JobFilter, WindowFilter, NodeFilter, TopologyFilter]
QUOTED = st.sampled_from(WORDS) | st.text(max_size=30).map(
    lambda text: quote(text.encode("utf-8", "surrogatepass"), safe="")
)


def kept(value: Any) -> bool:
    """Whether the database can keep a value that was let in."""
    if isinstance(value, bool | None):
        return True
    if isinstance(value, int | Decimal):
        return abs(value) <= LARGEST_WHOLE
    return math.isfinite(value) if isinstance(value, float) else "\0" not in value


@given(st.sampled_from(QUERIES), st.data())
def test_each_parameter_is_read_or_refused(shape: type[StrictSerializer], data: Any) -> None:
    names = [*shape().fields, "other"]
    pairs = data.draw(st.lists(st.tuples(st.sampled_from(names), QUOTED), max_size=4))
    taken = shape(data=QueryDict("&".join(f"{name}={value}" for name, value in pairs)).dict())
    if taken.is_valid():
        assert all(kept(value) for value in taken.validated_data.values())
        assert "other" not in dict(pairs)


@given(st.sampled_from(FILTERS), st.data())
def test_each_filter_is_read_or_refused(shape: type[FilterSet], data: Any) -> None:
    pairs = data.draw(st.lists(st.tuples(st.sampled_from([*shape.base_filters]), QUOTED), max_size=4))
    query = QueryDict("&".join(f"{name}={value}" for name, value in pairs))
    user = {"user": User()} if issubclass(shape, UserFilterSet) else {}
    form = shape(query, User.objects.none(), **user).form
    if form.is_valid():
        assert all(kept(value) for value in form.cleaned_data.values())


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
