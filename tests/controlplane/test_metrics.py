"""``/metrics``: who may read it, that it says what is true, and that counters only rise."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest
from django.contrib.auth.models import Group, Permission
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics
from prometheus_client.parser import text_string_to_metric_families as prometheus

from controlplane import counted
from controlplane.accounts.models import Project, User
from controlplane.jobs.models import Job
from controlplane.observability import exposition, gathering, tallies
from controlplane.observability.catalogue import BY_NAME, METRICS
from controlplane.observability.models import Tally
from controlplane.pools.models import Quota
from tests.controlplane.people import Person, Town
from tests.record.yard import stage

Series = dict[tuple[str, frozenset[tuple[str, str]]], float]


@pytest.fixture(autouse=True)
def own_counts(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Nothing of other tests in Redis, and nothing kept for the next scrape."""
    monkeypatch.setattr(counted, "KEY", "test:counted")
    monkeypatch.setattr(counted, "SOCKETS", "test:sockets")
    monkeypatch.setattr(exposition, "KEPT_S", 0)
    yield
    with counted.connect() as redis:
        redis.delete("test:counted", "test:counted:sum", "test:sockets")


def scrape(person: Person, accept: str = "application/openmetrics-text") -> Series:
    """The series of a scrape, read by Prometheus' own parser of the format."""
    answer = person.client.get("/metrics", headers={"Accept": accept})
    assert answer.status_code == 200, answer.content
    read = openmetrics if answer["Content-Type"].startswith("application/openmetrics-text") else prometheus
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in read(answer.content.decode())
        for sample in family.samples
    }


def value(series: Series, name: str, **labels: str) -> float | None:
    """The one value of this name with these labels among others."""
    found = [v for (n, its), v in series.items() if n == name and labels.items() <= dict(its).items()]
    assert len(found) < 2, found
    return found[0] if found else None


def test_smoke(town: Town) -> None:
    agent = town.machine()
    town.running(agent)
    for (name, labels), v in scrape(town.staff).items():
        print(name, dict(labels), v)
